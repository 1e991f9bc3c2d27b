"""Admitting instances: every pending request to join or to replace is decided, all of them in one write.

An accepted one gets its raft id and its row (state none, Offline) and runs from then on; a refused one fails with the
reason. The rules of acceptance are `trimtab.topology.join`'s. What follows is other rules' work: the row makes a
learner, the learner gets its answer, and the instance that climbs to RaftSynced goes through a transition.

N instances that ask at once cost, at best: N requests and N times `instance.update` and acknowledgement (each is one
instance's own word), and ten writes for all of them together: admitted, made learners, synced, the transition's begin,
middle and end, replicated, sharded, Online, and the votes.
"""

from __future__ import annotations

from copy import copy

from trimtab.catalog.keys import VERSION_KEY as CATALOG_VERSION
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Commit, StepKind
from trimtab.governor.wording import listed
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.tablets.departures import only_copies
from trimtab.topology.grades import Grade
from trimtab.topology.join import JOINING, admitted, coordinator_refusal
from trimtab.topology.records import PRIORITY, RequestState, instance_key
from trimtab.topology.view import View


def admit(state: ClusterState) -> Commit | None:
    """Rule: whoever wants to join is admitted or refused."""
    draft = Draft(state)
    # What those admitted before look like to those that follow: they share one write.
    seen = copy(state.view)
    seen.instances, seen.requests = dict(seen.instances), dict(seen.requests)
    decided: list[int] = []
    accepted: list[str] = []
    for number in pending_joins(state):
        if len(decided) == MAX_BATCH or draft.full:
            break
        ticket = state.view.requests[number].join
        assert ticket is not None
        replaced = state.view.named(ticket.replaces) if ticket.replaces else None
        if replaced is not None:
            if doubtful(state, replaced[0]):
                continue
            draft.depend(instance_key(replaced[0]))
            # What nobody else holds is judged by the tables there are.
            draft.depend(CATALOG_VERSION)
        decided.append(number)
        reason = coordinator_refusal(
            seen,
            number,
            lambda raft_id: standing(state, raft_id),
            lambda raft_id: only_copies(state.view, state.tables, raft_id),
        )
        if reason is not None:
            draft.end_request(number, RequestState.FAILED, reason)
            draft.tell(f"{ticket.instance_id} at {ticket.address} was refused: {reason}", names=(ticket.instance_id,))
        else:
            _accept(draft, seen, number, state.now_ms)
            accepted.append(ticket.instance_id if replaced is None else f"{ticket.instance_id} for {ticket.replaces}")
        seen.requests[number] = draft.request(number)
    if not decided:
        return None
    if accepted:
        ids = [draft.request(number).raft_id for number in decided]
        span = f"raft id {max(ids)}" if len(accepted) == 1 else f"raft ids up to {max(ids)}"
        how = "was" if len(accepted) == 1 else "were"
        draft.tell(f"{listed(accepted)} {how} admitted, with {span}", [raft_id for raft_id in ids if raft_id])
    write = draft.write()
    return Commit(StepKind.REQUEST, "; ".join(write.sentences[-3:]), tuple(decided), write=write)


def pending_joins(state: ClusterState) -> list[int]:
    """Undecided ones, the most urgent first."""
    requests = state.open_requests
    return sorted(
        (
            n
            for n, r in requests.items()
            if r.state is RequestState.PENDING and r.kind in JOINING and r.join is not None
        ),
        key=lambda number: (PRIORITY.index(requests[number].kind), number),
    )


def standing(state: ClusterState, raft_id: int) -> bool:
    """Whether the instance is up, as far as the cluster has decided: not marked Offline, or heard from again."""
    record = state.view.instances.get(raft_id)
    if record is None or record.left:
        return False
    back = record.grades.target.grade is Grade.ONLINE and state.alive(raft_id)
    return back or record.grades.current.grade is not Grade.OFFLINE


def doubtful(state: ClusterState, raft_id: int) -> bool:
    """Whether failure detection has yet to say if the instance is up: it has been silent, but is not marked."""
    if not standing(state, raft_id) or raft_id == state.leader:
        return False
    heard = state.heard.get(raft_id)
    return heard is None or heard.age_ms >= state.patience.offline_after_ms // 3


def _accept(draft: Draft, seen: View, number: int, now_ms: int) -> None:
    admission = admitted(seen, number, now_ms)
    request = admission.request
    draft.add_instance(admission.raft_id, admission.instance)
    draft.change_request(number, state=request.state, raft_id=request.raft_id, started_ms=request.started_ms)
    seen.instances[admission.raft_id] = admission.instance
