"""Counting, against counting by brute force."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from trimtab.raft.quorum import INFINITE_INDEX, JointVoters, VoteResult, majority_committed, majority_vote

IDS = st.frozensets(st.integers(1, 7), max_size=7)
ACKED = st.dictionaries(st.integers(1, 7), st.integers(0, 9))
VOTES = st.dictionaries(st.integers(1, 7), st.booleans())


def is_committed(voters: frozenset[int], acked: dict[int, int], index: int) -> bool:
    return sum(acked.get(voter, 0) >= index for voter in voters) * 2 > len(voters)


def outcome(voters: frozenset[int], votes: dict[int, bool]) -> VoteResult:
    """Try every way the missing votes could go."""
    missing = [voter for voter in voters if voter not in votes]
    ends = set()
    for rest in product((True, False), repeat=len(missing)):
        all_votes = votes | dict(zip(missing, rest, strict=True))
        ends.add(sum(all_votes[voter] for voter in voters) * 2 > len(voters) or not voters)
    return {frozenset({True}): VoteResult.WON, frozenset({False}): VoteResult.LOST}.get(
        frozenset(ends), VoteResult.PENDING
    )


@given(IDS.filter(bool), ACKED)
def test_a_majority_commits_the_highest_index_that_more_than_half_have(
    voters: frozenset[int], acked: dict[int, int]
) -> None:
    index = majority_committed(voters, acked)
    assert is_committed(voters, acked, index)
    assert not is_committed(voters, acked, index + 1)


@given(IDS, IDS, ACKED)
def test_a_joint_quorum_commits_what_both_halves_commit(
    incoming: frozenset[int], outgoing: frozenset[int], acked: dict[int, int]
) -> None:
    expected = min(majority_committed(incoming, acked), majority_committed(outgoing, acked))
    assert JointVoters(incoming, outgoing).committed_index(acked) == expected
    assert JointVoters(outgoing, incoming).committed_index(acked) == expected


@given(IDS, VOTES)
def test_a_vote_is_decided_as_soon_as_nothing_can_change_it(voters: frozenset[int], votes: dict[int, bool]) -> None:
    assert majority_vote(voters, votes) is outcome(voters, votes)


@given(IDS, IDS, VOTES)
def test_a_joint_vote_needs_both_halves(
    incoming: frozenset[int], outgoing: frozenset[int], votes: dict[int, bool]
) -> None:
    halves = {majority_vote(incoming, votes), majority_vote(outgoing, votes)}
    result = JointVoters(incoming, outgoing).vote_result(votes)
    assert (result is VoteResult.WON) == (halves == {VoteResult.WON})
    assert (result is VoteResult.LOST) == (VoteResult.LOST in halves)


def test_nobody_has_committed_everything_and_won_every_vote() -> None:
    assert majority_committed(frozenset(), {}) == INFINITE_INDEX
    assert majority_vote(frozenset(), {}) is VoteResult.WON
