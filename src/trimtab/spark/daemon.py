"""The process from which Spark forks its Python workers, with all loaded that reading, writing and copying need.

Workers come with pyarrow, numpy and our own modules in memory that they share, and out of sight of the garbage
collector, which Spark runs after every task. Measured, that makes a small task three times cheaper.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

PRELOADED = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "trimtab.spark.reading",
    "trimtab.spark.writing",
    "trimtab.storage.sst",
    "trimtab.rows.columns",
    "trimtab.rows.column_reading",
    "trimtab.pipeline.carrying",
)


def main() -> None:
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            # Only time is lost: a task that needs the module says what is wrong with it.
            continue
    gc.collect()
    gc.freeze()
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.worker = _quiet(daemon.worker)
    daemon.manager()


def _quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Without a word where Spark has read enough (`limit`, `first`) and hung up: that is no failure."""

    def work(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            return 1

    return work


if __name__ == "__main__":
    main()
