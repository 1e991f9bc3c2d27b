"""The storage port: what the rest of the system may ask of a disk, and what a disk may answer.

Two adapters implement it: `rocks` (RocksDB in a directory) and `model` (memory, deterministic, can crash).
One conformance suite holds for both. What they guarantee:

- `write` is atomic: all of a batch or nothing of it, also after a crash. It is visible to reads at once.
- `write` is *not* durable. With a write-ahead log (`wal=True`) everything written before `start_sync` was called
  is durable when its `done(None)` runs. Without one (`wal=False`) a crash keeps a prefix of the batches, in the
  order in which they were written; what a finished `start_flush` covered is always in that prefix.
- A failed sync is final. What the operating system did with the dirty pages is unknown and asking again proves
  nothing, so the store refuses everything afterwards and the node has to stop.
- Callbacks run on the event loop that asked (or through the model's `call_later`), never inside the call itself.
  After `close()` or a crash they never run.
- Everything that is named here is named with relative, slash-separated names (`log`, `tablets/7/3.1`). A name
  that could leave the disk's directory is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Protocol, TypeVar

T = TypeVar("T")

SyncDone = Callable[[BaseException | None], None]
Report = Callable[[str], None]


class StorageError(Exception):
    """Anything a store or a disk refuses. The text names the thing, what was expected, and what to do."""


class InvalidName(StorageError, ValueError):
    """A store or file name that is empty, absolute, or would leave the disk's directory."""


class DiskFull(StorageError):
    """No space for this write. Nothing of it was kept; it may be tried again, in a new batch, when there is space.

    A store that ran into the end of the disk goes on answering reads and refuses writes and syncs with this error
    until `reopen()`. That is no failed sync: what was written before is still with the operating system.
    """

    def __init__(self, where: str, *, free_bytes: int, reserve_bytes: int, detail: str = "") -> None:
        self.where = where
        self.free_bytes = free_bytes
        self.reserve_bytes = reserve_bytes
        super().__init__(
            f"disk full: {where} has {free_bytes} bytes free, and {reserve_bytes} bytes are kept in reserve"
            f"{': ' + detail if detail else ''}; free some space or enlarge the file system, then try the write again"
        )


class Corrupt(StorageError):
    """Data that was durable is damaged. Never repaired silently: dropping it could undo what was acknowledged."""

    def __init__(self, where: str, what: str, *, offset: int | None = None, what_to_do: str = "") -> None:
        self.where = where
        self.offset = offset
        self.what = what
        self.what_to_do = what_to_do or (
            "do not start this instance on the damaged files; restore the directory from a copy, "
            "or remove the member from the cluster, empty its directory, and start and add it under a new raft id"
        )
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"corrupt: {where}{at}: {what}; {self.what_to_do}")


class SyncFailed(StorageError):
    """A sync failed. It is never retried; the store refuses everything from now on and the node must stop."""


class StoreClosed(StorageError):
    """The store was closed, or the machine it was open on has crashed."""


class ScanLost(StorageError):
    """The store was opened again under a scan, which can't say what else there is: begin it anew."""


class Batch(Protocol):
    """Changes that become visible, and durable, together. Later changes win over earlier ones of the same batch."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Delete every key with low <= key < high; nothing when low >= high."""
        ...

    def __len__(self) -> int:
        """How many operations were added."""
        ...


