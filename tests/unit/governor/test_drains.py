"""Whoever leaves or is removed is drained first; a drain that can't end is cancelled, and says why."""

from __future__ import annotations

import pytest
from tests.unit.governor.holdings import HEAL_AFTER_MS, Holding, holding

from trimtab.catalog.commands import CreateKeyspace
from trimtab.governor.move_scenes import decided
from trimtab.governor.waiting import waiting
from trimtab.tablets.departures import Problem, going, stays_because
from trimtab.tablets.selectors import Stage
from trimtab.tablets.stages import Advance
from trimtab.tablets.transitions import Cause, TabletTransition, TransitionKind
from trimtab.topology.records import RequestKind, RequestState
from trimtab.topology.states import NodeState

LEAVE, REMOVE, REPLACE = RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.REPLACE


def four(replication: int = 3, tablets: int = 8) -> Holding:
    world = holding(4)
    world.create(replication, tablets=tablets)
    return world


def test_a_decommissioned_instance_is_drained_before_it_leaves() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    request = world.view.requests[number]
    assert (request.state, request.tablets) == (RequestState.RUNNING, 6)
    assert world.row("i4").state is NodeState.NORMAL
    assert world.story == ["i4 is drained: 6 tablet replicas of shop.users (6) go to others"]
    assert waiting(world.state()) == (
        f"request {number} (leave): i4 is drained; it still has 6 tablet replicas of shop.users (6) of 6 at the "
        "beginning",
    )
    world.move_away("i4", 5)
    world.run()
    assert world.row("i4").state is NodeState.NORMAL, "one replica is left"
    world.move_away("i4")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert world.row("i4").state is NodeState.LEFT
    world.assert_settled()


def test_nobody_leaves_while_a_copy_is_on_its_way_to_it_or_has_yet_to_be_dropped() -> None:
    world = four(replication=1, tablets=1)
    (holder,) = world.tables.maps[1].replicas(0)
    other = next(i for i in (4, 3) if i != holder)
    name = f"i{other}"
    for transition in (
        TabletTransition((other,), TransitionKind.MIGRATION),
        TabletTransition((1 if holder != 1 else 2,), TransitionKind.MIGRATION, leftovers=(other,)),
    ):
        world.under_way(1, 0, transition)
        number = world.ask(LEAVE, name)
        world.run()
        assert world.view.requests[number].state is RequestState.RUNNING
        assert world.row(name).state is NodeState.NORMAL
        world.cancel(number)
        world.run()
    world.place(1, 0, (holder,))
    world.ask(LEAVE, name)
    world.run()
    assert world.row(name).state is NodeState.LEFT


def test_a_replica_that_comes_at_the_last_moment_keeps_it() -> None:
    world = four(replication=1, tablets=1)
    (holder,) = world.tables.maps[1].replicas(0)
    name = next(f"i{i}" for i in (4, 3) if i != holder)
    world.ask(LEAVE, name)
    world.run(until=lambda: world.row(name).state is NodeState.DECOMMISSIONING)
    world.place(1, 0, (world.id_of(name),))
    world.run()
    assert world.row(name).state is NodeState.DECOMMISSIONING
    assert f"{name} leaves, but has to wait: {name} has 1 tablet replica of shop.users (1)" in waiting(world.state())
    world.place(1, 0, (holder,))
    world.run()
    assert world.row(name).state is NodeState.LEFT


def test_two_decommissions_at_once_interleave() -> None:
    world = holding(5)
    world.create(3)
    one, other = world.ask(LEAVE, "i4"), world.ask(LEAVE, "i5")
    world.run()
    assert {world.view.requests[number].state for number in (one, other)} == {RequestState.RUNNING}
    world.move_away("i4", 2)
    world.run()
    for name in ("i5", "i4"):
        while world.held(name):
            for table, tablets in list(world.tables.maps.items()):
                tablet = tablets.of(world.id_of(name))[0]
                before = tablets.replicas(tablet)
                stays = next(i for i in (1, 2, 3) if i not in before)
                world.place(table, tablet, tuple(stays if i == world.id_of(name) else i for i in before))
        world.run()
        assert world.row(name).state is NodeState.LEFT
    world.assert_settled()


def test_a_decommission_that_leaves_too_few_hosts_is_refused_with_the_numbers() -> None:
    world = holding(3)
    world.create(3)
    assert stays_because(world.view, world.tables, 3, LEAVE) == (
        "those who stay can't hold what is declared: keyspace shop: data centre dc1 needs 3 distinct hosts for 3 "
        "replicas and has 2: h1 (i1), h2 (i2); add instances on other hosts, or lower the replication"
    )
    world.join("i4")
    world.run()
    assert stays_because(world.view, world.tables, 3, LEAVE) is None
    world.ask(LEAVE, "i4")
    assert stays_because(world.view, world.tables, 3, LEAVE, going(world.view)) is not None, "i4 goes already"


