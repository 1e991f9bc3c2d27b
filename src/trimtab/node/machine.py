"""What a Raft group asks of the state machine it drives.

A machine owns its data and its applied index, and keeps both in one atomic write: after a crash it knows exactly which
entries it has seen, and the log gives it the rest again. Its writes need no sync of their own; the log may only be cut
below what `start_flush` has reported as durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from trimtab.raft.messages import ConfState, Entry, SnapshotMetadata

FlushDone = Callable[[int, BaseException | None], None]


class Export(Protocol):
    """A frozen copy of a machine's data, read in chunks by members that need all of it."""

    @property
    def metadata(self) -> SnapshotMetadata: ...

    def chunk(self, sequence: int) -> bytes | None:
        """Chunk number `sequence`, from 0; None past the last."""
        ...

    def release(self) -> None:
        """Give the frozen copy's space back."""
        ...


class Import(Protocol):
    """Another member's data, collected beside the machine's own until it is complete and checked."""

    def add(self, sequence: int, chunk: bytes) -> None: ...

    def finish(self, done: Callable[[BaseException | None], None]) -> None:
        """Check the whole and make it durable; nothing is installed yet."""
        ...

    def abort(self) -> None: ...


class StateMachine(Protocol):
    """Deterministic data behind one Raft group."""

    @property
    def applied_index(self) -> int: ...

    @property
    def applied_term(self) -> int: ...

    @property
    def conf_state(self) -> ConfState | None:
        """The configuration as of the applied index; None before any was applied."""
        ...

    def apply(self, entries: Sequence[Entry]) -> Sequence[object]:
        """Apply normal entries in order, in one atomic write; a result for each."""
        ...

    def apply_conf_state(self, index: int, term: int, conf_state: ConfState) -> None: ...

    def start_flush(self, done: FlushDone) -> None:
        """Make what is applied now durable, off the loop; then tell its index."""
        ...

    def start_export(self, done: Callable[[Export | None, BaseException | None], None]) -> None: ...

    def begin_import(self, metadata: SnapshotMetadata) -> Import: ...

    def install(self, metadata: SnapshotMetadata) -> None:
        """Replace the machine's data by the finished import of that index; durable when it returns."""
        ...

    def close(self) -> None: ...


class NullMachine:
    """A machine without data, for groups that only need agreement on their own log (benchmarks, tests)."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.applied_term = 0
        self.conf_state: ConfState | None = None

    def apply(self, entries: Sequence[Entry]) -> Sequence[object]:
        self.applied_index, self.applied_term = entries[-1].index, entries[-1].term
        return [None] * len(entries)

    def apply_conf_state(self, index: int, term: int, conf_state: ConfState) -> None:
        self.applied_index, self.applied_term, self.conf_state = index, term, conf_state

    def start_flush(self, done: FlushDone) -> None:
        done(self.applied_index, None)

    def start_export(self, done: Callable[[Export | None, BaseException | None], None]) -> None:
        done(None, RuntimeError("a machine without data has nothing to export"))

    def begin_import(self, metadata: SnapshotMetadata) -> Import:
        raise RuntimeError("a machine without data has nothing to import")

    def install(self, metadata: SnapshotMetadata) -> None:
        self.applied_index, self.applied_term = metadata.index, metadata.term
        self.conf_state = metadata.conf_state

    def close(self) -> None: ...
