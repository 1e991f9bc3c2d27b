"""Snapshots that a job copies from: asked for together, again where that may help, and only such as go together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimtab.client.errors import Unavailable
from trimtab.client.loads import BlockingLoads, LoadRefused
from trimtab.loads.protocol import SnapshotReply, SnapshotRequest, SnapshotTablet
from trimtab.pipeline import held_sources
from trimtab.pipeline.copies import NOT_READY, SOURCE_GONE
from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.held_sources import Found, Group, HeldSources

TABLE = 5


class Cluster:
    """Instances 1 and 2 with all tablets; what they refuse is the test's to say."""

    def __init__(self) -> None:
        self.instances = {1: SimpleNamespace(instance_id="i1"), 2: SimpleNamespace(instance_id="i2")}
        self.snapshots: dict[tuple[int, str], list[int]] = {}
        self.refused: dict[tuple[int, int], str] = {}
        self.through: dict[int, int] = {1: 0, 2: 0}
        self.asked: list[tuple[int, str, bool]] = []
        self.released: list[tuple[int, str]] = []
        self.renewed: list[tuple[int, str, int]] = []
        self.before: Callable[[int, SnapshotRequest], None] = lambda raft_id, request: None

    def snapshot(self, raft_id: int, request: SnapshotRequest, *, timeout_s: float) -> SnapshotReply:
        self.asked.append((raft_id, request.name, request.only_tell))
        self.before(raft_id, request)
        refused = [
            (tablet, self.refused[raft_id, tablet], "no")
            for tablet in request.tablets
            if (raft_id, tablet) in self.refused
        ]
        good = [tablet for tablet in request.tablets if (raft_id, tablet) not in self.refused]
        through, found = self.through[raft_id], (raft_id, request.name) in self.snapshots
        if not request.only_tell:
            expected = dict(zip(request.tablets, request.through, strict=False))
            refused += [(tablet, "repaired", "no") for tablet in good if expected.get(tablet, through) != through]
            good = [tablet for tablet in good if expected.get(tablet, through) == through]
            good = self.snapshots.setdefault((raft_id, request.name), good) if found or good else []
        tablets = [SnapshotTablet(each, f"p/{each}", [("f", 10)], 3, through, 0, 1) for each in good]
        return SnapshotReply(request.name, "/d", "proof", tablets, [], "b:1", b"t", refused=refused, found=found)

    def renew_snapshot(self, raft_id: int, name: str, lease_ms: int) -> None:
        self.renewed.append((raft_id, name, lease_ms))

    def release_snapshot(self, raft_id: int, name: str) -> None:
        self.released.append((raft_id, name))
        self.snapshots.pop((raft_id, name), None)


@contextmanager
def holding(cluster: Cluster, **options: Any) -> Iterator[HeldSources]:
    with HeldSources(cast(BlockingLoads, cluster), TABLE, 3, **options) as made:
        yield made


def ask(sources: HeldSources, group: Group) -> Found:
    sources.ask([group])
    ((same, found),) = sources.came()
    assert same is group
    return found


def group(*tablets: int, sources: tuple[int, ...] = (1,)) -> Group:
    return Group(sources, tablets, "base", set(tablets))


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_sources, "_PAUSE_S", 0.0)


def test_one_call_gives_all_that_is_ready_and_the_next_one_the_rest() -> None:
    cluster, wanted = Cluster(), group(0, 1, 2)
    cluster.refused[1, 1] = "not_ready"
    with holding(cluster) as sources:
        assert ask(sources, wanted).keys() == {0, 2} and wanted.wanted == {1}
        assert wanted.why[1] == (NOT_READY, "i1: no") and not sources.is_over(wanted)
        cluster.refused.clear()
        (found,) = ask(sources, wanted)[1]
        assert (found.raft_id, found.name, found.path, found.size_bytes, found.adopted) == (1, "i1", "p/1", 10, 3)
        assert [name for _, name, _ in cluster.asked] == ["base-0", "base-1"]
        sources.keep(7_000)
        assert sorted(cluster.renewed) == [(1, "base-0", 7_000), (1, "base-1", 7_000)]
        sources.release()
    assert sorted(cluster.released) == [(1, "base-0"), (1, "base-1")] and not cluster.snapshots


