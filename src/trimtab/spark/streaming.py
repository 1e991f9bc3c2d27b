"""A sink of Structured Streaming: `df.writeStream.format("trimtab")`. Each micro batch counts exactly once.

The load of a micro batch is named by the query, whose id is kept in its checkpoint, and the batch's number. Spark runs
a batch again when it does not know that it was done; then the name is found among the table's loads, and nothing is
written a second time. Tasks learn both from Spark's properties of the job; the commit is told the number by Spark, and
the query by the tasks.

Tasks with few rows, and few bytes of them, send them along with their message. If all of a batch's are few, the commit
writes them without files; else they become one more part of the load that the other tasks have staged. So they do if
a partition has more of them than can be written so (`direct.NotDirect`). Both follow from the batch's rows alone.

    <query and batch, hashed>-d      its load without files
    <query and batch, hashed>-f      its load with files; -f-1, -f-2, … where those before were aborted
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from trimtab.client.errors import Error
from trimtab.loads.attempts import attempt_ids
from trimtab.loads.records import STREAM, LoadKind, LoadState
from trimtab.spark.contact import Cluster, cluster_for
from trimtab.spark.direct import NotDirect, write_directly
from trimtab.spark.load_plan import LoadFailed, LoadPlan, StagedPart
from trimtab.spark.loading import LoadRun
from trimtab.spark.plain_errors import told_plainly
from trimtab.spark.requests import request_of
from trimtab.spark.tasks import run_task
from trimtab.spark.write_options import WriteOptions, stream_options
from trimtab.spark.writing import prepare_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
DIRECT_BYTES = 4 << 20  # of few rows: messages of all tasks are in the memory of Spark's driver at once
_QUERY_DIGITS = 12
_DIGITS = 32
_COUNTED = frozenset((LoadState.COMMITTED, LoadState.PUBLISHED, LoadState.ROLLED_BACK))


@dataclass(frozen=True)
class BatchMessage(WriterCommitMessage):
    """What a task tells the commit: its few rows as an Arrow stream, or what it staged and for which plan."""

    batch: str
    rows: int = 0
    stream: bytes = b""
    plan: LoadPlan | None = None
    part: StagedPart | None = None


class StreamSink(DataSourceStreamArrowWriter):
    """Spark makes one for every step of every batch, so it does nothing until it is asked to."""

    def __init__(self, options: WriteOptions, overwrite: bool) -> None:
        self.options = options
        self.kind = LoadKind.OVERWRITE if overwrite else LoadKind.APPEND

    def write(self, iterator: Iterator[Any]) -> BatchMessage:
        batch = _batch_of_task()
        few, rest = _first_rows(iterator, self._few)
        if rest is None:
            return BatchMessage(batch, sum(each.num_rows for each in few), _packed(few))
        run = self._begin(cluster_for(self.options.connection), batch)
        part = run_task(run.plan, lambda _: chain(few, rest))
        return BatchMessage(batch, part.rows, plan=run.plan, part=part)

    @told_plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        told = [each for each in messages if isinstance(each, BatchMessage)]
        if not told:
            return
        cluster = cluster_for(self.options.connection)
        batch = _only({each.batch for each in told}, batchId)
        if self._done_before(cluster, batch):
            self._give_up(told, "the batch was loaded before")
            return
        few = list(chain.from_iterable(_unpacked(each.stream) for each in told if each.stream))
        staged = [each for each in told if each.part is not None]
        # What overwrites does so without any rows, too.
        appends = self.kind is LoadKind.APPEND
        if appends and not staged and _first_rows(few, self._few)[1] is None:
            if not any(each.num_rows for each in few):
                return
            import pyarrow as pa

            with suppress(NotDirect):
                write_directly(cluster, self._request(f"{batch}-d"), pa.Table.from_batches(few))
                return
        self._commit_files(cluster, batch, staged, few)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._give_up([each for each in messages if isinstance(each, BatchMessage)], "a task of the batch failed")

    @property
    def _few(self) -> int:
        return self.options.direct_rows if self.kind is LoadKind.APPEND else 0

    def _commit_files(self, cluster: Cluster, batch: str, staged: Sequence[BatchMessage], few: Sequence[Any]) -> None:
        plans = {each.plan.id: each.plan for each in staged if each.plan is not None}
        if len(plans) > 1:
            self._give_up(staged, "its tasks belong to different attempts")
            raise LoadFailed(f"tasks of batch {batch} staged for different attempts of it; start the query again")
        run = LoadRun(cluster, next(iter(plans.values()))) if plans else self._begin(cluster, batch)
        parts = [each.part for each in staged if each.part is not None]
        if any(each.num_rows for each in few):
            parts.append(run_task(run.plan, lambda _: few))
        run.commit(parts)

    def _begin(self, cluster: Cluster, batch: str) -> LoadRun:
        """The batch's load with files, as every task finds it: the first that was not aborted."""
        return LoadRun.begin_again(cluster, self._request(f"{batch}-f"))

    def _done_before(self, cluster: Cluster, batch: str) -> bool:
        """Whether an earlier run of the batch counts, with files or without; or did, until an operator dropped it.

        The first attempt that is not known is the last: those that ended are remembered as long as a later one.
        """
        table, _ = cluster.table(self.options.table)
        for id in (f"{batch}-d", *attempt_ids(f"{batch}-f")):
            record = cluster.show(table.id, id)
            if record is None and not id.endswith("-d"):
                return False
            if record is not None and record.state in _COUNTED:
                return True
        return False

    def _give_up(self, messages: Sequence[BatchMessage], reason: str) -> None:
        for plan in {each.plan.id: each.plan for each in messages if each.plan is not None}.values():
            if not plan.done:
                # Where nobody answers, its lease ends it.
                with suppress(Error):
                    LoadRun(cluster_for(plan.connection), plan).abort(reason)

    def _request(self, id: str) -> Any:
        return request_of(self.options, id, self.kind, f"{STREAM} {id[:_QUERY_DIGITS]}")


def stream_writer(schema: StructType, given: Mapping[str, str], overwrite: bool) -> StreamSink:
    """The sink, when options, table and columns are right."""
    options = stream_options(given)
    prepare_table(cluster_for(options.connection), options, schema)
    return StreamSink(options, overwrite)


def batch_name(query: str, number: str) -> str:
    """The names of a query's batches begin alike."""
    own, batch = (hashlib.sha256(text.encode()).hexdigest() for text in (query, f"{query}/{number}"))
    return own[:_QUERY_DIGITS] + batch[: _DIGITS - _QUERY_DIGITS]


def _batch_of_task() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
    number = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
    if not query or number is None:
        raise LoadFailed("this task is of no micro batch; continuous processing is not supported")
    return batch_name(query, number)


def _only(batches: set[str], number: int) -> str:
    if len(batches) != 1:
        raise LoadFailed(f"the tasks of batch {number} don't agree which batch it is; start the query again")
    return next(iter(batches))


def _first_rows(batches: Iterable[Any], limit: int) -> tuple[list[Any], Iterator[Any] | None]:
    """Batches with up to so many rows in all, and few bytes, and None; or those that were looked at, and the rest."""
    held, rows, size_bytes, left = [], 0, 0, iter(batches)
    for batch in left:
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows > limit or size_bytes > DIRECT_BYTES:
            return held, left
    return held, None


def _packed(batches: Sequence[Any]) -> bytes:
    import pyarrow as pa

    if not batches:
        return b""
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    found: bytes = target.getvalue().to_pybytes()
    return found


def _unpacked(data: bytes) -> list[Any]:
    import pyarrow as pa

    return list(pa.ipc.open_stream(data))
