"""A session that begins, does a little of everything, and ends: those of the tests find its class archive.

They begin at about the same time, and end with the whole run or are killed, so none would find one of another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import tests.conftest  # noqa: F401 - with the options that Java has in tests
from trimtab.spark import session, stop


def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    spark = session(master="local[1]")
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.range(100).selectExpr("id", "cast(id as string) as name")
        frame.mapInArrow(passed_on, frame.schema).sort("name").write.parquet(str(Path(folder) / "rows"))
        spark.read.parquet(str(Path(folder) / "rows")).groupBy("name").count().collect()
        spark.sql("select count(*), sum(id) from range(10)").collect()
    stop(spark)  # Java writes the archive when it ends, and this waits for that


if __name__ == "__main__":
    main()
