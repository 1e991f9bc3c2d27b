"""Rebuilds and global requests: they change no topology, so they need no transition; they wait until none is under way.

A rebuild marks its instance `rebuilding`, and ends when every router knows: there is no data to copy yet. Global
requests are a queue: one at a time, the oldest first, after everything else. A `barrier` request is done when a barrier
at the version of its turn has passed.
"""

from __future__ import annotations

from trimtab.governor.crossing import barrier
from trimtab.governor.obstacles import obstacle, undecided
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Barrier, Commit, StepKind
from trimtab.governor.wording import names
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.topology.records import GLOBAL_KINDS, RequestKind, RequestState
from trimtab.topology.states import NodeState


def begin_rebuilds(state: ClusterState) -> Commit | None:
    """Rule: instances that are to be rebuilt, and can be, are."""
    if state.view.transition is not None:
        return None
    chosen: dict[int, int] = {}  # raft id -> request
    for number, request in state.open_requests.items():
        if request.kind is not RequestKind.REBUILD or request.state is not RequestState.PENDING or request.cancel:
            continue
        record = state.view.instances.get(request.raft_id)
        free = record is not None and record.state is NodeState.NORMAL and request.raft_id not in chosen
        free = free and request.raft_id not in state.left_alone
        if free and len(chosen) < MAX_BATCH and not undecided(state, number) and obstacle(state, number) is None:
            chosen[request.raft_id] = number
    if not chosen:
        return None
    draft = Draft(state)
    begun: dict[int, int] = {}
    for raft_id, number in chosen.items():
        if draft.full:
            break
        begun[raft_id] = number
        draft.change_instance(raft_id, state=NodeState.REBUILDING)
        draft.change_request(number, state=RequestState.RUNNING, started_ms=state.now_ms)
    draft.raise_version()
    why = f"{names(state.view, begun)} {'is' if len(begun) == 1 else 'are'} rebuilt"
    draft.tell(why, begun)
    return Commit(StepKind.REQUEST, why, tuple(begun.values()), write=draft.write())


def end_rebuilds(state: ClusterState) -> Barrier | None:
    """Rule: rebuilt instances are normal again, once everybody knew that they were not."""
    view = state.view
    running = {
        number: request.raft_id
        for number, request in state.open_requests.items()
        if request.kind is RequestKind.REBUILD and request.state is RequestState.RUNNING
        if request.raft_id not in state.left_alone
    }
    if not running:
        return None
    draft = Draft(state)
    done: dict[int, int] = {}
    for number, raft_id in running.items():
        if draft.full:
            break
        done[number] = raft_id
        if draft.instance(raft_id).state is NodeState.REBUILDING:
            draft.change_instance(raft_id, state=NodeState.NORMAL)
        draft.end_request(number, RequestState.DONE, "")
    draft.raise_version()
    why = f"{names(view, done.values())} {'is' if len(done) == 1 else 'are'} rebuilt: done"
    return barrier(state, StepKind.REQUEST, why, done, draft, about=done.values())


def next_global(state: ClusterState) -> Barrier | None:
    """Rule: the first of the global requests."""
    view = state.view
    queue = [number for number, request in state.open_requests.items() if request.kind in GLOBAL_KINDS]
    if not queue or view.transition is not None:
        return None
    number = queue[0]
    draft = Draft(state)
    draft.change_request(number, started_ms=view.requests[number].started_ms or state.now_ms)
    draft.end_request(number, RequestState.DONE, "")
    why = f"request {number} is done: everybody routes by version {view.version}"
    return barrier(state, StepKind.REQUEST, why, (number,), draft)
