"""The metastore as the cluster group's state machine, on this instance's disk.

Stores: `metastore` is the data; `metastore.export-<index>` a frozen copy for members that need all of it;
`metastore.import-<index>` another member's copy on its way in. An import becomes the data in two steps: the log's
snapshot record (durable first, with the import complete) says that it must, the renaming does it. A crash between the
two is finished by `recover`; every other leftover is removed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trimtab.metastore.errors import Compacted, MetastoreError
from trimtab.metastore.machine import Metastore
from trimtab.metastore.requests import WatchItem, WatchKind, WatchRequest, encode, split_changes
from trimtab.metastore.results import Result
from trimtab.metastore.snapshot import SnapshotExport, SnapshotImport
from trimtab.metastore.watch import Changes, Exact, Prefix, Range, Selector, Watcher
from trimtab.net.server import Request
from trimtab.node.machine import Export, FlushDone
from trimtab.node.settings import Limits
from trimtab.raft.messages import ConfState, Entry, SnapshotMetadata
from trimtab.storage.port import Corrupt, Disk, DiskFull, Store, StoreClosed
from trimtab.topology.records import SECRETS

_encode_conf = msgspec.msgpack.Encoder().encode
_decode_conf = msgspec.msgpack.Decoder(ConfState).decode
_PUMP_REVISIONS = 64
_PURGE_SLICE = 512


def remove_off_loop(disk: Disk, name: str) -> None:
    """Remove a store without waiting for it. One that is left behind goes with the next start."""
    disk.start(lambda: disk.remove(name), lambda _result, _error: None)


class MetastoreExport:
    """A checkpoint of the metastore, read chunk by chunk."""

    def __init__(self, disk: Disk, name: str, chunk_bytes: int) -> None:
        self._disk = disk
        self._name = name
        self._store = disk.open(name, wal=False)
        self._export = SnapshotExport(self._store, chunk_bytes=chunk_bytes, nonce=name.encode())
        header = self._export.header
        conf_state = _decode_conf(header.conf) if header.conf else ConfState()
        self.metadata = SnapshotMetadata(conf_state=conf_state, index=header.applied_index, term=header.applied_term)

    def chunk(self, sequence: int) -> bytes | None:
        return self._export.chunk(sequence)

    def release(self) -> None:
        self._store.close()
        remove_off_loop(self._disk, self._name)


class MetastoreImport:
    """Another member's metastore, collected into a store of its own."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._name = name
        disk.remove(name)
        self._store = disk.open(name, wal=False)
        self._import = SnapshotImport(self._store)

    def add(self, sequence: int, chunk: bytes) -> None:
        free, reserve = self._disk.free_bytes(), self._disk.reserve_bytes
        if free < reserve:
            # The reserve is for votes; a copy of another member's data must not eat it.
            raise DiskFull(self._name, free_bytes=free, reserve_bytes=reserve)
        self._import.accept(chunk)

    def finish(self, done: Callable[[BaseException | None], None]) -> None:
        if not self._import.done:
            done(MetastoreError("the sender ended the snapshot before its last chunk"))
            return

        def flushed(error: BaseException | None) -> None:
            self._store.close()
            done(error)

        self._store.start_flush(flushed)

    def abort(self) -> None:
        self._store.close()
        # At once: the next import may have the same name.
        self._disk.remove(self._name)


@dataclass(slots=True)
class ServedWatch:
    """A client's watch, and the revision it was last told to have everything of."""

    watcher: Watcher
    told: int


