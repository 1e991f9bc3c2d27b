"""The cluster's time: the middle of its clocks, as far as messages that take their time can tell."""

from __future__ import annotations

import random

import pytest

from trimtab.topology.common_time import UNKNOWN, CommonTime, OwnClock, Span, difference_ms, wording

LIMIT_MS = 500
NOW_MS = 1_700_000_000_000


def told(common_ms: int, sent_ms: int, received_ms: int) -> OwnClock:
    """Of an instance whose heartbeat was answered with this time."""
    clock = OwnClock(LIMIT_MS)
    clock.told(1, 77, Span(common_ms, common_ms), sent_ms, received_ms)
    return clock


@pytest.mark.parametrize(
    ("ahead_ms", "network_ms", "off"),
    [(0, 0, 0), (400, 0, 0), (-400, 0, 0), (60_000, 10, 1), (-60_000, 10, -1), (600, 2, 1), (-600, 2, -1)],
)
def test_a_clock_is_wrong_when_it_is_further_off_than_clocks_may_be(ahead_ms: int, network_ms: int, off: int) -> None:
    clock = told(NOW_MS, 1_000, 1_000 + network_ms)
    found_ms = clock.off_ms(NOW_MS + network_ms + ahead_ms, 1_000 + network_ms)
    assert (found_ms > 0) - (found_ms < 0) == off
    assert not found_ms or abs(found_ms - ahead_ms) <= 20


def test_a_slow_network_makes_no_clock_wrong() -> None:
    """The answer took five seconds; it may have been read at any moment of them."""
    for read_ms in (0, 2_500, 5_000):
        clock = told(NOW_MS + read_ms, 1_000, 6_000)
        assert clock.off_ms(NOW_MS + 5_000, 6_000) == 0
    assert told(NOW_MS, 1_000, 6_000).off_ms(NOW_MS + 65_000, 6_000) > 59_000


def test_a_jump_is_noticed_between_two_heartbeats_and_so_is_its_end() -> None:
    clock = told(NOW_MS, 1_000, 1_001)
    assert clock.off_ms(NOW_MS + 200, 1_201) == 0
    assert clock.off_ms(NOW_MS + 60_300, 1_301) > 59_900
    assert clock.off_ms(NOW_MS - 60_000 + 350, 1_351) < -59_900
    assert clock.off_ms(NOW_MS + 400, 1_401) == 0


def test_nothing_is_wrong_while_nothing_is_known_and_old_knowledge_gets_vague() -> None:
    clock = OwnClock(LIMIT_MS)
    assert clock.off_ms(5, 5) == 0 and clock.judged_ms(5, 5) == 5
    clock.told(1, 77, UNKNOWN, 1_000, 1_001)
    assert clock.off_ms(5, 5) == 0 and clock.judged_ms(5, 1_001) == 5
    clock = told(NOW_MS, 1_000, 1_001)
    clock.told(2, 99, UNKNOWN, 2_000, 2_001)  # a new leader, who does not know yet
    assert clock.off_ms(NOW_MS + 1_000 + 3_000, 2_001) > 0
    # Ten minutes later the own steady clock may itself have gone wrong by as much.
    assert clock.off_ms(NOW_MS + 600_000 + 3_000, 601_001) == 0


def test_an_answer_of_an_earlier_leader_changes_nothing() -> None:
    clock = told(NOW_MS, 1_000, 1_001)
    clock.told(3, 50, Span(NOW_MS, NOW_MS), 1_000, 1_001)
    clock.told(2, 50, Span(NOW_MS + 90_000, NOW_MS + 90_000), 1_000, 1_001)
    assert clock.off_ms(NOW_MS, 1_001) == 0
    assert clock.against_leader(2, NOW_MS, 1_001) == UNKNOWN


def test_stamps_are_judged_by_no_later_time_than_the_clusters() -> None:
    clock = told(NOW_MS, 1_000, 1_001)
    assert clock.judged_ms(NOW_MS - 300, 1_001) == NOW_MS - 300
    assert NOW_MS <= clock.judged_ms(NOW_MS + 400, 1_001) <= NOW_MS + 3


class Leader:
    """Member 1, whose steady clock shows 5000; what each member's wall clock is ahead of the true time."""

    def __init__(self, *ahead_ms: int, members: int = 0) -> None:
        self.common = CommonTime(LIMIT_MS, 6_000)
        self.members = range(1, (members or len(ahead_ms)) + 1)
        for raft_id, each_ms in enumerate(ahead_ms, 1):
            self.says(raft_id, each_ms)

    def says(self, raft_id: int, ahead_ms: int, network_ms: int = 4) -> None:
        ahead_ms += NOW_MS - 5_000
        self.common.note(raft_id, Span(ahead_ms - network_ms, ahead_ms + network_ms), 5_000)

    def time(self) -> Span:
        return self.common.at(5_000, self.members, 1)

    def off(self) -> dict[int, int]:
        for raft_id in self.members:
            self.common.judge(raft_id, self.time(), 5_000)
        return self.common.off


