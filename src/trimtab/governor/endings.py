"""Requests that end before they are done: cancelled, too late, impossible by now, or with nobody left to carry them.

All that end now end in one write, each with its reason. What has begun is taken back as far as it went:

    a join or replacement   the row becomes left: its ids are spent, and a new attempt gets new ones
    a leave or removal      the instance is normal again, and its transition goes on without it; drained half way, it
                            has what it still has
    a rebuild               the instance is normal again, and what is left of its jobs is cancelled

From write_both_read_new on nothing is taken back: such a request is finished, and says that it was too late.
"""

from __future__ import annotations

from collections.abc import Collection

from trimtab.governor.drains import drained, drains, hopeless, progress
from trimtab.governor.joins import standing
from trimtab.governor.obstacles import obstacle, undecided
from trimtab.governor.rebuilds import failed_rebuild, open_jobs
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Commit, StepKind
from trimtab.governor.transitions import UNDER_WAY, ready_to_join
from trimtab.governor.wording import name, seconds
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.jobs.protocol import SteerJob
from trimtab.jobs.rules import CANCEL, steer
from trimtab.tablets.departures import bound
from trimtab.topology.grades import Grade
from trimtab.topology.join import JOINING
from trimtab.topology.lifecycle import prunable, too_late
from trimtab.topology.records import (
    GLOBAL_KINDS,
    RequestKind,
    RequestRecord,
    RequestState,
    TransitionRecord,
)
from trimtab.topology.states import NodeState

Ending = tuple[RequestState, str]
_PRUNED_AT_ONCE = 100


def end_early(state: ClusterState) -> Commit | None:
    """Rule: requests that should not or can't go on end, with their reasons."""
    endings: dict[int, Ending] = {}
    for number, request in state.open_requests.items():
        if len(endings) == MAX_BATCH or too_late(state.view, number) or request.raft_id in state.left_alone:
            continue
        if ending := _ending(state, number):
            endings[number] = ending
    return _end(state, endings) if endings else None


def give_up(state: ClusterState) -> Commit | None:
    """Rule: when none of the requests that wait can go on, all of them are cancelled."""
    open_now = state.open_requests
    waiting = {n: r for n, r in open_now.items() if r.kind not in JOINING and r.kind not in GLOBAL_KINDS}
    if not waiting or state.view.transition is not None or state.in_office_ms < state.patience.offline_after_ms:
        return None
    at_work = (r.state is RequestState.RUNNING and not drained(state, r) for r in waiting.values())
    if any(at_work) or any(undecided(state, number) for number in waiting):
        return None
    # A joiner that gets in may be what the others wait for.
    if any(r.kind in JOINING for r in open_now.values()):
        return None
    obstacles = {n: obstacle(state, n) for n in waiting}
    if not all(obstacles.values()):
        return None
    return _end(state, {n: (RequestState.CANCELLED, f"it can't go on: {why}") for n, why in obstacles.items()})


def prune(state: ClusterState) -> Commit | None:
    """Rule: of the requests that ended long ago only the newest are kept."""
    old = prunable(state.view)
    if len(old) < _PRUNED_AT_ONCE:
        return None
    draft = Draft(state)
    for number in old[:_PRUNED_AT_ONCE]:
        draft.forget_request(number)
    why = f"{_PRUNED_AT_ONCE} requests that ended long ago, up to {old[_PRUNED_AT_ONCE - 1]}, are forgotten"
    draft.tell(why)
    return Commit(StepKind.REQUEST, why, tuple(old[:_PRUNED_AT_ONCE]), write=draft.write())


def _ending(state: ClusterState, number: int) -> Ending | None:
    request = state.view.requests[number]
    if request.cancel:
        return RequestState.CANCELLED, request.cancel
    if request.kind in JOINING:
        return _join_ending(state, request)
    record = state.view.instances.get(request.raft_id)
    if request.kind not in GLOBAL_KINDS and (record is None or record.left):
        who = name(state.view, request.raft_id)
        done = record is not None and request.kind in (RequestKind.LEAVE, RequestKind.REMOVE)
        return RequestState.DONE if done else RequestState.FAILED, f"{who} is not in the cluster any more"
    deadline_ms = request.deadline_ms
    if not deadline_ms and state.patience.request_timeout_ms:
        deadline_ms = request.asked_ms + state.patience.request_timeout_ms
    if deadline_ms and _is_over(state, request, deadline_ms):
        why = obstacle(state, number) if request.state is RequestState.PENDING or drains(state, request) else None
        if why is None and drains(state, request) and bound(state.tables, request.raft_id):
            why = progress(state, request)
        return RequestState.FAILED, _too_late(request, deadline_ms) + (f": {why}" if why else "")
    if why := hopeless(state, number):
        return RequestState.CANCELLED, f"it can't go on: {why}"
    if why := failed_rebuild(state, request):
        return RequestState.FAILED, why
    return None


