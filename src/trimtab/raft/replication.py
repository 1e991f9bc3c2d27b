"""What answers mean to a leader, and whether it still leads.

Liveness: whatever was lost is found out by heartbeats. Each answer to one allows a paused peer one more append, empty
when its window is full, and the answer to that either frees the window or says where to go on.
"""

from typing import TYPE_CHECKING

from trimtab.raft import reads
from trimtab.raft.messages import NONE, Message
from trimtab.raft.progress import Progress, ProgressState
from trimtab.raft.sending import broadcast_append, broadcast_heartbeat, maybe_commit, send_append, send_timeout_now

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

_PROBE = ProgressState.PROBE
_REPLICATE = ProgressState.REPLICATE
_SNAPSHOT = ProgressState.SNAPSHOT


def on_append_response(raft: "Raft", message: Message) -> None:
    """Also the leader's own acknowledgement, once its entries are durable."""
    sender = message.from_
    progress = raft.tracker.progress.get(sender)
    if progress is None:
        return
    progress.recent_active = True
    if message.reject:
        _on_rejection(raft, message, progress)
        return
    # An acknowledgement that says nothing new can still prove that a probed peer is there and matches.
    if not progress.maybe_update(message.index) and not (progress.match == message.index and progress.state is _PROBE):
        return
    if progress.state is _REPLICATE:
        progress.inflights.free_up_to(message.index)
    elif progress.state is _PROBE:
        progress.become_replicate()
    elif progress.match + 1 >= raft.log.first_index():
        # Whatever snapshot it took, and from whom: the log connects again.
        if raft.note is not None:
            raft.note(f"DEBUG {raft.id:x} streams to {sender:x} again after a snapshot [{progress}]")
        progress.become_probe()
        progress.become_replicate()
    if maybe_commit(raft):
        reads.release_postponed(raft)
        broadcast_append(raft)
    elif sender != raft.id and progress.can_bump_commit(raft.log.committed):
        send_append(raft, sender, progress)
    if sender != raft.id:
        # The window has room again; each message sent takes some of it, so this ends.
        while send_append(raft, sender, progress, if_empty=False):
            pass
        if sender == raft.lead_transferee and progress.match == raft.log.last_index():
            send_timeout_now(raft, sender)


def _on_rejection(raft: "Raft", message: Message, progress: Progress) -> None:
    """The peer's log differs before the entries that were sent.

    It says where it would go on (reject_hint) and with which term (log_term). A term in our log above that one can't
    be in its log up to there, because terms only grow along a log: skip all of those at once.

        index      1 2 3 4 5 6 7
        leader     2 2 4 4 4 4 6
        peer       2 2 3 3 3              rejects 6, hints (5, term 3): probe at 2, past all of term 4

    The peer does the same with what it knows about our log, so there is at most one probe per term.
    """
    next_probe = message.reject_hint
    if message.log_term > 0:
        next_probe, _ = raft.log.find_conflict_by_term(message.reject_hint, message.log_term)
    if not progress.maybe_decrease(message.index, next_probe):
        return
    if raft.note is not None:
        raft.note(f"DEBUG {raft.id:x} goes back for {message.from_:x} [{progress}]")
    if progress.state is _REPLICATE:
        progress.become_probe()
    send_append(raft, message.from_, progress)


def on_heartbeat_response(raft: "Raft", message: Message) -> None:
    progress = raft.tracker.progress.get(message.from_)
    if progress is None:
        return
    progress.recent_active = True
    progress.paused_flow = False
    if progress.match < raft.log.last_index() or progress.state is _PROBE:
        send_append(raft, message.from_, progress)
    if message.context:
        reads.on_heartbeat_ack(raft, message.from_, message.context)


def on_snapshot_status(raft: "Raft", message: Message) -> None:
    """The host sent a snapshot, or failed to. Either way: wait for a sign of the peer before the next append."""
    progress = raft.tracker.progress.get(message.from_)
    if progress is None or progress.state is not _SNAPSHOT:
        return
    if message.reject:
        progress.pending_snapshot = 0
    progress.become_probe()
    progress.paused_flow = True


def on_unreachable(raft: "Raft", message: Message) -> None:
    """Something sent to the peer got lost; while streaming, that was most likely an append."""
    progress = raft.tracker.progress.get(message.from_)
    if progress is not None and progress.state is _REPLICATE:
        progress.become_probe()


def on_beat(raft: "Raft", message: Message) -> None:
    broadcast_heartbeat(raft)


def on_check_quorum(raft: "Raft", message: Message) -> None:
    check_quorum(raft)


def check_quorum(raft: "Raft") -> None:
    """Step down when no quorum was heard from since the last check; then begin to listen anew."""
    if not raft.tracker.quorum_active():
        if raft.note is not None:
            raft.note(f"WARN {raft.id:x} hears from no quorum and stops leading")
        raft.become_follower(raft.term, NONE)
    for node, progress in raft.tracker.progress.items():
        if node != raft.id:
            progress.recent_active = False
