"""The policy as a whole: what comes first, and that waiting is not a step."""

from __future__ import annotations

import pytest
from tests.unit.governor.driver import World, cluster

from trimtab.governor.down import mark_down
from trimtab.governor.plan import RULES, applicable, plan
from trimtab.governor.steps import SLOTS, Call, Commit, StepKey, StepKind
from trimtab.governor.transitions import begin, go_on
from trimtab.governor.waiting import waiting
from trimtab.topology.grades import Grade, set_target
from trimtab.topology.records import TRANSITION_KEY, RequestKind, instance_key, request_key
from trimtab.topology.states import NodeState


def test_a_founder_becomes_online_by_itself() -> None:
    world = World()
    world.run()
    assert world.story == [
        "i1 catches up with the metastore",
        "i1 opens its replicas",
        "every router knows i1 by version 1",
        "i1 is Online",
    ]
    world.assert_settled()


def test_nine_instances_join_at_once_in_one_wave() -> None:
    world = World()
    world.run()
    world.story.clear()
    for number in range(2, 10):
        world.join(f"i{number}")
    world.run()
    eight = "i2, i3, i4, i5, i6 and 3 more"
    assert [why for why in world.story if "was told" not in why] == [
        f"{eight} were admitted, with raft ids up to 9",
        f"{eight} join the cluster group as learners",
        f"{eight} catch up with the metastore",
        f"{eight} join: write_both_read_old begins",
        f"{eight} join: write_both_read_old is known everywhere, write_both_read_new follows",
        f"{eight} join: done",
        f"{eight} open their replicas",
        f"every router knows {eight} by version 5",
        f"{eight} are Online",
        "i2, i3, i4 and i5 get a vote: i1, i2, i3, i4 and i5 are to decide",
    ]
    world.assert_settled()


@pytest.mark.parametrize("joiners", [10, 30, 100])
def test_writes_per_joiner_stay_flat(joiners: int) -> None:
    world = World()
    world.run()
    before = world.writes
    for number in range(joiners):
        world.join(f"j{number}")
    world.run()
    world.assert_settled()
    # Three of each joiner's own (its request, its answer taken, its Online), and ten for all of them together.
    assert world.writes - before == 3 * joiners + 10


@pytest.mark.parametrize("size", range(1, 10))
def test_a_cluster_that_forms_one_by_one_has_the_voters_of_its_size(size: int) -> None:
    world = World()
    world.run()
    for number in range(2, size + 1):
        world.join(f"i{number}")
        world.run()
        world.assert_settled()
    assert len(world.voters) == {1: 1, 2: 2, 3: 3, 4: 3}.get(size, 5)


def test_an_idle_cluster_does_nothing_however_long() -> None:
    world = cluster(5)
    before = world.writes
    world.pass_time(3_600_000 // 10)
    assert world.story == []
    assert world.writes == before


def test_a_step_in_flight_is_not_planned_again_and_the_rules_below_get_their_turn() -> None:
    world = cluster(3)
    world.restart("i2")
    world.behave()
    stuck = world.next_step()
    assert isinstance(stuck, Call)
    world.in_flight[stuck.key] = stuck
    assert world.next_step() is None
    world.restart("i3")
    world.behave()
    step = world.next_step()
    assert step is not None
    assert step.why == "i3 catches up with the metastore"


def test_a_kind_without_a_free_slot_is_not_planned_and_the_next_kind_is() -> None:
    world = cluster(4)
    for name in ("i2", "i3", "i4"):
        world.restart(name)
    world.behave()
    full = frozenset(StepKey(StepKind.SYNC, (raft_id,)) for raft_id in (98, 99))
    assert len(full) == SLOTS[StepKind.SYNC]
    assert plan(world.state(in_flight=full)) is None
    world.ask(RequestKind.BARRIER)
    step = plan(world.state(in_flight=full))
    assert step is not None
    assert step.kind is StepKind.REQUEST


def test_a_step_that_rests_is_left_alone_but_takes_no_slot() -> None:
    world = cluster(2)
    world.ask(RequestKind.BARRIER)
    step = world.next_step()
    assert step is not None
    assert plan(world.state(resting=frozenset((step.key,)))) is None
    others = frozenset(StepKey(StepKind.REQUEST, (number,)) for number in range(90, 99))
    assert plan(world.state(resting=others)) == step
    assert not applicable(world.state(in_flight=others), step)


def test_an_instance_that_does_not_answer_backs_off_alone() -> None:
    world = cluster(4)
    for name in ("i2", "i3"):
        world.restart(name)
    world.behave()
    step = plan(world.state(backing_off=frozenset((2,))))
    assert step is not None
    assert step.subjects == (3,)


def test_a_flapping_instance_starves_nobody() -> None:
    world = cluster(3)
    world.join("i4")
    for _ in range(30):
        if world.grade_or_none("i4") is Grade.ONLINE:
            break
        world.restart("i2")
        world.turn()
    assert world.grade("i4") is Grade.ONLINE


def test_no_rule_is_listed_twice_and_every_kind_of_step_has_slots() -> None:
    assert len(set(RULES)) == len(RULES)
    assert set(SLOTS) == set(StepKind)


def test_an_instance_back_before_anybody_noticed_begins_again_without_weight() -> None:
    world = cluster(3)
    version = world.view.version
    world.restart("i3")
    world.behave()
    step = world.next_step()
    assert step is not None
    world.carry_out(step)
    row = world.row("i3")
    assert (row.grades.current.grade, row.weight) == (Grade.RAFT_SYNCED, 0.0)
    assert world.view.version == version + 1
    assert world.events[-1] == "i3 had been away and begins again, as RaftSynced"
    world.run()
    assert world.row("i3").grades.current.incarnation == 2
    world.assert_settled()


def test_one_that_sets_out_again_while_it_climbs_begins_again() -> None:
    world = cluster(2)
    world.restart("i2")
    world.run(until=lambda: world.grade("i2") is Grade.REPLICATED)
    world.put_row(2, grades=set_target(world.row("i2").grades, Grade.ONLINE))
    step = world.next_step()
    assert step is not None
    assert step.why == "i2 catches up with the metastore"
    world.run()
    world.assert_settled()


def test_an_instance_or_a_request_that_can_not_be_read_holds_up_nobody_else() -> None:
    world = cluster(4)
    number = world.ask(RequestKind.LEAVE, "i4")
    for name in ("i2", "i3"):
        world.stop(name)
    world.view.change(instance_key(2), b"{", 900)
    world.view.change(request_key(number), b"{", 901)
    step = mark_down(world.state())
    assert step is not None and step.subjects == (3,)
    assert begin(world.state()) is None
    for _ in range(20):
        step = world.next_step()
        if step is None:
            break
        assert not isinstance(step, Commit) or instance_key(2) not in step.write.puts
        world.carry_out(step)
    assert world.grade("i3") is Grade.OFFLINE and world.row("i4").state is NodeState.NORMAL


def test_a_transition_whose_record_can_not_be_read_waits_and_says_so() -> None:
    world = cluster(3)
    world.ask(RequestKind.LEAVE, "i3")
    world.run(until=lambda: world.view.transition is not None)
    world.view.change(TRANSITION_KEY, b"{", 900)
    assert go_on(world.state()) is None and begin(world.state()) is None
    assert any("newer release" in sentence for sentence in waiting(world.state()))
