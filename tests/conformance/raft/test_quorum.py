"""Quorum tables of etcd's raft: committed indexes and votes of majorities and of joint majorities.

Each case is also computed in other ways that must give the same: by counting, joined with nothing, joined with itself,
with the halves exchanged, with laggards moved further back. A difference shows in the output, where it fails the case.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conformance.raft.datadriven import Case, read_cases, vector_files
from trimtab.raft.quorum import (
    JointVoters,
    describe_committed,
    describe_index,
    majority_committed,
    majority_vote,
)


def committed_by_counting(voters: frozenset[int], acked: Mapping[int, int]) -> int | None:
    """Slow and obvious: the highest acknowledged index that a majority has reached."""
    reached = [
        index
        for index in (0, *acked.values())
        if sum(acked.get(voter, 0) >= index for voter in voters) > len(voters) // 2
    ]
    return max(reached) if voters else None


def parse(case: Case) -> tuple[list[int], list[int], bool, list[str]]:
    ids: list[int] = []
    joint_ids: list[int] = []
    joint = False
    values: list[str] = []
    for argument in case.arguments:
        if argument.key == "cfg":
            ids = [int(value) for value in argument.values]
        elif argument.key == "cfgj":
            joint = True
            joint_ids = [] if argument.values == ["zero"] else [int(value) for value in argument.values]
        elif argument.key in ("idx", "votes"):
            values = argument.values
        else:
            raise AssertionError(f"{case.where}: unknown argument {argument.key}")
    return ids, joint_ids, joint, values


def committed(case: Case, voters: JointVoters, joint: bool, acked: dict[int, int]) -> str:
    if joint:
        index = voters.committed_index(acked)
        text = describe_committed(voters.ids(), acked)
        exchanged = JointVoters(voters.outgoing, voters.incoming).committed_index(acked)
        if exchanged != index:
            text += f"{describe_index(exchanged)} <-- via symmetry\n"
        return f"{text}{describe_index(index)}\n"
    majority = voters.incoming
    index = majority_committed(majority, acked)
    text = describe_committed(majority, acked)
    others = {
        "via alternative computation": committed_by_counting(majority, acked),
        "via zero-joint quorum": JointVoters(majority).committed_index(acked),
        "via self-joint quorum": JointVoters(majority, majority).committed_index(acked),
    }
    for how, other in others.items():
        if other is not None and other != index:
            text += f"{describe_index(other)} <-- {how}\n"
    for voter, own in acked.items():
        if 0 < own < index:
            for lower in (own - 1, 0):
                other = majority_committed(majority, acked | {voter: lower})
                if other != index:
                    text += f"{describe_index(other)} <-- overlaying {voter}->{lower}"
    return f"{text}{describe_index(index)}\n"


def vote(case: Case, voters: JointVoters, joint: bool, votes: dict[int, bool]) -> str:
    if not joint:
        return majority_vote(voters.incoming, votes).value + "\n"
    result = voters.vote_result(votes)
    exchanged = JointVoters(voters.outgoing, voters.incoming).vote_result(votes)
    text = "" if exchanged is result else f"{exchanged.value} <-- via symmetry\n"
    return f"{text}{result.value}\n"


def run(case: Case) -> str:
    ids, joint_ids, joint, values = parse(case)
    voters = JointVoters(frozenset(ids), frozenset(joint_ids))
    if len(voters.ids()) != len(values):
        shown = " ".join(f"{node}:{{}}" for node in sorted(voters.ids()))
        numbers = {"_": "0", "n": "1", "y": "2"}
        given = " ".join(numbers.get(value, value) for value in values)
        return f"error: mismatched input (explicit or _) for voters map[{shown}]: [{given}]\n"
    # In the order of the configurations, without repetition; `_` stands for a voter that said nothing.
    known = {node: value for node, value in zip(dict.fromkeys(ids + joint_ids), values, strict=True) if value != "_"}
    if case.command == "committed":
        return committed(case, voters, joint, {node: int(value) for node, value in known.items()})
    assert case.command == "vote", f"{case.where}: unknown command {case.command}"
    assert set(known.values()) <= {"y", "n"}, case.where
    return vote(case, voters, joint, {node: value == "y" for node, value in known.items()})


@pytest.mark.parametrize("path", vector_files("raft/quorum") or [None], ids=lambda path: path and path.stem)
def test_quorums_decide_as_in_the_table(path: Path | None, vectors: Callable[[str], Path]) -> None:
    vectors("raft/quorum")
    assert path is not None, "the folder of quorum tables is empty"
    for case in read_cases(path):
        assert run(case) == case.expected, case.where
