"""After a process died its groups find new leaders: spread, in turn, and never all at once."""

from types import SimpleNamespace
from typing import Any

from trimtab.node.awakening import ELECTIONS_UNDER_WAY, WAKES_A_TICK, Awakening, takeover_rank
from trimtab.node.settings import Timing
from trimtab.raft.roles import StateType


def group(number: int, voters: tuple[int, ...] = (1, 2, 3)) -> Any:
    config = SimpleNamespace(voters=SimpleNamespace(ids=lambda: frozenset(voters)))
    raft = SimpleNamespace(lead=0, state=StateType.FOLLOWER, tracker=SimpleNamespace(config=config))
    return SimpleNamespace(id=number, raw=SimpleNamespace(raft=raft))


class Calls:
    """An Awakening of member 2, and whom it made campaign or wake up."""

    def __init__(self) -> None:
        self.campaigned: list[int] = []
        self.woken: list[int] = []
        self.awakening = Awakening(
            2,
            Timing(),
            campaign=lambda each: self.campaigned.append(each.id),
            wake=lambda each: self.woken.append(each.id),
        )

    def elect(self, each: Any, dead: int = 1) -> None:
        self.awakening.elect(each, dead, 0.0, after_ms=0, step_ms=250)


def test_the_survivors_of_a_process_take_its_groups_in_turn_and_in_equal_shares() -> None:
    first = [takeover_rank((1, 2, 3), 1, 2, number) for number in range(10)]
    second = [takeover_rank((1, 2, 3), 1, 3, number) for number in range(10)]
    assert all({one, other} == {0, 1} for one, other in zip(first, second, strict=True))
    assert first.count(0) == second.count(0) == 5


def test_a_member_that_may_not_vote_does_not_take_over() -> None:
    assert takeover_rank((1, 3), 1, 2, 7) is None


def test_the_second_in_turn_waits_and_does_nothing_if_the_first_succeeded() -> None:
    calls = Calls()
    mine, theirs = group(0), group(1)
    calls.elect(mine)
    calls.elect(theirs)
    calls.awakening.run(0.0)
    assert calls.campaigned == [0]
    theirs.raw.raft.lead = 3
    calls.awakening.run(1.0)
    assert calls.campaigned == [0]
    assert not calls.awakening.busy


def test_the_second_in_turn_acts_if_nobody_did() -> None:
    calls = Calls()
    calls.elect(group(1))
    calls.awakening.run(0.2)
    assert calls.campaigned == []
    calls.awakening.run(0.3)
    assert calls.campaigned == [1]


def test_only_so_many_elections_are_under_way_and_a_settled_one_makes_room() -> None:
    calls = Calls()
    groups = [group(2 * number) for number in range(ELECTIONS_UNDER_WAY + 10)]
    for each in groups:
        calls.elect(each)
    calls.awakening.run(0.0)
    assert len(calls.campaigned) == ELECTIONS_UNDER_WAY
    calls.awakening.settled(groups[0])
    calls.awakening.run(0.0)
    assert len(calls.campaigned) == ELECTIONS_UNDER_WAY + 1


def test_elections_without_a_quorum_do_not_hold_up_the_others_for_ever() -> None:
    calls = Calls()
    for number in range(ELECTIONS_UNDER_WAY + 10):
        calls.elect(group(2 * number))
    calls.awakening.run(0.0)
    calls.awakening.run(0.9)
    assert len(calls.campaigned) == ELECTIONS_UNDER_WAY
    calls.awakening.run(1.1)
    assert len(calls.campaigned) == ELECTIONS_UNDER_WAY + 10


def test_leaders_of_a_returning_member_wake_up_some_at_a_time() -> None:
    calls = Calls()
    calls.awakening.catch_up(group(number) for number in range(WAKES_A_TICK + 5))
    calls.awakening.tick(0.0)
    assert len(calls.woken) == WAKES_A_TICK
    calls.awakening.tick(0.1)
    assert len(calls.woken) == WAKES_A_TICK + 5
    assert not calls.awakening.busy
