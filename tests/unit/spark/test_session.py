"""What sessions are started with."""

from __future__ import annotations

import pytest

from trimtab.spark.session import batch_rows, defaults, java_options

_GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory_gib", "tasks", "rows"),
    [(12, 2, 1024), (64, 2, 4096), (8, 8, 512), (1, 64, 512)],
)
def test_a_batch_has_as_many_rows_as_fit_if_they_are_wide(memory_gib: int, tasks: int, rows: int) -> None:
    assert batch_rows(memory_gib * _GIB, tasks) == rows


def test_rows_are_counted_on_this_machine_and_measured_by_spark_on_others() -> None:
    here = defaults("local[2,4]", 2, 24 * _GIB)
    assert here["spark.sql.execution.arrow.maxRecordsPerBatch"] == "1024"
    assert here["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    elsewhere = defaults("spark://other:7077", 2, 24 * _GIB)
    assert not [name for name in elsewhere if "PerBatch" in name]


@pytest.mark.parametrize("given", ["", "-Xss4m"])
def test_java_has_room_for_wide_rows_and_a_collector_for_throughput(given: str) -> None:
    assert java_options({}, 24 * _GIB, given) == [f"-XX:MaxDirectMemorySize={12 * _GIB}", "-XX:+UseParallelGC"]


@pytest.mark.parametrize(
    ("variables", "given"), [({}, "-Xss4m -XX:+UseG1GC"), ({"JAVA_TOOL_OPTIONS": "-XX:+UseG1GC"}, "")]
)
def test_java_is_not_given_a_second_collector(variables: dict[str, str], given: str) -> None:
    assert java_options(variables, 24 * _GIB, given) == [f"-XX:MaxDirectMemorySize={12 * _GIB}"]
