"""Reads tables with Spark: the reader that Spark asks for partitions, and what a task does with one.

A task opens copies of replicas, leaves out the stamps of loads that its epoch does not see, merges the pairs of several
replicas where a quorum is asked for, and decodes whole columns into Arrow batches. No row becomes a Python object
unless it has several versions, deletions or collections.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from trimtab.catalog.types import parse
from trimtab.rows.column_meta import TTL_LEFT, WRITETIME
from trimtab.rows.column_reading import ColumnReader
from trimtab.rows.keys import TAIL
from trimtab.rows.layout import RowLayout
from trimtab.rows.ragged import Ragged
from trimtab.spark.plain_errors import told_plainly
from trimtab.spark.replica_snapshots import ReplicaSnapshots
from trimtab.spark.scan_plan import ScanPart, ScanPartition, ScanPlan, ScanStats
from trimtab.spark.types import to_spark
from trimtab.storage.sorted_streams import merged

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

_LATEST = (1 << 63) - 1
Batch = tuple[Ragged, Ragged]


class TableReader(DataSourceReader):
    """Of one read. Spark pickles it for the tasks, which only use `read`."""

    def __init__(self, schema: StructType, given: Mapping[str, str]) -> None:
        self._schema = schema
        self._given = dict(given)
        self._filters: list[Filter] = []

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        from trimtab.spark.planning import partitions

        return partitions(self._given, self._schema, self._filters)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, ScanPartition):
            yield from read_partition(partition, _attempt(), ScanStats())

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_given": {}, "_filters": []}


class NarrowingReader(TableReader):
    """The same, told of filters. Only for sessions in which every query plans its own read (`fresh_scans`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Filters narrow what is read; Spark applies all of them to what comes."""
        self._filters = list(filters)
        yield from filters


def reader(schema: StructType, given: Mapping[str, str], *, narrows: bool = False) -> DataSourceReader:
    return (NarrowingReader if narrows else TableReader)(schema, given)


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def read_partition(
    partition: ScanPartition, attempt: int, stats: ScanStats, copies: ReplicaSnapshots | None = None
) -> Iterator[Any]:
    """Arrow batches in the form that Spark takes, of all live rows of these parts; read from `copies`, if given."""
    plan = partition.plan
    decoder = _Decoder(plan)
    # Nothing here makes cycles, and looking for them costs more than the work itself.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with copies or ReplicaSnapshots(plan, partition.parts, attempt, stats) as snapshots:
            for part in partition.parts:
                for batch in decoder.decode(pairs(plan, part, snapshots)):
                    stats.add("rows", batch.num_rows)
                    yield batch
    finally:
        if collecting:
            gc.enable()


def no_rows(plan: ScanPlan) -> Any:
    """A batch without rows, in the form of those that a read of the plan's columns gives."""
    import pyarrow as pa

    from trimtab.rows.arrow_types import arrow_type

    types = {column.name: parse(column.type, plan.types) for column in plan.table.columns}
    arrays = [to_spark(types[name], pa.array([], arrow_type(types[name]))) for name in plan.columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(plan.columns))


def pairs(plan: ScanPlan, part: ScanPart, snapshots: ReplicaSnapshots) -> Iterator[Batch]:
    """The stored pairs of a part, in order, of as many replicas as the level needs, each pair once."""
    replicas = snapshots.of(part)
    for low, high in part.ranges:
        streams = [without(snapshot.batches(low, high, verify=plan.verify), hidden) for snapshot, hidden in replicas]
        yield from streams[0] if len(streams) == 1 else merged(streams)


def without(batches: Iterator[Batch], stamps: frozenset[int]) -> Iterator[Batch]:
    """The pairs that don't have one of these stamps."""
    import numpy as np

    if not stamps:
        yield from batches
        return
    inverted = np.array([_LATEST - stamp for stamp in sorted(stamps)], dtype=np.uint64)
    for keys, values in batches:
        kept = np.flatnonzero(~np.isin(keys.numbers(-TAIL, ">u8").astype(np.uint64), inverted))
        if len(kept) == len(keys):
            yield keys, values
        elif len(kept):
            yield keys.take(kept), values.take(kept)


class _Decoder:
    """From pairs to what Spark takes. One for a whole task."""

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan
        self._layout = RowLayout(plan.table, plan.types)
        self._ids = {column.name: column.id for column in plan.table.columns}
        self._types = {column.name: parse(column.type, plan.types) for column in plan.table.columns}
        self._meta = sorted(
            {
                name.removeprefix(prefix)
                for name in plan.names
                for prefix in (WRITETIME, TTL_LEFT)
                if name not in self._ids and name.startswith(prefix)
            }
        )

    def decode(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """A reader of its own for each part: what it knows of a partition must not go over to another tablet."""
        plan = self._plan
        ids, meta = ([self._ids[name] for name in names] for names in (plan.columns, self._meta))
        made = ColumnReader(self._layout, ids, now_s=plan.now_s, as_of_us=plan.as_of_us, meta=meta)
        for batch in made.read(batches):
            yield self._converted(batch)

    def _converted(self, batch: Any) -> Any:
        import pyarrow as pa

        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in self._plan.columns:
            arrays[name] = to_spark(self._types[name], arrays[name])
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._plan.names], names=list(self._plan.names))
