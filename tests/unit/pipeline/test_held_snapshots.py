"""Copies that are held for a job, as its tasks open them: by name, where they lie, and never made anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.spark.test_replica_snapshots import Cluster, accept, parts, plan

from trimtab.loads import protocol
from trimtab.loads.protocol import SnapshotReply
from trimtab.net.errors import RpcError
from trimtab.pipeline.held_snapshots import Held, HeldSnapshots
from trimtab.spark import replica_snapshots
from trimtab.spark.scan_plan import ScanFailed, ScanStats

HELD = Held({1: {"export-9-0": (0, 1)}})
PARTS = parts((1,))


class Holding(Cluster):
    """An instance that holds a copy, or has forgotten it."""

    gone = False

    def call(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        if method == protocol.SNAPSHOT_RENEW:
            if self.gone:
                raise RpcError("not_ready", "there is no such snapshot")
            return b""
        return super().call(address, method, body, timeout_s)


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Holding:
    made = Holding(tmp_path, 2, accept)
    monkeypatch.setattr(replica_snapshots, "Instances", made)
    return made


def test_a_task_opens_its_tablet_of_a_copy_that_lies_here(holding: Holding) -> None:
    with HeldSnapshots(plan(), PARTS, 0, ScanStats(), HELD) as found:
        ((snapshot, hidden),) = found.of(PARTS[0])
        assert (snapshot.path, hidden) == (holding.folder / "t0", frozenset({999}))
    assert holding.asked == [("h1", [0, 1])], "by the name, which stands for both"
    assert holding.given == {"export-9-0"}, "it is the driver's to give back"


def test_a_task_elsewhere_downloads_its_tablet_and_no_other(
    holding: Holding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def downloaded(_self: HeldSnapshots, reply: SnapshotReply) -> dict[int, Path]:
        (tablet,) = reply.tablets
        return {tablet.tablet: tmp_path / tablet.path}

    monkeypatch.setattr("trimtab.pipeline.held_snapshots.same_disk", lambda *_: False)
    monkeypatch.setattr(HeldSnapshots, "_downloaded", downloaded)
    with HeldSnapshots(plan(), PARTS, 0, ScanStats(), HELD) as found:
        assert len(found.of(PARTS[0])) == 1


def test_a_copy_that_is_gone_is_not_made_anew(holding: Holding) -> None:
    holding.gone = True
    with pytest.raises(ScanFailed, match="no such snapshot"), HeldSnapshots(plan(), PARTS, 0, ScanStats(), HELD):
        pass
    assert holding.asked == []
