from __future__ import annotations

from typing import Any

from trimtab.spark import fresh_scans
from trimtab.spark.reading import reader
from trimtab.spark.source import TrimtabSource, source_for


def test_a_session_without_a_java_of_its_own_gets_no_push_down() -> None:
    connected: Any = object()
    assert fresh_scans.install(connected) is False


def test_filters_reach_the_reader_only_where_every_query_plans_its_own_read() -> None:
    """Spark asks whether the method is there: without it no filter is told, and no plan depends on one."""
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    plain, narrowing = (reader(StructType([]), {}, narrows=narrows) for narrows in (False, True))
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    assert type(narrowing).pushFilters is not DataSourceReader.pushFilters
    assert not TrimtabSource.narrows
    assert source_for("a:1", narrows=True).narrows
