"""What a plan leaves undone is told; what nobody wants any more is given up."""

from __future__ import annotations

import msgspec
from tests.unit.tablets.test_departures import DOWN, tables_of
from tests.unit.topology.clusters import gone, member, view_of

from trimtab.tablets.departures import Problem
from trimtab.tablets.replanning import Outline, by_balancer, outline, planned
from trimtab.tablets.selectors import Stage
from trimtab.tablets.shortfalls import regrets, shortfalls
from trimtab.tablets.sizes import SizeLedger
from trimtab.tablets.transitions import Cause, Proposal, TabletTransition, TransitionKind, encode, transition_key
from trimtab.tablets.view import TableView

FIVE = view_of(*(member(number) for number in range(1, 6)))


def moving(tables: TableView, tablet: int, current: TabletTransition) -> None:
    tables.change(transition_key(1, tablet), encode(current), 3)


def test_nothing_is_told_of_what_moves_or_is_about_to() -> None:
    tables = tables_of(FIVE, (1, 2), (1, 2), (1, 3), (1, 4))
    about_to = Proposal(1, 0, (1, 4), Cause.HEAL, "", 5)
    moving(tables, 1, TabletTransition((1, 4), TransitionKind.REBUILD))
    assert shortfalls(FIVE, tables, [about_to], lost={2}, draining=()) == ()
    assert shortfalls(FIVE, tables, [], lost=(), draining=()) == ()


def test_replicas_that_nobody_makes_anew_are_told_with_the_planners_reason() -> None:
    tables = tables_of(FIVE, (1, 2), (1, 2), (1, 3), (1, 4))
    (problem,) = shortfalls(FIVE, tables, [], ["no disk has room"], lost={2}, draining=())
    assert problem == Problem("2 tablets of shop.users lack replicas that i2 had: no disk has room", 1)


def test_where_hosts_are_missing_that_is_the_reason() -> None:
    view = view_of(member(1), member(2, grades=DOWN), gone(3))
    tables = tables_of(view_of(member(1), member(2)), (1, 2))
    (problem,) = shortfalls(view, tables, [], ["something else"], lost={2, 3}, draining=())
    assert "keyspace shop: data centre dc1 needs 2 distinct hosts for 2 replicas and has 1: i1" in problem.text


def test_who_can_not_be_drained_is_named() -> None:
    tables = tables_of(FIVE, (1, 2), (2, 3), (1, 3), (1, 4))
    assert shortfalls(FIVE, tables, [], ["no disk has room"], lost=(), draining={2, 5}) == (
        Problem("i2 can't be drained of 2 tablets of shop.users: no disk has room", 1, 2),
    )


def test_only_copies_that_are_lost_are_told_even_while_the_planner_means_to_move_them() -> None:
    tables = tables_of(FIVE, (2,), (2, 3), (1, 2), (1, 4))
    proposals = [Proposal(1, 0, (4,), Cause.HEAL, "", 5), Proposal(1, 2, (1, 4), Cause.HEAL, "", 5)]
    assert shortfalls(FIVE, tables, proposals, lost={2, 3}, draining=()) == (
        Problem("1 tablet of shop.users can't be read or written: i2 had the only copy; start it again", 1, 0, True),
        Problem(
            "1 tablet of shop.users can't be read or written: i2, i3 had all copies; start one of them again",
            1,
            unserved=True,
        ),
    )


def given_up(tables: TableView, *, lost: tuple[int, ...] = (), draining: tuple[int, ...] = ()) -> list[tuple[int, str]]:
    found = regrets(FIVE, tables, [], 9, lost=lost, draining=draining)
    for each in found:
        assert each.target == each.was == tables.maps[1].replicas(each.tablet) and each.trigger == 9
    return [(each.tablet, each.why) for each in found]


def test_a_drain_is_given_up_when_its_instance_stays() -> None:
    tables = tables_of(FIVE, (1, 2), (1, 2))
    drain = TabletTransition((1, 3), TransitionKind.MIGRATION, Stage.STREAMING, cause=Cause.DRAIN)
    moving(tables, 0, drain)
    moving(tables, 1, msgspec.structs.replace(drain, stage=Stage.WRITE_BOTH_READ_NEW, locked=True))
    assert given_up(tables, draining=(2,)) == []
    assert given_up(tables) == [(0, "i2 is not to go any more")], "the other is too far to turn back"


def test_more_replicas_are_given_up_when_the_keyspace_has_as_many_as_before() -> None:
    tables = tables_of(FIVE, (1, 2), (1, 2))
    moving(tables, 0, TabletTransition((1, 2, 3), TransitionKind.REBUILD, cause=Cause.REPLICATION))
    # An operator's move is nobody's business.
    moving(tables, 1, TabletTransition((1, 4), TransitionKind.MIGRATION, cause=Cause.OPERATOR))
    assert given_up(tables) == [(0, "shop has the replication that it had")]
    assert given_up(tables, lost=(2,)) == [], "the planner thinks of something better"


