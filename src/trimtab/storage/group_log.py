"""The log of one Raft group, as Raft reads it: a LogStorage over the node log.

What is visible here is what `NodeLog.write` has handed to the store; what is only staged is not. The newest entries
are kept in memory, because followers and the state machine ask for just those. An idle group keeps no entries in
memory, only its positions and the last term, so ten thousand of them are affordable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trimtab.raft.messages import ConfState, Entry, HardState, Snapshot, SnapshotMetadata
from trimtab.raft.storage import (
    ENTRY_OVERHEAD_BYTES,
    Compacted,
    SnapshotTemporarilyUnavailable,
    Unavailable,
    limit_bytes,
)
from trimtab.storage import log_format
from trimtab.storage.log_format import GroupMeta
from trimtab.storage.port import Corrupt, StorageError

if TYPE_CHECKING:
    from trimtab.storage.node_log import NodeLog

# What an entry costs in memory beyond its data.
CACHED_ENTRY_BYTES = 120


class GroupLog:
    """Made by `NodeLog.group`. `snapshot_source` is set by a host that has more to offer than metadata."""

    __slots__ = (
        "_hard_state",
        "_last",
        "_last_term",
        "_log",
        "_meta",
        "_tail",
        "_tail_first",
        "bytes",
        "cached_bytes",
        "exists",
        "id",
        "key",
        "prefix",
        "snapshot_source",
        "staged_exists",
        "staged_last",
        "staged_meta",
    )

    def __init__(self, log: NodeLog, group_id: int) -> None:
        self._log = log
        self.id = group_id
        self.key = log_format.group_key(group_id)
        self.prefix = log_format.entry_prefix(self.key)
        self.snapshot_source: Callable[[], Snapshot] | None = None
        self._tail: list[Entry] = []
        self._tail_first = 0
        self.cached_bytes = 0
        self.load()

    def load(self) -> None:
        """Positions from the store: two gets and a seek, whatever the log's length."""
        store, where = self._log.store, f"the log of group {self.id}"
        meta = log_format.read_meta(store, self.key, where)
        self.exists = meta is not None
        self._meta = meta or GroupMeta()
        self._hard_state = log_format.read_hard_state(store, self.key, where)
        last = log_format.last_entry(store, self.prefix, where) if self.exists else None
        self._last = self._meta.dropped_index
        self._last_term = self._meta.dropped_term
        # An estimate: entries of one group tend to be alike, and reading them all at start is out of the question.
        self.bytes = 0
        if last is not None:
            if last.index <= self._meta.dropped_index:
                raise Corrupt(where, f"entry {last.index} lies below the log's beginning {self.first_index()}")
            self._last, self._last_term = last.index, last.term
            self.bytes = (last.index - self._meta.dropped_index) * (len(last.data) + ENTRY_OVERHEAD_BYTES)
        self.staged_exists, self.staged_last, self.staged_meta = self.exists, self._last, self._meta

    # LogStorage

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self._hard_state, self._meta.snapshot.conf_state

    def first_index(self) -> int:
        return self._meta.dropped_index + 1

    def last_index(self) -> int:
        return self._last

    def term(self, index: int) -> int:
        if index == self._last:
            return self._last_term
        position = index - self._tail_first
        if 0 <= position < len(self._tail):
            return self._tail[position].term
        if index == self._meta.dropped_index:
            return self._meta.dropped_term
        self._check_range(index, index + 1)
        return self._read_one(index).term

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        if low >= high:
            return []
        self._check_range(low, high)
        tail = self._tail
        if tail and low >= self._tail_first:
            return limit_bytes(tail[low - self._tail_first : high - self._tail_first], max_bytes)
        end = min(high, self._tail_first) if tail else high
        found, used = self._read(low, end, max_bytes)
        if not tail and low + len(found) == self._last + 1:
            self._log.remember(self, found)
        elif high > end and len(found) == end - low and used < max_bytes:
            found = limit_bytes(found + tail[: high - end], max_bytes)
        return found

    def snapshot(self) -> Snapshot:
        if self.snapshot_source is not None:
            return self.snapshot_source()
        metadata = self._meta.snapshot
        if metadata.index < self._meta.dropped_index:
            raise SnapshotTemporarilyUnavailable(
                f"group {self.id}: the newest snapshot ends at {metadata.index}, the log begins at {self.first_index()}"
            )
        return Snapshot(metadata=metadata)

    # What hosts ask besides

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def snapshot_metadata(self) -> SnapshotMetadata:
        return self._meta.snapshot

    def bootstrap(self, conf_state: ConfState, index: int = 1, term: int = 1) -> None:
        """Stage the beginning of a group: as if every member had applied a snapshot at (index, term)."""
        if self.staged_exists:
            raise StorageError(f"group {self.id} exists, its log ends at {self.staged_last}; it can't begin anew")
        self._log.stage(
            self.id,
            hard_state=HardState(term=term, commit=index),
            snapshot=SnapshotMetadata(conf_state=conf_state, index=index, term=term),
        )

    # What the node log does to it

    def written(
        self, meta: GroupMeta | None, hard_state: HardState | None, entries: Sequence[Entry], *, emptied: bool
    ) -> None:
        """A staged change has reached the store: the new beginning first, then the entries."""
        self.exists = True
        if hard_state is not None:
            self._hard_state = hard_state
        if meta is not None:
            self._begin_at(meta, emptied)
        if entries:
            self._append(entries)

    def forget(self) -> None:
        """The group was removed."""
        self.drop_cache()
        self.exists = False
        self._meta, self._hard_state = GroupMeta(), HardState()
        self._last = self._last_term = self.bytes = 0

    def drop_cache(self) -> None:
        self._tail = []
        self.cached_bytes = 0

    def remember(self, entries: list[Entry]) -> None:
        """Keep what was just read, if it reaches the log's end."""
        self._tail = list(entries)
        self._tail_first = entries[0].index
        self.cached_bytes = _cached_bytes(entries)

    def shrink_cache(self, limit_bytes: int) -> None:
        """Forget the older entries, at least half of the bytes over and above, so that this is rare."""
        tail, cached = self._tail, self.cached_bytes
        count = 0
        while cached > limit_bytes // 2 and count < len(tail):
            cached -= len(tail[count].data) + CACHED_ENTRY_BYTES
            count += 1
        del tail[:count]
        self._tail_first += count
        self.cached_bytes = cached

    def _begin_at(self, meta: GroupMeta, emptied: bool) -> None:
        before = self._last - self._meta.dropped_index
        dropped = meta.dropped_index
        self._meta = meta
        if emptied:
            self.drop_cache()
            self._last, self._last_term = dropped, meta.dropped_term
            self.bytes = 0
            return
        if before > 0:
            self.bytes = self.bytes * (self._last - dropped) // before
        if self._tail and self._tail_first <= dropped:
            count = dropped + 1 - self._tail_first
            self.cached_bytes -= _cached_bytes(self._tail[:count])
            del self._tail[:count]
            self._tail_first = dropped + 1

    def _append(self, entries: Sequence[Entry]) -> None:
        first, newest = entries[0].index, entries[-1]
        tail = self._tail
        keep = first - self._tail_first
        if not tail or keep < 0:
            self._tail = list(entries)
            self._tail_first = first
            self.cached_bytes = _cached_bytes(entries)
        else:
            if keep < len(tail):
                self.cached_bytes -= _cached_bytes(tail[keep:])
                del tail[keep:]
            tail.extend(entries)
            self.cached_bytes += _cached_bytes(entries)
        length = self._last - self._meta.dropped_index
        if first <= self._last and length > 0:
            self.bytes = self.bytes * (first - 1 - self._meta.dropped_index) // length
        self.bytes += sum([len(entry.data) for entry in entries]) + ENTRY_OVERHEAD_BYTES * len(entries)
        self._last, self._last_term = newest.index, newest.term

    def _check_range(self, low: int, high: int) -> None:
        if low <= self._meta.dropped_index:
            raise Compacted(f"group {self.id}: entry {low} was compacted; the log starts at {self.first_index()}")
        if high > self._last + 1:
            raise Unavailable(f"group {self.id}: there is no entry {high - 1}; the log ends at {self._last}")

    def _read(self, low: int, high: int, max_bytes: int) -> tuple[list[Entry], int]:
        decode = log_format.decode_entry
        where = f"the log of group {self.id}"
        found: list[Entry] = []
        used = 0
        scan = self._log.store.scan(log_format.entry_key(self.prefix, low), log_format.entry_key(self.prefix, high))
        for _, value in scan:
            entry = decode(value, where)
            if entry.index != low + len(found):
                raise Corrupt(where, f"entry {low + len(found)} is missing; {entry.index} follows")
            used += len(entry.data) + ENTRY_OVERHEAD_BYTES
            if found and used > max_bytes:
                return found, used
            found.append(entry)
        if len(found) != high - low:
            raise Corrupt(where, f"entry {low + len(found)} is missing; the log should reach {self._last}")
        return found, used

    def _read_one(self, index: int) -> Entry:
        value = self._log.store.get(log_format.entry_key(self.prefix, index))
        where = f"the log of group {self.id}"
        if value is None:
            raise Corrupt(where, f"entry {index} is missing; the log should hold {self.first_index()}..{self._last}")
        return log_format.decode_entry(value, where)


def _cached_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(entry.data) for entry in entries]) + CACHED_ENTRY_BYTES * len(entries)