class MetastoreMachine:
    """The cluster group's machine."""

    def __init__(self, disk: Disk, name: str, limits: Limits, call_soon: Callable[..., Any]) -> None:
        self._disk = disk
        self._name = name
        self._limits = limits
        self._call_soon = call_soon
        self._pumping = False
        self._closed = False
        self._exports = 0
        self._served: dict[Request, ServedWatch] = {}
        self._replaced = 0
        self._store: Store | None = None
        self.metastore: Metastore

    # Opening

    def recover(self, snapshot: SnapshotMetadata, bootstrap_index: int) -> None:
        """Open what is there; finish an installation that a crash interrupted; remove all other leftovers.

        `snapshot` is what the group's log begins after (index 0: nothing yet).
        """
        leftovers = [name for name in self._disk.names(f"{self._name}.") if name.count("/") == self._name.count("/")]
        wanted = self._import_name(snapshot)
        if wanted in leftovers and self._durable_index() < snapshot.index:
            self._disk.remove(self._name)
            self._disk.rename(wanted, self._name)
        for name in leftovers:
            if name != wanted or self._disk.exists(name):
                self._disk.remove(name)
        self._open()
        if snapshot.index == bootstrap_index and self.metastore.applied_index == 0:
            self.metastore.bootstrap(snapshot.index, snapshot.term, _encode_conf(snapshot.conf_state))
        if self.metastore.applied_index < snapshot.index:
            raise Corrupt(
                self._name,
                f"it ends at index {self.metastore.applied_index}, but the log begins after {snapshot.index}",
            )

    def _durable_index(self) -> int:
        if not self._disk.exists(self._name):
            return 0
        store = self._disk.open(self._name, wal=False)
        try:
            return Metastore(store).applied_index
        finally:
            store.close()

    def _open(self) -> None:
        self._store = self._disk.open(self._name, wal=False)
        self.metastore = Metastore(self._store)

    def _import_name(self, metadata: SnapshotMetadata) -> str:
        return f"{self._name}.import-{metadata.index}-{metadata.term}"

    # The state machine

    @property
    def applied_index(self) -> int:
        return self.metastore.applied_index

    @property
    def applied_term(self) -> int:
        return self.metastore.applied_term

    @property
    def conf_state(self) -> ConfState | None:
        return _decode_conf(self.metastore.conf) if self.metastore.conf else None

    def apply(self, entries: Sequence[Entry]) -> Sequence[Result | None]:
        results = self.metastore.apply([(entry.index, entry.term, entry.data) for entry in entries])
        self._keep_pumping()
        return results

    def apply_conf_state(self, index: int, term: int, conf_state: ConfState) -> None:
        self.metastore.apply_conf_state(index, term, _encode_conf(conf_state))

    def start_flush(self, done: FlushDone) -> None:
        assert self._store is not None
        index = self.applied_index
        self._store.start_flush(lambda error: done(index, error))

    def purge(self) -> None:
        """Remove a slice of compacted history for good."""
        if self.metastore.purged_revision < self.metastore.compacted_revision:
            self.metastore.compact_step(_PURGE_SLICE)

    # Snapshots

    def start_export(self, done: Callable[[Export | None, BaseException | None], None]) -> None:
        assert self._store is not None
        store = self._store

        def flushed(error: BaseException | None) -> None:
            if error is not None:
                done(None, error)
                return
            if self._closed or self._store is not store:
                done(None, StoreClosed("the metastore was replaced meanwhile"))
                return
            # Whatever was applied since the flush is in the checkpoint too: it carries its own applied index.
            self._exports += 1
            name = f"{self._name}.export-{self._exports}"
            try:
                store.checkpoint(name)
                export = MetastoreExport(self._disk, name, self._limits.snapshot_chunk_bytes)
            except Exception as failure:
                done(None, failure)
                return
            done(export, None)

        store.start_flush(flushed)

    def begin_import(self, metadata: SnapshotMetadata) -> MetastoreImport:
        return MetastoreImport(self._disk, self._import_name(metadata))

    def install(self, metadata: SnapshotMetadata) -> None:
        assert self._store is not None
        incoming = self._import_name(metadata)
        if not self._disk.exists(incoming):
            raise Corrupt(incoming, "the snapshot that the log begins after is not there; nothing was replaced")
        before = self.metastore
        self._store.close()
        # Two renames, and a crash between them is finished by `recover`; removing what was there takes longer.
        self._replaced += 1
        old = f"{self._name}.old-{self._replaced}"
        self._disk.rename(self._name, old)
        self._disk.rename(incoming, self._name)
        remove_off_loop(self._disk, old)
        self._open()
        self.metastore.take_watches_from(before)
        self._keep_pumping()

    # Watches

    def serve_watch(self, request: Request, asked: WatchRequest) -> None:
        """Feed a client's watch until it ends. One that can't keep up is ended; it resumes where it stood."""

        def deliver(changes: Changes) -> bool:
            shown = [change for change in changes.changes if not change.key.startswith(SECRETS)]
            if not shown and changes.changes:
                # The progress that is told now and then covers the revision.
                return True
            runs = list(split_changes(shown, self._limits.frame_bytes // 4))
            for place, run in enumerate(runs):
                item = WatchItem(changes.revision, run, place + 1 < len(runs))
                if request.done or not request.push(encode(item)):
                    request.fail("slow_watch", f"too slow a receiver; watch again from revision {changes.revision}")
                    return False
            return True

        def end(error: Exception) -> None:
            request.fail("compacted" if isinstance(error, Compacted) else "failed", str(error))

        watcher = self.metastore.watch(_selector(asked), deliver, end, asked.from_revision or None)
        # Where it begins. A client that asked for "the next change" could not resume without knowing that.
        if not request.push(encode(WatchItem(watcher.progress, []))):
            watcher.cancel()
            request.fail("slow_watch", "too much is waiting for this receiver; watch again later")
            return
        self._served[request] = ServedWatch(watcher, watcher.progress)
        request.on_cancel(lambda _reason: watcher.cancel())
        self._keep_pumping()

    def tell_progress(self) -> None:
        """Tell quiet watches how far they are, so that one that has to resume is not overtaken by compaction."""
        for request, served in list(self._served.items()):
            progress = served.watcher.progress
            if request.done or not served.watcher.active:
                del self._served[request]
            elif progress > served.told and request.push(encode(WatchItem(progress, []))):
                served.told = progress

    def _keep_pumping(self) -> None:
        if not self._pumping and len(self.metastore.watches):
            self._pumping = True
            self._call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if not self._closed and self.metastore.pump(_PUMP_REVISIONS):
            self._keep_pumping()

    def close(self) -> None:
        """Let go of the files."""
        self._closed = True
        if self._store is not None:
            self._store.close()


def _selector(asked: WatchRequest) -> Selector:
    if asked.kind is WatchKind.EXACT:
        return Exact(asked.low)
    if asked.kind is WatchKind.PREFIX:
        return Prefix(asked.low)
    return Range(asked.low, asked.high)
