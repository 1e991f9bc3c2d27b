"""The node log: one store for the entries, hard states and snapshot positions of every Raft group of this node.

    stage() ... stage()  ->  write()  ->  sync(done)
    noted in memory          one atomic    durable; one sync for all who wait
                             batch, to     (a sync that is running covers only what was written before it
                             the OS,       began, so later callers share the next one)
                             visible

- Nothing is acknowledged before `done(None)`. A failed sync is told to everybody and is final.
- Disk full is an error to the caller of `write`, which keeps what is staged: call `write` again when there is space.
  Below the disk's reserve, batches with entries are refused while votes and terms (a few bytes) still pass, so that a
  full member goes on voting. If the file system was really exhausted, the store is reopened in place, by the next
  `write` or by `reopen`. Callers that wait for a sync meanwhile go on waiting; they are not told a lie.
- Entries replace any tail from their first index on. A snapshot drops what it covers, and all of the log if the
  two disagree. What was dropped does not come back after a restart.
- One other may ride along (`Rider`: the log of mutations): what it wants written goes into the same batches, and it is
  synced with everything else. It is the first to be refused when space is short; Raft's votes never wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.raft.messages import ConfState, Entry, HardState, SnapshotMetadata
from trimtab.raft.storage import Compacted, Unavailable
from trimtab.storage import log_format
from trimtab.storage.group_log import GroupLog
from trimtab.storage.log_format import GroupMeta
from trimtab.storage.port import Batch, Disk, DiskFull, Report, StorageError, Store, StoreClosed, SyncDone

__all__ = ["GroupLog", "LogMetrics", "NodeLog", "Rider"]

# Asking the file system costs 3 µs. The answer is kept for so many questions, or bytes of our own; a "no" never is.
_FREE_CHECK_EVERY = 64
_FREE_CHECK_BYTES = 256 * 1024
SYNC_BUCKETS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


@dataclass(slots=True)
class LogMetrics:
    """Counters since the log was opened. `sync_buckets` counts syncs up to SYNC_BUCKETS_SECONDS, then longer ones."""

    batches: int = 0
    entries: int = 0
    bytes: int = 0
    syncs: int = 0
    sync_waiters: int = 0
    sync_seconds: float = 0.0
    last_sync_seconds: float = 0.0
    longest_sync_seconds: float = 0.0
    disk_full: int = 0
    reopens: int = 0
    sync_buckets: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BUCKETS_SECONDS) + 1))

    def count_sync(self, seconds: float, waiters: int) -> None:
        self.syncs += 1
        self.sync_waiters += waiters
        self.sync_seconds += seconds
        self.last_sync_seconds = seconds
        self.longest_sync_seconds = max(self.longest_sync_seconds, seconds)
        for bucket, limit in enumerate(SYNC_BUCKETS_SECONDS):
            if seconds <= limit:
                self.sync_buckets[bucket] += 1
                return
        self.sync_buckets[-1] += 1


@dataclass(slots=True)
class _Change:
    """One staged change of one group, in the order in which it goes into the batch."""

    group: GroupLog
    meta: GroupMeta | None = None
    hard_state: HardState | None = None
    entries: Sequence[Entry] = ()
    drop: tuple[int, int] | None = None  # entries low..high-1 go
    emptied: bool = False
    removed: bool = False


class Rider(Protocol):
    """Somebody else whose changes go into the log's batches."""

    @property
    def waiting(self) -> bool:
        """Whether something is staged."""
        ...

    @property
    def needs_space(self) -> bool:
        """Whether something is staged that has to be refused when space is short."""
        ...

    def fill(self, batch: Batch) -> int:
        """Add everything that is staged; the bytes it adds. It stays staged until `written`."""
        ...

    def written(self) -> None:
        """What was filled in has reached the store."""
        ...

    def refuse(self, error: DiskFull) -> None:
        """There is no space: whatever needs some is refused now, and staged no more."""
        ...

    def ride(self) -> None:
        """A sync has ended and another may begin: write what is staged, and ask for a sync if one is needed."""
        ...


