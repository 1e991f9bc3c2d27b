"""Transitions: instances come and go through write_both_read_old and write_both_read_new, with a barrier after each.

    ready ──▶ write_both_read_old ══barrier══▶ write_both_read_new ══barrier══▶ done
                       │
                       └──▶ rolled back (`endings`): cancelled, too late, or the joiner died

One transition at a time, of one kind, for all requests of that kind that can go now: `begin` takes the most urgent
kind. Those that can't go yet (a joiner that has not synced, a removal of somebody who is up) hold up nobody. Up to
write_both_read_old everything can be taken back; from write_both_read_new on it only goes forward.

Nobody leaves while it has replicas (`drains`), but for one that is replaced: what that had is made anew afterwards.
Nobody becomes `left` while it votes: the votes move first, while it can still be outvoted properly. And nobody leaves
while it leads.
"""

from __future__ import annotations

from trimtab.governor.crossing import barrier
from trimtab.governor.obstacles import obstacle, undecided
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Barrier, Commit, StepKind
from trimtab.governor.wording import name, names
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.tablets.departures import bound, bound_text
from trimtab.topology.grades import Grade
from trimtab.topology.join import JOINING
from trimtab.topology.records import (
    TRANSITION_KEY,
    RequestKind,
    RequestRecord,
    RequestState,
    TransitionRecord,
    instance_key,
    request_key,
)
from trimtab.topology.states import NodeState, TransitionState

# The state an instance is in while its request goes through a transition.
UNDER_WAY = {
    RequestKind.JOIN: NodeState.BOOTSTRAPPING,
    RequestKind.REPLACE: NodeState.REPLACING,
    RequestKind.LEAVE: NodeState.DECOMMISSIONING,
    RequestKind.REMOVE: NodeState.REMOVING,
}
_NEXT = {
    TransitionState.COMMIT_CDC_GENERATION: TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.WRITE_BOTH_READ_OLD: TransitionState.WRITE_BOTH_READ_NEW,
}
_DOES = {
    RequestKind.JOIN: ("joins", "join"),
    RequestKind.REPLACE: ("takes the place of a dead instance", "take the places of dead instances"),
    RequestKind.LEAVE: ("leaves", "leave"),
    RequestKind.REMOVE: ("is removed", "are removed"),
}


def begin(state: ClusterState) -> Commit | None:
    """Rule: the most urgent requests that can go now go together."""
    if state.view.transition is not None or unreadable_part(state):
        return None
    for kind in UNDER_WAY_BY_URGENCY:
        numbers = _ready(state, kind)
        if numbers:
            return _begin(state, kind, numbers)
    return None


UNDER_WAY_BY_URGENCY = tuple(kind for kind in RequestKind if kind in UNDER_WAY)


def go_on(state: ClusterState) -> Barrier | None:
    """Rule: a transition goes on to its next state, or ends, behind a barrier."""
    transition = state.view.transition
    if transition is None:
        return None
    if unreadable_part(state):
        return None
    if keeps_from_leaving(state):
        # The votes or leadership move first, other rules' work; and before it is too late to take anything back.
        return None
    if following := _NEXT.get(transition.state):
        draft = Draft(state)
        # Also if somebody cancels while the barrier waits: what can still be taken back is.
        if any(draft.request(number).cancel for number in transition.requests):
            return None
        why = f"{subject_of(state)}: {transition.state.value} is known everywhere, {following.value} follows"
        draft.transition(
            TransitionRecord(following, transition.kind, transition.requests, version=draft.raise_version())
        )
    else:
        draft = Draft(state)
        draft.transition(None)
        for number in transition.requests:
            _finish(state, draft, number)
        why = f"{subject_of(state)}: done"
        draft.raise_version()
    numbers, about = transition.requests, _subjects(state)
    return barrier(state, StepKind.REQUEST, why, numbers, draft, about=about, version=transition.version)


def subject_of(state: ClusterState) -> str:
    """Who does what in the transition under way."""
    transition = state.view.transition
    assert transition is not None
    who = _subjects(state)
    return f"{names(state.view, who)} {_DOES[transition.kind][len(who) != 1]}"


def _subjects(state: ClusterState) -> list[int]:
    """The instances of the transition's requests."""
    transition, requests = state.view.transition, state.view.requests
    return [requests[number].raft_id for number in transition.requests if number in requests] if transition else []


def unreadable_part(state: ClusterState) -> str | None:
    """Which record of the transition under way can't be read, so that nobody here can say how it goes on; or None."""
    view, transition = state.view, state.view.transition
    keys = [TRANSITION_KEY]
    for number in transition.requests if transition is not None else ():
        keys.append(request_key(number))
        if number in view.requests:
            keys.append(instance_key(view.requests[number].raft_id))
    unread = [key for key in keys if key in view.unreadable]
    return f"{unread[0].decode()} can't be read: {view.unreadable[unread[0]]}" if unread else None