class Store(Protocol):
    """One ordered key-value store. Reads see every batch written so far."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with low <= key < high (None: to the end), as they were when scan was called, in key order.

        ScanLost when the store was opened again meanwhile: nobody must take that for the end.
        """
        ...

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The first pairs of a scan, at once: cheaper than a scan for a few."""
        ...

    def batch(self) -> Batch: ...

    @property
    def resting(self) -> bool:
        """Whether the next flush takes longer than others, and holds the interpreter (see Disk.open)."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply the batch to memory and, with a write-ahead log, hand it to the operating system. Not durable.

        A batch is used up by a write, whether it succeeds or not. When it fails nothing of it was applied.
        """
        ...

    def start_sync(self, done: SyncDone) -> None:
        """Make everything written so far durable, off the loop; then call done(None), or done(error)."""
        ...

    def start_flush(self, done: SyncDone) -> None:
        """Move everything written so far from memory into files, off the loop; then call done."""
        ...

    def checkpoint(self, name: str, *, synced: bool = True) -> None:
        """Make a new, closed, durable store `name` on the same disk, with the same contents (files are shared).

        Not `synced`: it is of no use once the disk's `boot_id` is another.
        """
        ...

    def ingest(self, names: Sequence[str]) -> None:
        """Take over tables of this disk (see Disk.write_table), all or none. Blocking: not for the loop.

        Their pairs win over those of the same keys. They are visible and durable when it returns, as is everything
        written before; the files are gone from their names. When it fails nothing was taken.
        """
        ...

    def hold_merging(self, coming: int) -> None:
        """Leave the files as they are when so many are ingested next, until `merge` or until it is opened again.

        Nothing changes where they are too few to be merged; and where they are too many it merges them all the same.
        Blocking, for a moment: not for the loop.
        """
        ...

    def merge(self) -> None:
        """Merge files in the background, as a store does from the beginning; and a few that were ingested at once,
        where they are much of a small store. Blocking, for less than a second: not for the loop.
        """
        ...

    def reopen(self) -> None:
        """Open again in place after DiskFull. Raises DiskFull, and changes nothing, while there is too little space.

        Everything written before is there again (with a write-ahead log; without one, a prefix of it), but only
        the next sync makes it durable.
        """
        ...

    def approximate_bytes(self) -> int:
        """What it takes, in files and in memory."""
        ...

    def memory_bytes(self) -> int:
        """What of that is in memory: rows that are in no file yet."""
        ...

    def close(self) -> None:
        """Let go of the files. Idempotent. Says nothing about durability: sync or flush first."""
        ...


class Disk(Protocol):
    """A directory tree on one file system: stores and small files."""

    @property
    def reserve_bytes(self) -> int:
        """Free space below which a careful writer stops adding data, so that votes and clean-up still fit."""
        ...

    def open(
        self,
        name: str,
        *,
        wal: bool,
        report: Report | None = None,
        small: bool = False,
        coming: int = 0,
        resting: bool = False,
    ) -> Store:
        """Open a store, or create it. A dropped torn tail is told to `report`; Corrupt when durable data is damaged.

        `small`: one of hundreds, which share their memory. `coming`: so many tables are about to be taken over; it
        begins as `hold_merging` would leave it. `resting`: a small one that will hardly be written to at first; it
        may keep what is written in memory until a flush, which may take longer then.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether there is a store, a directory of stores, or a file of this name."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Durable when it returns. The store must be closed; `new` must not exist (a file replaces a file)."""
        ...

    @property
    def boot_id(self) -> str:
        """Another one after the machine has lost its power: what was not synced may be gone then, or half there."""
        ...

    def remove(self, name: str, *, synced: bool = True) -> None:
        """Remove a store, a directory of stores, or a file; nothing when there is none.

        Durable when it returns; not `synced`: it may be back when `boot_id` is another. Its space may come back later.
        """
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Sorted names of all stores and files that start with the prefix."""
        ...

    def entries(self, name: str) -> list[str]:
        """Sorted names of what lies directly in a directory, also where that is nothing whole yet; none: no such."""
        ...

    def read_file(self, name: str) -> bytes | None: ...

    def digest(self, name: str) -> tuple[int, int] | None:
        """How many bytes a file has, and their checksum (`file_sums`); None: there is no such file.

        Reads all of it: not for the loop.
        """
        ...

    def write_file(self, name: str, data: bytes, *, synced: bool = True) -> None:
        """Replace a small file atomically. Durable when it returns; not `synced`: as long as `boot_id` is the same."""
        ...

    def write_table(self, name: str, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        """Write sorted pairs to a file that a store can ingest; its bytes. Keys must ascend. Blocking, and durable."""
        ...

    def compose(self, name: str, tables: Sequence[str], pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        """Make a closed store of tables of this disk, which stay where they are, and of sorted pairs.

        As if an empty one had ingested them in this order and the pairs last: all of it or nothing, and durable. Their
        contents are not read. False, and there is nothing: these can only be ingested. Blocking.
        """
        ...

    def free_bytes(self) -> int: ...

    @property
    def directory(self) -> str:
        """Where others on this machine find it; empty: nowhere."""
        ...

    def files(self, name: str) -> list[tuple[str, int]]:
        """Names and bytes of the files in a directory or a closed store, sorted; none: no such."""
        ...

    def assemble(self, name: str, files: Mapping[str, str]) -> None:
        """Make a directory of files that are there: by their names in it, as hard links, so that nothing is copied.

        All of it or nothing, and durable when it returns. Of the files of a closed store it is that store again, and
        changing the one does not change the other.
        """
        ...

    def start(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run blocking work off the loop; then call done(result, None) or done(None, error) on it."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """A new lock, for what such work and the loop must not do at the same time."""
        ...


def check_name(name: str) -> str:
    """The name itself, or InvalidName. Parts that begin with a dot are the disk's own (unfinished files)."""
    if not isinstance(name, str) or not name:
        raise InvalidName(f"a store or file name must be a non-empty string, not {name!r}")
    for part in name.split("/"):
        if not part or part[0] == "." or "\\" in part or "\0" in part:
            raise InvalidName(f"{name!r} is not a name on this disk: use relative names such as 'log' or 'tablets/7'")
    return name


def check_file_name(name: str) -> str:
    """The name itself, if it is one of a file directly in a directory; else InvalidName."""
    if "/" in check_name(name):
        raise InvalidName(f"{name!r} is not the name of a file in a directory")
    return name


def check_bytes(value: object, what: str) -> bytes:
    """The value itself, or TypeError: a store must never guess an encoding."""
    if type(value) is not bytes:
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}")
    return value


def check_ascending(name: str, keys: Sequence[bytes]) -> None:
    """StorageError when the keys of a table are not in order, or one is there twice."""
    for before, after in pairwise(keys):
        if after <= before:
            raise StorageError(f"can't write the table {name!r}: the key {after!r} does not come after {before!r}")
