"""Micro batches of Structured Streaming: each counts once, whatever is run again."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trimtab
from tests.cluster.patience import put_rows
from tests.conftest import ROOT, Processes
from tests.files import files_below
from tests.spark.conftest import Cluster
from tests.spark.file_streams import RUN_S, Stream
from tests.spark.held_loads import PIDS
from tests.spark.held_streams import FILES, LEASE, SCHEMA, STREAMS
from tests.spark.staged import await_nothing_staged, await_true, loads_of, records
from tests.spark.trio import until
from trimtab.loads.records import LoadState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def events(db: trimtab.Database, keyspace: str) -> str:
    db.create_table(f"{keyspace}.events", {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=2)
    return f"{keyspace}.events"


@pytest.mark.parametrize("direct_rows", ["1000", "50"])
def test_a_batch_that_is_run_again_counts_once(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, events: str, tmp_path: Path, direct_rows: str
) -> None:
    stream = Stream(spark, events, tmp_path, {"directRows": direct_rows})
    stream.add(0, 0, 100)
    stream.add(1, 100, 200)
    stream.run()
    assert len(list(db.table(events).scan())) == 200
    before = records(cluster, events)
    assert [(load.state, load.direct, load.rows) for load in before] == [
        (LoadState.PUBLISHED, direct_rows == "1000", 100)
    ] * 2
    # What somebody wrote since stays, although the batch is run once more.
    put_rows(db.table(events), [{"id": 150, "name": "since"}])
    stream.forget_last()
    stream.run()
    assert db.table(events).get(id=150)["name"] == "since"
    assert db.table(events).get(id=151, with_meta=True).writetime["name"] == before[1].stamp_us
    assert records(cluster, events) == before
    stream.add(2, 200, 250)
    stream.run()
    assert len(list(db.table(events).scan())) == 250
    await_nothing_staged(cluster)


def test_a_batch_with_a_bad_row_ends_the_query_and_goes_on_when_it_is_allowed_to(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, events: str, tmp_path: Path
) -> None:
    stream = Stream(spark, events, tmp_path, {"directRows": "10"})
    stream.add(0, 0, 100)
    stream.add_lines(1, '{"name": "no key"}\n{"id": 500, "name": "good"}\n')
    with pytest.raises(Exception, match="key column id is null"):
        stream.run()
    assert len(list(db.table(events).scan())) == 100
    stream.options |= {"onError": "reject", "rejected": str(tmp_path / "aside")}
    stream.run()
    assert len(list(db.table(events).scan())) == 101
    assert [row["name"] for row in spark.read.parquet(str(tmp_path / "aside")).collect()] == ["no key"]


def test_a_value_that_is_too_large_for_a_request_goes_into_files_and_counts_once(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, events: str, tmp_path: Path
) -> None:
    """It ended the query for good, under either onError."""
    stream = Stream(spark, events, tmp_path)
    stream.add_lines(0, json.dumps({"id": 1, "name": "x" * 1_000_000}) + '\n{"id": 2, "name": "small"}\n')
    for _ in range(2):
        stream.run()
        loads = [(load.direct, load.state) for load in records(cluster, events)]
        assert loads == [(True, LoadState.ABORTED), (False, LoadState.PUBLISHED)]
        read = spark.read.format("trimtab").option("table", events).load()
        assert {row["id"]: len(row["name"]) for row in read.collect()} == {1: 1_000_000, 2: 5}
        stream.forget_last()


# What becomes of a batch with files whose driver is killed: where that is, the ends of its loads, and whose rows count.
KILLED = {
    "goes_on": ("staging", [("-f", LoadState.PUBLISHED)], {"again"}),
    "given_up": ("sealing", [("-f", LoadState.ABORTED), ("-f-1", LoadState.PUBLISHED)], {"again"}),
    "counted": ("staging,committed", [("-f", LoadState.PUBLISHED)], {"0-1", "1-0"}),
}
ROWS = 200  # of a task


def test_every_row_counts_once_though_a_worker_and_then_the_driver_is_killed(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, keyspace: str, tmp_path: Path, processes: Processes
) -> None:
    tables = {name: f"{keyspace}.{name}" for name in KILLED}
    for name, table in tables.items():
        db.create_table(table, {"id": "bigint", "attempt": "text"}, primary_key=["id", "attempt"], tablets=2)
        (tmp_path / name).mkdir()
    streams = {
        name: Stream(spark, table, tmp_path / name, {"directRows": "0", "lease": LEASE}, FILES, SCHEMA)
        for name, table in tables.items()
    }
    for stream in streams.values():
        for task in range(FILES):
            ids = range(task * ROWS, (task + 1) * ROWS)
            stream.add_lines(task, "".join(f'{{"id": {id}, "attempt": "again"}}\n' for id in ids))
    driver = HeldStreamDriver(processes, tmp_path, cluster.peer, tables)
    # A worker has staged some of its rows on all replicas when it is killed: another one does its task.
    worker = driver.await_place("counted", "staging")
    begun = records(cluster, tables["counted"])
    assert len(begun) == 1, begun
    (load,) = begun
    folders = [cluster.data_dir(each.instance_id) / "staging" / load.id for each in cluster.local.record().instances]
    await_true(lambda: all(map(files_below, folders)))
    os.kill(worker, signal.SIGKILL)
    for name, (place, _, _) in KILLED.items():
        driver.await_place(name, place.rpartition(",")[2])
    driver.kill()
    before = {name: records(cluster, table) for name, table in tables.items()}
    with loads_of(cluster) as loads:
        # As its lease would do it, in time.
        (load,) = before["given_up"]
        loads.abort(load.table, load.id, "its driver was not heard from")
    for query in [stream.start() for stream in streams.values()]:
        assert query.awaitTermination(RUN_S)
    for name, (_, ends, attempts) in KILLED.items():
        rows = list(db.table(tables[name]).scan())
        assert sorted(row["id"] for row in rows) == list(range(FILES * ROWS)), name
        assert {row["attempt"] for row in rows} == attempts, name
        found, (begun,) = records(cluster, tables[name]), before[name]
        assert [(each.id.removeprefix(begun.id.removesuffix("-f")), each.state) for each in found] == ends
        assert found[-1].rows == FILES * ROWS and not found[-1].direct
        # One that counted is not so much as sealed again; one that was left open is.
        assert (found[0].stamp_us, found[0].nonce == begun.nonce) == (begun.stamp_us, name != "goes_on")
    await_nothing_staged(cluster)


class HeldStreamDriver:
    """`held_streams` as a process of its own."""

    def __init__(self, processes: Processes, folder: Path, peer: str, tables: dict[str, str]) -> None:
        self.folder, self.log = folder, folder / "log"
        places = {name: (table, KILLED[name][0]) for name, table in tables.items()}
        (folder / STREAMS).write_text(json.dumps(places))
        command = [sys.executable, "-m", "tests.spark.held_streams", str(folder), peer]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(folder)}
        self.process = processes.start(command, env=env, cwd=ROOT, output=self.log)

    def await_place(self, name: str, place: str) -> int:
        """Wait until a process has come to a place; which one."""

        def there() -> list[Path]:
            found = list(self.folder.glob(f"{name}.{place}.*"))
            assert found or self.process.poll() is None, self.log.read_text()
            return found

        until(lambda: bool(there()), lambda: f"{name} is at {place}\n{self.log.read_text()}")
        return int(there()[0].suffix.removeprefix("."))

    def kill(self) -> None:
        for pid in json.loads((self.folder / PIDS).read_text()):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
