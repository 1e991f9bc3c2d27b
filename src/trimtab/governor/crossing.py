"""Whom a barrier waits for, and what its write depends on besides.

A barrier waits for every member that may route or serve: those that stand at RaftSynced or higher, whether or not they
were heard from lately. Only a mark `Offline` excuses a node, because only that says that its lease is over; failure
detection sets it, and the executor then goes on without the node.

Somebody who is Offline now may be on its way back: its answer to `governor.sync` is perhaps under way, for an index
from before the version that the barrier is about. It would come in without having seen that version, and without having
been asked. So the write depends on the rows of those: if one comes in meanwhile, the barrier is planned anew, with it.
Whoever is asked to sync later than that has applied the version when it comes in.

Requests that somebody sent before it went down are refused below the fence (`down.fence_off`). Until it is there, no
other barrier begins (`unfenced`): it would not wait for the one that went down, and such a request might still be
carried out afterwards.
"""

from __future__ import annotations

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import StepKind
from trimtab.governor.writes import Draft
from trimtab.topology.grades import Grade
from trimtab.topology.records import instance_key

_ABSENT = (Grade.OFFLINE, Grade.EXPELLED)


def barrier_nodes(state: ClusterState) -> tuple[int, ...]:
    """Everybody who has to acknowledge."""
    return tuple(
        raft_id
        for raft_id, record in sorted(state.view.members().items())
        if record.grades.current.grade not in _ABSENT
    )


def unfenced(state: ClusterState) -> bool:
    """Whether somebody went down, and what it sent before may still be taken."""
    return any(
        record.since_version > state.view.fence and record.grades.current.grade in _ABSENT
        for record in state.view.instances.values()
    )


def depend_on_absent(state: ClusterState, draft: Draft) -> None:
    """Make a barrier's write depend on those who might come in without having been asked."""
    for raft_id in sorted(state.busy(StepKind.SYNC)):
        record = state.view.instances.get(raft_id)
        if record is not None and record.grades.current.grade in _ABSENT:
            draft.depend(instance_key(raft_id))
