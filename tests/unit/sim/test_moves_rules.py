"""The rules of moves refuse what they are there to refuse."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from trimtab.sim.checks import Violation
from trimtab.sim.moves_rules import Around, Tablet, judge
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, TabletTransition, TransitionKind

PLACE = (7, 0)
STABLE = (1, 2, 3)
BEGUN = TabletTransition(
    (1, 2, 4),
    TransitionKind.MIGRATION,
    session="first",
    trigger=5,
    version=9,
    cause=Cause.BALANCE,
    why="4 has room",
)
AROUND = Around(version=9, hosts={raft_id: f"h{raft_id}" for raft_id in range(1, 6)}, declared=3, sessions=frozenset())


def changed(now: TabletTransition, **fields: object) -> Tablet:
    return Tablet(STABLE, msgspec.structs.replace(now, **fields))


def test_a_move_that_says_why_begins() -> None:
    judge(PLACE, Tablet(STABLE), changed(BEGUN), AROUND, 4)


@pytest.mark.parametrize("why", ["", "  "])
def test_a_move_that_begins_without_a_why_is_a_violation(why: str) -> None:
    with pytest.raises(Violation, match=r"tablet 0 of table 7: a move to \(1, 2, 4\) began, and nobody says why"):
        judge(PLACE, Tablet(STABLE), changed(BEGUN, why=why), AROUND, 4)


def test_another_target_and_what_was_planned_have_a_why_of_their_own() -> None:
    anew = changed(BEGUN, pending=(1, 2, 5), session="second", trigger=6, leftovers=(4,))
    judge(PLACE, changed(BEGUN), anew, AROUND, 5)
    assert anew.now is not None
    with pytest.raises(Violation, match="nobody says why"):
        judge(PLACE, changed(BEGUN), changed(anew.now, why=""), AROUND, 5)

    ending = changed(BEGUN, stage=Stage.END_MIGRATION, locked=True, planned=(1, 2, 5), planned_why="then 5", trigger=6)
    follows = replace(changed(BEGUN, pending=(1, 2, 5), session="second", trigger=6), stable=(1, 2, 4))
    judge(PLACE, ending, follows, AROUND, 6)
    assert follows.now is not None
    with pytest.raises(Violation, match="nobody says why"):
        judge(PLACE, ending, replace(follows, now=msgspec.structs.replace(follows.now, why="")), AROUND, 6)
