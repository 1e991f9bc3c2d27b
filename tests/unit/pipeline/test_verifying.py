"""What a verification says: replicas are equal only when everything that differed was looked at again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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


def test_a_tablet_that_moves_while_it_is_looked_at_is_looked_at_again_where_it_is_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tablet went to another instance between the plan and the look, and the whole table was not called equal."""
    plan: Any = SimpleNamespace(epoch=5, name_of=lambda raft_id: f"i{raft_id}")
    places = {0: [(1, 2)], 1: [(1, 2), (2, 3)], 2: [(1, 4)]}  # of each tablet, at one look after the other
    looks: list[dict[int, tuple[int, ...]]] = []

    def scan_of(_context: Any, _table: str, tablets: list[int]) -> Any:
        there = {tablet: places[tablet][min(len(looks), len(places[tablet]) - 1)] for tablet in tablets or places}
        parts = tuple(ScanPart(tablet, (), holders) for tablet, holders in there.items())
        return SimpleNamespace(plan=plan, parts=parts)

    def run(_context: Any, made: Any, _work: Any) -> list[list[Verdict]]:
        asked = {part.tablet: part.holders for task in made for part in task.parts}
        looks.append(asked)
        # Of tablet 1 instance 1 has nothing any more; instance 4 is down.
        silent = {1: {1: "not here"} if 1 in asked.get(1, ()) else {}, 2: {4: "down"}}
        return [[Verdict(tablet, silent=silent.get(tablet, {})) for tablet in asked]]

    monkeypatch.setattr(verifying, "scan_of", scan_of)
    monkeypatch.setattr(verifying, "every_replica", lambda scan: scan)
    monkeypatch.setattr(verifying.tasks, "run", run)
    context: Any = SimpleNamespace(
        progress=lambda **_: None, session=SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    )
    found = verifying.verify(context, {"table": "shop.users"})
    assert looks == [{0: (1, 2), 1: (1, 2), 2: (1, 4)}, {1: (2, 3)}]
    assert not found["equal"] and found["troubles"] == ["tablet 2 at i4: down"]
    places.pop(2)
    looks.clear()
    assert verifying.verify(context, {"table": "shop.users"})["equal"]
