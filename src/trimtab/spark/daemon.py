"""The process from which Spark forks its Python workers, with all loaded that reading, writing and copying need.

Workers come with pyarrow, numpy and our own modules in memory that they share, and out of sight of the garbage
collector, which Spark runs after every task. Measured, that makes a small task three times cheaper.

They also keep the memory that they have freed (`keep_memory`). Whole columns are large, and a large piece would go back
to the system as soon as it is free: for the next one the system clears the same pages again, which was a third of all
that a worker did in a load. Spark ends workers that had nothing to do for a minute, and with them it goes back.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
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

# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_KEPT_BYTES = 128 << 20  # at the end of the heap; more goes back after all
_GROWN_BYTES = 16 << 20  # the heap grows by so much at least
# Arrow's own pools would give back by rules of their own.
_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"


def main() -> None:
    keep_memory()
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


def keep_memory() -> bool:
    """Let this process, and those that are forked from it, use again what they have freed. Before pyarrow is loaded.

    False: the C library has no such setting, and everything is as it was.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _GROWN_BYTES))
    taken = all(done == 1 for done in [mallopt(what, value) for what, value in settings])
    if taken:
        os.environ.setdefault(_ARROW_POOL, "system")
    return taken


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
