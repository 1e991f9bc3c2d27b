from __future__ import annotations

import itertools

import msgspec

from trimtab.playground.moving import Moves
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind, encode, transition_key

MOVE = TabletTransition(pending=(1, 2, 4), kind=TransitionKind.MIGRATION, session="s1", size_bytes=100)


def told(*changes: tuple[int, TabletTransition | None]) -> Moves:
    moves = Moves(clock=itertools.count(1.0).__next__)
    for tablet, record in changes:
        moves.take(transition_key(7, tablet), None if record is None else encode(record))
    return moves


def at(stage: Stage, **fields: object) -> TabletTransition:
    return msgspec.structs.replace(MOVE, stage=stage, **fields)


def test_a_move_is_done_when_its_record_is_gone_after_the_last_stage() -> None:
    moves = told((0, MOVE), (1, MOVE), (0, at(Stage.STREAMING)), (0, at(Stage.END_MIGRATION)), (0, None))
    assert (len(moves.done), len(moves.undone), list(moves.under_way)) == (1, 0, [(7, 1)])
    assert (moves.begun, moves.done_bytes, moves.wanted_bytes) == (2, 100, 200)
    assert moves.took_s > 0
    assert str(moves) == "1 of 2 tablets (allow write both read old)"


def test_one_that_is_undone_is_not_done() -> None:
    moves = told((0, MOVE), (0, at(Stage.CLEANUP_TARGET)), (0, at(Stage.REVERT_MIGRATION)), (0, None))
    assert (len(moves.done), len(moves.undone), moves.begun) == (0, 1, 1)


def test_a_change_of_the_target_is_another_move() -> None:
    moves = told((0, at(Stage.STREAMING)), (0, msgspec.structs.replace(MOVE, session="s2", pending=(1, 2, 5))))
    assert (len(moves.done), len(moves.undone), len(moves.under_way)) == (0, 1, 1)


def test_what_was_planned_begins_when_the_one_before_is_done() -> None:
    moves = told((0, at(Stage.END_MIGRATION)), (0, msgspec.structs.replace(MOVE, session="s2")))
    assert (len(moves.done), len(moves.under_way)) == (1, 1)


def test_why_an_attempt_failed_is_told() -> None:
    assert told((0, MOVE)).error == ""
    assert told((0, MOVE), (1, at(Stage.STREAMING, error="no space"))).error == "no space"
