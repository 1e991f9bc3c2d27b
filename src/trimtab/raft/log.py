"""The log as Raft sees it: what is stable in storage, followed by what is still on its way there.

Positions: applied <= applying <= committed <= last_index. `committed` is known to be on a quorum; `applying` was handed
to the state machine; `applied` was reported back. `Unstable` keeps entries until the host has acknowledged them, and
until then it, not storage, is what Raft believes.

Its `offset` is one past the last stable entry, so the last index never needs a look into storage.
"""

from collections.abc import Iterator, Sequence

from trimtab.raft.errors import InvariantViolated
from trimtab.raft.messages import Entry, Snapshot
from trimtab.raft.storage import Compacted, LogReadError, LogStorage, Unavailable, limit_bytes

_UNKNOWN_TERM = -1


class Unstable:
    """Entries, and perhaps a snapshot, that storage does not have yet.

    entries[i] has index offset + i. Those below `offset_in_progress` were handed out for writing and are not handed
    out again, unless they are replaced.
    """

    __slots__ = ("base_term", "entries", "offset", "offset_in_progress", "snapshot", "snapshot_in_progress")

    def __init__(self, offset: int) -> None:
        self.snapshot: Snapshot | None = None
        self.snapshot_in_progress = False
        self.entries: list[Entry] = []
        self.offset = offset
        self.offset_in_progress = offset
        # The term at offset - 1 when it is known without asking storage: appends mostly go right behind it.
        self.base_term = _UNKNOWN_TERM

    def next_entries(self) -> list[Entry]:
        """What is to be written and was not handed out before."""
        return self.entries[self.offset_in_progress - self.offset :]

    @property
    def has_next_entries(self) -> bool:
        return self.offset_in_progress - self.offset < len(self.entries)

    def next_snapshot(self) -> Snapshot | None:
        return None if self.snapshot_in_progress else self.snapshot

    def accept_in_progress(self) -> None:
        """Everything was handed out for writing."""
        self.offset_in_progress = self.offset + len(self.entries)
        if self.snapshot is not None:
            self.snapshot_in_progress = True

    def stable_to(self, index: int, term: int) -> bool:
        """Entries up to (index, term) are in storage. False when that is not what is here any more.

        The caller vouches that no write under way can still replace them, see `MsgStorageAppendResp` in `core`.
        """
        count = index + 1 - self.offset
        if count <= 0 or count > len(self.entries) or self.entries[count - 1].term != term:
            return False
        del self.entries[:count]
        self.offset = index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)
        self.base_term = term
        return True

    def stable_snapshot_to(self, index: int) -> None:
        if self.snapshot is not None and self.snapshot.metadata.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        self.offset = snapshot.metadata.index + 1
        self.offset_in_progress = self.offset
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False
        self.base_term = snapshot.metadata.term

    def truncate_and_append(self, entries: Sequence[Entry]) -> None:
        """Append, replacing whatever is there from the first new index on."""
        first = entries[0].index
        end = self.offset + len(self.entries)
        if first == end:
            self.entries.extend(entries)
        elif first <= self.offset:
            if first < self.offset:
                self.base_term = _UNKNOWN_TERM
            self.entries = list(entries)
            self.offset = first
            self.offset_in_progress = first
        elif first < end:
            # A new list: slices of the old one may be in a Ready.
            self.entries = self.entries[: first - self.offset]
            self.entries.extend(entries)
            self.offset_in_progress = min(self.offset_in_progress, first)
        else:
            raise InvariantViolated(f"entries from {first} would leave a gap: the log ends at {end - 1}")


