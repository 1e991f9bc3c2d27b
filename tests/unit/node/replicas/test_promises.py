"""When a round of repair may promise that deletions can be forgotten, and when a copy stands in the way."""

from __future__ import annotations

import pytest

from trimtab.node.replicas.promises import has_others
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind, encode, transition_key
from trimtab.tablets.view import TableView

FORWARD = (Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING)
LATER = (Stage.USE_NEW, Stage.CLEANUP, Stage.END_MIGRATION)
UNDONE = (Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION)


def tables(new: tuple[int, ...], stage: Stage, kind: TransitionKind = TransitionKind.MIGRATION) -> TableView:
    view = TableView()
    view.change(chunk_key(1, 0), pack([(1, 2, 3)] * 2), 1)
    view.change(transition_key(1, 0), encode(TabletTransition(new, kind, stage, "s")), 2)
    return view


@pytest.mark.parametrize("stage", [*FORWARD, Stage.WRITE_BOTH_READ_NEW])
def test_nothing_is_promised_while_a_copy_is_under_way_or_the_move_may_still_be_undone(stage: Stage) -> None:
    view = tables((1, 2, 4), stage)
    assert has_others(view, 1, 0)
    assert not has_others(view, 1, 1), "the other tablet stays where it is"


@pytest.mark.parametrize("stage", [*LATER, *UNDONE])
def test_rounds_go_on_once_it_is_certain_which_replicas_there_are(stage: Stage) -> None:
    assert not has_others(tables((1, 2, 4), stage), 1, 0)


@pytest.mark.parametrize("stage", FORWARD)
def test_a_repair_that_comes_before_replicas_are_given_up_may_promise(stage: Stage) -> None:
    assert not has_others(tables((1, 2), stage, TransitionKind.REPAIR), 1, 0), "nobody arrives"
    assert not has_others(tables((1, 2, 3), stage, TransitionKind.REPAIR), 1, 0)


def test_who_is_given_up_counts_until_it_can_not_come_back() -> None:
    assert has_others(tables((1, 2), Stage.WRITE_BOTH_READ_NEW, TransitionKind.REPAIR), 1, 0)
    assert not has_others(tables((3, 2, 1), Stage.WRITE_BOTH_READ_NEW, TransitionKind.REPAIR), 1, 0)


def test_a_table_that_is_gone_has_nobody() -> None:
    view = tables((1, 2, 4), Stage.STREAMING)
    view.change(chunk_key(1, 0), None, 3)
    assert not has_others(view, 1, 0)
