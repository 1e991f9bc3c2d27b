"""Loads whose nodes die meanwhile, staged and committed by this process: no Spark is needed to break them. And frames
whose files an instance does not take: one sentence at the driver of Spark, and nothing has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import trimtab
from tests.cluster.patience import put_rows
from tests.cluster.test_disk_full import fill
from tests.spark import expired_tickets
from tests.spark.conftest import Cluster
from tests.spark.staged import await_nothing_staged, await_true, records
from trimtab.loads.protocol import SnapshotRequest
from trimtab.loads.records import LoadState
from trimtab.node.settings import Limits
from trimtab.rows.keys import TAIL
from trimtab.spark.contact import Cluster as Contact
from trimtab.spark.load_plan import LoadFailed, StagedPart
from trimtab.spark.loading import TICKET_MS, LoadRequest, LoadRun
from trimtab.spark.options import Connection
from trimtab.spark.staging import stage
from trimtab.storage.sst import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "shop.users"
BEFORE = {"id": -1, "name": "before"}


def batches(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    for low in range(start, stop, 500):
        numbers = range(low, min(low + 500, stop))
        yield pa.record_batch({"id": list(numbers), "name": [f"n{n}" for n in numbers]})


class Loads:
    """Loads of one cluster, by hand."""

    def __init__(self, cluster: Cluster, table: str = TABLE) -> None:
        self.cluster = cluster
        self.table = table
        self.contact = Contact(Connection(cluster.peer, 30.0))
        self.attempts = 0

    def begin(self, id: str, lease_ms: int = 60_000) -> LoadRun:
        return LoadRun.begin(self.contact, LoadRequest(self.table, id, lease_ms=lease_ms))

    def stage(self, run: LoadRun, start: int, stop: int) -> StagedPart:
        self.attempts += 1
        return stage(
            run.plan,
            lambda _: batches(start, stop),
            f"a{self.attempts}",
            fresh_ticket=lambda: self.contact.ticket(run.id, TICKET_MS).ticket,
        )


@pytest.fixture
def loads(own_cluster: Cluster) -> Iterator[Loads]:
    with own_cluster.connect() as db:
        db.create_table(TABLE, {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=4)
    made = Loads(own_cluster)
    yield made
    made.contact.close()


def rows_at(loads: Loads, instance_id: str) -> int:
    """How many rows an instance has itself: in a copy of its replicas, which nobody merges or repairs."""
    client = loads.contact.loads
    client.refresh()
    (raft_id,) = [each.raft_id for each in client.instances.values() if each.instance_id == instance_id]
    table, _ = loads.contact.table(loads.table)
    epoch, _ = client.visible(table.id)
    reply = client.snapshot(raft_id, SnapshotRequest(table.id, client.tablets(table.id).of(raft_id), epoch))
    rows = set()
    for each in reply.tablets:
        with Snapshot(Path(reply.directory) / each.path) as snapshot:
            rows |= {key[:-TAIL] for keys, _ in snapshot.batches() for key in keys.to_list()}
    client.release_snapshot(raft_id, reply.name)
    return len(rows)


def test_a_load_survives_the_deaths_of_its_replicas_one_after_the_other(loads: Loads) -> None:
    cluster = loads.cluster
    run = loads.begin("load1")
    with run.renewing():
        parts = [loads.stage(run, 0, 2000)]
        assert all(len(each.holders) == 3 for each in parts[0].files)

        # Down while files are staged, and back before the commit: what it lacks is brought to it.
        cluster.local.kill(["i3"])
        parts.append(loads.stage(run, 2000, 4000))
        assert all(len(each.holders) == 2 for each in parts[1].files)
        cluster.local.start(["i3"])
        cluster.await_online()

        # A ticket that is no good any more is replaced by the task itself.
        stale = replace(run.plan, ticket=loads.contact.ticket(run.id, 1).ticket)
        parts.append(loads.stage(LoadRun(loads.contact, stale), 4000, 5000))
        assert parts[2].failed == ""
        record = run.commit(parts)
    assert (record.state, record.rows, len(record.sealed)) == (LoadState.PUBLISHED, 5000, 3)
    assert rows_at(loads, "i3") == 5000

    # Down for good: the load goes on without it, and it catches up when it is back.
    run = loads.begin("load2")
    with run.renewing():
        cluster.local.kill(["i2"])
        record = run.commit([loads.stage(run, 5000, 6000)])
    assert (record.state, len(record.sealed), len(record.missed)) == (LoadState.PUBLISHED, 2, 1)
    cluster.local.start(["i2"])
    cluster.await_online()
    assert rows_at(loads, "i2") == 6000

    # Nobody drives it any more: it ends by itself, and nothing stays.
    # Its lease is long enough for a busy machine to stage something within it.
    abandoned = loads.begin("load3", lease_ms=15_000)
    loads.stage(abandoned, 6000, 7000)
    table = abandoned.plan.table.id
    await_true(lambda: loads.contact.show(table, "load3").state is LoadState.ABORTED, 120.0)  # type: ignore[union-attr]
    with pytest.raises(LoadFailed, match="aborted"):
        loads.contact.renew(table, "load3")
    await_nothing_staged(cluster)
    assert rows_at(loads, "i1") == 6000


def test_two_attempts_at_one_task_at_the_same_time_count_once(
    cluster: Cluster, db: trimtab.Database, keyspace: str
) -> None:
    db.create_table(f"{keyspace}.users", {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=4)
    loads = Loads(cluster, f"{keyspace}.users")
    run = loads.begin("load1")
    with run.renewing(), ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: loads.stage(run, 0, 3000), range(2)))
        assert {len(part.files) for part in both} == {4}
        record = run.commit(both[:1])
    assert record.rows == 3000
    assert rows_at(loads, "i1") == 3000
    loads.contact.close()
    await_nothing_staged(cluster)


# Frames


def write(spark: SparkSession, cluster: Cluster, table: str, rows: int, kind: str = "trimtab") -> None:
    """By two tasks; the values can't be compressed to less than half."""
    frame = spark.range(0, rows, 1, 2).selectExpr("id", "concat(sha2('a' || id, 512), sha2('b' || id, 512)) as name")
    frame.write.format(kind).options(table=table, peer=cluster.peer).mode("append").save()


