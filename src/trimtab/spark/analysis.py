"""A table's tablets, analysed: as a job does it, and as a DataFrame for whoever wants to look closer.

    import trimtab.spark
    trimtab.spark.analyze("shop.users").orderBy("bytes").show()

One replica of each tablet is read, in a task, at one epoch. Which partitions are asked for most nobody counts; the
largest are what makes reads and compactions slow, so those are what is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.rows.column_reading import ColumnReader
from trimtab.rows.layout import RowLayout
from trimtab.spark.options import PEER
from trimtab.spark.reading import Batch, pairs
from trimtab.spark.replica_snapshots import ReplicaSnapshots
from trimtab.spark.scan_plan import ScanPartition, ScanStats
from trimtab.spark.tablet_figures import TOP, TabletFigures
from trimtab.tablets.ring import token_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class AnalyzedTablet:
    """Plain values, which can be sent. `largest` partitions with their keys as JSON; bytes are before compression."""

    tablet: int
    first_token: int
    last_token: int
    rows: int
    partitions: int
    versions: int
    deletions: int
    size_bytes: int
    file_bytes: int
    histogram: tuple[int, ...]
    largest: tuple[dict[str, Any], ...]

    def short(self) -> dict[str, Any]:
        largest = self.largest[0]["bytes"] if self.largest else 0
        return {"rows": self.rows, "partitions": self.partitions, "bytes": self.size_bytes, "largest": largest}


def analyze_tablet(partition: ScanPartition, attempt: int, top: int = TOP) -> AnalyzedTablet:
    """In a task: one tablet, in one pass."""
    plan, (part,) = partition.plan, partition.parts
    layout = RowLayout(plan.table, plan.types)
    figures = TabletFigures(part.tablet, plan.table.tablets, top=top)

    def seen(batches: Iterator[Batch]) -> Iterator[Batch]:
        for keys, values in batches:
            figures.add(keys, values)
            yield keys, values

    reader = ColumnReader(layout, [layout.partition[0].id], now_s=plan.now_s)
    with ReplicaSnapshots(plan, partition.parts, attempt, ScanStats()) as copies:
        rows = sum(int(batch.num_rows) for batch in reader.read(seen(pairs(plan, part, copies))))
    figures.finish()
    first, last = token_range(part.tablet, plan.table.tablets)
    return AnalyzedTablet(
        part.tablet,
        first,
        last,
        rows,
        figures.partitions,
        figures.pairs,
        figures.deletions,
        figures.size_bytes,
        part.size_bytes,
        tuple(figures.histogram),
        tuple({"tablet": part.tablet, **each.told(layout)} for each in figures.largest),
    )


def largest_of(found: list[AnalyzedTablet], top: int) -> list[dict[str, Any]]:
    """The largest partitions of all tablets."""
    every = [each for tablet in found for each in tablet.largest]
    return sorted(every, key=lambda each: -each["bytes"])[:top]


def analyze(
    table: str,
    *,
    spark: SparkSession | None = None,
    peer: str = "",
    top: int = TOP,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """One row a tablet: tablet, first_token, last_token, rows, partitions, versions, deletions, bytes, file_bytes,
    histogram (partitions in equal parts of its tokens) and largest (partitions: key as JSON, bytes, versions).

    `spark`: the session to use, else the one that runs. `peer` and `options` as for reading.
    """
    import json

    from pyspark.sql import SparkSession

    from trimtab.spark import planning

    session = spark or SparkSession.active()
    given = dict(options or {}) | {"table": table}
    if default := peer or session.conf.get(PEER, ""):
        given.setdefault("peer", default)
    given["columns"] = planning.schema(given).fields[0].name
    parts = [
        ScanPartition(partition.plan, (part,))
        for partition in planning.partitions(given, planning.schema(given), [])
        for part in partition.parts
    ]

    def one(partition: ScanPartition) -> tuple[Any, ...]:
        found = analyze_tablet(partition, 0, top)
        largest = [(json.dumps(each["key"]), each["bytes"], each["versions"]) for each in found.largest]
        return (
            *(found.tablet, found.first_token, found.last_token, found.rows, found.partitions, found.versions),
            *(found.deletions, found.size_bytes, found.file_bytes, list(found.histogram), largest),
        )

    rows = session.sparkContext.parallelize(parts, len(parts)).map(one).collect()
    return session.createDataFrame(
        sorted(rows),
        "tablet int, first_token long, last_token long, rows long, partitions long, versions long, deletions long, "
        "bytes long, file_bytes long, histogram array<long>, "
        "largest array<struct<key: string, bytes: long, versions: long>>",
    )
