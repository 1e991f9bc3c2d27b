"""The writer of a DataFrame: which load it begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as spark

from trimtab.client.errors import SchemaError
from trimtab.spark import writing
from trimtab.spark.loading import LoadRequest, LoadRun

VOID = spark.ArrayType(spark.NullType(), containsNull=False)  # of `array()`
GIVEN = {"peer": "127.0.0.1:4100", "table": "shop.users"}


def test_a_job_that_is_tried_again_goes_on_with_its_load_id_though_the_first_try_was_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[LoadRequest] = []

    def begin_again(_cluster: object, request: LoadRequest) -> Any:
        begun.append(request)
        return SimpleNamespace(plan=request.id)

    monkeypatch.setattr(writing, "cluster_for", lambda _connection: None)
    monkeypatch.setattr(writing, "prepare_table", lambda *_: None)
    monkeypatch.setattr(LoadRun, "begin_again", begin_again)
    schema: Any = None
    writing.writer(schema, GIVEN | {"loadId": "nightly"}, False)
    writing.writer(schema, GIVEN, True)
    writing.writer(schema, GIVEN, True)
    assert begun[0].id == "nightly"
    assert len({each.id for each in begun}) == 3, "without an id each write is a load of its own"


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (VOID, "array<void>"),
        (spark.ArrayType(VOID), "array<array<void>>"),
        (spark.StructType().add("a", VOID), "struct<a:array<void>>"),
        (spark.MapType(spark.NullType(), spark.NullType(), False), "map<void,void>"),
        (spark.YearMonthIntervalType(), "interval year to month"),
    ],
)
def test_a_column_that_arrow_has_no_type_for_is_named(kind: spark.DataType, shown: str) -> None:
    schema = spark.StructType().add("id", spark.LongType()).add("l", kind)
    nobody: Any = None
    with pytest.raises(SchemaError, match=f"column l: there is no type of CQL for Spark's {shown}; cast it"):
        writing.prepare_table(nobody, nobody, schema)
