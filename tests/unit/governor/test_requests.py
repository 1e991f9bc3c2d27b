"""What operators ask for: leave, remove, rebuild, barrier; deadlines, cancelling, giving up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.unit.governor.driver import cluster

from trimtab.governor import voters
from trimtab.governor.endings import end_early, give_up
from trimtab.governor.obstacles import obstacle
from trimtab.governor.state import ClusterState
from trimtab.governor.transitions import begin
from trimtab.governor.voters import Seat
from trimtab.governor.waiting import waiting
from trimtab.topology.grades import Grade
from trimtab.topology.lifecycle import MAX_ENDED_REQUESTS
from trimtab.topology.records import RequestKind, RequestRecord, RequestState
from trimtab.topology.states import NodeState


def test_two_leave_at_once_in_one_transition() -> None:
    world = cluster(5)
    world.ask(RequestKind.LEAVE, "i4")
    world.ask(RequestKind.LEAVE, "i5")
    world.run()
    assert world.story == [
        "i4 and i5 leave: write_both_read_old begins",
        "i4 and i5 vote no more (leaves the cluster): i1, i2 and i3 are to decide",
        "i4 and i5 leave: write_both_read_old is known everywhere, write_both_read_new follows",
        "i4 and i5 leave: done",
        "i4 and i5 left and are taken out of the cluster group",
        "requests from before version 9 are fenced off, because i4 and i5 went down",
    ]
    row = world.view.instances[4]
    assert (row.state, row.grades.current.grade, row.grades.target.grade) == (
        NodeState.LEFT,
        Grade.EXPELLED,
        Grade.EXPELLED,
    )
    assert row.left_ms == world.now_ms
    world.assert_settled()


def test_not_all_may_leave() -> None:
    world = cluster(3)
    numbers = [world.ask(RequestKind.LEAVE, name) for name in ("i1", "i2", "i3")]
    world.run()
    world.pass_time(10_000)
    ended = [world.view.requests[number].state for number in numbers]
    assert ended == [RequestState.DONE, RequestState.DONE, RequestState.CANCELLED]
    assert world.view.requests[numbers[2]].reason == (
        "it can't go on: no other member is alive to take over from i3; start one first"
    )
    assert world.online() == ["i3"]
    world.assert_settled()


def test_a_dead_instance_is_removed() -> None:
    world = cluster(4)
    world.kill("i3")
    world.pass_time(7_000)
    world.story.clear()
    world.ask(RequestKind.REMOVE, "i3")
    world.run()
    assert world.story == [
        "i3 is removed: write_both_read_old begins",
        "i3 is removed: write_both_read_old is known everywhere, write_both_read_new follows",
        "i3 is removed: done",
        "i3 left and is taken out of the cluster group",
        "requests from before version 10 are fenced off, because i3 went down",
    ]
    world.assert_settled()


def test_a_dead_instance_that_is_in_no_configuration_is_removed_too() -> None:
    world = cluster(4)
    world.kill("i4")
    world.pass_time(7_000)
    world.ask(RequestKind.REMOVE, "i4")
    world.run(until=lambda: world.view.transition is not None)
    world.learners.discard(4)
    world.voters.discard(4)
    world.run()
    assert world.view.instances[4].left
    world.assert_settled()


def test_a_removed_instance_that_a_crash_left_in_the_configuration_is_taken_out() -> None:
    world = cluster(4)
    world.kill("i4")
    world.pass_time(7_000)
    world.ask(RequestKind.REMOVE, "i4")
    world.run(until=lambda: world.view.instances[4].left)
    world.elect(2)
    step = world.next_step()
    assert step is not None
    assert step.why == "i4 left and is taken out of the cluster group"
    world.run()
    world.assert_settled()


def test_one_that_comes_back_before_its_removal_begins_is_not_removed() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    world.start("i3")
    world.behave()
    number = world.ask(RequestKind.REMOVE, "i3")
    world.run()
    world.pass_time(10_000)
    request = world.view.requests[number]
    assert request.state is RequestState.CANCELLED
    assert "is alive again, and only a dead instance is removed" in request.reason
    assert world.online() == ["i1", "i2", "i3"]


def test_one_that_comes_back_while_it_is_removed_stays_down_and_goes() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    world.ask(RequestKind.REMOVE, "i3")
    world.run(until=lambda: world.view.transition is not None)
    world.start("i3")
    world.run()
    assert world.view.instances[3].left
    assert not world.process("i3").up
    world.assert_settled()


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("name", ["i1", "i4"])
def test_a_leave_can_be_cancelled_until_reads_go_elsewhere(steps: int, name: str) -> None:
    world = cluster(4)
    number = world.ask(RequestKind.LEAVE, name)
    for _ in range(steps):
        if (step := world.next_step()) is not None:
            world.carry_out(step)
    if world.view.requests[number].state.final:
        return
    late = world.view.transition is not None and world.view.transition.state.value == "write_both_read_new"
    world.cancel(number)
    world.run()
    request = world.view.requests[number]
    if late:
        assert request.state is RequestState.DONE
        assert request.reason == "too late to cancel (an operator thought again)"
        assert world.row(name).left
    else:
        assert request.state is RequestState.CANCELLED
        assert world.row(name).state is NodeState.NORMAL
        assert len(world.online()) == 4
        assert f"request {number} (leave of {name}) cancelled: an operator thought again" in world.events
    world.assert_settled()


def test_one_of_two_leaves_is_cancelled_and_the_other_goes_on() -> None:
    world = cluster(5)
    first, second = world.ask(RequestKind.LEAVE, "i4"), world.ask(RequestKind.LEAVE, "i5")
    world.run(until=lambda: world.view.transition is not None)
    version = world.view.version
    world.cancel(first)
    world.carry_out(world.next_step())  # type: ignore[arg-type]  # the votes
    world.carry_out(world.next_step())  # type: ignore[arg-type]
    assert world.view.transition is not None
    assert world.view.transition.requests == [second]
    assert world.view.version == version + 1
    world.run()
    assert world.online() == ["i1", "i2", "i3", "i4"]
    world.assert_settled()


def test_a_request_that_misses_its_deadline_fails_with_what_stood_in_its_way() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    world.start("i3")
    world.behave()
    # A join that waits keeps the removal waiting too, instead of being given up.
    world.join("i4")
    world.kill("i4")
    number = world.ask(RequestKind.REMOVE, "i3", timeout_ms=20_000)
    world.pass_time(19_500)
    assert world.view.requests[number].state is RequestState.PENDING
    assert any(f"request {number} (remove) waits: i3 is alive again" in why for why in waiting(world.state()))
    world.pass_time(1_000)
    request = world.view.requests[number]
    assert request.state is RequestState.FAILED
    assert request.reason.startswith("it was not done within 20.0 s: i3 is alive again")


def test_nobody_is_given_up_while_the_leader_has_yet_to_hear_from_everybody() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(7_000)
    world.start("i3")
    world.behave()
    world.ask(RequestKind.REMOVE, "i3")
    assert give_up(world.state(in_office_ms=1_000)) is None
    assert give_up(world.state()) is not None


def test_a_leave_from_three_voters_of_which_one_is_down_leaves_the_other_to_decide_alone() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(8_000)
    number = world.ask(RequestKind.LEAVE, "i2")
    world.pass_time(8_000)
    # Of the two voters that are left one is down: it gives up its vote, too.
    assert world.view.requests[number].state is RequestState.DONE
    assert world.voters == {1}
    world.assert_settled()


def test_leaves_that_together_would_cost_the_majority_go_one_after_the_other() -> None:
    world = cluster(5)
    for name in ("i4", "i5"):
        world.kill(name)
    world.pass_time(8_000)
    assert len(world.voters) == 5
    world.story.clear()
    first, second = world.ask(RequestKind.LEAVE, "i2"), world.ask(RequestKind.LEAVE, "i3")
    assert obstacle(world.state(), second) is None
    assert obstacle(world.state(), second, [2]) == (
        "the voters that are left without i3 would be no majority that is up; bring others back first"
    )
    world.run()
    assert world.view.requests[first].state is world.view.requests[second].state is RequestState.DONE
    assert world.story.index("i2 leaves: done") < world.story.index("i3 leaves: write_both_read_old begins")
    assert world.voting() == ["i1"]
    world.assert_settled()


def test_an_instance_is_rebuilt() -> None:
    world = cluster(3)
    number = world.ask(RequestKind.REBUILD, "i2")
    world.run(until=lambda: world.row("i2").state is NodeState.REBUILDING)
    world.run()
    assert world.story == ["i2 is rebuilt", "i2 is rebuilt: done"]
    assert world.view.requests[number].state is RequestState.DONE
    assert world.row("i2").state is NodeState.NORMAL
    world.assert_settled()


def test_a_rebuild_can_be_cancelled() -> None:
    world = cluster(3)
    number = world.ask(RequestKind.REBUILD, "i2")
    world.run(until=lambda: world.row("i2").state is NodeState.REBUILDING)
    world.cancel(number)
    world.run()
    assert world.view.requests[number].state is RequestState.CANCELLED
    assert world.row("i2").state is NodeState.NORMAL


def test_global_requests_are_a_queue_after_everything_else() -> None:
    world = cluster(4)
    first, second = world.ask(RequestKind.BARRIER), world.ask(RequestKind.BARRIER)
    world.ask(RequestKind.LEAVE, "i4")
    world.run()
    done = [why for why in world.story if why.startswith("request")]
    assert [why.split(":")[0] for why in done[-2:]] == [f"request {first} is done", f"request {second} is done"]
    assert world.story.index("i4 leaves: done") < world.story.index(done[-2])
    world.assert_settled()


def test_a_leave_of_somebody_who_is_gone_is_done() -> None:
    world = cluster(3)
    first = world.ask(RequestKind.LEAVE, "i3")
    second = world.put_request(RequestRecord(RequestKind.LEAVE, raft_id=3, asked_ms=world.now_ms))
    third = world.put_request(RequestRecord(RequestKind.REBUILD, raft_id=3, asked_ms=world.now_ms))
    world.run()
    assert world.view.requests[first].state is RequestState.DONE
    assert world.view.requests[second].state is RequestState.DONE
    assert world.view.requests[second].reason == "i3 is not in the cluster any more"
    assert world.view.requests[third].state is RequestState.FAILED
    world.assert_settled()


def test_while_a_barrier_waits_joins_are_admitted_and_requests_end() -> None:
    world = cluster(3)
    world.ask(RequestKind.LEAVE, "i3")
    world.run(until=lambda: world.view.transition is not None and 3 not in world.voters)
    stuck = world.next_step()
    assert stuck is not None
    world.in_flight[stuck.key] = stuck
    world.join("i4")
    step = world.next_step()
    assert step is not None
    assert step.why == "i4 was admitted, with raft id 4"


def test_requests_that_ended_long_ago_are_forgotten() -> None:
    world = cluster(1)
    for _ in range(MAX_ENDED_REQUESTS + 100):
        done = RequestRecord(RequestKind.BARRIER, state=RequestState.DONE, asked_ms=1, ended_ms=2)
        number = world.view.next_request()
        world.view.requests[number] = done
    world.run()
    assert world.story == ["100 requests that ended long ago, up to 100, are forgotten"]
    assert min(world.view.requests) == 101


def test_many_leaves_at_once_do_not_look_at_every_member_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty leaves of a hundred instances took a third of a second of the leader's time, with every plan."""
    world = cluster(12)
    for number in range(1, 9):
        world.ask(RequestKind.LEAVE, f"i{number}")
    looked: list[int] = []
    whole = voters.seats

    def seats(state: ClusterState, leaving: Iterable[int] = (), among: frozenset[int] | None = None) -> dict[int, Seat]:
        found = whole(state, leaving, among)
        looked.append(len(found))
        return found

    monkeypatch.setattr(voters, "seats", seats)
    step = begin(world.state())
    assert step is not None and len(step.subjects) == 8
    assert max(looked) <= len(world.voters)


def test_a_new_leader_whose_clock_is_ahead_gives_every_request_its_full_time() -> None:
    world = cluster(3)
    number = world.ask(RequestKind.BARRIER, timeout_ms=60_000)
    joining = world.join("i4")
    world.elect(2)
    world.now_ms += 59_000
    world.took_office_ms = world.now_ms - 59_000
    ahead = world.state(now_ms=world.now_ms + 10_000_000)
    assert end_early(ahead) is None
    world.now_ms += 1_000
    step = end_early(world.state(now_ms=world.now_ms + 10_000_000))
    assert step is not None and step.subjects == (number,)
    world.now_ms += 60_000
    step = end_early(world.state(now_ms=world.now_ms + 10_000_000))
    assert step is not None and step.subjects == (number, joining)
