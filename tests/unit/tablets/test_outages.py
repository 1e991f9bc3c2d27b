"""What can't be read or written is told as soon as somebody is down, one line for a table."""

from __future__ import annotations

from tests.unit.tablets.test_departures import DOWN, tables_of
from tests.unit.topology.clusters import gone, member, view_of

from trimtab.tablets.outages import Outage, outages
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, TabletTransition, TransitionKind, encode, transition_key
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.view import View

UP = view_of(*(member(number) for number in range(1, 6)))
COMING = Grades(Standing(Grade.RAFT_SYNCED, 1), Standing(Grade.ONLINE, 2))


def without(*down: int) -> View:
    return view_of(*(member(each, grades=DOWN) if each in down else member(each) for each in range(1, 6)))


def texts(view: View, *replicas: tuple[int, ...]) -> list[str]:
    return [each.text for each in outages(view, tables_of(UP, *replicas))]


def test_only_copies_are_told_as_soon_as_their_instance_is_down() -> None:
    """It was told after `heal-after`, ten minutes later."""
    replicas = ((3,), (3,), (1,), (3,))
    assert outages(without(3), tables_of(UP, *replicas)) == (
        Outage(1, 3, 0, "3 tablets of shop.users can't be read or written: i3 had the only copy; start it again"),
    )
    assert texts(UP, *replicas) == texts(without(4), *replicas) == []


def test_a_quorum_that_is_not_up_is_told() -> None:
    assert texts(without(3), (1, 3), (1, 2)) == [
        "1 tablet of shop.users can't be read or written at QUORUM: i3 is down; start it again"
    ]
    assert texts(without(3), (1, 2, 3), (1, 2, 3)) == [], "two of three are a quorum"
    assert texts(without(2, 3), (1, 2, 3), (1, 2, 4)) == [
        "1 tablet of shop.users can't be read or written at QUORUM: i2, i3 are down; start one of them again"
    ]


def test_a_table_is_one_line_whatever_is_down() -> None:
    assert texts(without(2, 3), (2,), (1, 3), (3, 2), (1, 4)) == [
        "2 tablets of shop.users can't be read or written, 1 more not at QUORUM: i2, i3 are down; start them again"
    ]
    assert texts(without(2, 3), (2, 3), (2, 3)) == [
        "2 tablets of shop.users can't be read or written: i2, i3 had all copies; start one of them again"
    ]


def test_who_comes_back_need_not_be_started_and_who_left_can_not_be() -> None:
    two = member(1), member(2)
    assert texts(view_of(*two, member(3, grades=COMING)), (3,)) == [
        "1 tablet of shop.users can't be read or written: i3 had the only copy; it is on the way back"
    ]
    assert texts(view_of(*two, gone(3)), (3,)) == [
        "1 tablet of shop.users can't be read or written: i3 had the only copy; it has left the cluster, and what "
        "nobody else has is lost"
    ]
    assert texts(view_of(*two, gone(3)), (1, 3)) == [
        "1 tablet of shop.users can't be read or written at QUORUM: i3 is down; it has left the cluster"
    ]


def test_while_a_tablet_moves_those_count_that_its_stage_names() -> None:
    """The only copy went down in the middle of a drain."""
    tables = tables_of(UP, (3,), (3,))
    drain = TabletTransition((1,), TransitionKind.MIGRATION, Stage.STREAMING, "s", cause=Cause.DRAIN)
    tables.change(transition_key(1, 0), encode(drain), 3)
    (found,) = outages(without(3), tables)
    assert (found.unread, found.short) == (2, 0)
    moved = TabletTransition((1,), TransitionKind.MIGRATION, Stage.USE_NEW, "s", cause=Cause.DRAIN)
    tables.change(transition_key(1, 0), encode(moved), 4)
    (found,) = outages(without(3), tables)
    assert found.unread == 1, "i1 serves the other"
