"""Changes of members that the governor wants: what is left of them, and the guards that hold whatever the rules say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trimtab.governor.steps import ChangeMembers, StepKind
from trimtab.node.conf_changes import change_for, refusal, under_way
from trimtab.raft.messages import ConfChangeType
from trimtab.raft.progress import ProgressState
from trimtab.raft.quorum import JointVoters
from trimtab.raft.tracker import Configuration


def raft(voters: set[int], learners: set[int], *, match: int = 100, active: bool = True) -> Any:
    """Member 1 leads; its log ends at 100."""
    progress = {
        raft_id: SimpleNamespace(match=match, recent_active=active, state=ProgressState.REPLICATE)
        for raft_id in voters | learners
    }
    config = Configuration(JointVoters(frozenset(voters)), frozenset(learners))
    return SimpleNamespace(
        id=1,
        tracker=SimpleNamespace(config=config, progress=progress),
        log=SimpleNamespace(last_index=lambda: 100, applied=100),
        pending_conf_index=0,
        conf_change_refusal=lambda _change: None,
    )


def step(**changes: tuple[int, ...]) -> ChangeMembers:
    return ChangeMembers(StepKind.VOTERS, "why", (), **changes)  # type: ignore[arg-type]


def refused(members: Any, wanted: ChangeMembers) -> str:
    change = change_for(members, wanted)
    assert change is not None
    return refusal(members, change, 10) or ""


def test_what_is_so_already_is_left_out_and_the_rest_is_one_change() -> None:
    change = change_for(raft({1, 2}, {3}), step(add=(3, 4), promote=(2, 3), demote=(5,), remove=(6,)))
    assert change is not None
    assert [(each.type, each.node_id) for each in change.changes] == [
        (ConfChangeType.ADD_LEARNER_NODE, 4),
        (ConfChangeType.ADD_NODE, 3),
    ]
    assert change_for(raft({1, 2}, {3}), step(add=(3,), promote=(2,), remove=(6,))) is None


def test_no_vote_for_who_was_not_heard_from_or_is_behind() -> None:
    assert refused(raft({1}, {2}), step(promote=(2,))) == ""
    assert "heard from" in refused(raft({1}, {2}, active=False), step(promote=(2,)))
    assert "heard from" in refused(raft({1}, {2}, match=0), step(promote=(2,)))
    assert "50 entries behind" in refused(raft({1}, {2}, match=50), step(promote=(2,)))


def test_the_leader_does_not_take_itself_out_and_the_last_voter_stays() -> None:
    assert "hand over" in refused(raft({1, 2}, set()), step(demote=(1,)))
    assert "last voter" in refused(raft({1}, set()), step(remove=(1,)))
    assert refused(raft({1, 2}, set()), step(demote=(2,))) == ""


def test_a_change_that_is_not_applied_yet_is_under_way() -> None:
    members = raft({1}, set())
    assert not under_way(members)
    members.pending_conf_index = 101
    assert under_way(members)
