"""JOIN_NODE_RESPONSE: whoever asked to join is told the decision, until it has acknowledged it.

An accepted instance is told when it is in the Raft configuration, not before: from then on the cluster sends it its
log. A refused one is told why. Those whose attempt ran out of time are not called: they were given up because they did
not answer, and hear of it when they ask again. Each answer is a step of its own, and one that fails rests by itself, so
a joiner that died holds up nobody.
"""

from __future__ import annotations

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Answer, StepKey, StepKind
from trimtab.governor.writes import Draft
from trimtab.topology.join import JOINING, decision
from trimtab.topology.records import RequestRecord, RequestState


def answer(state: ClusterState) -> Answer | None:
    """Rule: the oldest decision that its joiner does not know, and that is not being told."""
    busy = state.in_flight | state.resting
    for number, request in sorted(state.view.requests.items()):
        ticket = request.join
        if ticket is None or not to_tell(state, request) or StepKey(StepKind.ANSWER, (number,)) in busy:
            continue
        if request.raft_id and request.raft_id in state.backing_off:
            continue
        told = decision(state.view, number, state.cluster_id, state.genesis, state.members)
        if told is None:
            continue
        outcome = f"it is in, with raft id {told.raft_id}" if told.accepted else f"it was refused: {told.reason}"
        why = f"{ticket.instance_id} at {ticket.address} was told that {outcome}"
        draft = Draft(state)
        draft.change_request(number, answered=True)
        draft.tell(why, names=(ticket.instance_id,))
        return Answer(StepKind.ANSWER, why, (number,), address=ticket.address, response=told, write=draft.write())
    return None


def to_tell(state: ClusterState, request: RequestRecord) -> bool:
    """Whether the coordinator still has to call the joiner."""
    if request.kind not in JOINING or request.answered:
        return False
    if request.state is RequestState.RUNNING:
        return True
    refused = request.state in (RequestState.FAILED, RequestState.CANCELLED) and not request.raft_id
    return refused and state.now_ms < request.ended_ms + state.patience.join_deadline_ms
