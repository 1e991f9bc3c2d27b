"""Micro batches that wait at chosen places until somebody dies there: see `held_loads` for the places.

Only the first attempt at the first task of a batch waits at "staging". All rows say in their column `attempt` which one
wrote them; where that is part of the key, a batch of which two attempts count has its rows twice.

Run as a program this is a driver of Spark with a query for each stream that `streams.json` of its folder names, until
it is killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.file_streams import Stream
from tests.spark.held_loads import HeldDoor, Hold, note_pids
from trimtab.spark import session
from trimtab.spark.contact import Cluster
from trimtab.spark.loading import LoadRun
from trimtab.spark.source import TrimtabSource
from trimtab.spark.streaming import BatchMessage, StreamSink, stream_writer
from trimtab.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "held_stream"
STREAMS = "streams.json"
SCHEMA = "id long, attempt string"
FILES = 2  # of a batch: so many tasks has it
MASTER = "local[8,4]"  # every task has a core of its own, as far as Spark knows
LEASE = "300"  # seconds, which the slowest machine keeps
_CHUNK_ROWS = 50  # less than a write may ask for, so that small tasks have several chunks, too


class HeldSink(StreamSink):
    """Of a stream that is held, all of whose batches have files."""

    def __init__(self, options: WriteOptions, overwrite: bool, hold: Hold) -> None:
        super().__init__(replace(options, direct_rows=0), overwrite)
        self.hold = hold

    def write(self, iterator: Iterator[Any]) -> BatchMessage:
        return super().write(self._held(iterator))

    def _held(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        for batch in batches:
            own = pa.array([f"{task}-{attempt}"] * batch.num_rows)
            marked = pa.RecordBatch.from_arrays([batch.column("id"), own], names=["id", "attempt"])
            half = marked.num_rows // 2
            yield marked.slice(0, half)
            if task == attempt == 0:
                self.hold.at("staging")
            yield marked.slice(half)

    def _begin(self, cluster: Cluster, batch: str) -> LoadRun:
        run = super()._begin(cluster, batch)
        run.plan = replace(run.plan, chunk_rows=_CHUNK_ROWS)
        return run

    def _commit_files(self, cluster: Cluster, batch: str, staged: Sequence[BatchMessage], few: Sequence[Any]) -> None:
        door: Any = HeldDoor(cluster, self.hold)
        super()._commit_files(door, batch, staged, few)


class HeldStreams(TrimtabSource):
    """`format("held_stream")`, with the options held_folder, _name and _place besides those of a stream."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeldSink:
        given = self.given()
        hold = Hold.taken_from(given)
        return HeldSink(stream_writer(schema, given, overwrite).options, overwrite, hold)


def main(folder: Path, peer: str) -> None:
    spark = session(master=MASTER, **{"spark.driver.memory": "600m", "spark.trimtab.priority": "normal"})
    spark.dataSource.register(HeldStreams)
    note_pids(spark, folder)
    for name, (table, place) in json.loads((folder / STREAMS).read_text()).items():
        options = {"peer": peer, "lease": LEASE, "held_folder": str(folder), "held_name": name, "held_place": place}
        Stream(spark, table, folder / name, options, FILES, SCHEMA).start(FORMAT)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    # By its own name, so that Spark's workers find the classes there.
    from tests.spark import held_streams

    held_streams.main(Path(sys.argv[1]), sys.argv[2])
