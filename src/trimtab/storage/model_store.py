"""A store of the simulated disk (`model`): batches that undo themselves until they are durable."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from trimtab.storage.memory_table import MemoryBatch, Table, Undo
from trimtab.storage.port import (
    Batch,
    Corrupt,
    DiskFull,
    ScanLost,
    StorageError,
    StoreClosed,
    SyncDone,
    SyncFailed,
    check_bytes,
)

if TYPE_CHECKING:
    from trimtab.storage.model import ModelDisk

_MARK = b"model store 1\n"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class Contents:
    """What is on the disk under one store name. `undo` holds a step back for every batch that is not durable."""

    __slots__ = ("damaged", "table", "torn_bytes", "undo", "wal", "written")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.undo: list[Undo] = []
        self.written = 0  # batches ever written; never falls, so that a late completion can't cover newer ones
        self.torn_bytes = 0
        self.wal = True
        self.damaged: set[bytes] = set()

    def make_durable(self, upto: int) -> None:
        count = upto - (self.written - len(self.undo))
        if count > 0:
            del self.undo[:count]

    def own(self) -> Table:
        """The table, made one's own before it is changed."""
        if self.table.shared:
            self.table = self.table.copy()
        return self.table

    def encoded(self) -> bytes:
        """The file that it is."""
        return _MARK + _encode([(key, self.table.values[key]) for key in self.table.keys])

    @classmethod
    def decoded(cls, data: bytes) -> Contents | None:
        """The store of a file; None: it is none."""
        if not data.startswith(_MARK):
            return None
        try:
            pairs = _decode(data[len(_MARK) :])
        except msgspec.DecodeError:
            return None
        table = Table()
        for key, value in pairs:
            table.put(key, value)
        return cls(table)

    def roll_back(self, keep: int) -> int:
        """Take back all but the first `keep` batches that are not durable. How many bytes the first of them had."""
        first_bytes = 0
        table = self.own()
        while len(self.undo) > keep:
            first_bytes = self.undo.pop().apply(table)
        self.undo.clear()
        return first_bytes


class ModelStore:
    """A Store on a ModelDisk."""

    def __init__(self, disk: ModelDisk, name: str, contents: Contents, *, wal: bool) -> None:
        self.name = name
        self.wal = wal
        self._disk = disk
        self._contents = contents
        self._refusal: StorageError | None = None
        self._full: DiskFull | None = None
        self._reopened = 0

    def get(self, key: bytes) -> bytes | None:
        if self._refusal is not None:
            raise self._refusal
        if type(key) is not bytes:
            check_bytes(key, "a key")
        if key in self._contents.damaged:
            raise self._corrupt(key)
        return self._contents.table.values.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if self._refusal is not None:
            raise self._refusal
        check_bytes(low, "a key")
        table = self._contents.table
        keys = table.keys
        start = bisect_left(keys, low)
        end = len(keys) if high is None else bisect_left(keys, check_bytes(high, "a key"))
        if start >= end:
            return iter(())
        return self._walk(table.share(), range(start, end) if not reverse else range(end - 1, start - 1, -1))

    def _walk(self, table: Table, positions: range) -> Iterator[tuple[bytes, bytes]]:
        try:
            keys, values = table.keys, table.values
            damaged, reopened = self._contents.damaged, self._reopened
            for position in positions:
                if self._refusal is not None:
                    raise self._refusal
                if self._reopened != reopened:
                    raise ScanLost(f"{self.name!r} was opened again while it was being read; read it once more")
                key = keys[position]
                if damaged and key in damaged:
                    raise self._corrupt(key)
                yield key, values[key]
        finally:
            table.release()

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return list(islice(self.scan(low, high), limit))

    def batch(self) -> Batch:
        return MemoryBatch()

    @property
    def resting(self) -> bool:
        return False

    def write(self, batch: Batch) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._full is not None:
            raise self._full
        if type(batch) is not MemoryBatch:
            raise TypeError(f"a batch of this store is needed, not {type(batch).__name__}")
        operations = batch.take()
        if batch.bytes > self._disk.free_bytes():
            self._full = self._disk.full_error(self.name)
            raise self._full
        contents = self._contents
        contents.undo.append(contents.own().apply(operations, batch.bytes))
        contents.written += 1

    def start_sync(self, done: SyncDone) -> None:
        if self._refusal is not None:
            raise self._refusal
        if not self.wal:
            raise StorageError(f"{self.name!r} has no write-ahead log to sync; use start_flush")
        self._start(done, self._disk.sync_latency(), syncing=True)

    def start_flush(self, done: SyncDone) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._start(done, self._disk.flush_latency(), syncing=False)

    def _start(self, done: SyncDone, seconds: float, *, syncing: bool) -> None:
        upto = self._contents.written
        full = self._full

        def finish() -> None:
            if type(self._refusal) is StoreClosed:
                return
            error: StorageError | None = self._refusal
            if error is None and full is not None:
                error = full
            if error is None and syncing and self._disk.sync_fails():
                error = self._refusal = SyncFailed(
                    f"sync of {self.name!r} failed: injected; what was written since the last sync may be lost, "
                    "so the node must stop"
                )
            if error is None:
                self._contents.make_durable(upto)
            done(error)

        self._disk.call_later(seconds, finish)

    def checkpoint(self, name: str, *, synced: bool = True) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._full is not None:
            raise self._full
        self._disk.add_checkpoint(name, self._contents.table, synced=synced)
        # The real one flushes first, so making a checkpoint makes the store itself durable too.
        self._contents.make_durable(self._contents.written)

    def ingest(self, names: Sequence[str]) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._full is not None:
            raise self._full
        tables = [self._disk.read_table(name) for name in names]
        batch = MemoryBatch()
        for pairs in tables:
            for key, value in pairs:
                batch.put(key, value)
        contents = self._contents
        contents.own().apply(batch.take(), batch.bytes)
        # The real one flushes first and syncs what it takes over.
        contents.make_durable(contents.written)
        for name in names:
            self._disk.remove(name)

    def hold_merging(self, coming: int) -> None:
        self.merge()

    def merge(self) -> None:
        """It has no files that could be merged."""
        if self._refusal is not None:
            raise self._refusal

    def reopen(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._full is None:
            return
        if self._disk.free_bytes() <= 0:
            raise self._disk.full_error(self.name)
        if not self.wal:
            self._contents.roll_back(0)
        self._full = None
        self._reopened += 1

    def approximate_bytes(self) -> int:
        if self._refusal is not None:
            raise self._refusal
        return self._contents.table.bytes

    def memory_bytes(self) -> int:
        """None: the model tells what is durable by batches, not by files."""
        if self._refusal is not None:
            raise self._refusal
        return 0

    def close(self) -> None:
        if type(self._refusal) is StoreClosed:
            return
        self.kill("was closed")
        self._disk.forget(self.name)

    def _corrupt(self, key: bytes) -> Corrupt:
        return Corrupt(f"{self.name}/000007.sst", f"injected damage at key {key.hex()}")

    def kill(self, why: str) -> None:
        self._refusal = StoreClosed(f"{self.name!r} {why}")
