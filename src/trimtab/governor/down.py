"""Instances that go down or out: current becomes what the target is, weight 0, and routing is told.

Two rules. `mark_down` writes it for everybody at once. `fence_off` then makes sure of what may still be on its way from
them: a barrier on everybody who is up, and the fence at its version, so that replicas refuse what was stamped before.
They are separate, because a barrier can wait for long, and the next one that dies must not wait with it.

A leader that goes down is only marked when there is nobody to hand leadership to.
"""

from __future__ import annotations

from trimtab.governor.crossing import barrier, unfenced
from trimtab.governor.leadership import successors
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Barrier, Commit, StepKind
from trimtab.governor.wording import names
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.topology.grades import Grade

_DOWN = (Grade.OFFLINE, Grade.EXPELLED)


def mark_down(state: ClusterState) -> Commit | None:
    """Rule: whoever should be Offline or Expelled is so, in one write."""
    going = []
    for raft_id, record in sorted(state.view.members().items()):
        grades = record.grades
        if grades.target.grade not in _DOWN or grades.current.grade is grades.target.grade:
            continue
        if raft_id in state.left_alone:
            continue
        if raft_id == state.leader and (grades.target.grade is Grade.EXPELLED or successors(state)):
            continue
        if grades.target.grade is Grade.EXPELLED and raft_id in state.voters:
            continue
        going.append(raft_id)
    if not going:
        return None
    draft = Draft(state)
    marked = []
    for raft_id in going[:MAX_BATCH]:
        if draft.full:
            break
        marked.append(raft_id)
        record = draft.instance(raft_id)
        because = f": {record.reason}" if record.reason else ", as it asked"
        draft.tell(f"{record.instance_id} is {record.grades.target.grade.value}{because}", (raft_id,))
        draft.go_down(raft_id)
    write = draft.write()
    return Commit(StepKind.DOWN, "; ".join(write.sentences[:3]), tuple(marked), write=write)


def fence_off(state: ClusterState) -> Barrier | None:
    """Rule: after somebody went down, nothing that it sent before is taken any more; also if it is back already."""
    view = state.view
    gone = unfenced(view)
    if not gone:
        return None
    why = f"requests from before version {view.version} are fenced off, because {names(view, gone)} went down"
    return barrier(state, StepKind.FENCE, why, gone, Draft(state), about=gone)