def test_who_takes_over_finds_the_same_snapshots() -> None:
    cluster = Cluster()
    cluster.refused[1, 1] = "not_ready"
    with holding(cluster) as sources:
        ask(sources, group(0, 1))
    cluster.refused.clear()
    with holding(cluster) as sources:
        taken = group(0, 1)
        assert ask(sources, taken).keys() == {0}, "as it was taken before"
        assert ask(sources, taken).keys() == {1}


def test_a_source_without_the_replica_is_not_waited_for() -> None:
    cluster, wanted = Cluster(), group(0)
    cluster.refused[1, 0] = "gone"
    with holding(cluster) as sources:
        assert ask(sources, wanted) == {} and sources.is_over(wanted)
        unknown = group(0, sources=(9,))
        assert ask(sources, unknown) == {} and sources.is_over(unknown)
        assert unknown.why[0] == (SOURCE_GONE, "there is no instance 9 to copy from")


def test_a_source_that_does_not_answer_is_waited_for_a_while() -> None:
    cluster, wanted, now_s = Cluster(), group(0), [100.0]

    def silent(raft_id: int, request: SnapshotRequest) -> None:
        raise Unavailable("i1 does not answer")

    cluster.before = silent
    with holding(cluster, clock_s=lambda: now_s[0]) as sources:
        assert ask(sources, wanted) == {} and not sources.is_over(wanted)
        now_s[0] += held_sources.AGAIN_S
        assert sources.is_over(wanted) and wanted.why[0] == (NOT_READY, "i1: i1 does not answer")


def test_a_dropped_table_ends_the_job() -> None:
    cluster = Cluster()

    def dropped(raft_id: int, request: SnapshotRequest) -> None:
        raise LoadRefused("there is no table 5", "not_found")

    cluster.before = dropped
    with holding(cluster) as sources, pytest.raises(JobFailed, match="dropped"):
        ask(sources, group(0))


def test_sources_are_merged_only_if_none_was_repaired_between_two_snapshots() -> None:
    cluster, wanted = Cluster(), group(0, 1, sources=(1, 2))

    def repaired(raft_id: int, request: SnapshotRequest) -> None:
        # The second one ends a repair after the first was copied: it may have forgotten deletions by then.
        if raft_id == 2 and not request.only_tell:
            cluster.through[2] = 50

    cluster.before = repaired
    with holding(cluster) as sources:
        assert ask(sources, wanted) == {} and wanted.wanted == {0, 1}
        found = ask(sources, wanted)
        assert found.keys() == {0, 1}
        assert [(each.raft_id, each.repaired_through_ms) for each in found[0]] == [(1, 0), (2, 50)]
    assert cluster.asked[:4] == [(1, "", True), (2, "", True), (1, "base-0", False), (2, "base-0", False)]


def test_a_snapshot_of_an_earlier_attempt_is_not_merged_with_a_new_one() -> None:
    cluster = Cluster()
    cluster.snapshots[1, "base-0"] = [0]
    with holding(cluster) as sources:
        wanted = group(0, sources=(1, 2))
        assert ask(sources, wanted) == {}
        assert {(1, "base-0"), (2, "base-0")} == set(cluster.released)
        assert ask(sources, wanted).keys() == {0}
    cluster.asked.clear()
    with holding(cluster) as sources:
        cluster.snapshots |= {(1, "base-0"): [0], (2, "base-0"): [0]}
        assert ask(sources, group(0, sources=(1, 2))).keys() == {0}, "all of them are from before"


ENDS = """
import threading
from trimtab.pipeline.held_sources import HeldSources

class Gone:
    def release_snapshot(self, *_):
        releasing.set()
        threading.Event().wait()

releasing = threading.Event()
sources = HeldSources(Gone(), 5, 3)
sources._names[1, "base-0"] = None
threading.Thread(target=sources.release, daemon=True).start()
releasing.wait()
"""


def test_a_process_that_ends_does_not_wait_until_a_cluster_that_is_gone_was_told() -> None:
    """Ctrl-C in the demo took half a minute when tablets were on their way."""
    subprocess.run([sys.executable, "-c", ENDS], check=True, timeout=60)
