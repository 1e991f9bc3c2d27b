"""What becomes of a proposed target: document 000's invoke with its corrections, and the table of the module.

S, P and L are the stable, the pending and the planned set. Ignite's expected outcomes are those of a target that can't
be adjusted any more (its optimisations were never built there): here, from the lock on.
"""

from __future__ import annotations

import msgspec
import pytest

from trimtab.tablets.selectors import Replicas, Stage
from trimtab.tablets.transitions import (
    Cause,
    Outcome,
    Proposal,
    TabletTransition,
    TransitionKind,
    goes_back,
    holders,
    next_proposal,
    place_of,
    propose,
    transition_key,
)

ONE, TWO, THREE = (1, 2, 3), (1, 2, 4), (1, 2, 5)
LOCKED = (Stage.WRITE_BOTH_READ_NEW, Stage.USE_NEW, Stage.CLEANUP, Stage.END_MIGRATION)
ADJUSTABLE = (Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING)
UNDOING = (Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION)


def under_way(
    pending: Replicas, stage: Stage = Stage.STREAMING, *, planned: Replicas = (), locked: bool = False, trigger: int = 5
) -> TabletTransition:
    kind = TransitionKind.MIGRATION
    return TabletTransition(pending, kind, stage, "s1", planned, trigger=trigger, locked=locked or stage in LOCKED)


def proposed(
    stable: Replicas, current: TabletTransition | None, target: Replicas, *, trigger: int = 9, was: Replicas = ()
) -> tuple[Outcome, TabletTransition | None]:
    proposal = Proposal(7, 0, target, Cause.OPERATOR, "why", trigger, was=was)
    return propose(stable, current, proposal, session="s2", kind=TransitionKind.MIGRATION, now_ms=1)


# Ignite's expected outcomes


def test_nothing_under_way_and_another_stable_set_makes_the_target_pending() -> None:
    outcome, after = proposed(THREE, None, ONE)
    assert outcome is Outcome.PENDING and after is not None
    assert (after.pending, after.planned, after.trigger, after.session) == (ONE, (), 9, "s2")


def test_the_stable_set_as_the_target_starts_nothing_in_whatever_order_it_is_named() -> None:
    assert proposed(ONE, None, ONE) == (Outcome.NOTHING, None)
    assert proposed(ONE, None, (3, 1, 2)) == (Outcome.NOTHING, None)


@pytest.mark.parametrize("stage", LOCKED)
@pytest.mark.parametrize("planned", [(), THREE])
def test_while_another_set_is_pending_the_target_is_planned(stage: Stage, planned: Replicas) -> None:
    outcome, after = proposed(ONE, under_way(TWO, stage, planned=planned), (1, 2, 6))
    assert outcome is Outcome.PLANNED and after is not None
    assert (after.pending, after.planned, after.trigger, after.session) == (TWO, (1, 2, 6), 9, "s1")
    outcome, after = proposed(ONE, under_way(TWO, stage, planned=planned), ONE)
    assert outcome is Outcome.PLANNED and after is not None and after.planned == ONE, "back, when it has arrived"


@pytest.mark.parametrize("stage", LOCKED)
def test_the_pending_set_as_the_target_removes_what_was_planned(stage: Stage) -> None:
    outcome, after = proposed(ONE, under_way(TWO, stage, planned=ONE), TWO)
    assert outcome is Outcome.UNPLANNED and after is not None
    assert (after.pending, after.planned, after.planned_why, after.trigger) == (TWO, (), "", 9)


def test_the_trigger_is_advanced_in_every_row_that_is_not_stale() -> None:
    for stage in Stage:
        for target in (ONE, TWO, THREE, (1, 2, 6)):
            outcome, after = proposed(ONE, under_way(TWO, stage, planned=THREE), target)
            assert outcome is not Outcome.STALE and after is not None and after.trigger == 9


def test_the_same_event_seen_by_every_node_acts_once() -> None:
    _, first = proposed(ONE, None, TWO)
    assert proposed(ONE, first, TWO) == (Outcome.STALE, first)
    assert proposed(ONE, first, THREE, trigger=8) == (Outcome.STALE, first), "what was computed earlier comes too late"


