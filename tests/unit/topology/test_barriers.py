"""Barriers: nothing older passes, and a dead node holds nobody up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.topology.barriers import MAX_WAITERS, OpenRequests, Round, RoundState, TooManyWaiters


def test_a_barrier_waits_for_an_older_request_and_not_for_a_newer() -> None:
    requests, passed = OpenRequests(), []
    old, new = requests.open(4), requests.open(5)
    requests.wait(5, lambda: passed.append(5))
    requests.close(new)
    assert passed == []
    assert requests.oldest() == 4
    requests.close(old)
    assert passed == [5]
    assert requests.oldest() is None
    assert len(requests) == 0


def test_a_barrier_with_nothing_to_wait_for_passes_at_once() -> None:
    requests, passed = OpenRequests(), []
    requests.open(5)
    requests.wait(5, lambda: passed.append(5))
    assert passed == [5]
    assert requests.waiting() == 0


def test_closing_twice_counts_once() -> None:
    requests = OpenRequests()
    first = requests.open(4)
    requests.open(4)
    requests.close(first)
    requests.close(first)
    requests.close(99)
    assert requests.oldest() == 4


def test_who_waits_no_more_is_forgotten_and_waiting_is_bounded() -> None:
    requests, passed = OpenRequests(), []
    token = requests.open(1)
    numbers = [requests.wait(2, lambda: passed.append(2)) for _ in range(MAX_WAITERS)]
    with pytest.raises(TooManyWaiters, match="the oldest request is of 1"):
        requests.wait(2, lambda: None)
    for number in numbers[1:]:
        requests.forget(number)
    requests.close(token)
    assert passed == [2]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=60), st.integers(1, 6))
def test_a_barrier_passes_exactly_when_no_older_request_is_open(steps: list[tuple[int, bool]], version: int) -> None:
    requests, tokens, passed = OpenRequests(), [], []  # type: ignore[var-annotated]
    begin = requests.open(1)
    requests.wait(version, lambda: passed.append(True))
    for stamped, closes in steps:
        if closes and tokens:
            requests.close(tokens.pop(0)[0])
        else:
            tokens.append((requests.open(stamped), stamped))
    before = [stamped for _, stamped in tokens if stamped < version]
    assert bool(passed) == (version == 1)
    requests.close(begin)
    if not before:
        assert passed
    for token, _ in tokens:
        requests.close(token)
    assert passed == [True]


# The leader's side


def test_a_round_passes_when_all_have_answered() -> None:
    barrier = Round(7, [1, 2, 3])
    assert barrier.to_ask == {1, 2, 3}
    for raft_id in (1, 2):
        barrier.answered(raft_id)
    assert barrier.state is RoundState.WAITING
    assert barrier.to_ask == {3}
    barrier.answered(3)
    assert barrier.state is RoundState.PASSED


def test_a_round_that_skipped_a_node_raises_the_fence_and_asks_the_others_once_more() -> None:
    barrier = Round(7, [1, 2, 3])
    barrier.answered(1)
    barrier.dead(3)
    assert barrier.state is RoundState.WAITING
    barrier.answered(2)
    assert barrier.state is RoundState.RAISE_FENCE
    assert barrier.to_ask == frozenset()
    assert barrier.skipped == {3}
    barrier.fence_raised()
    assert barrier.repeating
    assert barrier.to_ask == {1, 2}
    barrier.answered(3)  # it is back, and late
    barrier.answered(1)
    barrier.dead(2)  # the fence is written: no third pass
    assert barrier.state is RoundState.PASSED


def test_a_node_that_answered_before_it_died_was_not_skipped() -> None:
    barrier = Round(7, [1, 2])
    barrier.answered(2)
    barrier.dead(2)
    barrier.answered(1)
    assert barrier.state is RoundState.PASSED
    assert barrier.skipped == frozenset()


def test_a_round_of_nobody_passes_and_one_of_the_dead_raises_the_fence() -> None:
    assert Round(7, []).state is RoundState.PASSED
    barrier = Round(7, [1])
    barrier.dead(1)
    assert barrier.state is RoundState.RAISE_FENCE
    barrier.fence_raised()
    assert barrier.state is RoundState.PASSED
    with pytest.raises(AssertionError):
        barrier.fence_raised()


def test_strangers_neither_answer_nor_die() -> None:
    barrier = Round(7, [1])
    barrier.answered(9)
    barrier.dead(9)
    assert barrier.to_ask == {1}
    assert barrier.skipped == frozenset()
