"""Instances come, go, die and return, and replication changes: planner, rules and pump together bring all in order.

The scenarios about operations of the documents, each by its name; data itself is in `test_moves` and the simulator.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.governor.elastic import Elastic, elastic
from tests.unit.governor.holdings import HEAL_AFTER_MS

from trimtab.catalog.errors import SchemaError
from trimtab.governor.waiting import waiting
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, RebalanceState
from trimtab.topology.records import RequestKind, RequestState
from trimtab.topology.states import NodeState

LEAVE, REMOVE = RequestKind.LEAVE, RequestKind.REMOVE


def streaming(world: Elastic) -> bool:
    """Whether some tablet is being copied."""
    return any(
        current.stage is Stage.STREAMING
        for under_way in world.tables.transitions.values()
        for current in under_way.values()
    )


def hold_copies(world: Elastic) -> None:
    """All goes on until tablets are being copied, and no further: no job ends any more."""
    world.hold_jobs = True
    world.run()
    assert streaming(world)


def release_copies(world: Elastic) -> None:
    world.hold_jobs = False
    world.run()


# Coming


def test_an_empty_instance_that_joins_gets_its_fair_share() -> None:
    world = elastic(3)
    world.join("i4")
    world.run()
    assert world.counts() == {"i1": 6, "i2": 6, "i3": 6, "i4": 6}
    assert world.moves == 6, "the fewest that make it even"
    world.assert_still()


def test_two_that_join_get_equal_shares() -> None:
    world = elastic(4, tablets=16)
    world.join("i5")
    world.join("i6")
    world.run()
    world.assert_even()
    assert world.factors() == {3}
    world.assert_still()


def test_replicas_do_not_become_more_with_every_instance() -> None:
    # Document 003 gave every shard to each new node, so the replication factor ratcheted up.
    world = elastic(2, replication=2)
    for number in range(3, 8):
        world.join(f"i{number}")
        world.run()
        assert world.factors() == {2}
        world.assert_even()
    world.assert_still()


def test_few_tablets_do_not_empty_whoever_had_them() -> None:
    world = elastic(1, replication=1, tablets=2)
    for number in (2, 3, 4):
        world.join(f"i{number}")
    world.run()
    assert sorted(world.counts().values()) == [0, 0, 1, 1]
    assert world.counts()["i1"] == 1
    world.assert_still()


def test_one_joins_while_a_copy_is_held_up_and_both_finish() -> None:
    world = elastic(3)
    world.join("i4")
    hold_copies(world)
    world.join("i5")
    world.run()
    assert world.row("i5").state is NodeState.NORMAL
    release_copies(world)
    world.assert_even()
    world.assert_still()


# Going


def test_a_decommissioned_instance_is_drained_and_leaves() -> None:
    world = elastic(5)
    number = world.ask(LEAVE, "i5")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert world.row("i5").state is NodeState.LEFT
    world.assert_even()
    world.assert_still()


def test_two_decommissions_at_once_are_drained_beside_each_other() -> None:
    world = elastic(6, tablets=16)
    numbers = [world.ask(LEAVE, name) for name in ("i5", "i6")]
    world.run(until=lambda: bool(world.tables.transitions))
    leaving = {
        raft_id
        for tablet, current in world.tables.transitions[1].items()
        for raft_id in current.leaving(world.tables.maps[1].replicas(tablet))
    }
    assert leaving == {world.id_of("i5"), world.id_of("i6")}
    world.run()
    assert {world.view.requests[number].state for number in numbers} == {RequestState.DONE}
    world.assert_even()
    world.assert_still()


def test_a_decommission_cancelled_mid_drain_is_undone_and_the_instance_gets_its_share_again() -> None:
    world = elastic(4)
    number = world.ask(LEAVE, "i4")
    world.settings = msgspec.structs.replace(world.settings, moving=2)
    world.run(until=lambda: world.counts()["i4"] == 4)
    hold_copies(world)
    world.cancel(number)
    release_copies(world)
    assert world.view.requests[number].state is RequestState.CANCELLED
    assert world.row("i4").state is NodeState.NORMAL
    assert world.counts() == {"i1": 6, "i2": 6, "i3": 6, "i4": 6}
    assert any("is to stay after all" in event for event in world.events)
    world.assert_still()


def test_one_that_leaves_while_it_is_given_its_share_gets_nothing_any_more() -> None:
    world = elastic(3)
    world.join("i4")
    hold_copies(world)
    number = world.ask(LEAVE, "i4")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    assert world.moves == 0
    world.hold_jobs = False
    world.assert_still()


def test_a_decommission_whose_others_die_ends_with_the_reason_and_all_stays_readable() -> None:
    world = elastic(4)
    number = world.ask(LEAVE, "i4")
    hold_copies(world)
    world.kill("i3")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    world.hold_jobs = False
    world.pass_time(1_000)
    request = world.view.requests[number]
    assert request.state is RequestState.CANCELLED
    assert "data centre dc1 needs 3 distinct hosts for 3 replicas and has 2" in request.reason
    # What i3 had is made anew on those who are there: with i4 there are hosts enough again.
    assert world.counts() == {"i1": 8, "i2": 8, "i3": 0, "i4": 8}
    world.assert_still()


def test_a_dead_instance_is_removed_after_its_replicas_are_made_anew() -> None:
    world = elastic(5)
    world.kill("i5")
    world.pass_time(7_000)
    number = world.ask(REMOVE, "i5")
    world.pass_time(1_000)
    assert world.view.requests[number].state is RequestState.DONE
    assert world.factors() == {3}
    assert world.id_of("i5") not in world.tables.loads()
    world.assert_even()
    world.assert_still()


def test_a_dead_instance_is_replaced_and_the_new_one_gets_what_it_had() -> None:
    world = elastic(4)
    had = {tablet for tablet, replicas in world.tables.maps[1] if 4 in replicas}
    world.kill("i4")
    world.pass_time(7_000)
    number = world.join("i4", replaces="i4")
    world.run()
    assert world.view.requests[number].state is RequestState.DONE
    new = world.id_of("i4")
    assert {tablet for tablet, replicas in world.tables.maps[1] if new in replicas} == had
    assert 4 not in world.tables.loads()
    assert world.moves == len(had), "nothing else moved"
    world.assert_still()


# Dying and coming back


def test_a_short_outage_starts_nothing() -> None:
    world = elastic(4)
    world.kill("i4")
    world.pass_time(HEAL_AFTER_MS // 2)
    assert not world.tables.transitions and not world.proposals
    world.start("i4")
    world.pass_time(HEAL_AFTER_MS * 2)
    assert world.moves == 0
    world.assert_still()


def test_after_the_delay_lost_replicas_are_made_anew_elsewhere() -> None:
    world = elastic(4)
    world.kill("i4")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    assert world.counts() == {"i1": 8, "i2": 8, "i3": 8, "i4": 0}
    assert world.factors() == {3}
    assert world.row("i4").state is NodeState.NORMAL, "nobody asked to remove it"
    world.assert_still()
    # It returns, has nothing of its own any more, and gets its share like anybody else.
    world.start("i4")
    world.pass_time(1_000)
    assert world.counts() == {"i1": 6, "i2": 6, "i3": 6, "i4": 6}
    world.assert_still()


def test_one_that_returns_while_it_is_healed_does_no_harm() -> None:
    world = elastic(4)
    world.kill("i4")
    world.hold_jobs = True
    world.pass_time(HEAL_AFTER_MS + 10_000)
    assert streaming(world)
    world.start("i4")
    world.pass_time(1_000)
    world.hold_jobs = False
    world.pass_time(1_000)
    assert world.factors() == {3}
    world.assert_even()
    world.assert_still()


def test_dead_and_new_instances_are_planned_together() -> None:
    world = elastic(4)
    world.settings = msgspec.structs.replace(world.settings, enabled=False)
    world.kill("i4")
    world.join("i5")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    world.settings = msgspec.structs.replace(world.settings, enabled=True)
    world.pass_time(1_000)
    assert world.factors() == {3}
    counts = world.counts()
    assert counts.pop("i4") == 0
    assert set(counts.values()) == {6}
    # Six replicas were lost, and they are all that moved: nothing went to i1 to i3 first and then to i5.
    assert world.moves == 6
    world.assert_still()


def test_what_can_not_be_healed_is_a_problem_and_no_silence() -> None:
    world = elastic(3)
    world.kill("i3")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    assert world.moves == 0 and not world.tables.transitions
    text = (
        "8 tablets of shop.users lack replicas that i3 had: keyspace shop: data centre dc1 needs 3 distinct hosts for "
        "3 replicas and has 2: h1 (i1), h2 (i2); add instances on other hosts, or lower the replication"
    )
    assert [problem.text for problem in world.problems] == [text]
    assert text in waiting(world.state())
    record = world.tables.rebalances[1]
    assert (record.state, record.reason, record.term) == (RebalanceState.FAILED, text, world.term)
    # A host more, and it is mended.
    world.join("i4")
    world.pass_time(1_000)
    assert world.factors() == {3} and world.counts()["i4"] == 8
    assert world.tables.rebalances[1].state is RebalanceState.COMPLETED
    world.assert_still()


def test_a_lost_only_copy_stays_in_the_map_and_is_told() -> None:
    world = elastic(3, replication=1)
    before = dict(world.tables.maps[1])
    mine = sum(replicas == (3,) for replicas in before.values())
    world.kill("i3")
    world.pass_time(HEAL_AFTER_MS * 3)
    after = dict(world.tables.maps[1])
    assert {tablet for tablet in after if after[tablet] == (3,)} == {
        tablet for tablet in before if before[tablet] == (3,)
    }
    assert [problem.text for problem in world.problems] == [
        f"{mine} tablets of shop.users can't be read or written: i3 had the only copy; start it again"
    ]
    assert world.tables.rebalances[1].state is RebalanceState.FAILED
    world.start("i3")
    world.pass_time(2_000)
    assert not world.problems
    assert world.tables.rebalances[1].state is not RebalanceState.FAILED
    world.assert_still()


def test_a_new_leader_heals_what_the_old_one_had_begun_to() -> None:
    world = elastic(5)
    world.kill("i5")
    world.hold_jobs = True
    world.pass_time(HEAL_AFTER_MS + 10_000)
    assert streaming(world)
    world.elect()
    world.pass_time(1_000)
    world.hold_jobs = False
    world.pass_time(10_000)
    assert world.factors() == {3}
    assert world.counts()["i5"] == 0
    assert world.tables.rebalances[1].term == world.term
    world.assert_still()


# Replication


@pytest.mark.parametrize("path", [(2, 3), (3, 2, 3), (2, 3, 2), (3, 1), (1, 5, 2, 4)])
def test_replication_changed_by_any_amount_ends_where_it_was_last(path: tuple[int, ...]) -> None:
    world = elastic(5, replication=1)
    for number in path:
        world.replicate(number)
        world.run()
        assert world.factors() == {number}
        world.assert_even()
    world.assert_still()


@pytest.mark.parametrize("path", [(1, 2, 3), (2, 3, 2), (3, 2, 3, 5, 3), (3, 1, 3), (2, 5, 1)])
@pytest.mark.parametrize("pause", ["at once", "pending", "streaming", "locked"])
def test_replication_changed_in_quick_succession_ends_at_the_last(path: tuple[int, ...], pause: str) -> None:
    world = elastic(5, replication=path[0])
    for number in path[1:]:
        world.replicate(number)
        if pause == "pending":
            world.run(until=lambda: bool(world.tables.transitions) or world.factors() == {number})  # noqa: B023
        elif pause == "streaming":
            world.run(until=lambda: streaming(world) or world.factors() == {number})  # noqa: B023
        elif pause == "locked":
            world.run(until=lambda: locked(world) or world.factors() == {number})  # noqa: B023
    world.run()
    assert world.factors() == {path[-1]}
    world.assert_even()
    world.assert_still()


def locked(world: Elastic) -> bool:
    return any(current.locked for under_way in world.tables.transitions.values() for current in under_way.values())


def test_a_replication_that_was_taken_back_does_not_wait_for_the_copy() -> None:
    world = elastic(5, replication=2)
    world.replicate(3)
    hold_copies(world)
    world.replicate(2)
    world.run()
    assert not world.tables.transitions, "given up, although no job has ended"
    assert world.factors() == {2} and world.moves == 0
    world.hold_jobs = False
    world.assert_still()


def test_a_set_that_shrinks_to_one_that_dies_shrinks_to_another() -> None:
    world = elastic(4, replication=3)
    world.replicate(1)
    hold_copies(world)
    (stays,) = world.tables.transitions[1][0].pending
    world.kill(f"i{stays}")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    world.hold_jobs = False
    world.pass_time(1_000)
    assert world.factors() == {1}
    assert stays not in world.tables.loads()
    world.assert_still()


def test_replication_is_refused_where_hosts_are_missing() -> None:
    world = elastic(3, replication=2)
    with pytest.raises(SchemaError) as refused:
        world.replicate(4)
    assert str(refused.value) == (
        "the replication of shop can't be dc1: 4: data centre dc1 needs 4 distinct hosts for 4 replicas and has 3: h1 "
        "(i1), h2 (i2), h3 (i3); add instances on other hosts, or lower the replication"
    )
    world.ask(LEAVE, "i3")
    with pytest.raises(SchemaError) as refused:
        world.replicate(3)
    assert "(not counted, because they come or go: i3)" in str(refused.value)
    world.assert_still()


def test_a_keyspace_gets_replicas_in_a_new_data_centre_and_leaves_the_old_one() -> None:
    world = elastic(3, replication=2)
    for number in (4, 5, 6):
        world.join(f"i{number}", domain={"host": f"h{number}", "dc": "dc2"})
    world.run()
    with pytest.raises(SchemaError):
        world.replicate({"dc1": 2, "dc3": 1})
    world.replicate({"dc1": 2, "dc2": 3})
    world.run()
    assert all({4, 5, 6} < set(replicas) for _, replicas in world.tables.maps[1])
    assert world.factors() == {5}
    world.replicate({"dc2": 2})
    world.run()
    assert world.factors() == {2}
    assert all(set(replicas) < {4, 5, 6} for _, replicas in world.tables.maps[1])
    world.assert_still()


def test_a_keyspace_keeps_what_it_has_while_its_new_data_centre_is_dead() -> None:
    """Nothing is dropped before it is there: the last copies would go because nobody can have others."""
    world = elastic(3, replication=2)
    world.join("i4", domain={"host": "h4", "dc": "dc2"})
    world.run()
    before = list(world.tables.maps[1])
    world.kill("i4")
    world.replicate({"dc2": 1})
    world.pass_time(2 * HEAL_AFTER_MS)
    assert list(world.tables.maps[1]) == before and not world.tables.transitions
    assert any("data centre dc2 needs 1 distinct hosts" in problem.text for problem in world.problems), world.problems
    world.start("i4")
    world.pass_time(5_000)
    assert {replicas for _, replicas in world.tables.maps[1]} == {(4,)}
    world.assert_still()


def test_more_replicas_while_one_is_drained() -> None:
    world = elastic(5, replication=2)
    number = world.ask(LEAVE, "i5")
    hold_copies(world)
    world.replicate(3)
    world.run()
    release_copies(world)
    assert world.view.requests[number].state is RequestState.DONE
    assert world.factors() == {3}
    world.assert_even()
    world.assert_still()


# Steering


def test_balancing_that_is_off_moves_nothing_and_keeps_the_trigger() -> None:
    world = elastic(3)
    world.settings = msgspec.structs.replace(world.settings, enabled=False)
    world.join("i4")
    world.run()
    assert world.moves == 0 and not world.tables.transitions
    record = world.tables.rebalances[1]
    assert record.state is RebalanceState.IDLE and record.skipped
    assert record.reason == "balancing is off (`trimtab rebalance on`)"
    before = world.revision
    world.pass_time(10_000)
    assert world.revision == before, "it is written once"
    # It was not forgotten: nothing else happens, and yet it is made up for.
    world.settings = msgspec.structs.replace(world.settings, enabled=True)
    world.run()
    assert world.counts() == {"i1": 6, "i2": 6, "i3": 6, "i4": 6}
    record = world.tables.rebalances[1]
    assert (record.state, record.skipped) == (RebalanceState.COMPLETED, 0)
    world.assert_still()


def test_balancing_that_is_off_keeps_nobody_from_healing_or_leaving() -> None:
    world = elastic(5)
    world.settings = RebalanceSettings(enabled=False, heal_after_ms=HEAL_AFTER_MS)
    world.kill("i5")
    number = world.ask(LEAVE, "i4")
    world.pass_time(HEAL_AFTER_MS + 10_000)
    assert world.view.requests[number].state is RequestState.DONE
    assert world.factors() == {3}
    assert world.counts() == {"i1": 8, "i2": 8, "i3": 8, "i5": 0}


def test_a_window_that_opens_lets_balancing_begin() -> None:
    world = elastic(3)
    minute = world.now_ms // 60_000 % (24 * 60)
    world.settings = msgspec.structs.replace(world.settings, window=(minute + 2, minute + 10))
    world.join("i4")
    world.run()
    assert world.tables.rebalances[1].skipped and world.moves == 0
    world.pass_time(3 * 60_000)
    assert world.counts()["i4"] == 6
    assert not world.tables.rebalances[1].skipped


def test_an_idle_balanced_cluster_writes_and_moves_nothing() -> None:
    world = elastic(4)
    before = world.revision
    world.pass_time(600_000)
    assert (world.revision, world.moves) == (before, 0)


def test_every_move_has_a_cause_and_a_why() -> None:
    world = elastic(5)
    world.ask(LEAVE, "i5")
    world.run(until=lambda: bool(world.tables.transitions))
    begun = world.tables.transitions[1].items()
    whys = {current.why for tablet, current in begun if 5 in current.leaving(world.tables.maps[1].replicas(tablet))}
    assert whys == {"i5 is being drained"}
    assert all(current.why for _, current in begun)
    assert {current.cause for _, current in begun} <= {Cause.DRAIN, Cause.BALANCE}
