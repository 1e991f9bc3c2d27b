"""Jobs over whole tables, on three real processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trimtab
from tests.cluster.patience import put_rows
from tests.spark.everywhere import Everywhere
from tests.spark.job_running import Jobs
from tests.spark.lone_rows import put_at_one
from tests.spark.trio import until
from trimtab.client.errors import Error, InvalidRequest, NotFound
from trimtab.client.loads import BlockingLoads
from trimtab.jobs.records import JobKind
from trimtab.loads.protocol import BeginRequest
from trimtab.loads.records import LoadState
from trimtab.pipeline import carrying, copies, exports, held_sources, tasks
from trimtab.pipeline.failures import Cancelled, JobFailed
from trimtab.pipeline.parameters import (
    AnalyzeParameters,
    CountParameters,
    ExportParameters,
    LoadParameters,
    RepairParameters,
    StreamCopy,
    StreamParameters,
    VerifyParameters,
)
from trimtab.pipeline.running import JobContext
from trimtab.rows import repair_protocol
from trimtab.spark.instances import Instances
from trimtab.storage import sst_columns
from trimtab.storage.sst_file import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Cluster

ROWS = 500
DELETED = 10


@pytest.fixture(scope="session")
def jobs(spark: SparkSession, cluster: Cluster) -> Jobs:
    return Jobs(spark, cluster.peer)


@pytest.fixture(scope="session")
def loads(cluster: Cluster) -> Iterator[BlockingLoads]:
    with BlockingLoads(cluster.peer.split(","), timeout_s=90.0) as made:
        yield made


@pytest.fixture
def users(db: trimtab.Database, keyspace: str) -> str:
    """A table of some rows, some of them deleted; all replicas have it so."""
    name = f"{keyspace}.users"
    db.create_table(name, {"id": "bigint", "name": "text", "score": "double"}, primary_key=["id"], tablets=4)
    users = Everywhere(db, name)
    users.put_many([{"id": each, "name": f"user {each}", "score": each / 2} for each in range(ROWS)])
    for each in range(DELETED):
        users.delete(id=each)
    return name


# Counting


def test_rows_are_counted_at_any_level(jobs: Jobs, users: str) -> None:
    for consistency in ("ONE", "QUORUM"):
        found = jobs(JobKind.COUNT, {"table": users, "consistency": consistency})
        assert (found["rows"], found["tablets"]) == (ROWS - DELETED, 4)
    assert jobs.context is not None
    assert jobs.context.told(1.0).progress_rows == ROWS - DELETED


def test_a_table_that_is_not_there_is_told_at_once(jobs: Jobs, keyspace: str) -> None:
    with pytest.raises(NotFound, match="nothing"):
        jobs(JobKind.COUNT, CountParameters(table=f"{keyspace}.nothing"))


def test_a_job_that_was_cancelled_does_not_begin(jobs: Jobs, users: str) -> None:
    def cancel(context: JobContext) -> None:
        context.mark(Cancelled("no"))

    with pytest.raises(Cancelled):
        jobs(JobKind.COUNT, CountParameters(table=users), before=cancel)


# Verifying and repairing


def test_equal_replicas_are_equal_and_repair_sends_nothing(jobs: Jobs, users: str) -> None:
    found = jobs(JobKind.VERIFY, VerifyParameters(table=users, settle_s=0))
    assert found["equal"] and not found["troubles"], found
    assert found["versions"] >= ROWS and found["ranges"] >= 64
    repaired = jobs(JobKind.REPAIR, RepairParameters(table=users))
    assert (repaired["repaired_tablets"], repaired["incomplete_tablets"], repaired["rows_sent"]) == (4, 0, 0)
    assert repaired["repaired_through_ms"] > 0
    assert jobs.notes[-1]["next"] == 4


def test_rows_that_a_replica_lacks_are_named_and_repaired(
    jobs: Jobs, loads: BlockingLoads, db: trimtab.Database, users: str
) -> None:
    # Somebody else may bring the rows in between: an instance that had no processor for long is caught up when it
    # returns, and a task that Spark tries again has sent them already. Then others are put.
    for base in (9001, 9011, 9021):
        put_at_one(loads, users, base, "i1")
        put_at_one(loads, users, base + 1, "i2", missing=True)
        found = jobs(JobKind.VERIFY, VerifyParameters(table=users, settle_s=0.1))
        repaired = jobs(JobKind.REPAIR, RepairParameters(table=users))
        if found["differences"] == 2 and repaired["rows_sent"] == 3:
            break
    assert not found["equal"] and found["differences"] == 2, found
    lacking = {each["key"]["id"]: each["lacking"] for each in found["listed"]}
    assert lacking == {base: ["i2", "i3"], base + 1: ["i2"]}
    assert repaired["rows_sent"] == 3 and repaired["rows_lacked"] == {"i2": 2, "i3": 1}, repaired
    assert jobs(JobKind.VERIFY, VerifyParameters(table=users, settle_s=0))["equal"]
    assert db.table(users, consistency="ALL").get(id=base + 1)["name"] == "alone"


@pytest.mark.slow
def test_replicas_that_are_up_are_compared_while_another_is_down(spark: SparkSession, own_cluster: Cluster) -> None:
    name, jobs = "shop.compared", Jobs(spark, own_cluster.peer)
    with own_cluster.connect() as db:
        db.create_table(name, {"id": "bigint", "name": "text"}, primary_key=["id"], tablets=4)
        Everywhere(db, name).put_many([{"id": each, "name": "there"} for each in range(100)])
    own_cluster.local.kill(["i3"])
    try:
        with BlockingLoads(own_cluster.peer.split(","), timeout_s=90.0) as loads:
            loads.refresh()
            up = [number for number, each in loads.instances.items() if each.instance_id != "i3"]
            # As a replication that shrinks asks for it, or who removes what is dead.
            given = RepairParameters(table=name, tablets=[0, 1, 2, 3], targets=[up] * 4)
            for row in (1000, 1001, 1002):  # somebody else may bring it meanwhile
                put_at_one(loads, name, row, "i1")
                found = jobs(JobKind.VERIFY, VerifyParameters(table=name))
                repaired = jobs(JobKind.REPAIR, given)
                if found["differences"] and repaired["rows_lacked"]:
                    break
        assert (found["differences"], found["unclear"]) == (1, 4), found
        assert (repaired["repaired_tablets"], repaired["rows_lacked"]) == (4, {"i2": 1}), repaired
        assert jobs(JobKind.VERIFY, VerifyParameters(table=name))["differences"] == 0
    finally:
        own_cluster.local.start(["i3"])
        own_cluster.await_online()


def test_writes_under_way_are_no_difference(jobs: Jobs, cluster: Cluster, users: str) -> None:
    over = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with cluster.connect() as own:
            # One by one: a replica that stands still for a while is behind by one write, and not by all of them.
            table = Everywhere(own, users)
            while not over.is_set():
                table.put({"id": 100 + written % 50, "name": f"written {written}"})
                written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: written > 0 or not writer.is_alive(), "writes are under way")
        before = written
        # A replica that stood still takes a write as a hint, which may wait for seconds.
        found = jobs(JobKind.VERIFY, VerifyParameters(table=users, settle_s=12))
        meanwhile = written - before
    finally:
        over.set()
        writer.join()
    assert meanwhile > 0 and found["equal"], found


def test_rows_of_another_tablet_or_with_a_wrong_value_are_not_taken_from_a_job(
    loads: BlockingLoads, cluster: Cluster, users: str
) -> None:
    loads.refresh()
    table = loads.catalog.find(users)
    assert table is not None
    key = bytes(8) + b"\x80" + bytes(7) + b"\x40" + bytes(17)
    with Instances() as instances:
        for tablet, pairs, says in (
            (3, [key, b"x"], "not of tablet"),
            (0, [key, b"x"], "not the one"),
            (0, [], "1 to"),
        ):
            request = repair_protocol.RowsRequest(table.id, tablet, 1, time.time_ns() // 10**6, pairs)
            with pytest.raises(Exception, match=says):
                address = cluster.peer.split(",")[0]
                instances.ask(address, repair_protocol.ROWS, repair_protocol.encode(request), 30.0, 90.0)


# Exporting and loading


def test_an_export_makes_the_same_table_elsewhere(
    jobs: Jobs, db: trimtab.Database, users: str, keyspace: str, tmp_path: Path
) -> None:
    out = tmp_path / "backup"
    found = jobs(JobKind.EXPORT, ExportParameters(table=users, path=str(out)))
    assert found["rows"] == ROWS - DELETED and found["files"] == 4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup"], "nothing half is left"
    told = json.loads((out / "schema.json").read_text())
    assert [file["rows"] for file in told["export"]["files"]] == [
        pq.read_metadata(out / "data" / file["name"]).num_rows for file in told["export"]["files"]
    ]
    again = f"{keyspace}.again"
    loaded = jobs(JobKind.LOAD, LoadParameters(table=again, paths=[str(out)], schema_from=str(out)))
    assert (loaded["rows"], loaded["state"]) == (ROWS - DELETED, "published")
    rows = {row["id"]: row for row in db.table(again).scan()}
    assert rows == {row["id"]: row for row in db.table(users).scan()}
    with pytest.raises(InvalidRequest, match="there already"):
        jobs(JobKind.EXPORT, ExportParameters(table=users, path=str(out)))
    (out / "data" / told["export"]["files"][0]["name"]).write_bytes(b"half")
    with pytest.raises(InvalidRequest, match="not copied whole"):
        jobs(JobKind.LOAD, LoadParameters(table=again, paths=[str(out)]))


def test_partitions_without_rows_are_exported_and_loaded_back(
    jobs: Jobs, db: trimtab.Database, keyspace: str, tmp_path: Path
) -> None:
    name, again, out = f"{keyspace}.teams", f"{keyspace}.teams_again", tmp_path / "backup"
    columns = {"team": "int", "member": "text", "motto": "text", "age": "int"}
    db.create_table(name, columns, primary_key=["team", "member"], static=["motto"], tablets=4)
    teams = Everywhere(db, name)
    teams.put_many([{"team": each, "motto": f"of {each}"} for each in range(20)])
    teams.put_many([{"team": each, "member": "Ada", "age": each} for each in range(10)])
    rows = sorted(db.table(name).scan(), key=str)
    assert len(rows) == 20 and sum(row["member"] is None for row in rows) == 10
    jobs(JobKind.EXPORT, ExportParameters(table=name, path=str(out)))
    jobs(JobKind.LOAD, LoadParameters(table=again, paths=[str(out)], schema_from=str(out)))
    assert sorted(db.table(again).scan(), key=str) == rows


def test_a_value_that_no_file_can_hold_ends_an_export_by_name(
    jobs: Jobs, db: trimtab.Database, keyspace: str, tmp_path: Path
) -> None:
    name = f"{keyspace}.prices"
    db.create_table(name, {"id": "bigint", "price": "decimal"}, primary_key=["id"], tablets=2)
    Everywhere(db, name).put_many([{"id": 1, "price": Decimal("0.12345678901234567890")}])
    with pytest.raises(JobFailed, match=rf"^{name}: column price: a value of decimal .*0\.12345678901234567") as failed:
        jobs(JobKind.EXPORT, ExportParameters(table=name, path=str(tmp_path / "out")))
    assert not failed.value.again
    assert jobs(JobKind.COUNT, CountParameters(table=name))["rows"] == 1


def test_files_that_do_not_go_into_the_table_of_an_export_leave_none_behind(
    jobs: Jobs, db: trimtab.Database, users: str, tmp_path: Path
) -> None:
    jobs(JobKind.EXPORT, ExportParameters(table=users, path=str(tmp_path / "out")))
    pq.write_table(pa.table({"id": [1], "nick": ["x"]}), tmp_path / "other.parquet")
    copy = "left_behind.users"
    given = LoadParameters(table=copy, paths=[str(tmp_path / "other.parquet")], schema_from=str(tmp_path / "out"))
    with pytest.raises(InvalidRequest, match="nick"):
        jobs(JobKind.LOAD, given)
    db.refresh()
    assert "left_behind" not in db.keyspaces()


def test_an_empty_table_is_exported_and_loaded_back(
    jobs: Jobs, db: trimtab.Database, keyspace: str, tmp_path: Path
) -> None:
    name, out = f"{keyspace}.nothing", tmp_path / "nothing"
    columns = {"id": "int", "tags": "list<text>", "at": "timestamp", "mark": "uuid"}
    db.create_table(name, columns, primary_key=["id"], tablets=2)
    found = jobs(JobKind.EXPORT, ExportParameters(table=name, path=str(out)))
    assert (found["rows"], found["files"]) == (0, 1)
    again = f"{keyspace}.nothing_again"
    for mode in ("append", "overwrite"):
        told = LoadParameters(table=again, paths=[str(out)], schema_from=str(out), mode=mode)
        assert jobs(JobKind.LOAD, told)["rows"] == 0
        assert list(db.table(again).scan()) == []
        put_rows(db.table(again), [{"id": 1}])


def test_an_export_shows_one_moment(jobs: Jobs, db: trimtab.Database, users: str, tmp_path: Path) -> None:
    # Instances stamp in steps of a millisecond: this is certainly before the put.
    before_us = time.time_ns() // 1_000_000 * 1000 - 1
    put_rows(db.table(users), [{"id": 9003, "name": "late"}])
    out = tmp_path / "earlier"
    found = jobs(JobKind.EXPORT, ExportParameters(table=users, path=str(out), as_of_us=before_us))
    assert (found["rows"], found["as_of_us"]) == (ROWS - DELETED, before_us)
    with pytest.raises(Error, match="future"):
        late = time.time_ns() // 1000 + 3600 * 10**6
        jobs(JobKind.EXPORT, ExportParameters(table=users, path=str(tmp_path / "x"), as_of_us=late))


def test_an_export_that_is_taken_over_goes_on_at_the_same_moment(
    jobs: Jobs, db: trimtab.Database, users: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "late"
    told = ExportParameters(table=users, path=str(out))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="killed"):
        patched.setattr(exports, "_finish", _killed)
        jobs(JobKind.EXPORT, told, number=78)
    (partial,) = tmp_path.iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in (partial / "data").glob("*.parquet")}
    put_rows(db.table(users), [{"id": 9005, "name": "after the moment"}])
    noted = jobs.notes[-1]
    found = jobs(JobKind.EXPORT, told, number=78, checkpoint=noted)
    assert (found["rows"], found["as_of_us"]) == (ROWS - DELETED, noted["as_of_us"])
    again = {path.name: path.stat().st_mtime_ns for path in (out / "data").glob("*.parquet")}
    assert again == written, "what was written is not written again"


def test_a_load_that_is_cancelled_leaves_nothing(
    jobs: Jobs, db: trimtab.Database, loads: BlockingLoads, users: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "more.csv"
    path.write_text("id,name\n" + "".join(f"{each},loaded\n" for each in range(40_000, 40_010)))
    staged = tasks.run

    def then_cancelled(context: JobContext, *given: Any, **named: Any) -> Any:
        staged(context, *given, **named)
        context.mark(Cancelled("an operator says so"))
        assert not context.halt()
        context.check()

    monkeypatch.setattr(tasks, "run", then_cancelled)
    with pytest.raises(Cancelled):
        jobs(JobKind.LOAD, LoadParameters(table=users, paths=[str(path)]))
    loads.refresh()
    table = loads.catalog.find(users)
    assert table is not None
    (record,) = loads.show(table.id).loads
    assert record.state is LoadState.ABORTED and "told to stop" in record.reason
    assert db.table(users).get(id=40_000) is None


def test_a_job_that_is_taken_over_loads_once(
    jobs: Jobs, db: trimtab.Database, loads: BlockingLoads, users: str, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    path.write_text("id,name,score\n" + "".join(f"{each},loaded,0.5\n" for each in range(20_000, 20_100)))
    told = LoadParameters(table=users, paths=[str(path)])
    first = jobs(JobKind.LOAD, told, number=77)
    put_rows(db.table(users), [{"id": 20_000, "name": "written since"}])
    second = jobs(JobKind.LOAD, told, number=77, checkpoint=jobs.notes[-1])
    assert first == second and first["rows"] == 100
    assert db.table(users).get(id=20_000)["name"] == "written since"
    loads.refresh()
    table = loads.catalog.find(users)
    assert table is not None
    assert len(loads.show(table.id).loads) == 1


def test_files_that_can_not_be_loaded_change_nothing(
    jobs: Jobs, db: trimtab.Database, users: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"id": 30000, "name": "good"}\n{"id": null, "name": "no key"}\n')
    with pytest.raises(JobFailed, match="id"):
        jobs(JobKind.LOAD, LoadParameters(table=users, paths=[str(bad)]))
    assert db.table(users).get(id=30_000) is None
    half = tmp_path / "half.parquet"
    half.write_bytes(b"PAR1 and not much more")
    with pytest.raises(Error, match=r"half\.parquet"):
        jobs(JobKind.LOAD, LoadParameters(table=users, paths=[str(half)]))
    with pytest.raises(NotFound, match="no files"):
        jobs(JobKind.LOAD, LoadParameters(table=users, paths=[str(tmp_path / "*.avro")]))
    pq.write_table(pa.table({"other": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InvalidRequest, match="other"):
        jobs(JobKind.LOAD, LoadParameters(table=users, paths=[str(tmp_path / "other.parquet")]))


# Analyzing


def test_a_table_is_analyzed_as_a_job_and_as_a_frame(
    jobs: Jobs, spark: SparkSession, db: trimtab.Database, keyspace: str
) -> None:
    name = f"{keyspace}.posts"
    db.create_table(name, {"author": "text", "at": "int", "text": "text"}, primary_key=["author", "at"], tablets=2)
    rows: list[dict[str, Any]] = [{"author": "busy", "at": each, "text": "x" * 100} for each in range(50)]
    rows += [{"author": f"author {each}", "at": 0, "text": "y"} for each in range(30)]
    Everywhere(db, name).put_many(rows)
    found = jobs(JobKind.ANALYZE, AnalyzeParameters(table=name, top=3))
    assert (found["rows"], found["partitions"], sum(found["histogram"])) == (80, 31, 31)
    assert found["largest"][0]["key"] == {"author": "busy"} and found["largest"][0]["versions"] == 50
    assert len(found["largest"]) == 3 and set(found["tablets"]) == {"0", "1"}
    frame = trimtab.spark.analyze(name, spark=spark)
    totals = frame.groupBy().sum("rows", "partitions").collect()[0]
    assert (totals[0], totals[1]) == (80, 31)
    assert frame.orderBy(frame.largest[0].bytes.desc()).first().largest[0].key == '{"author": "busy"}'


# Streaming


def test_replicas_are_streamed_from_one_source_and_merged(
    jobs: Jobs, loads: BlockingLoads, cluster: Cluster, users: str
) -> None:
    put_at_one(loads, users, 9004, "i1")
    table = loads.catalog.find(users)
    assert table is not None
    session = f"stream-{table.id}"
    loads.begin(BeginRequest(session, table.id, table.version, lease_ms=600_000))
    ids = {each.instance_id: raft_id for raft_id, each in loads.instances.items()}
    one = [StreamCopy(tablet, ids["i3"], [ids["i1"]]) for tablet in range(4)]
    two = [StreamCopy(tablet, ids["i2"], [ids["i1"], ids["i3"]]) for tablet in range(4)]
    told = StreamParameters(table=users, session=session, copies=[*one, *two])
    try:
        found = jobs(JobKind.STREAM, told)
        assert not found["failed"], found
        assert found["copies"] == 8 and found["sent_bytes"] == found["bytes"] > 0
        for tablet, target, manifest in found["manifests"]:
            instance = next(name for name, raft_id in ids.items() if raft_id == target)
            folder = cluster.data_dir(instance) / "staging" / session / str(tablet)
            listed = json.loads((folder / manifest).read_text())
            assert all((folder / file["name"]).stat().st_size == file["bytes"] for file in listed["files"])
            assert listed["kind"] == "merge", "a small one is sent as a run of its pairs"
            tables = [open_table(folder / file["name"]) for file in listed["files"]]
            assert sum(len(keys) for each in tables for keys, _ in sst_columns.batches(each)) > 0
    finally:
        loads.abort(table.id, session, "the test is over")
    late: dict[str, Any] = {}

    def refused() -> bool:
        late.update(jobs(JobKind.STREAM, told))
        return [code for _, _, code, _ in late["failed"]] == ["no_session"] * 8

    # A member that lags may not know yet that it is closed.
    until(refused, lambda: f"the closed session takes nothing: {late}")


@pytest.mark.parametrize(("small_bytes", "number"), [(1 << 20, 8001), (0, 8002)], ids=["small", "large"])
def test_a_stream_from_another_host_goes_from_socket_to_socket_and_on_where_it_was(
    jobs: Jobs, loads: BlockingLoads, users: str, monkeypatch: pytest.MonkeyPatch, small_bytes: int, number: int
) -> None:
    loads.refresh()
    table = loads.catalog.find(users)
    assert table is not None
    session = f"far-{table.id}-{number}"
    loads.begin(BeginRequest(session, table.id, table.version, lease_ms=600_000))
    first, second, *_ = loads.instances
    told = StreamParameters(table=users, session=session, copies=[StreamCopy(0, first, [second])])

    def here(context: JobContext, made: list[Any], work: Any, **_: Any) -> list[Any]:
        return [work(each, tasks.Done()) for each in made]

    monkeypatch.setattr(carrying, "near", lambda source: False)
    monkeypatch.setattr(carrying, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(copies, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(carrying, "PACKED_BYTES", 2_000)
    # Who is asked again, because the answer took long, gives another snapshot.
    monkeypatch.setattr(held_sources, "_ASK_S", 60.0)
    monkeypatch.setattr(tasks, "run", here)
    try:
        with monkeypatch.context() as patched, pytest.raises(OSError, match="killed"):
            patched.setattr(carrying._Carrier, "_ended", _killed)
            jobs(JobKind.STREAM, told, number=number)
        found = jobs(JobKind.STREAM, told, number=number)
        assert found["bytes"] > 0 and found["sent_bytes"] == 0, "all of it was there already, from the same snapshot"
    finally:
        loads.abort(table.id, session, "the test is over")


def _killed(*_: object) -> None:
    raise OSError("killed")
