"""Draining: whoever is to leave or to be removed keeps its place until its replicas are elsewhere.

    pending ──▶ running, the instance still normal ──▶ nothing is bound to it ──▶ its transition (`transitions`)
                       │
                       └──▶ cancelled: by an operator, or because those who stay can't hold it any more

The rule here only notes the beginning; the planner sees who goes, and proposes other replicas. Several are drained
beside each other, and beside whoever joins. When a drain ends early the instance has what it still has, and gets its
fair share again like anybody else.
"""

from __future__ import annotations

from trimtab.governor.joins import standing
from trimtab.governor.obstacles import held_back, obstacle, undecided
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Commit, StepKind
from trimtab.governor.wording import name
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.tablets.departures import bound, bound_text, going, keepers
from trimtab.tablets.domains import is_online
from trimtab.topology.lifecycle import blocked
from trimtab.topology.records import RequestKind, RequestRecord, RequestState
from trimtab.topology.states import NodeState

_OUT = (RequestKind.LEAVE, RequestKind.REMOVE)


def begin_drains(state: ClusterState) -> Commit | None:
    """Rule: whoever is asked to go, can go, and has replicas, begins to be drained."""
    draft = Draft(state)
    begun: list[int] = []
    for number, request in state.open_requests.items():
        if request.kind not in _OUT or request.state is not RequestState.PENDING or request.cancel:
            continue
        if len(begun) == MAX_BATCH or draft.full:
            break
        if request.raft_id in state.left_alone or not (replicas := bound(state.tables, request.raft_id)):
            continue
        if undecided(state, number) or obstacle(state, number) is not None:
            continue
        begun.append(number)
        draft.change_request(number, state=RequestState.RUNNING, started_ms=state.now_ms, tablets=replicas)
        what = bound_text(state.tables, request.raft_id)
        how = "go to others" if request.kind is RequestKind.LEAVE else "are made anew on others"
        draft.tell(f"{name(state.view, request.raft_id)} is drained: {what} {how}", (request.raft_id,))
    if not begun:
        return None
    write = draft.write()
    return Commit(StepKind.REQUEST, "; ".join(write.sentences[:3]), tuple(begun), write=write)


def drains(state: ClusterState, request: RequestRecord) -> bool:
    """Whether the instance of a request is being drained, or has just been: it has yet to begin to go."""
    record = state.view.instances.get(request.raft_id)
    running = request.kind in _OUT and request.state is RequestState.RUNNING
    return running and record is not None and record.state is NodeState.NORMAL


def hopeless(state: ClusterState, number: int) -> str | None:
    """Why a drain that has begun can never end; None: it may, now or later."""
    request = state.view.requests[number]
    if not drains(state, request) or not bound(state.tables, request.raft_id):
        return None
    who, raft_id = name(state.view, request.raft_id), request.raft_id
    removes = request.kind is RequestKind.REMOVE and not undecided(state, number)
    if removes and (why := blocked(state.view, number, lambda each: standing(state, each))):
        return why
    if request.kind is RequestKind.LEAVE and raft_id in state.lost:
        return f"{who} is dead, so it can't hand over what it has; start it again, or use: trimtab remove {who}"
    if why := held_back(state, number):
        return why
    # What the planner finds is final only where it knows everything, nothing of it moves, and nobody is away.
    others = keepers(state.view, {*going(state.view), *state.lost})
    away = any(not is_online(state.view.instances[node.raft_id]) for node in others)
    if away or not state.planned or moving(state, raft_id):
        return None
    return next((problem.text for problem in state.problems if problem.raft_id == raft_id), None)


def moving(state: ClusterState, raft_id: int) -> bool:
    """Whether a tablet of the instance is under way, or about to be."""
    tables = state.tables
    for proposal in state.proposals:
        tablets = tables.maps.get(proposal.table)
        if tablets is not None and proposal.tablet < tablets.count and raft_id in tablets.replicas(proposal.tablet):
            return True
    return any(
        raft_id in tables.maps[table].replicas(tablet) or raft_id in current.pending
        for table, under_way in tables.transitions.items()
        if table in tables.maps
        for tablet, current in under_way.items()
        if tablet < tables.maps[table].count
    )


def drained(state: ClusterState, request: RequestRecord) -> bool:
    """Whether a drain has ended: its instance may go, if nothing else keeps it."""
    return drains(state, request) and not bound(state.tables, request.raft_id)


def progress(state: ClusterState, request: RequestRecord) -> str:
    """How far a drain is, in words."""
    left = bound_text(state.tables, request.raft_id)
    whole = f" of {request.tablets} at the beginning" if request.tablets else ""
    return f"{name(state.view, request.raft_id)} is drained; it still has {left}{whole}"