class NodeLog:
    """See the module's text. One object per node; not for use from other threads than the loop's."""

    def __init__(
        self, disk: Disk, name: str, store: Store, clock: Callable[[], float], group_cache_bytes: int, cache_bytes: int
    ) -> None:
        self.store = store
        self.metrics = LogMetrics()
        self.rider: Rider | None = None
        self._disk = disk
        self._name = name
        self._clock = clock
        self._group_cache_bytes = group_cache_bytes
        self._cache_bytes = cache_bytes
        self._cached: dict[int, GroupLog] = {}  # least recently appended first
        self._cached_bytes = 0
        self._groups: dict[int, GroupLog] = {}
        self._ids = log_format.group_ids(store)
        self._staged: list[_Change] = []
        self._staged_entries = 0
        self._waiting: list[SyncDone] = []
        self._syncing = False
        self._full = False
        self._free_trusted = 0  # questions that may still be answered from memory
        self._free_trusted_bytes = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        name: str = "log",
        report: Report | None = None,
        *,
        clock: Callable[[], float] | None = None,
        group_cache_bytes: int = 1024 * 1024,
        cache_bytes: int = 64 * 1024 * 1024,
    ) -> NodeLog:
        """Open or create. A torn tail is told to `report`; Corrupt when data that may have been synced is damaged."""
        store = disk.open(name, wal=True, report=report)
        try:
            log_format.check_version(store, name)
            return cls(disk, name, store, clock or _loop_time, group_cache_bytes, cache_bytes)
        except BaseException:
            store.close()
            raise

    def group(self, group_id: int) -> GroupLog:
        """The group's log; for a group that is not there yet, an empty one with `exists` False."""
        group = self._groups.get(group_id)
        if group is None:
            self._check_open()
            if not 0 <= group_id <= log_format.MAX_ID:
                raise StorageError(f"{group_id} is not a group id: use 0 .. 2**64-1")
            group = self._groups[group_id] = GroupLog(self, group_id)
        return group

    def group_ids(self) -> list[int]:
        return sorted(self._ids)

    # Staging

    def stage(
        self,
        group_id: int,
        entries: Sequence[Entry] = (),
        hard_state: HardState | None = None,
        snapshot: SnapshotMetadata | None = None,
        conf_state: ConfState | None = None,
    ) -> None:
        """Note a change for the next write. `conf_state` replaces the one recorded with the newest snapshot."""
        group = self.group(group_id)
        if snapshot is not None:
            self._stage_snapshot(group, snapshot)
        meta: GroupMeta | None = None
        if conf_state is not None or not group.staged_exists:
            meta = group.staged_meta
            if conf_state is not None:
                metadata = SnapshotMetadata(conf_state, meta.snapshot.index, meta.snapshot.term)
                meta = GroupMeta(metadata, meta.dropped_index, meta.dropped_term)
            group.staged_meta, group.staged_exists = meta, True
        drop: tuple[int, int] | None = None
        if entries:
            entries, drop = self._check_entries(group, entries)
            self._staged_entries += len(entries)
        if entries or hard_state is not None or meta is not None:
            self._staged.append(_Change(group, meta, hard_state, entries, drop))

    def compact(self, group_id: int, index: int) -> None:
        """Drop entries up to and including index. What is already gone is no mistake; what never was is."""
        group = self.group(group_id)
        meta = group.staged_meta
        if index <= meta.dropped_index:
            return
        last = min(group.last_index(), group.staged_last)
        if index > last:
            raise Unavailable(f"group {group_id}: can't compact up to {index}, what is written ends at {last}")
        dropped = GroupMeta(meta.snapshot, index, group.term(index))
        group.staged_meta = dropped
        emptied = index == group.staged_last
        self._staged.append(_Change(group, dropped, drop=(meta.dropped_index + 1, index + 1), emptied=emptied))

    def remove(self, group_id: int) -> None:
        """Drop the group and everything of it."""
        group = self.group(group_id)
        drop = (group.staged_meta.dropped_index + 1, group.staged_last + 1)
        group.staged_meta, group.staged_last, group.staged_exists = GroupMeta(), 0, False
        self._staged.append(_Change(group, drop=drop, removed=True))

    def _stage_snapshot(self, group: GroupLog, snapshot: SnapshotMetadata) -> None:
        before = group.staged_meta
        if snapshot.index < before.snapshot.index:
            raise Compacted(
                f"group {group.id}: the snapshot at {snapshot.index} is older than that at {before.snapshot.index}"
            )
        if snapshot.index <= before.dropped_index:
            # The log has moved past it already; only the metadata is news.
            meta = GroupMeta(snapshot, before.dropped_index, before.dropped_term)
            change = _Change(group, meta)
        else:
            meta = GroupMeta(snapshot, snapshot.index, snapshot.term)
            agrees = snapshot.index < group.staged_last and self._staged_term(group, snapshot.index) == snapshot.term
            high = snapshot.index + 1 if agrees else group.staged_last + 1
            change = _Change(group, meta, drop=(before.dropped_index + 1, high), emptied=not agrees)
            if not agrees:
                group.staged_last = snapshot.index
        group.staged_meta, group.staged_exists = meta, True
        self._staged.append(change)

    def _staged_term(self, group: GroupLog, index: int) -> int:
        """The term at index as it will be once everything staged is written."""
        for change in reversed(self._staged):
            entries = change.entries
            if change.group is group and entries and entries[0].index <= index <= entries[-1].index:
                return entries[index - entries[0].index].term
        return group.term(index)

    @staticmethod
    def _check_entries(group: GroupLog, entries: Sequence[Entry]) -> tuple[Sequence[Entry], tuple[int, int] | None]:
        """Entries that may be appended now, and the old ones behind them that have to go."""
        first, last = entries[0].index, entries[-1].index
        if last - first != len(entries) - 1:
            raise StorageError(f"group {group.id}: {len(entries)} entries can't reach from {first} to {last}")
        dropped = group.staged_meta.dropped_index
        if first <= dropped:
            entries = entries[dropped + 1 - first :]
            if not entries:
                return (), None
            first = dropped + 1
        before = group.staged_last
        if first > before + 1:
            raise Unavailable(f"group {group.id}: entries from {first} would leave a gap, the log ends at {before}")
        group.staged_last = last
        return entries, (last + 1, before + 1) if before > last else None

    # Writing

    def has_space(self) -> bool:
        """Whether entries may be added: a host refuses proposals and appends early when not."""
        return not self._full and self._short_of() is None

    def _short_of(self) -> int | None:
        """None when there is space for entries, else the free bytes that are too few."""
        if self._free_trusted > 0 and self._free_trusted_bytes > 0:
            self._free_trusted -= 1
            return None
        free = self._disk.free_bytes()
        if free < max(1, self._disk.reserve_bytes):
            self._free_trusted = 0
            return free
        self._free_trusted, self._free_trusted_bytes = _FREE_CHECK_EVERY, _FREE_CHECK_BYTES
        return None

    def write(self) -> None:
        """Hand everything staged to the store as one batch; it is visible from now on. Raises DiskFull, keeping it."""
        rider = self.rider if self.rider is not None and self.rider.waiting else None
        if not self._staged and rider is None:
            return
        self._check_open()
        if self._full:
            try:
                self.reopen()
            except DiskFull as error:
                if rider is not None:
                    rider.refuse(error)
                raise
        if self._disk.reserve_bytes and (self._staged_entries or (rider is not None and rider.needs_space)):
            free = self._short_of()
            if free is not None:
                self.metrics.disk_full += 1
                refusal = DiskFull(self._name, free_bytes=free, reserve_bytes=self._disk.reserve_bytes)
                if rider is not None:
                    rider.refuse(refusal)
                if self._staged_entries:
                    raise refusal
                if not self._staged and (rider is None or not rider.waiting):
                    return
        batch = self.store.batch()
        written_bytes = 0
        for change in self._staged:
            written_bytes += _fill(batch, change)
        if rider is not None:
            written_bytes += rider.fill(batch)
        try:
            self.store.write(batch)
        except DiskFull as error:
            self._full = True
            self.metrics.disk_full += 1
            if rider is not None:
                rider.refuse(error)
            raise
        staged, self._staged = self._staged, []
        self.metrics.batches += 1
        self.metrics.entries += self._staged_entries
        self.metrics.bytes += written_bytes
        self._free_trusted_bytes -= written_bytes
        self._staged_entries = 0
        for change in staged:
            self._make_visible(change)
        if rider is not None:
            rider.written()

    def reopen(self) -> None:
        """Recover from an exhausted file system. Raises DiskFull while there is too little space."""
        self._check_open()
        if not self._full:
            return
        self.store.reopen()
        self._full = False
        self.metrics.reopens += 1
        if self._waiting and not self._syncing:
            self._start_sync()

    def _make_visible(self, change: _Change) -> None:
        group = change.group
        before = group.cached_bytes
        if change.removed:
            group.forget()
            self._ids.discard(group.id)
            if not group.staged_exists:
                self._groups.pop(group.id, None)
        else:
            group.written(change.meta, change.hard_state, change.entries, emptied=change.emptied)
            if change.meta is not None:
                self._ids.add(group.id)
        self._account(group, before)

    # What entries are kept in memory

    def remember(self, group: GroupLog, entries: list[Entry]) -> None:
        """A group has read its whole tail: keep it, if it is not too much."""
        if entries:
            before = group.cached_bytes
            group.remember(entries)
            self._account(group, before)

    def _account(self, group: GroupLog, before: int) -> None:
        if group.cached_bytes > self._group_cache_bytes:
            group.shrink_cache(self._group_cache_bytes)
        if group.cached_bytes == before:
            return
        self._cached_bytes += group.cached_bytes - before
        self._cached.pop(group.id, None)
        if group.cached_bytes:
            self._cached[group.id] = group
        while self._cached_bytes > self._cache_bytes and self._cached:
            oldest = self._cached.pop(next(iter(self._cached)))
            self._cached_bytes -= oldest.cached_bytes
            oldest.drop_cache()

    # Syncing

    @property
    def syncing(self) -> bool:
        """Whether a sync is running: what is written now is covered by the next one only."""
        return self._syncing

    def sync(self, done: SyncDone) -> None:
        """Call done(None) when everything written so far is durable, done(error) when it can't be known to be."""
        self._check_open()
        self._waiting.append(done)
        if not self._syncing and not self._full:
            self._start_sync()

    def _start_sync(self) -> None:
        callbacks, self._waiting = self._waiting, []
        self._syncing = True
        started = self._clock()
        reopens = self.metrics.reopens

        def synced(error: BaseException | None) -> None:
            self._syncing = False
            if self._closed:
                return
            if isinstance(error, DiskFull):
                # No sync was tried; the store wants to be reopened first, unless that has happened since.
                self._waiting[:0] = callbacks
                if self.metrics.reopens != reopens:
                    self._start_sync()
                else:
                    self._full = True
                return
            if error is None:
                self.metrics.count_sync(self._clock() - started, len(callbacks))
                if self.rider is not None:
                    self.rider.ride()
                if self._waiting and not self._syncing:
                    self._start_sync()
            else:
                callbacks.extend(self._waiting)
                self._waiting = []
            for done in callbacks:
                done(error)

        try:
            self.store.start_sync(synced)
        except BaseException:
            self._syncing = False
            self._waiting[:0] = callbacks
            raise

    def close(self) -> None:
        """Let go of the files. What is only staged is dropped; callbacks that wait are never called."""
        if self._closed:
            return
        self._closed = True
        self.store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the node log {self._name!r} was closed")


def _fill(batch: Batch, change: _Change) -> int:
    """Add one change to the batch; the bytes it adds."""
    group = change.group
    prefix = group.prefix
    if change.drop is not None:
        keys, span = log_format.deletions(prefix, *change.drop)
        for key in keys:
            batch.delete(key)
        if span is not None:
            batch.delete_range(*span)
    if change.removed:
        batch.delete(log_format.meta_key(group.key))
        batch.delete(log_format.hard_state_key(group.key))
        return 0
    encode = log_format.encode
    added = 0
    if change.meta is not None:
        value = encode(change.meta)
        batch.put(log_format.meta_key(group.key), value)
        added += len(value)
    if change.hard_state is not None:
        value = encode(change.hard_state)
        batch.put(log_format.hard_state_key(group.key), value)
        added += len(value)
    put = batch.put
    pack = log_format.pack_index
    for entry in change.entries:
        value = encode(entry)
        put(prefix + pack(entry.index), value)
        added += len(value)
    return added


def _loop_time() -> float:
    """The running loop's clock: virtual in a simulation. Without a loop nothing is measured."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0
