"""Instances that come in: admitted, refused, told, given up."""

from __future__ import annotations

from tests.unit.governor.driver import World, cluster

from trimtab.governor.steps import Answer
from trimtab.governor.waiting import waiting
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestState
from trimtab.topology.states import NodeState


def test_two_that_ask_for_the_same_name_at_once_the_first_gets_it() -> None:
    world = cluster(1)
    first, second = world.join("i2"), world.join("i2")
    world.run()
    assert world.view.requests[first].state is RequestState.DONE
    assert world.view.requests[second].state is RequestState.FAILED
    assert "the instance id 'i2' is in use: raft id 2" in world.view.requests[second].reason
    assert len(world.view.instances) == 2
    assert any(why.startswith("i2 at 127.0.0.1:4003 was refused: ") for why in world.events)
    world.assert_settled()


def test_a_refused_joiner_is_told_why() -> None:
    world = cluster(1)
    number = world.join("i2", domain={"rack": "r1"})
    world.run()
    response = world.process("i2").response
    assert response is not None
    assert not response.accepted
    assert "lacks host" in response.reason
    assert world.view.requests[number].answered
    assert world.story[-1] == f"i2 at 127.0.0.1:4002 was told that it was refused: {response.reason}"


def test_a_refused_joiner_that_is_gone_is_called_until_the_deadline_only() -> None:
    world = cluster(1)
    world.join("i2", domain={"rack": "r1"})
    world.kill("i2")
    world.pass_time(119_000)
    assert isinstance(world.next_step(), Answer | type(None))
    calls = len([why for why in world.story if "was told" in why])
    assert calls > 10
    world.pass_time(2_000)
    calls = len([why for why in world.story if "was told" in why])
    world.pass_time(60_000)
    assert len([why for why in world.story if "was told" in why]) == calls


def test_a_joiner_is_told_only_when_it_is_in_the_raft_group() -> None:
    world = cluster(1)
    world.join("i2")
    world.run(until=lambda: len(world.story) == 1)
    assert world.story == ["i2 was admitted, with raft id 2"]
    step = world.next_step()
    assert step is not None
    assert step.why == "i2 joins the cluster group as a learner"
    world.carry_out(step)
    step = world.next_step()
    assert isinstance(step, Answer)
    assert (step.response.raft_id, step.response.genesis, step.address) == (2, "genesis", "127.0.0.1:4002")


def test_a_joiner_that_never_takes_its_answer_is_given_up_after_the_deadline() -> None:
    world = cluster(1)
    number = world.join("i2")
    world.kill("i2")
    world.pass_time(10_000)
    assert world.row("i2").state is NodeState.NONE
    assert world.learners == {2}
    assert waiting(world.state()) == ("i2 has been admitted; it has yet to take the answer to its request",)
    world.pass_time(112_000)
    assert world.view.requests[number].state is RequestState.FAILED
    assert world.view.requests[number].reason == "it was not done within 120.0 s: it did not take the answer"
    assert world.row("i2").state is NodeState.LEFT
    world.assert_settled()


def test_a_joiner_that_took_the_answer_and_died_is_given_up_too_and_its_id_is_spent() -> None:
    world = cluster(1)
    world.join("i2")
    world.run(until=lambda: world.view.requests[1].answered)
    world.kill("i2")
    world.pass_time(121_000)
    assert world.view.requests[1].reason == "it was not done within 120.0 s: it was not heard from"
    world.join("i2")
    world.run()
    assert world.id_of("i2") == 3
    world.assert_settled()


def test_a_joiner_that_dies_while_it_bootstraps_is_rolled_back_and_the_others_go_on() -> None:
    world = cluster(1)
    dying = world.join("i2")
    other = world.join("i3")
    world.run(until=lambda: world.view.transition is not None)
    world.kill("i2")
    world.pass_time(8_000)
    assert world.view.requests[dying].state is RequestState.FAILED
    assert world.view.requests[dying].reason == "i2 went down while it joined (not heard from for 6.0 s)"
    assert world.view.requests[other].state is RequestState.DONE
    assert world.grade("i3") is Grade.ONLINE
    world.assert_settled()


def test_a_joiner_that_dies_when_reads_went_to_it_already_becomes_a_member_that_is_down() -> None:
    world = cluster(2)
    number = world.join("i3")
    world.run(
        until=lambda: world.view.transition is not None and world.view.transition.state.value == "write_both_read_new"
    )
    world.kill("i3")
    world.pass_time(8_000)
    assert world.view.requests[number].state is RequestState.DONE
    assert (world.row("i3").state, world.grade("i3")) == (NodeState.NORMAL, Grade.OFFLINE)
    world.assert_settled()