def test_where_not_all_can_go_those_go_that_were_asked_first() -> None:
    world = holding(5)
    world.create(3)
    first, second = world.ask(LEAVE, "i4"), world.ask(LEAVE, "i5")
    world.run()
    world.kill("i3")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    assert world.view.requests[first].state is RequestState.RUNNING, "i5 can take over now"
    assert world.view.requests[second].state is RequestState.CANCELLED


def test_a_keyspace_without_tables_keeps_nobody() -> None:
    world = holding(3)
    world.create(1)
    world.schema(CreateKeyspace("empty", 3))
    assert stays_because(world.view, world.tables, 3, LEAVE) is None


def test_a_decommission_cancelled_mid_drain_leaves_the_instance_with_what_it_still_owns() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    world.move_away("i4", 2)
    world.run()
    world.cancel(number)
    world.run()
    request = world.view.requests[number]
    assert (request.state, request.reason) == (RequestState.CANCELLED, "an operator thought again")
    assert (world.row("i4").state, world.held("i4")) == (NodeState.NORMAL, 4)
    world.assert_settled()


def test_a_drain_is_cancelled_with_the_reason_when_hosts_are_lost_meanwhile() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    world.kill("i3")
    world.pass_time(20_000)
    assert world.view.requests[number].state is RequestState.RUNNING, "i3 may come back"
    world.pass_time(HEAL_AFTER_MS)
    request = world.view.requests[number]
    assert request.state is RequestState.CANCELLED
    assert request.reason == (
        "it can't go on: those who stay can't hold what is declared: keyspace shop: data centre dc1 needs 3 distinct "
        "hosts for 3 replicas and has 2: h1 (i1), h2 (i2); add instances on other hosts, or lower the replication"
    )
    assert world.row("i4").state is NodeState.NORMAL


def test_a_drain_that_the_planner_finds_no_place_for_is_cancelled_with_its_reason() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    world.problems = (Problem("i4 can't be drained of 6 tablets of shop.users: no disk has room", 1, 4),)
    world.under_way(1, 0, TabletTransition((1, 2, 3), TransitionKind.REPAIR, cause=Cause.DRAIN))
    world.run()
    moved = 4 in world.tables.maps[1].replicas(0)
    assert world.view.requests[number].state is (RequestState.RUNNING if moved else RequestState.CANCELLED)
    world.place(1, 0, world.tables.maps[1].replicas(0))
    world.run()
    request = world.view.requests[number]
    assert (request.state, request.reason) == (
        RequestState.CANCELLED,
        "it can't go on: i4 can't be drained of 6 tablets of shop.users: no disk has room",
    )


def test_what_the_planner_says_is_not_final_while_somebody_is_away_for_a_moment() -> None:
    world = holding(5)
    world.create(3)
    world.kill("i1")
    world.pass_time(7_000)
    number = world.ask(LEAVE, "i5")
    world.run()
    world.problems = (Problem("i5 can't be drained of 1 tablet of shop.users", 1, 5),)
    world.run()
    assert world.view.requests[number].state is RequestState.RUNNING


def test_a_dead_instance_is_removed_when_what_it_held_is_elsewhere() -> None:
    world = four()
    world.kill("i3")
    world.pass_time(7_000)
    assert world.id_of("i3") not in world.state().lost
    number = world.ask(REMOVE, "i3")
    world.run()
    assert world.id_of("i3") in world.state().lost, "nobody waits for one that is to be removed"
    assert world.story[-1] == "i3 is drained: 6 tablet replicas of shop.users (6) are made anew on others"
    world.move_away("i3")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert world.row("i3").state is NodeState.LEFT
    world.assert_settled()


def test_removing_the_last_replica_is_refused() -> None:
    world = four(replication=1)
    world.kill("i3")
    world.pass_time(7_000)
    why = (
        "i3 has the only copy of 2 tablets of shop.users (2), and nobody can make those anew; start it again, or drop "
        "those tables first"
    )
    assert stays_because(world.view, world.tables, 3, REMOVE) == why
    assert stays_because(world.view, world.tables, 3, LEAVE) is None, "alive it would hand them over"
    # One that was asked for before is not carried out either.
    number = world.ask(REMOVE, "i3")
    world.pass_time(10_000)
    request = world.view.requests[number]
    assert (request.state, request.reason) == (RequestState.CANCELLED, f"it can't go on: {why}")
    assert world.held("i3") == 2


def test_the_only_copy_is_not_replaced() -> None:
    world = four(replication=1)
    world.kill("i3")
    world.pass_time(7_000)
    number = world.join("i9", replaces="i3")
    world.run()
    assert world.view.requests[number].state is RequestState.FAILED
    assert world.view.requests[number].reason == (
        "'i3' has the only copy of 2 tablets of shop.users (2), and nobody can make those anew; start 'i3' again, or "
        "join as a new one without --replace, or drop those tables first"
    )


