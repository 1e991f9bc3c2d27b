"""Leadership is handed over before its holder goes."""

from __future__ import annotations

from tests.unit.governor.driver import World, cluster

from trimtab.governor.leadership import successors
from trimtab.governor.steps import Transfer
from trimtab.governor.waiting import waiting
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind


def test_a_leader_that_shuts_down_hands_over_before_it_is_marked() -> None:
    world = cluster(3)
    world.stop("i1")
    step = world.next_step()
    assert isinstance(step, Transfer)
    assert step.why == "i1 hands leadership to i2, because it goes down (it shuts down)"
    world.carry_out(step)
    assert world.leader == 2
    world.run()
    assert world.grade("i1") is Grade.OFFLINE
    assert world.voting() == ["i1", "i2", "i3"]  # nobody could take its vote


def test_the_successor_is_online_and_has_applied_the_most() -> None:
    world = cluster(3)
    state = world.state()
    ahead = {3: state.heard[3], 2: type(state.heard[2])(100, 1)}
    assert successors(world.state(heard=ahead)) == [3, 2]
    world.restart("i3")
    world.behave()
    assert successors(world.state()) == [2, 3]


def test_a_successor_that_is_down_or_leaves_too_is_passed_over() -> None:
    world = cluster(5)
    world.kill("i2")
    world.pass_time(7_000)
    world.ask(RequestKind.LEAVE, "i1")
    world.ask(RequestKind.LEAVE, "i3")
    world.run(until=lambda: world.leader != 1)
    assert world.story[-1] == "i1 hands leadership to i4, because it leaves the cluster"


def test_an_expelled_leader_hands_over_and_the_next_one_finishes() -> None:
    world = cluster(3)
    world.ask(RequestKind.LEAVE, "i1")
    world.run()
    assert world.story == [
        "i1 leaves: write_both_read_old begins",
        "i1 hands leadership to i2, because it leaves the cluster",
        "i1 votes no more (leaves the cluster): i2 and i3 are to decide",
        "i1 leaves: write_both_read_old is known everywhere, write_both_read_new follows",
        "i1 leaves: done",
        "i1 left and is taken out of the cluster group",
        "requests from before version 9 are fenced off, because i1 went down",
    ]
    world.assert_settled()
    assert world.leader in (2, 3)


def test_of_two_the_leader_leaves_and_the_other_is_left_to_decide() -> None:
    world = cluster(2)
    world.ask(RequestKind.LEAVE, "i1")
    world.run()
    assert world.voters == {2}
    assert world.leader == 2
    world.assert_settled()


def test_with_nobody_to_hand_over_to_the_leader_waits_and_says_so() -> None:
    world = cluster(3)
    world.ask(RequestKind.LEAVE, "i1")
    world.run(until=lambda: world.view.transition is not None)
    state = world.state(heard={})
    assert successors(state) == []
    assert waiting(state)[0] == (
        "i1 leaves the cluster, but nobody can lead instead: the other voters (i2 and i3) are down"
    )


def test_the_only_instance_shuts_down_all_the_same() -> None:
    world = World()
    world.run()
    world.stop("i1")
    assert waiting(world.state()) != ()
    step = world.next_step()
    assert step is not None
    assert step.why == "i1 is Offline: it shuts down"
    world.run()
    world.process("i1").wanted = True
    world.restart("i1")
    world.run()
    world.assert_settled()


def test_a_leader_that_has_just_started_after_a_full_stop_does_not_hand_over() -> None:
    world = cluster(3)
    for name in ("i3", "i2", "i1"):
        world.stop(name)
        world.run()
    for name in ("i1", "i2", "i3"):
        world.process(name).announced = world.process(name).wanted = True
    assert world.next_step() is None
    for name in ("i1", "i2", "i3"):
        world.restart(name)
    world.process("i1").wanted = world.process("i2").wanted = world.process("i3").wanted = True
    leader = world.leader
    world.run()
    assert world.leader == leader
    world.assert_settled()