class Log:
    __slots__ = (
        "applied",
        "applying",
        "applying_bytes",
        "applying_paused",
        "committed",
        "max_applying_bytes",
        "storage",
        "unstable",
    )

    def __init__(self, storage: LogStorage, max_applying_bytes: int) -> None:
        self.storage = storage
        self.unstable = Unstable(storage.last_index() + 1)
        start = storage.first_index() - 1
        self.committed = start
        self.applying = start
        self.applied = start
        # Bytes of committed entries that were handed out and not reported as applied, and their limit.
        self.max_applying_bytes = max_applying_bytes
        self.applying_bytes = 0
        self.applying_paused = False

    def __str__(self) -> str:
        return (
            f"committed={self.committed}, applied={self.applied}, applying={self.applying}, "
            f"unstable.offset={self.unstable.offset}, unstable.offsetInProgress={self.unstable.offset_in_progress}, "
            f"len(unstable.Entries)={len(self.unstable.entries)}"
        )

    # Reading

    def first_index(self) -> int:
        snapshot = self.unstable.snapshot
        return self.storage.first_index() if snapshot is None else snapshot.metadata.index + 1

    def last_index(self) -> int:
        return self.unstable.offset + len(self.unstable.entries) - 1

    def last_term(self) -> int:
        return self.term(self.last_index())

    def term(self, index: int) -> int:
        """Raises Compacted or Unavailable. The position before the first entry still has a term: appends match it."""
        unstable = self.unstable
        position = index - unstable.offset
        if position >= 0:
            if position < len(unstable.entries):
                return unstable.entries[position].term
            raise Unavailable(f"there is no entry {index}; the log ends at {self.last_index()}")
        if position == -1 and unstable.base_term != _UNKNOWN_TERM:
            return unstable.base_term
        snapshot = unstable.snapshot
        if snapshot is not None:
            if index == snapshot.metadata.index:
                return snapshot.metadata.term
            if index < snapshot.metadata.index:
                raise Compacted(f"entry {index} is covered by the snapshot at {snapshot.metadata.index}")
        return self.storage.term(index)

    def term_or_zero(self, index: int) -> int:
        """0, which is nobody's term, where the log has no such position."""
        if index > self.last_index():
            return 0
        try:
            return self.term(index)
        except LogReadError:
            return 0

    def matches(self, index: int, term: int) -> bool:
        if index > self.last_index():
            return False
        try:
            return self.term(index) == term
        except LogReadError:
            return False

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends like that has at least everything this one has."""
        our_term = self.last_term()
        return last_term > our_term or (last_term == our_term and last_index >= self.last_index())

    def entries(self, low: int, max_bytes: int) -> list[Entry]:
        """From low to the end, cut after max_bytes. Raises Compacted."""
        high = self.last_index() + 1
        return self.slice(low, high, max_bytes) if low < high else []

    def slice(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Entries [low, high), cut after max_bytes but never to nothing. Raises Compacted."""
        unstable = self.unstable
        offset = unstable.offset
        if low > high or high > self.last_index() + 1:
            raise InvariantViolated(f"entries [{low},{high}) asked of a log that ends at {self.last_index()}")
        if low >= offset:
            return limit_bytes(unstable.entries[low - offset : high - offset], max_bytes)
        if low < self.first_index():
            raise Compacted(f"entry {low} was compacted; the log starts at {self.first_index()}")
        if low == high:
            return []
        stable_end = min(high, offset)
        try:
            entries = self.storage.entries(low, stable_end, max_bytes)
        except Unavailable as error:
            raise InvariantViolated(f"storage lost entries [{low},{stable_end}) that were stable: {error}") from error
        if len(entries) < stable_end - low or high <= offset:
            return entries
        return limit_bytes(entries + unstable.entries[: high - offset], max_bytes)

    def scan(self, low: int, high: int, page_bytes: int) -> Iterator[list[Entry]]:
        """Entries [low, high) page by page, so that a long tail is never in memory as a whole."""
        while low < high:
            page = self.slice(low, high, page_bytes)
            if not page:
                raise InvariantViolated(f"no entries in [{low},{high})")
            yield page
            low += len(page)

    def snapshot(self) -> Snapshot:
        """Raises SnapshotTemporarilyUnavailable."""
        return self.storage.snapshot() if self.unstable.snapshot is None else self.unstable.snapshot

    # Appending

    def append(self, entries: Sequence[Entry]) -> None:
        """Append a leader's own entries, or a follower's after the point where its log differs."""
        if entries[0].index <= self.committed:
            raise InvariantViolated(f"entry {entries[0].index} would replace a committed one, of {self.committed}")
        self.unstable.truncate_and_append(entries)

    def maybe_append(self, prev_index: int, prev_term: int, entries: Sequence[Entry], committed: int) -> bool:
        """Take in a leader's entries if what precedes them matches; truncate only where they differ.

        An append that is old, and shorter than the log by now, must not cut off what came after it: that may have been
        acknowledged.
        """
        if not self.matches(prev_index, prev_term):
            return False
        if entries:
            conflict = self.find_conflict(entries)
            if conflict is not None:
                if conflict <= self.committed:
                    raise InvariantViolated(f"entry {conflict} conflicts with a committed one, of {self.committed}")
                start = conflict - entries[0].index
                self.append(entries[start:] if start else entries)
        self.commit_to(min(committed, prev_index + len(entries)))
        return True

    def find_conflict(self, entries: Sequence[Entry]) -> int | None:
        """The index of the first entry that is new or differs in its term; None when all are there."""
        last_index = self.last_index()
        if entries[0].index > last_index:
            return entries[0].index
        for entry in entries:
            if entry.index > last_index or not self.matches(entry.index, entry.term):
                return entry.index
        return None

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """A guess where this log and another may agree, knowing of the other only (index, term).

        The highest position up to index whose term is not above the given one: terms only grow along a log, so
        everything between has to differ. The term is 0 where it is not known (compacted, or past the end).
        """
        while index > 0:
            try:
                our_term = self.term(index)
            except LogReadError:
                return index, 0
            if our_term <= term:
                return index, our_term
            index -= 1
        return 0, 0

    def commit_to(self, index: int) -> None:
        """Never goes back."""
        if self.committed < index:
            if index > self.last_index():
                raise InvariantViolated(
                    f"commit index {index} is past the end of the log, {self.last_index()}: "
                    "the log was truncated, or lost what it had acknowledged"
                )
            self.committed = index

    def maybe_commit(self, index: int, term: int) -> bool:
        """Commit by counting only in the leader's own term: an older entry on a quorum can still be replaced."""
        if index > self.committed and term != 0 and self.term_or_zero(index) == term:
            self.commit_to(index)
            return True
        return False

    def restore(self, snapshot: Snapshot) -> None:
        self.committed = snapshot.metadata.index
        self.unstable.restore(snapshot)

    # Applying

    def _appliable_end(self, *, allow_unstable: bool) -> int:
        return self.committed if allow_unstable else min(self.committed, self.unstable.offset - 1)

    def has_next_committed(self, *, allow_unstable: bool) -> bool:
        """Nothing is handed out while a snapshot waits: it would be unclear which of the two comes first."""
        if self.applying_paused or self.unstable.snapshot is not None:
            return False
        return self.applying < self._appliable_end(allow_unstable=allow_unstable)

    def next_committed(self, *, allow_unstable: bool) -> list[Entry]:
        if not self.has_next_committed(allow_unstable=allow_unstable):
            return []
        budget = self.max_applying_bytes - self.applying_bytes
        return self.slice(self.applying + 1, self._appliable_end(allow_unstable=allow_unstable) + 1, budget)

    def accept_applying(self, index: int, size_bytes: int, *, allow_unstable: bool) -> None:
        """Entries up to index were handed out. Pause at the limit, or when the next entry would not have fit."""
        if index > self.committed:
            raise InvariantViolated(f"applying {index}, but only {self.committed} is committed")
        self.applying = index
        self.applying_bytes += size_bytes
        self.applying_paused = self.applying_bytes >= self.max_applying_bytes or index < self._appliable_end(
            allow_unstable=allow_unstable
        )

    def applied_to(self, index: int, size_bytes: int) -> None:
        if not self.applied <= index <= self.committed:
            raise InvariantViolated(f"applied {index} is not within [{self.applied}, {self.committed}]")
        self.applied = index
        self.applying = max(self.applying, index)
        self.applying_bytes = max(self.applying_bytes - size_bytes, 0)
        self.applying_paused = self.applying_bytes >= self.max_applying_bytes