def test_a_dead_instance_with_replicas_is_replaced_and_what_it_had_is_lost() -> None:
    world = four()
    world.kill("i3")
    world.pass_time(7_000)
    number = world.join("i9", replaces="i3")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert world.view.instances[3].state is NodeState.LEFT
    assert world.row("i9").replaces == 3
    assert world.tables.maps[1].loads()[3] == 6, "its replicas are made anew afterwards"
    assert 3 in world.state().lost
    world.assert_settled()


def test_an_instance_that_is_back_is_not_removed_any_more() -> None:
    world = four()
    world.kill("i3")
    world.pass_time(7_000)
    number = world.ask(REMOVE, "i3")
    world.run()
    world.move_away("i3", 2)
    world.start("i3")
    world.pass_time(1_000)
    request = world.view.requests[number]
    assert request.state is RequestState.CANCELLED
    assert "i3 is alive again, and only a dead instance is removed" in request.reason
    assert (world.row("i3").state, world.held("i3")) == (NodeState.NORMAL, 4)
    world.assert_settled()


def test_a_short_outage_of_the_one_that_leaves_ends_nothing() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    world.kill("i4")
    world.pass_time(20_000)
    assert world.view.requests[number].state is RequestState.RUNNING
    world.start("i4")
    world.pass_time(1_000)
    world.move_away("i4")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE


def test_a_decommission_of_one_that_died_is_cancelled() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    world.kill("i4")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    request = world.view.requests[number]
    assert (request.state, request.reason) == (
        RequestState.CANCELLED,
        "it can't go on: i4 is dead, so it can't hand over what it has; start it again, or use: trimtab remove i4",
    )


def test_no_request_can_proceed_so_all_are_cancelled_with_their_reasons() -> None:
    world = holding(3)
    world.create(3)
    numbers = [world.ask(LEAVE, name) for name in ("i2", "i3")]
    world.pass_time(10_000)
    for number in numbers:
        request = world.view.requests[number]
        assert request.state is RequestState.CANCELLED
        assert "those who stay can't hold what is declared: keyspace shop: data centre dc1 needs 3" in request.reason
    assert world.online() == ["i1", "i2", "i3"]
    world.assert_settled()


def test_a_drain_has_a_deadline_and_says_how_far_it_came() -> None:
    world = four()
    number = world.ask(LEAVE, "i4", timeout_ms=30_000)
    world.run()
    world.move_away("i4", 2)
    world.pass_time(31_000)
    request = world.view.requests[number]
    assert (request.state, request.reason) == (
        RequestState.FAILED,
        "it was not done within 30.0 s: i4 is drained; it still has 4 tablet replicas of shop.users (4) of 6 at the "
        "beginning",
    )
    assert world.row("i4").state is NodeState.NORMAL


def test_a_new_leader_goes_on_with_a_drain() -> None:
    world = four()
    number = world.ask(LEAVE, "i4")
    world.run()
    world.move_away("i4", 3)
    world.elect()
    world.pass_time(7_000)
    assert world.view.requests[number].state is RequestState.RUNNING
    world.move_away("i4")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE


@pytest.mark.parametrize("stage", [Stage.STREAMING, Stage.CLEANUP, Stage.END_MIGRATION])
def test_a_replica_counts_until_the_new_set_is_the_stable_one(stage: Stage) -> None:
    world = four(replication=1, tablets=1)
    (holder,) = world.tables.maps[1].replicas(0)
    name = f"i{holder}"
    other = next(i for i in (1, 2, 3, 4) if i != holder)
    number = world.ask(LEAVE, name)
    world.under_way(1, 0, TabletTransition((other,), TransitionKind.MIGRATION, stage, cause=Cause.DRAIN))
    world.run()
    assert world.view.requests[number].state is RequestState.RUNNING
    assert world.row(name).state is NodeState.NORMAL


def test_a_drain_in_two_moves_is_wanted_as_long_as_its_instance_goes() -> None:
    world = holding(5)
    world.create(3)
    tablet = next(tablet for tablet, replicas in world.tables.maps[1] if 5 in replicas)
    stable = world.tables.maps[1].replicas(tablet)
    (other, *_) = (i for i in range(1, 5) if i not in stable)
    number = world.ask(LEAVE, "i5")
    world.run()
    # First another one arrives and nobody leaves; then i5 does.
    both = TabletTransition(
        (*stable, other),
        TransitionKind.REBUILD,
        session="s",
        planned=tuple(other if i == 5 else i for i in stable),
        cause=Cause.DRAIN,
    )
    world.under_way(1, tablet, both)
    (found,) = decided(world.state())
    assert not isinstance(found.decision, Advance)
    world.cancel(number)
    (found,) = decided(world.state())
    assert isinstance(found.decision, Advance)
    assert (found.decision.to, found.decision.why) == (Stage.CLEANUP_TARGET, "i5 is to stay after all")
