"""Scans in the test's own process: the tasks of a read one after the other, and what they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.spark.planning import partitions, schema
from trimtab.spark.reading import read_partition
from trimtab.spark.scan_plan import ScanPartition, ScanStats

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True)
class Scanned:
    rows: list[dict[str, Any]]
    stats: dict[str, int]
    read_bytes: int
    partitions: list[ScanPartition]


def scan(peer: str, table: str, filters: Sequence[Filter] = (), **options: Any) -> Scanned:
    """Plan and read a table as Spark would."""
    given = {"peer": peer, "table": table, **{name: str(value) for name, value in options.items()}}
    return run(partitions(given, schema(given), filters))


def run(planned: list[ScanPartition], attempt: int = 0) -> Scanned:
    stats = ScanStats()
    before = _read_bytes()
    rows = [row for each in planned for batch in read_partition(each, attempt, stats) for row in batch.to_pylist()]
    return Scanned(rows, stats.counts, _read_bytes() - before, planned)


def _read_bytes() -> int:
    """What this process has read from files and sockets."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))
