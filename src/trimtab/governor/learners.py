"""The Raft configuration follows the instance records: whoever has a row is in it, whoever left is not.

A row is written before its instance is added, and is `left` before it is removed. So after a crash in between, the
next leader finds the difference and finishes. New members begin as learners. A member without a record is left alone:
nobody knows who it is, so nobody may decide that it is gone (`waiting` says so).
"""

from __future__ import annotations

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import ChangeMembers, StepKind
from trimtab.governor.wording import names
from trimtab.governor.writes import MAX_BATCH
from trimtab.topology.grades import Grade


def change_learners(state: ClusterState) -> ChangeMembers | None:
    """Rule: new instances become learners, and those that left are forgotten; all of them in one change."""
    if state.joint:
        return None
    view = state.view
    add = [
        raft_id
        for raft_id, record in sorted(view.instances.items())
        if raft_id not in state.members and not record.left and record.grades.target.grade is not Grade.EXPELLED
    ]
    # Voters that left are taken out together with the choice of new ones.
    remove = [
        raft_id for raft_id in sorted(state.learners) if raft_id in view.instances and view.instances[raft_id].left
    ]
    add, remove = add[:MAX_BATCH], remove[:MAX_BATCH]
    if not add and not remove:
        return None
    parts = []
    if add:
        how = "joins the cluster group as a learner" if len(add) == 1 else "join the cluster group as learners"
        parts.append(f"{names(view, add)} {how}")
    if remove:
        parts.append(
            f"{names(view, remove)} left and {'is' if len(remove) == 1 else 'are'} taken out of the cluster group"
        )
    return ChangeMembers(
        StepKind.VOTERS, "; ".join(parts), tuple(sorted((*add, *remove))), add=tuple(add), remove=tuple(remove)
    )