def test_whoever_goes_itself_gets_nothing_whatever_it_was_for() -> None:
    tables = tables_of(FIVE, (1, 2), (1, 2), (1, 5), (1, 4))
    for tablet, cause in enumerate((Cause.BALANCE, Cause.OPERATOR)):
        moving(tables, tablet, TabletTransition((1, 5), TransitionKind.MIGRATION, cause=cause))
    moving(tables, 2, TabletTransition((1, 3), TransitionKind.MIGRATION, cause=Cause.BALANCE))
    why = "i5 gets nothing any more"
    assert given_up(tables, draining=(5,)) == [(0, why), (1, why)]
    assert [each.cause for each in regrets(FIVE, tables, [], 9, lost=(), draining=(5,))] == [Cause.DRAIN] * 2
    assert [each.cause for each in regrets(FIVE, tables, [], 9, lost=(5,), draining=())] == [Cause.HEAL] * 2


def test_nothing_is_given_up_whose_old_set_left_for_good() -> None:
    """Whoever gets it may have the only copy that there is."""
    view = view_of(gone(1), gone(2), *(member(number) for number in (3, 4, 5)))
    tables = tables_of(FIVE, (1, 2))
    moving(tables, 0, TabletTransition((1, 4, 5), TransitionKind.REBUILD, Stage.STREAMING, cause=Cause.HEAL))
    assert regrets(view, tables, [], 9, lost=(1, 2, 5), draining=(4,)) == ()
    assert given_up(tables, lost=(5,)) == [(0, "i5 gets nothing any more")]


def test_what_has_another_target_is_not_given_up() -> None:
    tables = tables_of(FIVE, (1, 2))
    moving(tables, 0, TabletTransition((1, 5), TransitionKind.MIGRATION))
    other = Proposal(1, 0, (1, 4), Cause.DRAIN, "", 9)
    assert regrets(FIVE, tables, [other], 9, lost=(), draining=(5,)) == ()


def test_a_plan_is_made_of_a_copy() -> None:
    tables = tables_of(FIVE, (1, 2))
    seen = outline(FIVE, tables, SizeLedger(), lost=frozenset((2,)), draining=frozenset(), trigger=4)
    tables.change(transition_key(1, 0), encode(TabletTransition((1, 3), TransitionKind.REBUILD)), 5)
    tables.maps[1].change(0, None)
    assert seen.tables.maps[1].replicas(0) == (1, 2) and not seen.tables.transitions
    made = planned(seen, lambda _seen: ((), ("no disk has room",)))
    assert made.proposals == ()
    assert made.problems == (Problem("1 tablet of shop.users lacks replicas that i2 had: no disk has room", 1),)
    well = outline(FIVE, seen.tables, SizeLedger(), lost=frozenset(), draining=frozenset(), trigger=4)
    assert planned(well, lambda _seen: ((), ("dc1 is uneven",))).problems == (Problem("dc1 is uneven"),)


def outlined(tables: TableView, lost: set[int], draining: set[int], avoided: set[int]) -> Outline:
    sides = {"lost": frozenset(lost), "draining": frozenset(draining), "avoided": frozenset(avoided)}
    return outline(FIVE, tables, SizeLedger(), trigger=4, **sides)


def test_who_could_not_take_tablets_lately_gets_none_where_others_can() -> None:
    def targets(avoided: set[int], draining: set[int]) -> set[int]:
        tables = tables_of(FIVE, (1, 2), (1, 2), (1, 2), (1, 2))
        found = planned(outlined(tables, lost=set(), draining=draining, avoided=avoided), by_balancer)
        return {raft_id for each in found.proposals for raft_id in each.target} - {1, 2}

    assert targets(set(), {2}) == {3, 4, 5}
    assert targets({3}, {2}) == {4, 5}
    assert targets({3, 4, 5}, {2}) == {3, 4, 5}, "nobody else can"


def test_what_nobody_can_help_is_no_reason_to_try_again_whoever_failed() -> None:
    tables = tables_of(FIVE, (1, 2), (1, 2), (1, 2), (5,))
    found = planned(outlined(tables, lost={5}, draining={2}, avoided={3}), by_balancer)
    assert any("had the only copy" in problem.text for problem in found.problems)
    assert {each.target for each in found.proposals} == {(1, 4)}


def test_who_could_not_take_tablets_may_still_give_some() -> None:
    tables = tables_of(FIVE, *[(1, 2)] * 16)
    found = planned(outlined(tables, lost=set(), draining=set(), avoided={1}), by_balancer)
    assert any(1 not in each.target for each in found.proposals)
