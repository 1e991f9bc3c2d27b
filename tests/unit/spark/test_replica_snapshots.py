"""Which replicas a task reads: enough of them, others where some are not ready, one error where too few are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.rows import tables
from tests.unit.spark.copying_instances import CopyingInstances, schema_reply

from trimtab.loads import protocol
from trimtab.loads.protocol import SnapshotReply
from trimtab.net.errors import NotConnected, RpcError
from trimtab.rows import protocol as rows_protocol
from trimtab.spark import replica_snapshots
from trimtab.spark.options import Connection
from trimtab.spark.replica_snapshots import ReplicaSnapshots, same_disk
from trimtab.spark.scan_plan import Holder, ScanFailed, ScanPart, ScanPlan, ScanStats
from trimtab.tablets.consistency import Level

RANGE = ((bytes(8), b"\xff" * 32),)
Answer = Callable[[str, list[int]], None]  # raises what the instance at this address refuses with


class Cluster(CopyingInstances):
    """Instances that answer from one directory; `refuse` decides who does not."""

    def __init__(self, folder: Path, tablets: int, refuse: Answer) -> None:
        super().__init__(folder, tablets)
        self.refuse = refuse
        self.asked: list[tuple[str, list[int]]] = []
        self.given: set[str] = set()
        self.now: tuple[int, ...] = ()  # who answers reads of the first tablet by now

    def call(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        if method == protocol.SNAPSHOT_RELEASE:
            self.given.discard(protocol.decode_release_snapshot(body).name)
            return b""
        if method == rows_protocol.SCHEMA:
            return schema_reply(self.now)
        request = protocol.decode_snapshot(body)
        if self.now and request.reading and set(request.reading[0]) != set(self.now):
            raise RpcError("moved", "others hold it")
        self.asked.append((address, request.tablets))
        self.refuse(address, request.tablets)
        self.given.add(request.name)
        return self.copied(request, [999])


def plan(level: Level = Level.ONE, timeout_s: float = 0.5) -> ScanPlan:
    holders = {each: Holder(each, f"i{each}", f"h{each}", "dc1") for each in (1, 2, 3)}
    return ScanPlan(
        Connection("h1", timeout_s), tables.table(["int"]), {}, ("p0",), ("p0",), 0, 0, level, "dc1", holders
    )


def parts(*holders: tuple[int, ...]) -> list[ScanPart]:
    return [ScanPart(tablet, RANGE, each) for tablet, each in enumerate(holders)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Answer], Cluster]:
    def make(tablets: int, refuse: Answer) -> Cluster:
        made = Cluster(tmp_path, tablets, refuse)
        monkeypatch.setattr(replica_snapshots, "Instances", made)
        return made

    return make


def accept(address: str, tablets: list[int]) -> None:
    return None


def not_ready(*addresses: str, only: int | None = None) -> Answer:
    def refuse(address: str, tablets: list[int]) -> None:
        if address in addresses and (only is None or only in tablets):
            raise RpcError("not_ready", f"{address} is not ready")

    return refuse


def test_one_request_gives_all_tablets_of_an_instance_and_all_is_given_back(cluster: Any) -> None:
    made = cluster(3, accept)
    wanted = parts((1, 2, 3), (1, 2, 3), (1, 3, 2))
    with ReplicaSnapshots(plan(), wanted, 0, ScanStats()) as found:
        assert made.asked == [("h1", [0, 1, 2])]
        assert [len(found.of(part)) for part in wanted] == [1, 1, 1]
        assert found.of(wanted[0])[0][1] == frozenset({999})
        assert made.kept == made.given
        assert len(made.given) == 1
    assert made.kept == made.given == set()


def test_a_quorum_is_opened_at_as_many_instances_as_it_takes(cluster: Any) -> None:
    made = cluster(2, accept)
    wanted = parts((1, 2, 3), (2, 3, 1))
    with ReplicaSnapshots(plan(Level.QUORUM), wanted, 0, ScanStats()) as found:
        assert [len(found.of(part)) for part in wanted] == [2, 2]
    assert sorted(made.asked) == [("h1", [0]), ("h2", [0]), ("h2", [1]), ("h3", [1])]


def test_who_is_not_ready_is_passed_over_for_the_tablet_alone(cluster: Any) -> None:
    made = cluster(2, not_ready("h1", only=1))
    wanted = parts((1, 2, 3), (1, 2, 3))
    stats = ScanStats()
    with ReplicaSnapshots(plan(), wanted, 0, stats):
        assert made.asked == [("h1", [0, 1]), ("h1", [0]), ("h1", [1]), ("h2", [1])]
    assert stats.counts["refusals"] == 1


def test_another_attempt_begins_with_another_replica(cluster: Any) -> None:
    made = cluster(1, accept)
    with ReplicaSnapshots(plan(), parts((1, 2, 3)), 1, ScanStats()):
        assert made.asked == [("h2", [0])]


def test_when_nobody_is_ready_all_are_asked_until_the_time_is_up(cluster: Any) -> None:
    refused: list[str] = []

    def refuse(address: str, tablets: list[int]) -> None:
        refused.append(address)
        raise NotConnected(f"nobody listens at {address}")

    made = cluster(1, refuse)
    with (
        pytest.raises(
            ScanFailed,
            match=r"tablet 0 of .* can't be read: QUORUM needs 2 of 3 replicas, 0 could be read. "
            r"i1: nobody listens at h1; i2: .*; i3: ",
        ),
        ReplicaSnapshots(plan(Level.QUORUM), parts((1, 2, 3)), 0, ScanStats()),
    ):
        pass
    assert len(refused) >= 6
    assert made.given == set()


def test_somebody_who_is_ready_a_moment_later_is_enough(cluster: Any) -> None:
    turns = iter(range(100))

    def refuse(address: str, tablets: list[int]) -> None:
        if next(turns) < 4:
            raise RpcError("not_ready", "wait a moment")

    cluster(1, refuse)
    with ReplicaSnapshots(plan(timeout_s=10), parts((1, 2, 3)), 0, ScanStats()) as found:
        assert found is not None


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only in pauses."""
    slept: list[float] = []
    # Its own, and not everybody's: threads of other tests may be at it.
    monkeypatch.setattr(replica_snapshots, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    return slept


def test_who_has_no_room_for_copies_is_waited_for_much_longer_and_nothing_is_held_meanwhile(
    cluster: Any, sleeping: list[float]
) -> None:
    def refuse(address: str, tablets: list[int]) -> None:
        if address == "h2" and sum(sleeping) < 300:
            held.add(len(made.given))
            raise RpcError("overloaded", "there are 100 snapshots already")

    held: set[int] = set()
    made = cluster(3, refuse)
    wanted = parts((1,), (2,), (2,))
    with ReplicaSnapshots(plan(timeout_s=30.0), wanted, 0, ScanStats()) as found:
        assert [len(found.of(part)) for part in wanted] == [1, 1, 1]
        assert len(made.given) == len(made.kept) == 2
        # Tablets are not asked for one by one where there is room for none.
        assert ("h2", [1]) not in made.asked
    assert sum(sleeping) >= 300 and made.given == set()
    assert max(held) == 1, "what was given by another instance was given back before the next time of asking"


def test_who_never_has_room_is_given_up_in_the_end(cluster: Any, sleeping: list[float]) -> None:
    def refuse(address: str, tablets: list[int]) -> None:
        raise RpcError("overloaded", "there are 100 snapshots already")

    cluster(1, refuse)
    with (
        pytest.raises(ScanFailed, match="i1: there are 100 snapshots already"),
        ReplicaSnapshots(plan(timeout_s=30.0), parts((1,)), 0, ScanStats()),
    ):
        pass
    assert replica_snapshots.FULL_S <= sum(sleeping) <= replica_snapshots.FULL_S + 60


def test_what_was_downloaded_is_given_back_at_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cluster(1, accept)
    monkeypatch.setattr(replica_snapshots, "same_disk", lambda *_: False)
    monkeypatch.setattr(ReplicaSnapshots, "_downloaded", lambda _self, _reply: {0: made.folder / "t0"})
    wanted = parts((1,))
    with ReplicaSnapshots(plan(), wanted, 0, ScanStats()) as found:
        assert len(found.of(wanted[0])) == 1
        assert made.kept == made.given == set()


def test_a_table_that_is_gone_ends_the_read_at_once(cluster: Any) -> None:
    def refuse(address: str, tablets: list[int]) -> None:
        raise RpcError("not_found", "there is no table 1")

    made = cluster(1, refuse)
    with (
        pytest.raises(ScanFailed, match="was dropped while it was read"),
        ReplicaSnapshots(plan(), parts((1, 2, 3)), 0, ScanStats()),
    ):
        pass
    assert len(made.asked) == 1


def test_what_can_not_be_opened_after_all_is_given_back(cluster: Any) -> None:
    made = cluster(1, accept)
    (made.folder / "t0" / "CURRENT").write_text("no manifest of this name\n")
    with pytest.raises(ScanFailed), ReplicaSnapshots(plan(), parts((1,)), 0, ScanStats()):
        pass
    assert made.given == set()


def test_the_same_path_with_another_proof_is_another_disk(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "s").mkdir(parents=True)
    (tmp_path / "snapshots" / "s" / "proof").write_text("mine")
    reply = SnapshotReply("s", str(tmp_path), "mine", [], [], "", b"")
    assert same_disk(tmp_path, reply)
    assert not same_disk(tmp_path, SnapshotReply("s", str(tmp_path), "other", [], [], "", b""))
    assert not same_disk(tmp_path / "elsewhere", reply)


def test_a_tablet_that_has_moved_is_read_where_it_is_now(cluster: Any) -> None:
    """The only replica has gone to an instance that was not there when the read was planned."""
    made = cluster(1, accept)
    made.now = (4,)
    wanted = parts((1,))
    with ReplicaSnapshots(plan(), wanted, 0, ScanStats()) as found:
        assert made.asked == [("h4", [0])] and len(found.of(wanted[0])) == 1


def test_a_quorum_is_of_the_set_that_answers_reads_now(cluster: Any) -> None:
    made = cluster(1, accept)
    made.now = (1, 2, 3, 4)
    wanted = parts((1, 2, 3))
    with ReplicaSnapshots(plan(Level.QUORUM), wanted, 0, ScanStats()) as found:
        assert len(found.of(wanted[0])) == 3


def test_when_the_only_holder_has_left_the_others_are_asked_who_holds_it_now(cluster: Any) -> None:
    def gone(address: str, tablets: list[int]) -> None:
        if address == "h1":
            made.now = (4,)
            raise NotConnected("h1 does not listen")

    made = cluster(1, gone)
    wanted = parts((1,))
    with ReplicaSnapshots(plan(timeout_s=5.0), wanted, 0, ScanStats()) as found:
        assert len(found.of(wanted[0])) == 1
    assert {address for address, _ in made.asked} == {"h1", "h4"}
