"""When an instance that takes its leave may go: as soon as the others can do without its vote.

It asks for nothing: the governor moves leadership and votes away from whoever is to be Offline. Here is only how the
one that leaves knows that this has happened, or that it can't happen, so that waiting for it is in vain.
"""

from __future__ import annotations

from trimtab.governor.voters import Seat, choose_voters
from trimtab.raft.core import Raft
from trimtab.topology.grades import Grade
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

_LEAVING = (NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.LEFT)


def settled(own: int, raft: Raft, view: View) -> bool:
    """Whether this instance neither leads nor votes where it need not."""
    voters = raft.tracker.config.voters.ids()
    if own not in voters or voters == {own}:
        return True
    if raft.lead == own or raft.tracker.config.is_joint:
        return False
    seats = {}
    for raft_id, record in view.members().items():
        grades = record.grades
        seats[raft_id] = Seat(
            fit=grades.settled and grades.current.grade is Grade.ONLINE,
            down=grades.target.grade is Grade.OFFLINE,
            leaving=record.state in _LEAVING or grades.target.grade is Grade.EXPELLED,
            domain=record.failure_domain,
        )
    return own in choose_voters(seats, voters, raft.lead or own)
