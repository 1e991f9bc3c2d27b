"""Copies of those replicas that answer: who is down, or is not asked, keeps nobody waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.rows import tables
from tests.unit.spark.copying_instances import CopyingInstances, schema_reply

from trimtab.loads import protocol
from trimtab.net.errors import NotConnected, RpcError
from trimtab.pipeline.replica_copies import Copies, copies_of
from trimtab.rows import protocol as rows_protocol
from trimtab.rows import repair_protocol
from trimtab.rows.repair_protocol import BeginReply
from trimtab.spark import replica_snapshots
from trimtab.spark.options import Connection
from trimtab.spark.scan_plan import Holder, ScanFailed, ScanPart, ScanPlan
from trimtab.tablets.consistency import Level

PART = ScanPart(0, ((bytes(8), b"\xff" * 32),), (1, 2, 3))


class Cluster(CopyingInstances):
    """Three instances that hold one tablet; `reading` are those that answer for it, `down` say nothing."""

    def __init__(self, folder: Path, reading: tuple[int, ...] = (1, 2, 3), down: tuple[int, ...] = ()) -> None:
        super().__init__(folder, 1)
        self.reading, self.down = reading, down
        self.given: list[int] = []

    def ask(self, address: str, method: str, body: bytes, timeout_s: float, longer_s: float) -> bytes:
        return self.call(address, method, body, timeout_s)

    def call(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        raft_id = int(address.removeprefix("h"))
        if raft_id in self.down:
            raise NotConnected(f"nobody listens at {address}")
        if method == repair_protocol.BEGIN:
            return repair_protocol.encode(BeginReply(1, 5, 1_000 + raft_id))
        if method == protocol.SNAPSHOT_RELEASE:
            return b""
        if method == rows_protocol.SCHEMA:
            return schema_reply(self.reading)
        request = protocol.decode_snapshot(body)
        if set(request.reading[0]) != set(self.reading):
            raise RpcError("moved", "others hold it")
        self.given.append(raft_id)
        return self.copied(request, [])


def plan(known: tuple[int, ...] = (1, 2, 3)) -> ScanPlan:
    holders = {each: Holder(each, f"i{each}", f"h{each}", "dc1") for each in known}
    table = tables.table(["int"])
    return ScanPlan(Connection("h1", 60.0), table, {}, ("p0",), ("p0",), 0, 0, Level.ALL, "dc1", holders)


def copied(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Copies:
    monkeypatch.setattr(replica_snapshots, "Instances", cluster)
    instances: Any = cluster
    with copies_of(plan(), PART, instances, 0, patience_s=0.0, **how) as found:
        return found


def test_those_who_answer_are_copied_though_another_replica_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, down=(3,))
    found = copied(cluster, monkeypatch)
    assert sorted(found.by_holder) == sorted(found.begun) == cluster.given == [1, 2]
    assert found.silent == {3: "nobody listens at h3"}


def test_whose_rows_are_not_wanted_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    found = copied(cluster, monkeypatch, asked=(1, 3))
    assert sorted(found.by_holder) == sorted(found.begun) == cluster.given == [1, 3]
    assert not found.silent


def test_a_holder_that_left_the_cluster_is_told_and_the_others_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, reading=(1, 2))
    known = plan((1, 2))
    monkeypatch.setattr(replica_snapshots, "Instances", cluster)
    instances: Any = cluster
    with copies_of(known, PART, instances, 0, patience_s=0.0) as found:
        assert sorted(found.by_holder) == [1, 2]
        assert found.silent == {3: "it is not known to the cluster"}


def test_a_tablet_that_others_hold_by_now_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, reading=(1, 2, 4))
    with pytest.raises(ScanFailed, match=r"tablet 0 of .* changes hands, or is being repaired; try later"):
        copied(cluster, monkeypatch)
    assert not cluster.given


def test_too_few_who_answer_are_told_with_what_the_others_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScanFailed, match="can't be compared: i2: nobody listens at h2; i3: nobody listens at h3"):
        copied(Cluster(tmp_path, down=(2, 3)), monkeypatch)