def keeps_from_leaving(state: ClusterState) -> str | None:
    """Why those who leave by the transition under way can't do so yet, or None."""
    goners = leaving_by_transition(state)
    if state.leader in goners:
        return f"{name(state.view, state.leader)} leads and has to hand over first"
    if voting := goners & state.voters:
        return f"{names(state.view, voting)} still {'votes' if len(voting) == 1 else 'vote'}"
    # Somebody may have given it a replica at the moment when it was found to have none.
    for raft_id in () if _replaces(state) else sorted(goners):
        if held := bound_text(state.tables, raft_id):
            return f"{name(state.view, raft_id)} has {held}"
    return None


def _replaces(state: ClusterState) -> bool:
    """Whether those who leave are replaced: what they had is made anew afterwards."""
    return state.view.transition is not None and state.view.transition.kind is RequestKind.REPLACE


def leaving_by_transition(state: ClusterState) -> frozenset[int]:
    """Who will have left when the transition under way ends."""
    view, transition = state.view, state.view.transition
    if transition is None or transition.kind is RequestKind.JOIN:
        return frozenset()
    subjects = [view.requests[number].raft_id for number in transition.requests if number in view.requests]
    if transition.kind is RequestKind.REPLACE:
        subjects = [view.instances[raft_id].replaces for raft_id in subjects if raft_id in view.instances]
    return frozenset(i for i in subjects if i in view.instances and not view.instances[i].left)


def ready_to_join(state: ClusterState, request: RequestRecord) -> bool:
    """Whether an admitted instance can go through a transition: it runs, and has the metastore."""
    record = state.view.instances.get(request.raft_id)
    return (
        request.state is RequestState.RUNNING
        and record is not None
        and record.state is NodeState.NONE
        and record.grades.target.grade is Grade.ONLINE
        and record.grades.current.grade is not Grade.OFFLINE
        and state.alive(request.raft_id)
    )


def _ready(state: ClusterState, kind: RequestKind) -> list[int]:
    ready: list[int] = []
    goners: list[int] = []
    for number, request in state.open_requests.items():
        if request.kind is not kind or request.cancel or len(ready) == MAX_BATCH:
            continue
        if request.raft_id in state.left_alone:
            continue
        if kind in JOINING:
            if ready_to_join(state, request) and not _predecessor_busy(state, request):
                ready.append(number)
            continue
        if request.raft_id in goners or undecided(state, number) or bound(state.tables, request.raft_id):
            continue
        if obstacle(state, number, goners) is None:
            ready.append(number)
            goners.append(request.raft_id)
    return ready


def _predecessor_busy(state: ClusterState, request: RequestRecord) -> bool:
    """Whether another request is about the instance that is to be replaced; it has to end first."""
    replaced = state.view.instances.get(state.view.instances[request.raft_id].replaces)
    return replaced is not None and replaced.state not in (NodeState.NORMAL, NodeState.LEFT)


def _begin(state: ClusterState, kind: RequestKind, numbers: list[int]) -> Commit:
    draft = Draft(state)
    subjects: list[int] = []
    for number in numbers:
        # Its end is one write, too, of the same records and of those that are replaced.
        if draft.full:
            break
        request = draft.request(number)
        subjects.append(request.raft_id)
        if replaced := state.view.instances.get(draft.instance(request.raft_id).replaces):
            draft.weigh(replaced)
        draft.change_instance(request.raft_id, state=UNDER_WAY[kind])
        if request.state is RequestState.PENDING:
            draft.change_request(number, state=RequestState.RUNNING, started_ms=state.now_ms)
    numbers = numbers[: len(subjects)]
    version = draft.raise_version()
    draft.transition(TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, kind, numbers, version))
    why = (
        f"{names(state.view, subjects)} {_DOES[kind][len(subjects) != 1]}: "
        f"{TransitionState.WRITE_BOTH_READ_OLD.value} begins"
    )
    draft.tell(why, subjects)
    return Commit(StepKind.REQUEST, why, tuple(numbers), write=draft.write())


def _finish(state: ClusterState, draft: Draft, number: int) -> None:
    request = draft.request(number)
    late = f"too late to cancel ({request.cancel})" if request.cancel else ""
    if request.kind in JOINING:
        record = draft.instance(request.raft_id)
        draft.change_instance(request.raft_id, state=NodeState.NORMAL)
        if request.kind is RequestKind.REPLACE and record.replaces in state.view.instances:
            draft.expel(record.replaces, f"replaced by {record.instance_id}")
    else:
        how = "it was decommissioned" if request.kind is RequestKind.LEAVE else "it was removed"
        draft.expel(request.raft_id, how)
    draft.end_request(number, RequestState.DONE, late)
