"""What the governor waits for, in sentences for operators: things that should change, but can't now.

`plan` gives no step for them, because waiting is not one. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.governor.drains import drains, progress
from trimtab.governor.leadership import goes_because, successors
from trimtab.governor.move_waits import waiting_moves
from trimtab.governor.obstacles import obstacle
from trimtab.governor.state import ClusterState
from trimtab.governor.transitions import keeps_from_leaving, subject_of, unreadable_part
from trimtab.governor.voters import MAX_VOTERS, wanted_voters
from trimtab.governor.wording import name, names
from trimtab.jobs.records import JobState
from trimtab.loads.publishing import keeps_hidden, next_load, tables_with_committed
from trimtab.tablets.departures import bound
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestState
from trimtab.topology.states import NodeState


def waiting(state: ClusterState) -> tuple[str, ...]:
    """Every reason why something does not go on."""
    return (
        *_leadership(state),
        *_votes(state),
        *_requests(state),
        *_jobs(state),
        *_strangers(state),
        *_loads(state),
        *waiting_moves(state),
        *(problem.text for problem in state.problems if not problem.unserved),
    )


def _leadership(state: ClusterState) -> Iterator[str]:
    why = goes_because(state)
    if why is not None and not successors(state):
        others = state.voters - {state.leader}
        who = f"the other voters ({names(state.view, others)}) are down" if others else "it is the only voter"
        yield f"{name(state.view, state.leader)} {why}, but nobody can lead instead: {who}"


def _votes(state: ClusterState) -> Iterator[str]:
    view = state.view
    down = [
        raft_id
        for raft_id in state.voters
        if (record := view.instances.get(raft_id)) is not None and record.grades.target.grade is Grade.OFFLINE
    ]
    if down and not state.joint:
        size = min(wanted_voters(len(view.members())), MAX_VOTERS)
        yield (
            f"{names(view, down)} should not vote while Offline, but no other member that is Online and caught up can "
            f"be one of {size} voters instead"
        )


def _requests(state: ClusterState) -> Iterator[str]:
    view = state.view
    if why := unreadable_part(state):
        yield f"the transition under way waits for a leader of a newer release: {why}"
    if view.transition is not None and (why := keeps_from_leaving(state)):
        yield f"{subject_of(state)}, but has to wait: {why}"
    for number, request in state.open_requests.items():
        if request.state is RequestState.PENDING and request.join is None and (why := obstacle(state, number)):
            yield f"request {number} ({request.kind.value}) waits: {why}"
        if drains(state, request):
            held = bound(state.tables, request.raft_id)
            why = progress(state, request) if held else obstacle(state, number) or ""
            yield from (f"request {number} ({request.kind.value}): {why}",) if why else ()
        record = view.instances.get(request.raft_id)
        if request.join is not None and record is not None and record.state is NodeState.NONE:
            doing = "start and catch up" if request.answered else "take the answer to its request"
            yield f"{record.instance_id} has been admitted; it has yet to {doing}"


def _jobs(state: ClusterState) -> Iterator[str]:
    queued = sum(job.state is JobState.QUEUED for job in state.jobs.open_jobs())
    if queued and state.jobs.living_driver is None:
        what = "1 job waits" if queued == 1 else f"{queued} jobs wait"
        yield f"{what} for a driver; none runs yet (the leader starts one, or `trimtab pipeline` does)"


def _strangers(state: ClusterState) -> Iterator[str]:
    for raft_id in sorted(state.members - set(state.view.instances)):
        yield f"member {raft_id} is in the cluster group, but has no record; nobody knows who it is"


def _loads(state: ClusterState) -> Iterator[str]:
    situation = state.load_situation
    for table in tables_with_committed(state.loads):
        load = next_load(state.loads, table)
        if load is not None and (why := keeps_hidden(situation, load)):
            yield f"load {load.id} of {state.tables.name_of(table)} is committed, but can't be seen yet: {why}"