def assert_refused(said: str, sentence: str, cluster: Cluster, db: trimtab.Database, table: str) -> None:
    """It is told once, without the way it took, and the load has left nothing."""
    assert said.count(sentence) == 1 and said.count('File "') <= 1 and "Caused by" not in said, said
    (load,) = records(cluster, table)
    assert load.state is LoadState.ABORTED and sentence in load.reason
    assert list(db.table(table).scan()) == [BEFORE]
    await_nothing_staged(cluster)


def test_an_expired_ticket_is_one_clear_error_where_every_new_one_expires_too(
    spark: SparkSession, db: trimtab.Database, cluster: Cluster, keyspace: str
) -> None:
    table = f"{keyspace}.users"
    db.create_table(table, {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=4)
    put_rows(db.table(table), [BEFORE])
    spark.dataSource.register(expired_tickets.LateSource)
    with pytest.raises(Exception, match=r"i[123] refuses the load's ticket: this ticket expired \d+ s ago") as caught:
        write(spark, cluster, table, 100, expired_tickets.FORMAT)
    assert_refused(str(caught.value), "refuses the load's ticket", cluster, db, table)


def test_a_full_disk_on_one_replica_is_one_clear_error_and_with_room_again_all_is_loaded(
    spark: SparkSession, own_cluster: Cluster
) -> None:
    disk = own_cluster.data_dir("i2")
    if not os.path.ismount(disk):
        pytest.skip("only root can mount the tmpfs that this test fills")
    with own_cluster.connect() as db:
        db.create_table("shop.full", {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=4)
        put_rows(db.table("shop.full"), [BEFORE])
        fill(disk / "filler", leave_bytes=Limits().disk_reserve_bytes + (3 << 20))
        sentence = "i2 has no room for the load"
        with pytest.raises(Exception, match=rf"{sentence}: \S+\.sst needs \d+ bytes more, and the disk has") as caught:
            write(spark, own_cluster, "shop.full", 40_000)
        assert_refused(str(caught.value), sentence, own_cluster, db, "shop.full")
        (disk / "filler").unlink()
        write(spark, own_cluster, "shop.full", 40_000)
        assert sum(1 for _ in db.table("shop.full").scan(columns=["id"])) == 40_001
