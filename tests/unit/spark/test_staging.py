"""A task of a load, against bulk servers that are only directories."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.spark.plans import FakeServers, plan, users

from trimtab.client.loads import LoadRefused
from trimtab.spark import rejecting, sending, work_folder
from trimtab.spark.load_plan import REJECT, LoadPlan, OutOfReach, StagedPart
from trimtab.spark.staging import stage
from trimtab.tablets.ring import tablet_of


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[FakeServers]:
    sending._lost_until.clear()
    yield FakeServers(tmp_path / "servers")


def batches(count: int = 1000, some: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, some):
        numbers = list(range(start, start + some))
        yield pa.record_batch({"p0": numbers, "v0": [n / 2 for n in numbers], "v1": [str(n) for n in numbers]})


def staged(servers: FakeServers, of: LoadPlan, attempt: str = "a0", **how: Any) -> StagedPart:
    given = how.pop("batches", None)
    return stage(of, lambda _: batches() if given is None else given, attempt, connect=servers.connect, **how)


def test_every_replica_gets_the_same_files(servers: FakeServers) -> None:
    part = staged(servers, plan())
    assert (part.rows, part.rejected, part.failed, part.missing) == (1000, 0, "", {})
    assert sorted(each.file.tablet for each in part.files) == [0, 1, 2, 3]
    assert all(each.holders == (1, 2, 3) for each in part.files)
    assert sum(each.file.rows for each in part.files) == 1000
    for raft_id in (1, 2, 3):
        assert sum(path.stat().st_size for path in servers.files(raft_id)) == part.size_bytes


def test_a_task_leaves_the_disk_of_its_machine_alone(
    servers: FakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("nobody asked for a directory")

    for each in ("mkdtemp", "mkstemp", "gettempdir"):
        monkeypatch.setattr(tempfile, each, refuse)
    monkeypatch.chdir(tmp_path)
    part = staged(servers, plan(chunk_rows=300))
    assert (part.rows, part.failed) == (1000, "")
    assert [path.name for path in tmp_path.iterdir()] == ["servers"]


def test_what_is_staged_is_told_as_it_is_given_away(servers: FakeServers) -> None:
    told: list[tuple[int, int]] = []
    part = staged(servers, plan(chunk_rows=300), progress=lambda rows, size_bytes: told.append((rows, size_bytes)))
    assert len(told) == len(part.files)
    assert (sum(rows for rows, _ in told), sum(size for _, size in told)) == (part.rows, part.size_bytes)


def test_each_tablet_goes_to_its_own_replicas(servers: FakeServers) -> None:
    part = staged(servers, plan(replicas=((1,), (2,), (1,), (3,))))
    assert {each.file.tablet: each.holders for each in part.files} == {0: (1,), 1: (2,), 2: (1,), 3: (3,)}
    assert tablet_of(0, 4) == 2


def test_a_large_partition_makes_several_runs(servers: FakeServers) -> None:
    part = staged(servers, plan(chunk_rows=300))
    assert sorted({each.file.name for each in part.files}) == ["a0-0.sst", "a0-1.sst", "a0-2.sst", "a0-3.sst"]
    assert sum(each.file.rows for each in part.files) == 1000


def test_a_node_that_is_gone_is_left_out_where_a_quorum_remains(servers: FakeServers) -> None:
    servers.down = {"bulk:2"}
    part = staged(servers, plan())
    assert part.failed == ""
    assert all(each.holders == (1, 3) for each in part.files)
    assert "got nowhere" in part.missing[2]


def test_a_node_that_dies_in_the_middle_is_reported_file_by_file(servers: FakeServers) -> None:
    def die(address: str, name: str) -> None:
        if address == "bulk:2" and name == "a0-2.sst":
            servers.down.add("bulk:2")

    servers.before = die
    part = staged(servers, plan(chunk_rows=300))
    assert part.failed == ""
    assert {each.holders for each in part.files} == {(1, 2, 3), (1, 3)}


def test_without_a_quorum_the_task_says_who_is_missing(servers: FakeServers) -> None:
    servers.down = {"bulk:2", "bulk:3"}
    with pytest.raises(OutOfReach, match="too few replicas of tablet") as failed:
        staged(servers, plan())
    assert "1 of 3 replicas in data centre dc1 took it, 2 are needed" in str(failed.value)
    assert "i2: " in str(failed.value) and "i3: " in str(failed.value)


def test_a_full_disk_ends_the_load_and_names_the_instance(servers: FakeServers) -> None:
    servers.refusing["bulk:3"] = ("disk_full", "a0-0.sst needs 5000 bytes more, and the disk has 0 left")
    part = staged(servers, plan())
    assert part.failed.startswith("i3 has no room for the load: a0-0.sst needs 5000 bytes more")
    assert part.again, "by then somebody may have made room"


def test_a_bad_row_is_no_better_in_another_attempt(servers: FakeServers) -> None:
    part = staged(servers, plan(), batches=[pa.record_batch({"p0": pa.array([None], pa.int64())})])
    assert "key column p0 is null" in part.failed and not part.again


def test_a_load_that_was_ended_is_told_as_that(servers: FakeServers) -> None:
    servers.refusing["bulk:1"] = ("unknown_session", "the session load1 is not open")
    part = staged(servers, plan())
    assert "the load load1 is not open any more" in part.failed and part.again


def test_an_expired_ticket_is_replaced_once(servers: FakeServers) -> None:
    servers.ticket = b"new"
    part = staged(servers, plan(), fresh_ticket=lambda: b"new")
    assert part.failed == "" and all(each.holders == (1, 2, 3) for each in part.files)
    part = staged(servers, plan(), "a1", fresh_ticket=lambda: b"newer")
    assert "refuses the load's ticket: this ticket expired" in part.failed and part.again


def test_a_task_that_gets_no_other_ticket_gives_up_in_one_sentence(servers: FakeServers) -> None:
    def ended() -> bytes:
        raise LoadRefused("the session load1 is not open", "unknown_session")

    servers.ticket = b"new"
    part = staged(servers, plan(), fresh_ticket=ended)
    assert "has expired, and there is no other: the session load1 is not open" in part.failed and part.again


def test_attempts_of_one_task_do_not_meet(servers: FakeServers) -> None:
    parts: list[StagedPart] = []
    both = [
        threading.Thread(target=lambda name=name: parts.append(staged(servers, plan(), name))) for name in ("a0", "a1")
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert [part.failed for part in parts] == ["", ""]
    assert len(servers.files(1)) == 8


def test_bad_rows_are_written_aside_and_shown_when_the_load_counts(servers: FakeServers, tmp_path: Path) -> None:
    aside = str(tmp_path / "aside")
    of = plan(on_error=REJECT, rejected=aside)
    rows = [pa.record_batch({"p0": pa.array([n, None, n + 1], pa.int64()), "v1": ["a", "b", "c"]}) for n in (10, 20)]
    part = staged(servers, of, batches=rows)
    assert (part.rows, part.rejected) == (4, 2)
    name = rejecting.name_of(of.table.full_name, of.id)
    assert rejecting.keep(aside, name, part.rejected_files) == [f"{aside}/{name}-00000.parquet"]
    kept = pq.read_table(aside)
    assert kept.column("v1").to_pylist() == ["b", "b"]
    assert kept.column("_reason").to_pylist() == ["key column p0 is null"] * 2
    rejecting.settle(aside, name)
    assert [path.name for path in Path(aside).iterdir()] == [f"{name}-00000.parquet"]


def test_rejected_rows_of_a_load_that_came_to_nothing_are_gone(servers: FakeServers, tmp_path: Path) -> None:
    aside = str(tmp_path / "aside")
    of = plan(on_error=REJECT, rejected=aside)
    staged(servers, of, batches=[pa.record_batch({"p0": pa.array([None], pa.int64())})])
    rejecting.drop(aside, rejecting.name_of(of.table.full_name, of.id))
    assert not list(Path(aside).iterdir())


def test_no_rows_are_no_files(servers: FakeServers) -> None:
    part = staged(servers, plan(table=users(1)), batches=[])
    assert (part.files, part.rows, part.failed) == ((), 0, "")


def test_what_a_killed_task_left_is_swept_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / f"{work_folder.PREFIX}left"
    left.mkdir()
    (left / "lock").touch()
    (left / "0.a0-0.sst").write_bytes(b"half")
    with work_folder.WorkFolder(str(tmp_path)) as mine:
        assert not left.exists()
        assert work_folder.sweep(tmp_path) == 0 and mine.is_dir()
    assert not mine.exists()


def test_folders_that_are_made_at_the_same_time_are_not_swept(tmp_path: Path) -> None:
    def make(_: int) -> bool:
        with work_folder.WorkFolder(str(tmp_path)) as mine:
            return mine.is_dir()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(300)))
    assert not list(tmp_path.iterdir())
