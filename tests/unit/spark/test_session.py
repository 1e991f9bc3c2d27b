"""What sessions are started with."""

from __future__ import annotations

import pytest

from trimtab.spark.session import batch_rows, defaults

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
    assert here["spark.driver.extraJavaOptions"] == f"-XX:MaxDirectMemorySize={12 * _GIB}"
    elsewhere = defaults("spark://other:7077", 2, 24 * _GIB)
    assert not [name for name in elsewhere if "PerBatch" in name or "JavaOptions" in name]
