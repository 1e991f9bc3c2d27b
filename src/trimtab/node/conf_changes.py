"""Changes of the cluster group's members that the governor wants: what is left of them, and whether they are safe.

What is so already is left out, so a change whose outcome was unknown can be asked for again. The guards hold whatever
the rules say: no voter that has not caught up, never without a voter, and of two voters never the leader.
"""

from __future__ import annotations

from trimtab.governor.steps import ChangeMembers
from trimtab.raft.core import Raft
from trimtab.raft.messages import ConfChangeSingle, ConfChangeType, ConfChangeV2
from trimtab.raft.progress import ProgressState


def change_for(raft: Raft, step: ChangeMembers) -> ConfChangeV2 | None:
    """The (joint, where several change) change that is left to make; None: everything is so already."""
    config = raft.tracker.config
    members = raft.tracker.progress
    singles: list[ConfChangeSingle] = []
    for raft_id in step.add:
        if raft_id not in members:
            singles.append(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, raft_id))
    for raft_id in step.promote:
        if raft_id in members and raft_id not in config.voters.incoming:
            singles.append(ConfChangeSingle(ConfChangeType.ADD_NODE, raft_id))
    for raft_id in step.demote:
        if raft_id in config.voters.incoming:
            singles.append(ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, raft_id))
    for raft_id in step.remove:
        if raft_id in members:
            singles.append(ConfChangeSingle(ConfChangeType.REMOVE_NODE, raft_id))
    return ConfChangeV2(changes=tuple(singles)) if singles else None


def under_way(raft: Raft) -> bool:
    """Whether another change has not ended yet."""
    return raft.pending_conf_index > raft.log.applied or raft.tracker.config.is_joint


def refusal(raft: Raft, change: ConfChangeV2, promote_lag_entries: int) -> str | None:
    """Why this change must not be made now, or None."""
    voters = set(raft.tracker.config.voters.incoming)
    before = frozenset(voters)
    for single in change.changes:
        if single.type is ConfChangeType.ADD_NODE:
            if why := _not_caught_up(raft, single.node_id, promote_lag_entries):
                return why
            voters.add(single.node_id)
        else:
            voters.discard(single.node_id)
    if not voters:
        return "the last voter can't be taken out: nobody would be left to decide anything"
    if raft.id in before and raft.id not in voters:
        # Of two, the other may never learn that the change was committed, and could not be elected with a shorter log.
        return "the leader can't take itself out; it has to hand over leadership first"
    return raft.conf_change_refusal(change)


def _not_caught_up(raft: Raft, raft_id: int, allowed: int) -> str | None:
    progress = raft.tracker.progress.get(raft_id)
    # A young cluster's log is shorter than the allowed lag, so the numbers alone say nothing of a member that is not
    # even there; as a voter it would only count against the majority.
    if progress is None or progress.match == 0 or not progress.recent_active:
        return f"member {raft_id} has not been heard from, so it gets no vote yet"
    if progress.state is ProgressState.SNAPSHOT:
        return f"member {raft_id} is still receiving a snapshot, so it gets no vote yet"
    lag = raft.log.last_index() - progress.match
    if lag > allowed:
        return f"member {raft_id} is {lag} entries behind; it may vote when it is within {allowed}"
    return None
