"""What scans read, of three real processes: how much, from whom, at which moment."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

import trimtab
from tests.cluster.patience import put_rows
from tests.spark.conftest import Cluster
from tests.spark.everywhere import Everywhere
from tests.spark.scans import run, scan
from tests.spark.trio import until
from trimtab.client.errors import InvalidRequest, NotFound, SchemaError
from trimtab.spark import replica_snapshots
from trimtab.spark.planning import partitions, schema
from trimtab.spark.scan_plan import ScanFailed, ScanPartition

ROWS = 40_000


@pytest.fixture(scope="module", autouse=True)
def _keyspace(db: trimtab.Database) -> None:
    db.create_keyspace("scans", replication=3)


@pytest.fixture(scope="module")
def readings(db: trimtab.Database) -> str:
    """100 devices with 400 rows each, in 8 tablets."""
    db.create_table(
        "scans.readings", {"device": "int", "at": "bigint", "text": "text"}, primary_key=["device", "at"], tablets=8
    )
    Everywhere(db, "scans.readings").put_many(
        {"device": at % 100, "at": at // 100, "text": f"{at:050}"} for at in range(ROWS)
    )
    return "scans.readings"


def test_a_filter_on_the_partition_key_reads_that_partition_alone(cluster: Cluster, readings: str) -> None:
    whole = scan(cluster.peer, readings)
    assert len(whole.rows) == ROWS
    one = scan(cluster.peer, readings, [EqualTo(("device",), 7)])
    assert len(one.rows) == 400
    assert one.stats["opened_tablets"] == 1
    assert one.read_bytes < whole.read_bytes / 8
    some = scan(cluster.peer, readings, [In(("device",), (7, 8, 1000))])
    assert {row["device"] for row in some.rows} == {7, 8}
    assert len(some.rows) == 800


def test_a_range_of_clustering_keys_reads_less_than_the_partition(cluster: Cluster, db: trimtab.Database) -> None:
    db.create_table("scans.long", {"day": "int", "at": "bigint", "text": "text"}, primary_key=["day", "at"], tablets=1)
    Everywhere(db, "scans.long").put_many({"day": 1, "at": at, "text": f"{at:0200}"} for at in range(20_000))
    day = EqualTo(("day",), 1)
    whole = scan(cluster.peer, "scans.long", [day])
    assert len(whole.rows) == 20_000
    part = scan(cluster.peer, "scans.long", [day, GreaterThanOrEqual(("at",), 500), LessThan(("at",), 600)])
    # Bounds are included: Spark leaves out what the filter does.
    assert [row["at"] for row in part.rows] == list(range(500, 601))
    assert part.read_bytes < whole.read_bytes / 10


def test_small_tablets_share_a_task_and_splits_are_tasks_of_their_own(cluster: Cluster, readings: str) -> None:
    together = scan(cluster.peer, readings)
    assert len(together.partitions) == 3
    assert together.stats["snapshots"] == 3
    apart = scan(cluster.peer, readings, splitsPerTablet=2)
    assert len(apart.partitions) == 16
    assert sorted(map(repr, apart.rows)) == sorted(map(repr, together.rows))


def test_files_on_another_host_are_downloaded_and_gone_afterwards(
    cluster: Cluster, readings: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(replica_snapshots, "same_disk", lambda directory, reply: False)
    found = scan(cluster.peer, readings, consistency="QUORUM")
    assert len(found.rows) == ROWS
    assert found.stats["fetched_tablets"] == 16
    assert list(tmp_path.iterdir()) == []


def test_snapshots_are_given_back(cluster: Cluster, readings: str) -> None:
    scan(cluster.peer, readings)

    def left() -> list[Path]:
        return [path for name in ("i1", "i2", "i3") for path in (cluster.data_dir(name) / "snapshots").glob("scan-*")]

    until(lambda: not left(), lambda: f"snapshots are given back: {left()}")


def test_a_read_as_of_a_time_sees_what_was_there_then(cluster: Cluster, db: trimtab.Database, readings: str) -> None:
    db.create_table("scans.past", {"id": "int", "v": "text"}, primary_key=["id"], tablets=2)
    table = Everywhere(db, "scans.past")
    table.put({"id": 1, "v": "old"})
    table.put({"id": 2, "v": "old"})
    then = table.put({"id": 3, "v": "old"})
    table.put({"id": 1, "v": "new"})
    table.delete(id=2)
    table.put({"id": 4, "v": "new"})
    now = {row["id"]: row["v"] for row in scan(cluster.peer, "scans.past").rows}
    past = {row["id"]: row["v"] for row in scan(cluster.peer, "scans.past", asOf=then).rows}
    assert now == {1: "new", 3: "old", 4: "new"}
    assert past == {1: "old", 2: "old", 3: "old"}


def test_a_time_that_is_not_kept_or_not_yet_is_refused(cluster: Cluster, readings: str) -> None:
    now_us = int(time.time() * 1_000_000)
    with pytest.raises(InvalidRequest, match=r"more than the 600 s that scans.readings keeps its history for"):
        scan(cluster.peer, readings, asOf=now_us - 700_000_000)
    with pytest.raises(InvalidRequest, match="lies in the future"):
        scan(cluster.peer, readings, asOf=now_us + 60_000_000)


def test_times_of_writing_and_of_expiry_are_columns_of_their_own(cluster: Cluster, db: trimtab.Database) -> None:
    db.create_table(
        "scans.meta", {"id": "int", "a": "text", "b": "int", "tags": "set<text>"}, primary_key=["id"], tablets=2
    )
    table = Everywhere(db, "scans.meta")
    stamp = int(time.time() * 1_000_000) - 5_000_000
    table.put({"id": 1, "a": "x", "b": 1}, timestamp=stamp)
    table.put({"id": 2, "a": "x"}, timestamp=stamp, ttl=1000)
    table.put({"id": 3, "a": "x", "b": 1}, timestamp=stamp)
    table.update({"id": 3, "b": 2}, timestamp=stamp + 1, ttl=500)
    table.update({"id": 3, "tags": {"t"}})
    found = {row["id"]: row for row in scan(cluster.peer, "scans.meta", meta="true").rows}
    assert list(found[1]) == ["id", "a", "b", "tags", "writetime_a", "ttl_a", "writetime_b", "ttl_b"]
    assert [found[1][name] for name in ("writetime_a", "ttl_a", "writetime_b")] == [stamp, None, stamp]
    assert found[2]["writetime_b"] is found[2]["ttl_b"] is None
    assert 980 <= found[2]["ttl_a"] <= 1000
    assert [found[3]["writetime_a"], found[3]["ttl_a"], found[3]["writetime_b"]] == [stamp, None, stamp + 1]
    assert 480 <= found[3]["ttl_b"] <= 500
    chosen = scan(cluster.peer, "scans.meta", meta="true", columns="b").rows
    assert {(row["b"], row["writetime_b"]) for row in chosen} == {(1, stamp), (None, None), (2, stamp + 1)}
    assert list(chosen[0]) == ["b", "writetime_b", "ttl_b"]


def test_what_is_wrong_with_a_read_is_said_before_it_begins(
    cluster: Cluster, readings: str, db: trimtab.Database
) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    given = {"peer": cluster.peer, "table": readings}
    with pytest.raises(NotFound, match=r"there is no table scans.reading; did you mean scans.readings\?"):
        schema({**given, "table": "scans.reading"})
    with pytest.raises(NotFound, match=r"has no column 'devise'; did you mean 'device'\?"):
        schema({**given, "columns": "devise"})
    with pytest.raises(SchemaError, match=r"readings.device is int in Spark, not string"):
        partitions(given, StructType([StructField("device", StringType())]), [])
    with pytest.raises(InvalidRequest, match="there is no data centre 'dc9'"):
        schema({**given, "datacenter": "dc9"})
    db.create_table("scans.clash", {"id": "int", "a": "int", "ttl_a": "int"}, primary_key=["id"], tablets=1)
    with pytest.raises(InvalidRequest, match=r"scans.clash has a column ttl_a itself"):
        schema({**given, "table": "scans.clash", "meta": "true"})


def test_a_table_that_is_dropped_during_the_read_is_one_clear_error(cluster: Cluster, db: trimtab.Database) -> None:
    db.create_table("scans.short_lived", {"id": "int"}, primary_key=["id"], tablets=2)
    put_rows(db.table("scans.short_lived"), [{"id": 1}])
    given = {"peer": cluster.peer, "table": "scans.short_lived"}
    planned = partitions(given, schema(given), [])
    db.drop_table("scans.short_lived")
    with pytest.raises(ScanFailed, match=r"scans.short_lived was dropped while it was read"):
        run(planned)


@pytest.mark.slow
def test_a_replica_that_is_gone_is_passed_over_as_long_as_enough_are_there(own_cluster: Cluster) -> None:
    with own_cluster.connect() as db:
        db.create_table("shop.gone", {"id": "int", "v": "text"}, primary_key=["id"], tablets=4)
        Everywhere(db, "shop.gone").put_many({"id": at, "v": "old"} for at in range(1000))
        given = {"peer": own_cluster.peer, "table": "shop.gone", "timeout": "20"}
        planned = {
            level: partitions({**given, "consistency": level}, schema(given), []) for level in ("ONE", "QUORUM", "ALL")
        }
        own_cluster.local.kill(["i3"])
        put_rows(db.table("shop.gone"), ({"id": at, "v": "new"} for at in range(100)))
    try:
        for level in ("ONE", "QUORUM"):
            found = run(planned[level])
            assert sorted(row["id"] for row in found.rows) == list(range(1000))
            assert sum(row["v"] == "new" for row in found.rows) == 100
            assert found.stats["refusals"] >= 1
        with pytest.raises(ScanFailed, match=r"can't be read: ALL needs 3 of 3 replicas, 2 could be read. i3: "):
            run([hurried(each, timeout_s=10.0) for each in planned["ALL"]])
    finally:
        own_cluster.local.start(["i3"])
        own_cluster.await_online()


def hurried(partition: ScanPartition, timeout_s: float) -> ScanPartition:
    """The same, for a task that waits no longer than this for whoever is not there."""
    connection = replace(partition.plan.connection, timeout_s=timeout_s)
    return ScanPartition(replace(partition.plan, connection=connection), partition.parts)
