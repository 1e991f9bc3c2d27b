"""The program that test_standalone runs on a Spark cluster of its own: it does everything once, and tells what it saw.

It is a process of its own, because a process has one session of Spark. The executors are another user's; what they need
of this file Spark sends them, since it is run as a program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trimtab.spark
from tests.spark.job_running import Jobs
from tests.spark.lone_rows import put_at_one
from trimtab.client.loads import BlockingLoads
from trimtab.jobs.records import JobKind
from trimtab.loads.protocol import BeginRequest
from trimtab.spark import session, stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000
LONE = 9_001  # the id of a row that one replica lacks
TOLD = "TOLD "
_STREAM_S = 240
_HELD_S = 200
_WAITS, _TWIN = "waits", "twin"  # files by which the two attempts at a task know of each other
_SLOW = "spark.speculation.multiplier"  # so many times as long as others take
_SUMS = ("count(*)", "sum(id)", "sum(length(name))")


def started(peer: str, master: str) -> SparkSession:
    return session(
        peer=peer,
        master=master,
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "600m",
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],  # as the driver's
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
            # Twins of slow tasks are possible, and nobody is slow yet: see `Story.twins`.
            "spark.speculation": "true",
            "spark.speculation.efficiency.enabled": "false",
            _SLOW: "100000",
        },
    )


class Story:
    """Of one table, and of others that are called after it; `shared` is a directory of the executors' group."""

    def __init__(self, spark: SparkSession, peer: str, table: str, shared: Path, private: Path) -> None:
        self.spark, self.peer, self.table, self.shared, self.private = spark, peer, table, shared, private
        self.jobs = Jobs(spark, peer)
        self.people = spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('user ', id) as name", "id / 2 as half")

    def read(self, suffix: str = "", **options: str) -> DataFrame:
        return self.spark.read.format("trimtab").option("table", self.table + suffix).options(**options).load()

    def append(self, frame: DataFrame, suffix: str = "", **options: str) -> None:
        made = {"primaryKey": "id", "replication": "3", "tablets": "4"} | options
        frame.write.format("trimtab").mode("append").options(**made).save(self.table + suffix)

    def rows(self) -> dict[str, Any]:
        """In, and out again."""
        self.append(self.people)
        users = self.spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getuid()).collect()
        return {"users": users, "sums": list(self.read().selectExpr(*_SUMS).collect()[0])}

    def replicas(self, loads: BlockingLoads) -> dict[str, Any]:
        """Compared, made equal, and copied."""
        found, repaired, lone = self.lone_row(loads)
        table = loads.catalog.find(self.table)
        assert table is not None
        name, (one, two, three) = f"copies-{table.id}", sorted(loads.instances)
        loads.begin(BeginRequest(name, table.id, table.version, lease_ms=600_000))
        copies = [{"tablet": 0, "target": one, "sources": [two]}, {"tablet": 1, "target": one, "sources": [two, three]}]
        streamed = self.jobs(JobKind.STREAM, {"table": self.table, "session": name, "copies": copies})
        loads.abort(table.id, name, "the copies were only looked at")
        return {
            "lone": lone,
            "lacking": [(each["key"]["id"], each["lacking"]) for each in found["listed"]],
            "lacked": repaired["rows_lacked"],
            "repaired": repaired["repaired_tablets"],
            "equal": self.jobs(JobKind.VERIFY, {"table": self.table, "settle_s": 0})["equal"],
            "copied": [streamed["copies"], streamed["failed"], streamed["sent_bytes"] > 0],
        }

    def lone_row(self, loads: BlockingLoads) -> tuple[dict[str, Any], dict[str, Any], int]:
        """What verify and repair find of a row that one replica lacks, and how many there were.

        Somebody else may bring it between the two: an instance that had no processor for long is caught up when it
        returns, and a task that Spark tries again has sent the row already. Then another one is put.
        """
        for number in range(LONE, LONE + 3):
            put_at_one(loads, self.table, number, "i2", missing=True)
            found = self.jobs(JobKind.VERIFY, {"table": self.table, "settle_s": 0})
            repaired = self.jobs(JobKind.REPAIR, {"table": self.table})
            if found["listed"] and repaired["rows_lacked"]:
                break
        return found, repaired, number - LONE + 1

    def read_otherwise(self, moment_us: int) -> dict[str, Any]:
        """As it was at a moment; as a quorum has it; and by SQL, of a view."""
        self.spark.sql(f"CREATE TEMPORARY VIEW people USING trimtab OPTIONS (table '{self.table}')")
        by_sql = self.spark.sql("SELECT name, half FROM people WHERE id IN (7, 8) ORDER BY id")
        return {
            "as_of": list(self.read(asOf=str(moment_us)).selectExpr(*_SUMS).collect()[0]),
            "quorum": self.read(consistency="QUORUM").count(),
            "by_sql": list(map(list, by_sql.collect())),
        }

    def files(self, moment_us: int) -> dict[str, Any]:
        """Loaded, bad lines aside; counted and analysed; exported as of a moment before, and loaded from there."""
        given = {"onError": "reject", "rejected": str(self.shared / "aside")}
        loaded = self.jobs(
            JobKind.LOAD, {"table": self.table, "paths": [str(self.shared / "more.csv")], "options": given}
        )
        counted = self.jobs(JobKind.COUNT, {"table": self.table, "consistency": "QUORUM"})
        analysed = self.jobs(JobKind.ANALYZE, {"table": self.table})
        frame = trimtab.spark.analyze(self.table, spark=self.spark)
        out = str(self.shared / "backup")
        exported = self.jobs(JobKind.EXPORT, {"table": self.table, "path": out, "as_of_us": moment_us})
        again = {"table": f"{self.table}_again", "paths": [out], "schema_from": out}
        return {
            "loaded": [loaded["rows"], loaded["rejected"]],
            "counted": counted["rows"],
            "analysed": [analysed["rows"], analysed["partitions"], sum(row.rows for row in frame.collect())],
            "exported": exported["rows"],
            "again": self.jobs(JobKind.LOAD, again)["rows"],
        }

    def stream(self) -> None:
        """Two micro batches: one of few rows, and one with files."""
        source = self.spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1)
        writing = source.json(str(self.shared / "events")).writeStream.format("trimtab").trigger(availableNow=True)
        made = {"primaryKey": "id", "replication": "3", "tablets": "2", "directRows": "50"}
        place = {"table": f"{self.table}_events", "checkpointLocation": str(self.private / "checkpoint")}
        assert writing.options(**made, **place).start().awaitTermination(_STREAM_S)

    def overwritten(self) -> list[int]:
        new = self.people.filter("id < 100").selectExpr("id", "concat('new ', id) as name")
        new.write.format("trimtab").mode("overwrite").option("table", self.table).save()
        return list(self.read().selectExpr(*_SUMS).collect()[0])

    def killed(self) -> dict[str, Any]:
        """A load in the middle of which an executor dies."""
        wide = self.spark.range(0, 4 * ROWS, 1, 2).selectExpr("id", "repeat(sha2(cast(id as string), 512), 8) as text")
        self.append(wide.mapInArrow(fatal, "id long, text string, attempt int"), "_killed", chunkRows="1000")
        found = self.read("_killed")
        attempts = sorted(map(list, found.groupBy("attempt").count().collect()))
        return {"attempts": attempts, "texts": found.join(wide, ["id", "text"]).count()}

    def twins(self) -> dict[str, Any]:
        """A load with a task that is so slow that another executor is given it as well: both have its rows."""
        context: Any = self.spark.sparkContext
        context._jsc.sc().conf().set(_SLOW, "1.1")
        shared, numbers = str(self.shared), self.spark.range(0, 4 * ROWS, 1, 2)
        held = numbers.mapInArrow(lambda batches: slow(batches, shared), "id long, attempt int")
        # A row of either attempt has a key of its own, so that both would be seen.
        self.append(held, "_twins", primaryKey="id,attempt", chunkRows="1000")
        marks = [self.shared / mark for mark in (_WAITS, _TWIN)]
        had_twin = marks[1].exists()
        for mark in marks:
            mark.unlink(missing_ok=True)
        found = self.read("_twins")
        attempts = sorted(map(list, found.groupBy("attempt").count().collect()))
        return {"had_twin": had_twin, "by_attempt": attempts, "ids": found.select("id").distinct().count()}


