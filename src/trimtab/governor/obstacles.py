"""What keeps an operator's request from going on: the sentence that the operator reads, or None.

A request that can't go on now waits, because what is missing may come. When none of those that wait can, nobody is
left to make a difference: then all of them are cancelled, each with its own obstacle (`endings`). To what
`trimtab.topology.lifecycle` knows, the governor adds the replicas and the votes: nobody may leave if those who are left
could not hold what is declared, or could not decide anything.
"""

from __future__ import annotations

from collections.abc import Collection

from trimtab.governor.joins import doubtful, standing
from trimtab.governor.state import ClusterState
from trimtab.governor.voters import stuck
from trimtab.governor.wording import name
from trimtab.tablets.departures import asked_to_go, stays_because
from trimtab.topology.lifecycle import blocked
from trimtab.topology.records import GLOBAL_KINDS, RequestKind
from trimtab.topology.states import NodeState

_STAYING = frozenset((NodeState.NORMAL, NodeState.REBUILDING))


def obstacle(state: ClusterState, number: int, with_them: Collection[int] = ()) -> str | None:
    """Why a pending request can't go on; `with_them` are instances that leave together with its own."""
    request = state.view.requests[number]
    if request.kind in GLOBAL_KINDS:
        return None
    record = state.view.instances.get(request.raft_id)
    if record is None or record.left:
        return f"{name(state.view, request.raft_id)} is not in the cluster any more"
    if record.state is not NodeState.NORMAL:
        return f"{record.instance_id} is {record.state.value}; that has to end first"
    if why := blocked(state.view, number, lambda raft_id: standing(state, raft_id)):
        return why
    if request.kind in (RequestKind.LEAVE, RequestKind.REMOVE):
        return held_back(state, number) or _nobody_left(state, request.raft_id, with_them)
    return None


def held_back(state: ClusterState, number: int) -> str | None:
    """Why what an instance has can't be anywhere else, so that it may not go; None: it may.

    Those go first that were asked first: where not all can, somebody can.
    """
    request = state.view.requests[number]
    first = {raft_id for raft_id, other in asked_to_go(state.view).items() if other < number}
    gone = first | state.lost
    return stays_because(state.view, state.tables, request.raft_id, request.kind, gone)


def undecided(state: ClusterState, number: int) -> bool:
    """Whether it is too early to say: it depends on an instance of which failure detection has yet to tell."""
    request = state.view.requests[number]
    return request.kind not in GLOBAL_KINDS and doubtful(state, request.raft_id)


def _nobody_left(state: ClusterState, raft_id: int, with_them: Collection[int]) -> str | None:
    goners = {raft_id, *with_them}
    who = name(state.view, raft_id)
    # Voters first: a leader goes last, after it has handed over, and whoever will lead then stands for it here.
    candidates = (*sorted(state.voters), *sorted(state.view.instances.keys() - state.voters))
    first = next((i for i in candidates if i not in goners and _stays(state, i)), None)
    if first is None:
        return f"no member that is up would be left without {who}; add an instance first"
    if not goners & state.voters:
        return None
    leader = state.leader if state.leader not in goners else first
    if stuck(state, goners, leader):
        return f"the voters that are left without {who} would be no majority that is up; bring others back first"
    return None


def _stays(state: ClusterState, raft_id: int) -> bool:
    record = state.view.instances.get(raft_id)
    return record is not None and record.state in _STAYING and standing(state, raft_id)
