"""A leader that is about to go hands leadership over first, to the best of the other voters.

It goes when it shuts down (target Offline), and when it leaves the cluster for good. Handing over comes before
everything else: whatever else there is to do, the next leader does it. Where no other voter is up there is nobody to
hand over to: then a leader that shuts down does so all the same, and one that is to be expelled stays until there is
somebody (`waiting` says so).
"""

from __future__ import annotations

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import StepKind, Transfer
from trimtab.governor.wording import name
from trimtab.topology.grades import Grade
from trimtab.topology.states import NodeState

LEAVING = frozenset((NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.LEFT))


def hand_over(state: ClusterState) -> Transfer | None:
    """Rule: leadership goes to somebody who stays."""
    why = goes_because(state)
    if why is None:
        return None
    candidates = [raft_id for raft_id in successors(state) if raft_id not in state.backing_off]
    if not candidates:
        return None
    to = candidates[0]
    return Transfer(
        StepKind.TRANSFER,
        f"{name(state.view, state.leader)} hands leadership to {name(state.view, to)}, because it {why}",
        (state.leader,),
        to=to,
    )


def goes_because(state: ClusterState) -> str | None:
    """Why the leader should not lead any more; None if it may."""
    record = state.view.instances.get(state.leader)
    if record is None:
        return None
    grades = record.grades
    if record.state in LEAVING or grades.target.grade is Grade.EXPELLED:
        return "leaves the cluster"
    # Once it is marked Offline there was nobody to hand over to; and an instance that has just started is Offline too.
    if grades.target.grade is Grade.OFFLINE and grades.current.grade is not Grade.OFFLINE:
        return f"goes down ({record.reason})" if record.reason else "goes down"
    return None


def successors(state: ClusterState) -> list[int]:
    """The voters that could lead instead, best first: Online, heard from just now, and with the most applied."""
    ranked = []
    for raft_id in state.voters - {state.leader}:
        record = state.view.instances.get(raft_id)
        if record is None or record.state in LEAVING or record.grades.target.grade is not Grade.ONLINE:
            continue
        if state.alive(raft_id):
            heard = state.heard[raft_id]
            quiet = heard.age_ms >= state.patience.offline_after_ms // 3
            ranked.append((not record.grades.settled, quiet, -heard.applied, raft_id))
    return [raft_id for *_, raft_id in sorted(ranked)]
