"""Counting: what a majority, or two overlapping ones, have acknowledged or decided.

Pure arithmetic over sets of voter ids. A joint configuration decides only what both of its halves decide; an empty
half agrees with everything, so that a joint configuration with one empty half behaves like the other half alone.
"""

import enum
from collections.abc import Collection, Mapping

import msgspec

# What the empty quorum has committed: everything.
INFINITE_INDEX = 2**64 - 1


class VoteResult(enum.Enum):
    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def majority_committed(voters: Collection[int], acked: Mapping[int, int]) -> int:
    """The highest index that more than half of the voters have acknowledged; unknown voters count as 0."""
    count = len(voters)
    if count == 0:
        return INFINITE_INDEX
    indexes = sorted([acked.get(voter, 0) for voter in voters])
    return indexes[(count - 1) // 2]


def majority_vote(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """Won or lost as soon as the missing votes can't change it."""
    if not voters:
        return VoteResult.WON
    granted = 0
    missing = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is None:
            missing += 1
        elif vote:
            granted += 1
    quorum = len(voters) // 2 + 1
    if granted >= quorum:
        return VoteResult.WON
    if granted + missing >= quorum:
        return VoteResult.PENDING
    return VoteResult.LOST


class JointVoters(msgspec.Struct, frozen=True, gc=False):
    """The voters. `outgoing` is empty except on the way from one membership to the next."""

    incoming: frozenset[int] = frozenset()
    outgoing: frozenset[int] = frozenset()

    def ids(self) -> frozenset[int]:
        return self.incoming | self.outgoing if self.outgoing else self.incoming

    def __contains__(self, voter: int) -> bool:
        return voter in self.incoming or voter in self.outgoing

    def committed_index(self, acked: Mapping[int, int]) -> int:
        index = majority_committed(self.incoming, acked)
        if self.outgoing:
            return min(index, majority_committed(self.outgoing, acked))
        return index

    def vote_result(self, votes: Mapping[int, bool]) -> VoteResult:
        result = majority_vote(self.incoming, votes)
        if not self.outgoing:
            return result
        other = majority_vote(self.outgoing, votes)
        if result is other:
            return result
        if VoteResult.LOST in (result, other):
            return VoteResult.LOST
        return VoteResult.PENDING

    def __str__(self) -> str:
        if self.outgoing:
            return f"{describe_ids(self.incoming)}&&{describe_ids(self.outgoing)}"
        return describe_ids(self.incoming)


def describe_ids(ids: Collection[int]) -> str:
    return f"({' '.join(str(node) for node in sorted(ids))})"


def describe_index(index: int) -> str:
    return "∞" if index == INFINITE_INDEX else str(index)


def describe_committed(voters: Collection[int], acked: Mapping[int, int]) -> str:
    """A table of what each voter acknowledged. Its bar is as long as the number of voters it is strictly ahead of."""
    if not voters:
        return "<empty majority quorum>"
    count = len(voters)
    by_index = sorted((acked.get(voter, 0), voter) for voter in voters)
    bars: dict[int, int] = {}
    rank = 0
    for position, (index, voter) in enumerate(by_index):
        if position > 0 and by_index[position - 1][0] < index:
            rank = position
        bars[voter] = rank
    lines = [" " * count + "    idx\n"]
    for voter in sorted(voters):
        bar = bars[voter]
        mark = "x" * bar + ">" + " " * (count - bar) if voter in acked else "?" + " " * count
        lines.append(f"{mark} {acked.get(voter, 0):5d}    (id={voter})\n")
    return "".join(lines)