def test_what_was_computed_on_another_stable_set_is_stale() -> None:
    assert proposed(ONE, None, TWO, was=THREE) == (Outcome.STALE, None)
    assert proposed(ONE, None, TWO, was=(3, 2, 1))[0] is Outcome.PENDING


# Until the lock


@pytest.mark.parametrize("stage", ADJUSTABLE)
def test_a_target_that_changes_before_the_lock_begins_anew_and_leaves_a_leftover(stage: Stage) -> None:
    outcome, after = proposed(ONE, under_way(TWO, stage), THREE)
    assert outcome is Outcome.ADJUSTED and after is not None
    assert (after.pending, after.stage, after.session) == (THREE, Stage.ALLOW_WRITE_BOTH_READ_OLD, "s2")
    assert after.leftovers == (4,) and after.job == 0
    again, last = proposed(ONE, after, TWO, trigger=10)
    assert again is Outcome.ADJUSTED and last is not None
    assert last.leftovers == (5,), "who is a target again is no leftover"
    assert set(holders(ONE, last)) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("stage", ADJUSTABLE)
def test_the_stable_set_as_the_target_undoes_it_before_the_lock(stage: Stage) -> None:
    outcome, after = proposed(ONE, under_way(TWO, stage, planned=THREE), ONE)
    assert outcome is Outcome.UNDONE and after is not None
    assert (after.stage, after.session, after.planned) == (Stage.CLEANUP_TARGET, "s1", ())


# While it is undone


@pytest.mark.parametrize("stage", [*UNDOING, Stage.WRITE_BOTH_READ_OLD])
def test_while_a_move_goes_back_its_target_is_planned_and_the_stable_set_is_where_it_ends(stage: Stage) -> None:
    """In write_both_read_old with the lock, too: it was in write_both_read_new, and everybody has to read O again."""
    current = under_way(TWO, stage, planned=THREE, locked=True)
    assert goes_back(current)
    outcome, after = proposed(ONE, current, TWO)
    assert outcome is Outcome.PLANNED and after is not None and after.planned == TWO
    outcome, after = proposed(ONE, current, ONE)
    assert outcome is Outcome.UNPLANNED and after is not None and not after.planned
    assert after.stage is stage


# What follows


def test_what_was_planned_follows_with_the_trigger_of_its_proposal_and_is_not_planned_any_more() -> None:
    ended = msgspec.structs.replace(
        under_way(TWO, Stage.END_MIGRATION, planned=THREE, trigger=9),
        planned_cause=Cause.DRAIN,
        planned_why="it leaves",
    )
    proposal = next_proposal(7, 0, ended)
    assert proposal == Proposal(7, 0, THREE, Cause.DRAIN, "it leaves", 9)
    assert proposal is not None
    _, after = propose(TWO, None, proposal, session="s2", kind=TransitionKind.MIGRATION, now_ms=1)
    assert after is not None and after.pending == THREE and not after.planned
    assert next_proposal(7, 0, after) is None


def test_who_has_a_replica_at_which_stage() -> None:
    both, old, new = {1, 2, 3, 4}, {1, 2, 3}, {1, 2, 4}
    wanted = dict.fromkeys(Stage, both)
    wanted |= {Stage.CLEANUP: new, Stage.END_MIGRATION: new, Stage.CLEANUP_TARGET: old, Stage.REVERT_MIGRATION: old}
    assert {stage: set(holders(ONE, under_way(TWO, stage))) for stage in Stage} == wanted
    assert holders(ONE, None) == ONE


@pytest.mark.parametrize("key", [b"transitions/7/0", b"transitions/", transition_key(7, 0) + b"0", b"tablets/7/0"])
def test_keys_that_name_no_tablet_are_refused(key: bytes) -> None:
    assert place_of(transition_key(7, 3)) == (7, 3)
    with pytest.raises(ValueError, match="names no tablet"):
        place_of(key)
