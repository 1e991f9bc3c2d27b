"""What a leader sends: appends, snapshots and heartbeats, within what flow control allows.

Entries stream to peers whose log is known to match, ahead of their answers, within a window of messages and bytes.
Others are probed one message at a time; who needs entries that were compacted gets a snapshot, if it is alive. What the
answers mean is in `replication`.
"""

from typing import TYPE_CHECKING

from trimtab.raft.errors import InvariantViolated
from trimtab.raft.messages import Entry, Message, MessageType
from trimtab.raft.progress import Progress, ProgressState
from trimtab.raft.storage import LogReadError, SnapshotTemporarilyUnavailable, payload_bytes

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

_APP = MessageType.APP
_HEARTBEAT = MessageType.HEARTBEAT
_REPLICATE = ProgressState.REPLICATE
_SNAPSHOT = ProgressState.SNAPSHOT


def broadcast_append(raft: "Raft") -> None:
    tracker = raft.tracker
    for node in tracker.ids:
        if node != raft.id:
            send_append(raft, node, tracker.progress[node])


def send_append(raft: "Raft", to: int, progress: Progress, *, if_empty: bool = True) -> bool:
    """Send the next entries and the commit index, if flow control allows it. Whether anything was sent.

    Without `if_empty` a message that would carry no entries is not sent: it only tells the commit index.
    """
    if progress.paused_flow or progress.state is _SNAPSHOT:
        return False
    log = raft.log
    entries: list[Entry] = []
    try:
        prev_term = log.term(progress.next - 1)
        if progress.state is not _REPLICATE or not progress.inflights.full:
            entries = log.entries(progress.next, raft.config.max_size_per_msg)
    except LogReadError:
        return _send_snapshot(raft, to, progress)
    if not entries and not if_empty:
        return False
    raft.msgs.append(Message(_APP, to, raft.id, raft.term, prev_term, progress.next - 1, entries, log.committed))
    progress.sent_entries(len(entries), payload_bytes(entries))
    progress.sent_commit = log.committed
    return True


def _send_snapshot(raft: "Raft", to: int, progress: Progress) -> bool:
    if not progress.recent_active:
        # A snapshot is dear; don't make one for a peer that is not there.
        return False
    try:
        snapshot = raft.log.snapshot()
    except SnapshotTemporarilyUnavailable:
        if raft.note is not None:
            raft.note(f"DEBUG {raft.id:x} has no snapshot to send to {to:x} yet")
        return False
    index = snapshot.metadata.index
    if index == 0:
        raise InvariantViolated(f"member {raft.id} compacted its log but has no snapshot")
    if raft.note is not None:
        raft.note(
            f"DEBUG {raft.id:x}, whose log begins at {raft.log.first_index()}, sends the snapshot at {index} to {to:x} "
            f"[{progress}]"
        )
    progress.become_snapshot(index)
    raft.send(Message(MessageType.SNAP, to, snapshot=snapshot))
    return True


def broadcast_heartbeat(raft: "Raft") -> None:
    """A heartbeat says only what a peer surely has: its commit index must not pass what is known to match."""
    context = raft.reads.heartbeat_context()
    committed = raft.log.committed
    for node in raft.tracker.ids:
        if node == raft.id:
            continue
        progress = raft.tracker.progress[node]
        commit = min(progress.match, committed)
        raft.msgs.append(Message(_HEARTBEAT, node, raft.id, raft.term, commit=commit, context=context))
        progress.sent_commit = commit


def maybe_commit(raft: "Raft") -> bool:
    return raft.log.maybe_commit(raft.tracker.committed(), raft.term)


def send_timeout_now(raft: "Raft", to: int) -> None:
    raft.send(Message(MessageType.TIMEOUT_NOW, to))
