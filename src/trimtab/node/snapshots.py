"""Snapshots between members: Raft says that one is needed, the receiver fetches it in chunks.

Raft's snapshot message carries only metadata and the name of a frozen copy (an *export*). The receiver pulls the chunks
over ordinary requests, so a snapshot of any size obeys the message limit, its pace is the receiver's, and heartbeats go
on beside it. Only when all chunks are there, checked and durable is the message given to Raft.

An export pins the log above its index: otherwise the leader would cut it while the receiver loads, and the receiver
would need another snapshot for ever. Exports that nobody asks for are released after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from trimtab.net.errors import NetError, RpcError
from trimtab.net.server import Request
from trimtab.node.group import Group
from trimtab.node.host import Host
from trimtab.node.machine import Export, Import
from trimtab.node.settings import Limits
from trimtab.raft.messages import Message, Snapshot
from trimtab.raft.progress import ProgressState
from trimtab.raft.storage import SnapshotTemporarilyUnavailable

_CHUNK_TIMEOUT_S = 10.0
_CHUNK_TRIES = 5


class ChunkRequest(msgspec.Struct, array_like=True, frozen=True):
    """Which chunk of which export."""

    group: int
    index: int
    sequence: int


class Failed(msgspec.Struct, array_like=True, frozen=True):
    """The receiver gives up on an export; the sender's Raft probes again."""

    group: int
    index: int


_encode = msgspec.msgpack.Encoder().encode
_decode_chunk_request = msgspec.msgpack.Decoder(ChunkRequest).decode
_decode_failed = msgspec.msgpack.Decoder(Failed).decode


class _Outgoing:
    """An export and when it was last used."""

    __slots__ = ("export", "used_at", "used_by")

    def __init__(self, export: Export, now: float) -> None:
        self.export = export
        self.used_at = now
        self.used_by: dict[int, float] = {}


class _Incoming:
    """A snapshot that is being fetched for a group."""

    __slots__ = ("cancelled", "collected", "message", "sequence", "tries")

    def __init__(self, message: Message, collected: Import) -> None:
        self.message = message
        self.collected = collected
        self.sequence = 0
        self.tries = 0
        self.cancelled = False