def _join_ending(state: ClusterState, request: RequestRecord) -> Ending | None:
    view = state.view
    record = view.instances.get(request.raft_id)
    if request.state is RequestState.RUNNING:
        if record is None or record.left:
            return RequestState.FAILED, "its instance has left meanwhile"
        if record.state is UNDER_WAY[request.kind] and record.grades.target.grade is not Grade.ONLINE:
            return RequestState.FAILED, f"{record.instance_id} went down while it joined ({record.reason})"
        if record.replaces and standing(state, record.replaces) and state.alive(record.replaces):
            return RequestState.FAILED, f"{name(view, record.replaces)}, which it was to replace, is back"
        if record.state is not NodeState.NONE or ready_to_join(state, request):
            return None
    deadline_ms = request.deadline_ms or request.asked_ms + state.patience.join_deadline_ms
    if not _is_over(state, request, deadline_ms):
        return None
    did = "it was not heard from" if request.answered else "it did not take the answer"
    return RequestState.FAILED, _too_late(request, deadline_ms) + (f": {did}" if request.raft_id else "")


def _is_over(state: ClusterState, request: RequestRecord, deadline_ms: int) -> bool:
    """Whether the deadline has passed by the wall clock, and this leader has been there for all of that time.

    The deadline was written by another leader's clock, perhaps, and this one's may be far ahead. So a new leader gives
    every request its full time.
    """
    return state.now_ms >= deadline_ms and state.in_office_ms >= deadline_ms - request.asked_ms


def _too_late(request: RequestRecord, deadline_ms: int) -> str:
    return f"it was not done within {seconds(deadline_ms - request.asked_ms)}"


def _end(state: ClusterState, endings: dict[int, Ending]) -> Commit:
    draft = Draft(state)
    ended: list[int] = []
    for number, (ending, reason) in endings.items():
        if draft.full:
            break
        ended.append(number)
        request = draft.request(number)
        if request.state is RequestState.RUNNING:
            _take_back(draft, request, f"request {number} ({request.kind.value}) {ending.value}: {reason}")
            for job in open_jobs(state, request):
                order = SteerJob(job.number, CANCEL, f"request {number} {ending.value}: {reason}")
                draft.job(steer(state.jobs, order, state.now_ms))
        draft.end_request(number, ending, reason)
        about = _about(state, request)
        named = (about,) if request.join is not None or request.raft_id else ()
        draft.tell(f"request {number} ({request.kind.value} of {about}) {ending.value}: {reason}", names=named)
    _shrink_transition(state, draft, ended)
    write = draft.write()
    return Commit(StepKind.REQUEST, "; ".join(write.sentences[:3]), tuple(ended), write=write)


def _take_back(draft: Draft, request: RequestRecord, reason: str) -> None:
    if request.kind in JOINING:
        draft.expel(request.raft_id, reason)
    elif request.kind not in GLOBAL_KINDS:
        record = draft.instance(request.raft_id)
        undone = NodeState.REBUILDING if request.kind is RequestKind.REBUILD else UNDER_WAY[request.kind]
        if record.state is undone:
            draft.change_instance(request.raft_id, state=NodeState.NORMAL)
            draft.raise_version()


def _shrink_transition(state: ClusterState, draft: Draft, ended: Collection[int]) -> None:
    transition = state.view.transition
    if transition is None or not any(number in ended for number in transition.requests):
        return
    left = [number for number in transition.requests if number not in ended]
    version = draft.raise_version()
    draft.transition(TransitionRecord(transition.state, transition.kind, left, version) if left else None)


def _about(state: ClusterState, request: RequestRecord) -> str:
    if request.join is not None:
        return request.join.instance_id
    return name(state.view, request.raft_id) if request.raft_id else "the cluster"
