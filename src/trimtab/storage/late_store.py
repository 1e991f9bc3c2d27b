"""A store that is in memory until something of it has to be in files: only then does it get a directory.

A replica that a tablet moves to takes little before its copy is put in its place, and the log has all of that: its own
directory would be made, synced and thrown away again, which takes longer than to copy a small tablet. So it begins like
this. What a crash leaves of it is nothing (it has no write-ahead log), and whoever made it has to know its `first`
pairs by other means. The first flush, or whatever else needs files, makes it a store like any other: its `first` keys
come last, so that a directory without them is only half made, whatever else is in it.

It may also be given a store that has files (`over`), a copy that came from elsewhere and in which its `first` pairs are
to replace what the files say. Then only these, and what is written since, are in memory until the first flush.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from trimtab.storage.memory_table import MemoryBatch, Operation, Table, add_to
from trimtab.storage.port import Batch, Disk, StorageError, Store, StoreClosed, SyncDone, check_bytes

# A batch is written without a pause, and the loop's thread waits for it.
_SLICE_BYTES = 128 << 10
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
# What others may give back: files that they have open, or the name, which the one before is about to leave.
_MAY_PASS = ("too many open files", "is open already", "is open elsewhere")


class NotMade(StorageError):
    """It has no files and could not get any now. What it holds is in memory as before, and may be flushed later."""


class LateStore:
    """A Store. `on_files` is called, on the loop, when all of `first` is in files, or has been replaced there.

    `is_filed`: whether a store has them in files already, or newer ones. RocksDB flushes by itself at times.
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        first: Mapping[bytes, bytes],
        on_files: Callable[[], None],
        is_filed: Callable[[Store], bool] = lambda _store: False,
    ) -> None:
        self.name = name
        self._disk = disk
        self._first = dict(first)
        self._on_files = on_files
        self._is_filed = is_filed
        self._table = _table_of(self._first)
        self._store: Store | None = None  # in its place, from then on
        self._since: list[Operation] | None = None  # what is written while it is being made
        self._waiting: list[SyncDone] = []
        self._closed = False
        # It is made beside the loop, and must not be left behind by a close.
        self._making = disk.lock()
        self._made: Store | None = None
        self._in_files = False

    @classmethod
    def over(
        cls,
        store: Store,
        disk: Disk,
        name: str,
        first: Mapping[bytes, bytes],
        on_files: Callable[[], None],
        is_filed: Callable[[Store], bool],
    ) -> LateStore:
        """On top of a store that is open. Whoever gives it has put the `first` pairs there, or newer ones."""
        made = cls(disk, name, first, on_files, is_filed)
        made._store = made._made = store
        made._table = Table()
        return made

    @property
    def in_memory(self) -> bool:
        """Whether it has no directory that counts, and none is being made."""
        return self._store is None and self._since is None

    @property
    def resting(self) -> bool:
        return self._store is not None and self._store.resting

    # Reading

    def get(self, key: bytes) -> bytes | None:
        if self._store is not None:
            return self._store.get(key)
        self._check_open()
        return self._table.values.get(check_bytes(key, "a key"))

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if self._store is not None:
            return self._store.scan(low, high, reverse=reverse)
        self._check_open()
        keys, values = self._table.keys, self._table.values
        start = bisect_left(keys, check_bytes(low, "a key"))
        end = len(keys) if high is None else bisect_left(keys, check_bytes(high, "a key"))
        found = [(key, values[key]) for key in keys[start:end]]
        return reversed(found) if reverse else iter(found)

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        if self._store is not None:
            return self._store.read(low, high, limit)
        return list(islice(self.scan(low, high), limit))

    # Writing

    def batch(self) -> Batch:
        return MemoryBatch() if self._store is None else self._store.batch()

    def write(self, batch: Batch) -> None:
        if self._store is not None:
            self._store.write(_translated(batch.take(), self._store) if isinstance(batch, MemoryBatch) else batch)
            return
        self._check_open()
        if not isinstance(batch, MemoryBatch):
            raise TypeError(f"a batch of this store is needed, not {type(batch).__name__}")
        operations = batch.take()
        self._table.apply(operations, batch.bytes)
        if self._since is not None:
            self._since += operations

    def start_sync(self, done: SyncDone) -> None:
        raise StorageError(f"{self.name!r} has no write-ahead log to sync; use start_flush")

    def start_flush(self, done: SyncDone) -> None:
        if self._in_files and self._store is not None:
            self._store.start_flush(done)
            return
        self._check_open()
        self._waiting.append(done)
        if self._store is not None:
            try:
                self._flush_first(self._store)
            except StorageError:
                self._waiting.remove(done)
                raise
        elif self._since is None:
            self._since = []
            pairs = self._table.values.copy()
            self._disk.start(lambda: self._make(pairs), self._came)

    def _make(self, pairs: Mapping[bytes, bytes]) -> Store | None:
        """Beside the loop. None: it was closed."""
        with self._making:
            if self._closed:
                return None
            if self._made is not None:
                # Of an earlier attempt, which could not be filled.
                self._made.close()
                self._made = None
                self._disk.remove(self.name)
            try:
                made = self._made = self._disk.open(self.name, wal=False, small=True)
            except (StorageError, OSError) as error:
                if may_pass(error):
                    raise NotMade(f"{self.name!r} stays in memory: {error}") from error
                raise
            return made if self._filled(made, pairs) else None

    def _filled(self, made: Store, pairs: Mapping[bytes, bytes]) -> bool:
        """Whether it was not closed meanwhile."""
        batch, size = made.batch(), 0
        for key, value in pairs.items():
            if key in self._first:
                continue
            batch.put(key, value)
            size += len(key) + len(value)
            if size >= _SLICE_BYTES:
                if self._closed:
                    return False
                made.write(batch)
                batch, size = made.batch(), 0
        for key in self._first:
            if key in pairs:
                batch.put(key, pairs[key])
        made.write(batch)
        return True

    def _came(self, made: Store | None, error: BaseException | None) -> None:
        if self._closed:
            return
        since, self._since = self._since, None
        try:
            if made is not None and self._store is None:
                if since:
                    made.write(_translated(since, made))
                self._store, self._table = made, Table()
            if self._store is not None:
                self._flush_first(self._store)
                return
        except StorageError as failure:
            error = failure
        # The memory has it all, unless there is a store by now; the next flush tries again.
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)

    def _flush_first(self, store: Store) -> None:
        waiting = self._waiting

        def flushed(error: BaseException | None) -> None:
            if error is None and not self._in_files:
                self._in_files = True
                self._on_files()
            for done in waiting:
                done(error)

        store.start_flush(flushed)
        self._waiting = []

    def _now(self) -> Store:
        """The store itself, made if there is none yet. Blocking; nothing is written meanwhile."""
        if self._store is None:
            made = self._make(self._table.values)
            if made is None:
                raise self._gone()
            self._store, self._table = made, Table()
        return self._store

    def checkpoint(self, name: str, *, synced: bool = True) -> None:
        self._now().checkpoint(name, synced=synced)

    def ingest(self, names: Sequence[str]) -> None:
        self._now().ingest(names)

    def hold_merging(self, coming: int) -> None:
        self._now().hold_merging(coming)

    def merge(self) -> None:
        if self._store is not None:
            self._store.merge()

    def reopen(self) -> None:
        """What it had in memory is lost by it, as of any store without a write-ahead log, but for the `first` pairs."""
        self._check_open()
        if self._store is None:
            self._table = _table_of(self._first)
            return
        self._store.reopen()
        if not self._in_files and not self._is_filed(self._store):
            self._store.write(_translated([*self._first.items()], self._store))

    # What it takes

    def approximate_bytes(self) -> int:
        return self._store.approximate_bytes() if self._store is not None else self._table.bytes

    def memory_bytes(self) -> int:
        return self._store.memory_bytes() if self._store is not None else self._table.bytes

    def close(self) -> None:
        self._closed = True
        with self._making:
            if self._made is not None:
                self._made.close()

    def _check_open(self) -> None:
        if self._closed:
            raise self._gone()

    def _gone(self) -> StoreClosed:
        return StoreClosed(f"{self.name!r} was closed")


def may_pass(error: BaseException) -> bool:
    """Whether a store that could not be opened may be, a little later, without anybody doing anything."""
    if isinstance(error, OSError):
        return error.errno in _TOO_MANY_FILES
    text = str(error).lower()
    return any(each in text for each in _MAY_PASS)


def _table_of(pairs: Mapping[bytes, bytes]) -> Table:
    table = Table()
    for key, value in pairs.items():
        table.put(key, value)
    return table


def _translated(operations: Sequence[Operation], store: Store) -> Batch:
    batch = store.batch()
    add_to(batch, operations)
    return batch
