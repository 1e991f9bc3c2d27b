"""The port through which Raft reads its stable log, and a storage in memory that implements it.

Raft only reads. The host writes what `Ready` hands it, and calls back when that is durable. Whatever the host has
acknowledged as stable must be readable here from then on, until the host compacts it.
"""

from collections.abc import Sequence
from typing import Protocol

from trimtab.raft.errors import RaftError
from trimtab.raft.messages import ConfState, Entry, HardState, Snapshot, SnapshotMetadata

# What an entry costs beyond its data, near enough: array header, term, index, type and length.
ENTRY_OVERHEAD_BYTES = 8


class LogReadError(RaftError):
    """Base of what reading the log may answer."""


class Compacted(LogReadError):
    """The index is older than the log's first entry; only a snapshot can bridge that."""


class Unavailable(LogReadError):
    """The index is past the log's end."""


class SnapshotTemporarilyUnavailable(LogReadError):
    """A snapshot is being prepared; ask again later."""


class SnapshotOutOfDate(LogReadError):
    """The snapshot offered is older than the one that is there."""


class LogStorage(Protocol):
    """The stable log of one group. The host's implementation may cache, but must never answer stale terms."""

    def initial_state(self) -> tuple[HardState, ConfState]:
        """What was last made durable; defaults when the group is new."""
        ...

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Entries [low, high), cut after max_bytes but never to nothing. Raises Compacted or Unavailable."""
        ...

    def term(self, index: int) -> int:
        """The term at index, for first_index()-1 .. last_index(). Raises Compacted or Unavailable outside."""
        ...

    def first_index(self) -> int:
        """The first entry still there; one past the snapshot when the log is empty."""
        ...

    def last_index(self) -> int: ...

    def snapshot(self) -> Snapshot:
        """The newest snapshot. Raises SnapshotTemporarilyUnavailable while one is being prepared."""
        ...


def entry_bytes(entry: Entry) -> int:
    """What an entry counts against the limits on messages and on committed entries."""
    return len(entry.data) + ENTRY_OVERHEAD_BYTES


def entries_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(entry.data) for entry in entries]) + ENTRY_OVERHEAD_BYTES * len(entries)


def payload_bytes(entries: Sequence[Entry]) -> int:
    """The data alone. An empty entry weighs nothing, so a new leader's first entry is never refused."""
    return sum([len(entry.data) for entry in entries])


def limit_bytes(entries: list[Entry], max_bytes: int) -> list[Entry]:
    """The longest prefix within max_bytes, but at least one entry, or nothing could ever move."""
    if len(entries) <= 1 or entries_bytes(entries) <= max_bytes:
        return entries
    total = len(entries[0].data) + ENTRY_OVERHEAD_BYTES
    for count in range(1, len(entries)):
        total += len(entries[count].data) + ENTRY_OVERHEAD_BYTES
        if total > max_bytes:
            return entries[:count]
    return entries


class MemoryStorage:
    """A LogStorage in memory, for tests, simulation and examples.

    Slot 0 of the list is not an entry: it remembers index and term of what was compacted away, which is the position
    an append right after the snapshot has to match.
    """

    __slots__ = ("_conf_state", "_entries", "_hard_state", "_snapshot")

    def __init__(self) -> None:
        self._hard_state = HardState()
        self._snapshot = Snapshot()
        self._conf_state = ConfState()
        self._entries: list[Entry] = [Entry()]

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self._hard_state, self._conf_state

    def set_hard_state(self, hard_state: HardState) -> None:
        self._hard_state = hard_state

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        offset = self._entries[0].index
        if low <= offset:
            raise Compacted(f"entries from {low} were compacted; the log starts at {offset + 1}")
        if high > offset + len(self._entries):
            raise Unavailable(f"entries up to {high} are not there; the log ends at {self.last_index()}")
        return limit_bytes(self._entries[low - offset : high - offset], max_bytes)

    def term(self, index: int) -> int:
        offset = self._entries[0].index
        if index < offset:
            raise Compacted(f"the term of {index} was compacted; the log starts at {offset + 1}")
        if index >= offset + len(self._entries):
            raise Unavailable(f"there is no entry {index}; the log ends at {self.last_index()}")
        return self._entries[index - offset].term

    def first_index(self) -> int:
        return self._entries[0].index + 1

    def last_index(self) -> int:
        return self._entries[0].index + len(self._entries) - 1

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace everything by the snapshot. Raises SnapshotOutOfDate when a newer one is already there."""
        if snapshot.metadata.index <= self._snapshot.metadata.index and self._snapshot.metadata.index > 0:
            raise SnapshotOutOfDate(
                f"snapshot at {snapshot.metadata.index} is not newer than that at {self._snapshot.metadata.index}"
            )
        self._snapshot = snapshot
        self._conf_state = snapshot.metadata.conf_state
        self._entries = [Entry(term=snapshot.metadata.term, index=snapshot.metadata.index)]

    def create_snapshot(self, index: int, conf_state: ConfState | None, data: bytes) -> Snapshot:
        """Take note of a snapshot of the state at index; the log itself stays until compact()."""
        if index <= self._snapshot.metadata.index:
            raise SnapshotOutOfDate(f"a snapshot at {self._snapshot.metadata.index} exists; {index} is not newer")
        if index > self.last_index():
            raise Unavailable(f"can't snapshot at {index}: the log ends at {self.last_index()}")
        if conf_state is not None:
            self._conf_state = conf_state
        metadata = SnapshotMetadata(conf_state=self._conf_state, index=index, term=self.term(index))
        self._snapshot = Snapshot(metadata=metadata, data=data)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Drop entries up to and including index."""
        offset = self._entries[0].index
        if index <= offset:
            raise Compacted(f"{index} was compacted before; the log starts at {offset + 1}")
        if index > self.last_index():
            raise Unavailable(f"can't compact up to {index}: the log ends at {self.last_index()}")
        last_dropped = self._entries[index - offset]
        self._entries = [Entry(term=last_dropped.term, index=index), *self._entries[index - offset + 1 :]]

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries, replacing any tail from the first one's index on."""
        if not entries:
            return
        offset = self._entries[0].index
        first = entries[0].index
        if entries[-1].index <= offset:
            return
        if first <= offset:
            entries = entries[offset + 1 - first :]
            first = offset + 1
        if first > offset + len(self._entries):
            raise Unavailable(f"entries from {first} would leave a gap: the log ends at {self.last_index()}")
        del self._entries[first - offset :]
        self._entries.extend(entries)