def slow(batches: Iterator[Any], folder: str) -> Iterator[Any]:
    """The first attempt at the first task stands still, most of its rows staged, until its twin is at its end."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    task, attempt = context.partitionId(), context.attemptNumber()
    waits, twin = Path(folder, _WAITS), Path(folder, _TWIN)
    for number, batch in enumerate(batches):
        if number == 3 and task == attempt == 0:
            waits.touch()
            until = time.monotonic() + _HELD_S
            while not twin.exists():
                if time.monotonic() > until:
                    waits.unlink()
                    raise TimeoutError("no twin has come")
                time.sleep(0.02)
        own = pa.array([attempt] * batch.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([*batch.columns, own], names=["id", "attempt"])
    if task == 0 and attempt and waits.exists():
        twin.touch()


def fatal(batches: Iterator[Any]) -> Iterator[Any]:
    """The first attempt at the first task kills its executor, when most of its rows are on their way."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 3 and context.partitionId() == context.attemptNumber() == 0:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            os.kill(int(daemon[1]), signal.SIGKILL)
        attempt = pa.array([context.attemptNumber()] * batch.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([*batch.columns, attempt], names=["id", "text", "attempt"])


def main(peer: str, master: str, table: str, shared: str, private: str) -> None:
    spark = started(peer, master)
    story = Story(spark, peer, table, Path(shared), Path(private))
    told = story.rows()
    moment_us = time.time_ns() // 1000
    with BlockingLoads(peer.split(","), timeout_s=90.0) as loads:
        told |= story.replicas(loads)
    told |= story.read_otherwise(moment_us)
    told |= story.files(moment_us)
    story.stream()
    told["overwritten"] = story.overwritten()
    told |= story.killed()
    told |= story.twins()
    print(TOLD + json.dumps(told))
    stop(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
