"""Failure detection: an instance that was not heard from for long enough should be Offline.

Long enough is longer than any lease lasts, so whoever is marked serves nothing any more. A new leader has heard from
nobody yet, so it waits as long before it marks anyone. Being slow is no failure: an instance that sends heartbeats is
only marked when it is behind and has not applied anything at all for much longer.
"""

from __future__ import annotations

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Commit, StepKind
from trimtab.governor.wording import seconds
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.topology.grades import Grade, set_target


def find_silent(state: ClusterState) -> Commit | None:
    """Rule: the target of everybody who went silent becomes Offline, in one write."""
    if state.in_office_ms < state.patience.offline_after_ms:
        return None
    draft = Draft(state)
    found: list[int] = []
    for raft_id, record in sorted(state.view.members().items()):
        if raft_id == state.leader or record.grades.target.grade is not Grade.ONLINE:
            continue
        if len(found) == MAX_BATCH or draft.full:
            break
        if raft_id in state.left_alone:
            continue
        if reason := failure(state, raft_id):
            found.append(raft_id)
            draft.change_instance(raft_id, grades=set_target(record.grades, Grade.OFFLINE), reason=reason)
            draft.tell(f"{record.instance_id} should be Offline: {reason}", (raft_id,))
    if not found:
        return None
    write = draft.write()
    return Commit(StepKind.DOWN, "; ".join(write.sentences[:3]), tuple(found), write=write)


def failure(state: ClusterState, raft_id: int) -> str | None:
    """Why the instance counts as failed, or None."""
    silent_ms = state.silent_ms(raft_id)
    if silent_ms >= state.patience.offline_after_ms:
        return f"not heard from for {seconds(silent_ms)}"
    heard = state.heard.get(raft_id)
    if heard is not None and heard.applied < state.commit and heard.stalled_ms >= state.patience.stall_after_ms:
        return (
            f"it has applied nothing for {seconds(heard.stalled_ms)}, though it is {state.commit - heard.applied} "
            "entries behind"
        )
    return None
