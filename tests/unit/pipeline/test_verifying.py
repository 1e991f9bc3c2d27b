"""What a verification says: replicas are equal only when everything that differed was looked at again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.client.errors import Unavailable
from trimtab.pipeline import verifying
from trimtab.pipeline.differences import RowDifference
from trimtab.pipeline.verifying import Verdict, _FirstLook, _hold, summary
from trimtab.spark.scan_plan import ScanPart

SPANS = [(b"a", b"b"), (b"b", b"c"), (b"c", b"d")]


def look() -> _FirstLook:
    return _FirstLook(ScanPart(3, (), (1, 2)), Verdict(3, ranges=16, differing_ranges=len(SPANS)))


def difference(span: tuple[bytes, bytes], number: int) -> RowDifference:
    return RowDifference(b"%b%d" % (span[0], number), ((b"key", b"v" * 97),), (2,))


@pytest.mark.parametrize(
    ("room_bytes", "held", "given_up"),
    [(1_000, [2, 2, 2], 0), (600, [2, 2, 2], 0), (599, [2, 2, 1], 1), (250, [2], 2), (100, [1], 3), (99, [], 3)],
)
def test_differences_that_find_no_room_are_given_up_and_counted_as_such(
    monkeypatch: pytest.MonkeyPatch, room_bytes: int, held: list[int], given_up: int
) -> None:
    monkeypatch.setattr(verifying, "HELD_BYTES", room_bytes)
    made = look()
    assert _hold(made, SPANS, lambda span: [difference(span, number) for number in range(2)]) == given_up
    assert [len(each) for each in made.found.values()] == held


def test_replicas_with_more_differences_than_can_be_held_are_not_called_equal() -> None:
    """The span that was too large was not kept, nothing was left to look at again, and that read as equal."""
    plan: Any = SimpleNamespace(epoch=5, name_of=lambda raft_id: f"i{raft_id}")
    scan: Any = SimpleNamespace(plan=plan)
    good, verdict = Verdict(2, ranges=16), look().verdict
    assert summary("shop.users", scan, [good, verdict], 10)["equal"], "writes that were under way"
    verdict.given_up = 2
    found = summary("shop.users", scan, [good, verdict], 10)
    assert (found["equal"], found["more"], found["differences"]) == (False, True, 0)
    assert found["troubles"] == [
        "tablet 3: 2 of 3 ranges that differ were given up: what differs is more than 128 MiB; "
        "`trimtab repair shop.users` first"
    ]


class Cluster:
    """Tablets and who holds them, at one plan after the other; `down` answers nothing, nor does who has none."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, places: dict[int, list[tuple[int, ...]]], down: int = 0
    ) -> None:
        self.places, self.down = places, down
        self.plans = 0
        self.looks: list[dict[int, tuple[int, ...]]] = []
        self.ids = [7]  # of the table, at one plan after the other
        self.fails: Exception | None = None  # to be planned again
        self.told: list[dict[str, Any]] = []
        monkeypatch.setattr(verifying, "scan_of", self.scan_of)
        monkeypatch.setattr(verifying, "every_replica", lambda scan: scan)
        monkeypatch.setattr(verifying.tasks, "run", self.run)

    def scan_of(self, _context: Any, _table: str, tablets: list[int]) -> Any:
        if self.plans and self.fails is not None:
            raise self.fails
        parts = tuple(
            ScanPart(tablet, (), self.places[tablet][min(self.plans, len(self.places[tablet]) - 1)], 10)
            for tablet in tablets or self.places
        )
        table = SimpleNamespace(full_name="shop.users", id=self.ids[min(self.plans, len(self.ids) - 1)])
        self.plans += 1
        return SimpleNamespace(
            plan=SimpleNamespace(epoch=5, name_of=lambda raft_id: f"i{raft_id}", table=table), parts=parts
        )

    def run(self, _context: Any, made: Any, _work: Any, before: Any) -> list[list[Verdict]]:
        asked = {part.tablet: part.holders for task in made for part in task.parts}
        self.looks.append(asked)
        self.told.append({"before": before.bytes})
        return [[self.verdict(tablet, holders) for tablet, holders in asked.items()]]

    def verdict(self, tablet: int, holders: tuple[int, ...]) -> Verdict:
        gone = set(holders) - set(self.places[tablet][-1])
        return Verdict(
            tablet, silent=dict.fromkeys(sorted(gone), "not here") | dict.fromkeys({self.down} & {*holders}, "down")
        )

    def verify(self) -> dict[str, Any]:
        context: Any = SimpleNamespace(
            progress=lambda **told: self.told.append(told),
            session=SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)),
        )
        return verifying.verify(context, {"table": "shop.users"})


def test_a_tablet_that_moves_while_it_is_looked_at_is_looked_at_again_where_it_is_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tablet went to another instance between the plan and the look, and the whole table was not called equal."""
    cluster = Cluster(monkeypatch, {0: [(1, 2)], 1: [(1, 2), (2, 3)]})
    assert cluster.verify()["equal"]
    assert cluster.looks == [{0: (1, 2), 1: (1, 2)}, {1: (2, 3)}]
    # Two tablets of ten bytes on two instances, and one of them again.
    sums = [told.get("total_bytes", told.get("before")) for told in cluster.told]
    assert sums == [40, 0, 60, 40]


def test_a_tablet_that_is_seen_to_have_moved_only_later_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, {0: [(1, 2), (2, 3)], 1: [(1, 2), (1, 2), (2, 4)]})
    assert cluster.verify()["equal"]
    assert cluster.looks == [{0: (1, 2), 1: (1, 2)}, {0: (2, 3)}, {1: (2, 4)}]


def test_one_that_is_down_is_told_and_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, {0: [(1, 2)], 1: [(1, 4)]}, down=4)
    found = cluster.verify()
    assert not found["equal"] and found["troubles"] == ["tablet 1 at i4: down"]
    assert len(cluster.looks) == 1


@pytest.mark.parametrize("trouble", ["nobody answers", "another table"])
def test_what_was_found_is_told_where_nothing_can_be_planned_again(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    cluster = Cluster(monkeypatch, {0: [(1, 2)], 1: [(1, 2), (2, 3)]})
    if trouble == "another table":
        cluster.ids = [7, 8]
    else:
        cluster.fails = Unavailable("no leader")
    found = cluster.verify()
    assert not found["equal"] and found["troubles"] == ["tablet 1 at i1: not here"]
    assert len(cluster.looks) == 1