class Snapshots:
    """Both sides of every snapshot transfer of this instance."""

    def __init__(self, host: Host, limits: Limits, story: Callable[[str], None]) -> None:
        self._host = host
        self._limits = limits
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[int, list[_Outgoing]] = {}
        self._exporting: set[int] = set()
        self._incoming: dict[int, _Incoming] = {}
        self._stuck_since: dict[tuple[int, int], float] = {}
        self._closed = False

    # Sending

    def source(self, group_id: int) -> Callable[[], Snapshot]:
        """What the group's log answers when Raft asks it for a snapshot."""

        def snapshot() -> Snapshot:
            group = self._host.groups[group_id]
            for outgoing in reversed(self._outgoing.get(group_id, [])):
                metadata = outgoing.export.metadata
                # An export from before the log's first entry would leave a gap behind it, and a member that was added
                # since would not find itself in the configuration.
                if metadata.index + 1 >= group.log.first_index() and metadata.conf_state == group.machine.conf_state:
                    outgoing.used_at = self._loop.time()
                    return Snapshot(metadata=metadata)
            self._start_export(group)
            raise SnapshotTemporarilyUnavailable

        return snapshot

    def replaced(self, group: Group) -> None:
        """The group's data was replaced by a snapshot: an export that was being made of the old will not come."""
        self._exporting.discard(group.id)

    def pinned_index(self, group_id: int) -> int | None:
        """The log must keep everything after this index."""
        return min((each.export.metadata.index for each in self._outgoing.get(group_id, ())), default=None)

    def _start_export(self, group: Group) -> None:
        if group.id in self._exporting or self._closed:
            return
        self._exporting.add(group.id)

        def exported(export: Export | None, error: BaseException | None) -> None:
            self._exporting.discard(group.id)
            if export is None:
                self._story(f"group {group.id}: no snapshot could be made: {error}")
                return
            if self._closed:
                export.release()
                return
            self._outgoing.setdefault(group.id, []).append(_Outgoing(export, self._loop.time()))
            self._host.nudge(group)

        group.machine.start_export(exported)

    def serve_chunk(self, request: Request) -> None:
        """A member asks for a chunk."""
        asked = _decode_chunk_request(request.body)
        exports = self._outgoing.get(asked.group, ())
        outgoing = next((each for each in exports if each.export.metadata.index == asked.index), None)
        if outgoing is None:
            request.fail("snapshot_gone", f"the snapshot at index {asked.index} is kept no longer; a newer one follows")
            return
        now = self._loop.time()
        outgoing.used_at = now
        outgoing.used_by[request.peer.raft_id] = now
        request.reply(outgoing.export.chunk(asked.sequence) or b"")

    def serve_failed(self, request: Request) -> None:
        """A member gave up; Raft goes back to probing it."""
        told = _decode_failed(request.body)
        group = self._host.groups.get(told.group)
        if group is not None:
            group.raw.report_snapshot(request.peer.raft_id, False)
            self._host.nudge(group)

    def sweep(self) -> None:
        """Once a second or so: release exports nobody uses, and stop waiting for receivers that went silent."""
        now = self._loop.time()
        for group_id, exports in list(self._outgoing.items()):
            for outgoing in list(exports):
                if now - outgoing.used_at > self._limits.snapshot_keep_ms / 1000:
                    exports.remove(outgoing)
                    outgoing.export.release()
            if not exports:
                del self._outgoing[group_id]
        stuck: dict[tuple[int, int], float] = {}
        for group_id in {*self._outgoing, *(group_id for group_id, _ in self._stuck_since)}:
            group = self._host.groups[group_id]
            for peer, progress in group.raw.raft.tracker.progress.items():
                if progress.state is not ProgressState.SNAPSHOT:
                    continue
                since = self._stuck_since.get((group_id, peer), now)
                for sent in self._outgoing.get(group_id, ()):
                    since = max(since, sent.used_by.get(peer, since))
                if now - since > self._limits.snapshot_idle_ms / 1000:
                    group.raw.report_snapshot(peer, False)
                    self._host.nudge(group)
                else:
                    stuck[(group_id, peer)] = since
        self._stuck_since = stuck

    # Receiving

    def receive(self, group: Group, message: Message) -> None:
        """Raft's snapshot message from the leader: fetch the data, then step the message."""
        assert message.snapshot is not None
        metadata = message.snapshot.metadata
        raft = group.raw.raft
        if message.term < raft.term or metadata.index <= raft.log.committed:
            # A leader of the past, or a snapshot that is here already (perhaps still being installed): Raft answers
            # it without needing the data, and what is under way goes on.
            self._host.step_snapshot(group, message)
            return
        current = self._incoming.get(group.id)
        if current is not None:
            assert current.message.snapshot is not None
            have = current.message.snapshot.metadata
            if have.index == metadata.index and have.term == metadata.term and current.message.from_ == message.from_:
                current.message = message
                return
            self._cancel(group)
        try:
            collected = group.machine.begin_import(metadata)
        except Exception as error:
            self._give_up(group, message, f"no room to receive it: {error}")
            return
        self._story(f"group {group.id}: fetching the snapshot at index {metadata.index} from member {message.from_}")
        incoming = self._incoming[group.id] = _Incoming(message, collected)
        self._fetch(group, incoming)

    def _fetch(self, group: Group, incoming: _Incoming) -> None:
        assert incoming.message.snapshot is not None
        link = self._host.links.get(incoming.message.from_)
        if link is None:
            self._abort(group, incoming, f"no address for member {incoming.message.from_}")
            return
        asked = ChunkRequest(group.id, incoming.message.snapshot.metadata.index, incoming.sequence)
        try:
            future = link.channel.call("snapshot.chunk", _encode(asked), _CHUNK_TIMEOUT_S)
        except NetError as error:
            self._fetch_later(group, incoming, error)
        else:
            future.add_done_callback(lambda answer: self._fetched(group, incoming, answer))

    def _fetched(self, group: Group, incoming: _Incoming, answer: asyncio.Future[bytes]) -> None:
        # Asked for even when nobody cares any more: an exception that is never looked at is logged as a defect.
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or incoming.cancelled or self._closed:
            return
        if isinstance(error, RpcError) and error.code == "snapshot_gone":
            self._abort(group, incoming, str(error))
            return
        if error is not None:
            self._fetch_later(group, incoming, error)
            return
        incoming.tries = 0
        chunk = answer.result()
        try:
            if chunk:
                incoming.collected.add(incoming.sequence, bytes(chunk))
                incoming.sequence += 1
                self._fetch(group, incoming)
            else:
                incoming.collected.finish(lambda failure: self._finished(group, incoming, failure))
        except Exception as failure:
            self._abort(group, incoming, str(failure))

    def _fetch_later(self, group: Group, incoming: _Incoming, error: BaseException) -> None:
        incoming.tries += 1
        if incoming.tries >= _CHUNK_TRIES:
            self._abort(group, incoming, f"chunk {incoming.sequence} failed {incoming.tries} times: {error}")
        else:
            self._loop.call_later(0.1 * 2**incoming.tries, self._fetch_again, group, incoming)

    def _fetch_again(self, group: Group, incoming: _Incoming) -> None:
        if not incoming.cancelled and not self._closed:
            self._fetch(group, incoming)

    def _finished(self, group: Group, incoming: _Incoming, error: BaseException | None) -> None:
        if incoming.cancelled or self._closed:
            return
        if error is not None:
            self._abort(group, incoming, str(error))
            return
        del self._incoming[group.id]
        assert incoming.message.snapshot is not None
        self._host.step_snapshot(group, incoming.message)
        taken = group.raw.raft.log.unstable.snapshot
        if taken is None or taken.metadata.index != incoming.message.snapshot.metadata.index:
            # Raft had no use for it: the log has caught up meanwhile, or another leader speaks now.
            incoming.collected.abort()

    def _abort(self, group: Group, incoming: _Incoming, why: str) -> None:
        self._cancel(group)
        self._give_up(group, incoming.message, why)

    def _cancel(self, group: Group) -> None:
        incoming = self._incoming.pop(group.id)
        incoming.cancelled = True
        incoming.collected.abort()

    def _give_up(self, group: Group, message: Message, why: str) -> None:
        assert message.snapshot is not None
        self._story(f"group {group.id}: gave up the snapshot at index {message.snapshot.metadata.index}: {why}")
        if link := self._host.links.get(message.from_):
            link.channel.send("snapshot.failed", _encode(Failed(group.id, message.snapshot.metadata.index)))

    def close(self) -> None:
        """Release everything; transfers under way start again in the next life."""
        self._closed = True
        for exports in self._outgoing.values():
            for outgoing in exports:
                outgoing.export.release()
        self._outgoing.clear()
        for group_id in list(self._incoming):
            self._cancel(self._host.groups[group_id])
