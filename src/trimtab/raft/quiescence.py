"""Idle groups go quiet: a quiescent member does not tick, so thousands of groups cost nothing while nobody uses them.

A leader with nothing to do tells its followers and stops; they stop too, if they have everything it has. Any message
wakes a member up. What a quiet group can't notice is that its leader died: the host notices that for all groups of the
dead process at once, and wakes their members, which then time out and elect as usual.

Safety needs nothing of this: a quiescent member is one whose clock stands still. Liveness needs pre-vote: a member that
restarts hears nothing in a quiet group and campaigns, and without pre-vote it would depose a healthy leader. With it,
its question wakes the leader up, which answers with a heartbeat.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from trimtab.raft.messages import NONE, Message, MessageType
from trimtab.raft.progress import ProgressState
from trimtab.raft.roles import StateType

if TYPE_CHECKING:
    from trimtab.raft.core import Raft


def is_idle(raft: "Raft", down: Collection[int] = ()) -> bool:
    """A leader whose whole group has, and has committed, all there is; it has applied it, and nothing is pending.

    Members whose process is `down` need not have it: talking to them is no use, and thousands of groups that can't
    rest because of one dead process would wear out the living. The host wakes the leader when that process is back.
    Lease reads are the exception: a leader whose clock stands still can't tell that its lease has run out.
    """
    log = raft.log
    last_index = log.last_index()
    config = raft.tracker.config
    if (
        raft.state is not StateType.LEADER
        or not raft.config.pre_vote
        or raft.config.read_only == "lease"
        or not (log.applied == log.committed == last_index)
        or log.unstable.entries
        or log.unstable.snapshot is not None
        or config.is_joint
        or raft.pending_conf_index > log.applied
        or raft.lead_transferee != NONE
        or raft.reads.pending
        or raft.id not in config.voters
    ):
        return False
    return all(
        node in down or (progress.match == last_index and progress.state is ProgressState.REPLICATE)
        for node, progress in raft.tracker.progress.items()
    )


def accept(raft: "Raft", leader: int, term: int, commit: int) -> bool:
    """Whether a follower has what its quiet leader has. The notice tells the commit index, like a heartbeat.

    A notice that comes late does no harm: if the leader went on meanwhile, its next message wakes the follower.
    """
    log = raft.log
    if (
        raft.state is not StateType.FOLLOWER
        or raft.term != term
        or raft.lead != leader
        or not raft.config.pre_vote
        or log.last_index() != commit
        or log.unstable.snapshot is not None
        # Only entries of the leader's term prove that this log is the leader's up to its end.
        or log.last_term() != term
    ):
        return False
    log.commit_to(commit)
    return True


def is_echo(raft: "Raft", message: Message) -> bool:
    """An answer to the last heartbeat before the leader went quiet: no news, and no reason to wake.

    Without this a busy host never rests: the answers come late, wake the leader, and its next heartbeat wakes the
    followers, whose answers come late.
    """
    return message.type is MessageType.HEARTBEAT_RESP and raft.state is StateType.LEADER and message.term == raft.term


def wake(raft: "Raft") -> None:
    """Go on as if the leader had just been heard from: everybody gets a whole timeout to speak up first."""
    raft.election_elapsed = 0
    # A leader's first tick sends heartbeats.
    raft.heartbeat_elapsed = raft.config.heartbeat_tick