@pytest.mark.parametrize("ahead_ms", [(0, 60_000, 0), (60_000, 0, 0), (-60_000, 3, -3), (0, 0, 60_000, 90_000, 1)])
def test_whoever_is_wrong_the_middle_is_right(ahead_ms: tuple[int, ...]) -> None:
    leader = Leader(*ahead_ms)
    assert abs(leader.time().low_ms - NOW_MS) <= 10 and abs(leader.time().high_ms - NOW_MS) <= 10
    assert set(leader.off()) == {raft_id for raft_id, each in enumerate(ahead_ms, 1) if abs(each) > 3}


def test_of_two_that_disagree_the_leader_is_believed() -> None:
    assert set(Leader(0, 60_000).off()) == {2}
    assert set(Leader(60_000, 0).off()) == {2}
    assert set(Leader(0, 0, 60_000, 60_000).off()) == {3, 4}
    # Unless there is a third, who has not been heard yet.
    assert Leader(60_000, 0, members=3).off() == {}


def test_without_a_majority_of_clocks_nobody_is_called_wrong() -> None:
    leader = Leader(60_000, 0, members=4)
    assert leader.time() == UNKNOWN and leader.off() == {}
    leader.says(3, 0)
    assert set(leader.off()) == {1}
    # What was said long ago counts no more.
    assert leader.common.at(5_000 + 6_001, leader.members, 1) == UNKNOWN


def test_an_excursion_is_news_once_and_over_when_the_clock_is_well_within_the_limit() -> None:
    leader = Leader(0, 0, 12_300)
    common = leader.common
    assert 12_250 <= common.judge(3, leader.time(), 5_000) <= 12_300
    assert common.judge(3, leader.time(), 5_000) == 0 and set(common.off) == {3}
    leader.says(3, 400)
    assert common.judge(3, leader.time(), 5_000) == 0 and set(common.off) == {3}
    leader.says(3, 20)
    assert common.judge(3, leader.time(), 5_000) == 0 and common.off == {}
    leader.says(3, -700)
    assert common.judge(3, leader.time(), 5_000) < -600
    # It left.
    leader.members = range(1, 3)
    leader.time()
    assert common.off == {}


def test_a_whole_round_of_messages_finds_the_wrong_clocks_and_no_others() -> None:
    """Members and a leader with steady clocks that begin anywhere and drift, and messages that take their time."""
    rng = random.Random(5)
    for _ in range(300):
        count = rng.choice((3, 4, 5, 7))
        wrong = set(rng.sample(range(count), rng.randint(0, (count - 1) // 2)))
        ahead = [
            rng.choice((-1, 1)) * rng.randint(3_000, 90_000) if i in wrong else rng.randint(-200, 200)
            for i in range(count)
        ]
        base, rate = [rng.randint(1, 10**9) for _ in ahead], [rng.uniform(0.99, 1.01) for _ in ahead]

        def steady(who: int, at_ms: int, base: list[int] = base, rate: list[float] = rate) -> int:
            return base[who] + int(at_ms * rate[who])

        clocks, common = [OwnClock(LIMIT_MS) for _ in ahead], CommonTime(LIMIT_MS, 6_000)
        for beat in range(3):
            for i, clock in enumerate(clocks):
                sent = 1_000 + beat * 500 + rng.randint(0, 20)
                read = sent + rng.randint(0, 100)
                back = read + rng.randint(0, 100)
                common.note(i, clock.against_leader(1, NOW_MS + sent + ahead[i], steady(i, sent)), steady(0, read))
                time = common.at(steady(0, read), range(count), 0)
                clock.told(1, steady(0, read), time, steady(i, sent), steady(i, back))
        off = {i for i, clock in enumerate(clocks) if clock.off_ms(NOW_MS + 3_000 + ahead[i], steady(i, 3_000))}
        assert off == wrong


def test_it_is_said_in_seconds() -> None:
    assert wording(12_340, 500) == "12.3 s ahead of the middle of the cluster's clocks, and at most 500 ms are allowed"
    assert wording(-60_000, 500).startswith("60.0 s behind the middle")
    assert difference_ms(Span(5, 9), Span(1, 5)) == 0 and difference_ms(Span(1, 2), Span(5, 9)) == -3