def test_a_joiner_cancelled_before_and_after_it_is_admitted() -> None:
    for stage in range(12):
        world = cluster(2)
        number = world.join("i3")
        for _ in range(stage):
            world.behave()
            if (step := world.next_step()) is not None:
                world.carry_out(step)
        if world.view.requests[number].state.final:
            break
        world.cancel(number)
        world.run()
        request = world.view.requests[number]
        if request.state is RequestState.CANCELLED:
            assert request.reason == "an operator thought again"
            assert not world.view.named("i3") or world.row("i3").left
        else:
            assert request.reason == "too late to cancel (an operator thought again)"
            assert world.grade("i3") is Grade.ONLINE
        world.assert_settled()
    else:
        raise AssertionError("it was never done")


def test_a_learner_that_a_crash_kept_out_of_the_configuration_is_added_again() -> None:
    world = cluster(2)
    world.learners.discard(2)
    world.voters = {1}
    step = world.next_step()
    assert step is not None
    assert step.why == "i2 joins the cluster group as a learner"
    world.run()
    assert world.voters == {1, 2}


def test_a_member_without_a_record_is_left_alone_and_told_of() -> None:
    world = cluster(2)
    world.learners.add(77)
    assert world.next_step() is None
    assert waiting(world.state()) == ("member 77 is in the cluster group, but has no record; nobody knows who it is",)


def test_a_dead_instance_is_replaced() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    world.story.clear()
    world.join("i4", replaces="i3")
    world.run()
    assert [why for why in world.story if "was told" not in why] == [
        "i4 for i3 was admitted, with raft id 4",
        "i4 joins the cluster group as a learner",
        "i4 catches up with the metastore",
        "i4 takes the place of a dead instance: write_both_read_old begins",
        "i3 votes no more (is replaced): i1 and i2 are to decide",
        "i4 takes the place of a dead instance: write_both_read_old is known everywhere, write_both_read_new follows",
        "i4 takes the place of a dead instance: done",
        "i3 left and is taken out of the cluster group",
        "requests from before version 10 are fenced off, because i3 went down",
        "i4 opens its replicas",
        "every router knows i4 by version 10",
        "i4 is Online",
        "i4 gets a vote: i1, i2 and i4 are to decide",
    ]
    assert world.view.instances[3].reason == "replaced by i4"
    world.assert_settled()


def test_a_replacement_may_have_the_name_of_the_one_it_replaces() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    world.join("i3", replaces="i3")
    world.run()
    assert world.view.instances[3].left
    assert world.id_of("i3") == 4
    assert world.grade("i3") is Grade.ONLINE
    world.assert_settled()


def test_a_replacement_waits_until_it_is_known_whether_the_other_is_dead() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(3_000)
    number = world.join("i4", replaces="i3")
    world.run()
    assert world.view.requests[number].state is RequestState.PENDING
    world.pass_time(4_000)
    assert world.view.requests[number].state is RequestState.DONE


def test_only_a_dead_instance_is_replaced() -> None:
    world = cluster(3)
    number = world.join("i4", replaces="i3")
    world.run()
    assert "is alive, and only a dead instance can be replaced" in world.view.requests[number].reason
    assert world.online() == ["i1", "i2", "i3"]


def test_an_instance_that_comes_back_keeps_its_place() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    number = world.join("i4", replaces="i3")
    world.run(until=lambda: world.view.transition is not None)
    world.start("i3")
    world.run()
    request = world.view.requests[number]
    assert (request.state, request.reason) == (RequestState.FAILED, "i3, which it was to replace, is back")
    assert world.online() == ["i1", "i2", "i3"]
    assert world.row("i4").left
    world.assert_settled()


def test_urgency_decides_who_goes_first() -> None:
    world = cluster(5)
    world.kill("i5")
    world.pass_time(7_000)
    world.join("i6")
    world.join("i7", replaces="i5")
    world.run(until=lambda: world.view.transition is not None)
    # Both have synced in one step: the replacement goes first.
    assert world.view.transition is not None
    assert world.view.transition.kind.value == "replace"
    world.run()
    world.assert_settled()
    assert world.online() == ["i1", "i2", "i3", "i4", "i6", "i7"]


def test_a_restart_in_the_middle_of_a_join_changes_nothing_in_the_end() -> None:
    world = World()
    world.run()
    world.join("i2")
    world.run(until=lambda: world.grade_or_none("i2") is Grade.RAFT_SYNCED)
    world.restart("i2")
    world.run()
    world.assert_settled()
    assert world.online() == ["i1", "i2"]
