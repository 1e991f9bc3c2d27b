"""A tablet's store of which the files are only read; what is written is in memory until it has to be in files as well.

RocksDB makes five files and syncs them when it opens a database for writing, and keeps the interpreter all the while.
To open one for reading takes it a fifth of that or less. So stores that come many at once (generations of a table,
copies of tablets) rest: most are hardly written to before the next load or move. The first flush of anything, whatever
is ingested, and merging wake it up, beside the loop, and so does much that is written: from then on it is a store like
any other.

What is written meanwhile is put into the database in the order in which it came, so that what a crash leaves of it is a
prefix, as ever. Readers of a resting store keep its files, whatever becomes of them.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import rocksdict

from trimtab.storage.late_store import NotMade, may_pass
from trimtab.storage.memory_table import KEY_OVERHEAD_BYTES, MemoryBatch, Operation, add_to
from trimtab.storage.port import Batch, StorageError, check_bytes
from trimtab.storage.rocks_options import SMALL_MERGED_FROM
from trimtab.storage.rocks_store import RocksBatch, RocksStore

if TYPE_CHECKING:
    from trimtab.storage.rocks import RocksDisk

# With more than that in memory it is woken up: scans copy what they will come to of it.
WOKEN_BYTES = 512 << 10
# A batch is written without a pause, and the loop's thread waits for it.
_SLICE_OPERATIONS = 500
_FEW_BATCHES = 50
_MAX_PASSES = 8  # over what comes while most of it is put in


class _Written:
    """What was written to a resting store: in the order of its keys, and in that in which it came."""

    __slots__ = ("batches", "bytes", "keys", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}  # None: deleted
        self.keys: list[bytes] = []
        self.batches: list[Sequence[Operation]] = []
        self.bytes = 0

    def add(self, operations: Sequence[Operation], size_bytes: int) -> None:
        keys, values = self.keys, self.values
        for key, value, *_ in operations:
            if key not in values:
                keys.insert(bisect_left(keys, key), key)
            if value is None:
                size_bytes += len(key) + KEY_OVERHEAD_BYTES
            values[key] = value
        self.batches.append(operations)
        self.bytes += size_bytes

    def places(self, low: bytes, high: bytes | None) -> range:
        """Of the keys that lie there."""
        keys = self.keys
        return range(bisect_left(keys, low), len(keys) if high is None else bisect_left(keys, high))

    def at(self, places: Iterable[int]) -> Iterator[tuple[bytes, bytes | None]]:
        keys, values = self.keys, self.values
        return ((keys[place], values[keys[place]]) for place in places)


class RestingStore(RocksStore):
    """See the module's text."""

    def __init__(self, disk: RocksDisk, name: str, *, merging: bool, database: rocksdict.Rdict) -> None:
        super().__init__(disk, name, wal=False, merging=merging, database=database)
        self._written: _Written | None = _Written()  # None: it is awake
        self._woken_at = WOKEN_BYTES
        self._half_put = False  # an earlier attempt to wake it failed when some was in the database already
        # Whoever writes, and whoever wakes it up, at the moment in which it is awake.
        self._turn = threading.Lock()

    @property
    def resting(self) -> bool:
        return self._written is not None

    # Reading. What is in memory is looked at first: woken up meanwhile, the database has it as well.

    def get(self, key: bytes) -> bytes | None:
        written = self._written
        if written is not None and check_bytes(key, "a key") in written.values:
            self.check_open()
            return written.values[key]
        return super().get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        written = self._written
        found = super().scan(low, high, reverse=reverse)
        if written is None or not (places := written.places(low, high)):
            return found
        return self._merged(found, list(written.at(places[::-1] if reverse else places)), reverse)

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        written = self._written
        if written is None or not (places := written.places(low, high)):
            return super().read(low, high, limit)
        # Nothing is written before all of it was read.
        return list(islice(self._merged(super().scan(low, high), written.at(places), False), limit))

    def _merged(
        self, files: Iterator[tuple[bytes, bytes]], over: Iterable[tuple[bytes, bytes | None]], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        pair = next(files, None)
        for key, value in over:
            while pair is not None and (pair[0] > key if reverse else pair[0] < key):
                self.check_open()
                yield pair
                pair = next(files, None)
            if pair is not None and pair[0] == key:
                pair = next(files, None)
            if value is not None:
                self.check_open()
                yield key, value
        while pair is not None:
            self.check_open()
            yield pair
            pair = next(files, None)

    # Writing

    def batch(self) -> Batch:
        return super().batch() if self._written is None else MemoryBatch()

    def write(self, batch: Batch) -> None:
        if not isinstance(batch, MemoryBatch):
            super().write(batch)
            return
        self._check_writable()
        operations = batch.take()
        if not operations:
            return
        if any(len(operation) == 3 for operation in operations):
            # Nobody deletes ranges of a tablet: it is not worth more than that it works.
            with self._flushing:
                self._awaken()
        with self._turn:
            written = self._written
            if written is not None:
                written.add(operations, batch.bytes)
        if written is not None:
            self._wake_in_time(written.bytes)
            return
        # The batch was begun before it woke up.
        other = super().batch()
        add_to(other, operations)
        super().write(other)

    def _wake_in_time(self, size_bytes: int) -> None:
        """Soon, where it has taken much, and not all such at once. Should it fail, the next flush tells."""
        if size_bytes < self._woken_at:
            return
        self._woken_at = 2 * size_bytes
        loop = asyncio.get_running_loop()
        loop.call_at(self._disk.turn_to_wake(loop.time()), self._wake_beside)

    def _wake_beside(self) -> None:
        def wake() -> None:
            with self._flushing:
                if not self._closed:
                    self._awaken()

        if not self._closed:
            with suppress(StorageError):
                self._disk.off_loop.start(wake, lambda _result, _error: None)

    def _flush(self) -> None:
        if self._written is None or self._written.batches:
            self._awaken()
            super()._flush()

    def wake_to_merge(self) -> None:
        """When it is opened: if it has many loose files, and merging is not put off. Should it fail, it rests."""
        with self._flushing, suppress(NotMade):
            self._set_merging(self._merging is not False)

    def _set_merging(self, on: bool) -> None:
        if self._written is not None:
            self._merging = on
            if not on or self._loose_files() < SMALL_MERGED_FROM:
                return
            self._awaken()
        super()._set_merging(on)

    def _awaken(self) -> None:
        written = self._written
        if written is None:
            return
        try:
            database = self._disk.open_database(
                self.name, self._disk.report_to(self.name), merging=self._merging is not False
            )
        except (StorageError, OSError) as error:
            if may_pass(error):
                raise NotMade(f"{self.path} stays in memory: {error}") from error
            raise self._explain(error, "open") from error
        try:
            done = 0
            for _ in range(0 if self._half_put else _MAX_PASSES):
                if (upto := len(written.batches)) - done <= _FEW_BATCHES:
                    break
                self._put(database, written.batches[done:upto])
                done = upto
            with self._turn:
                if self._half_put:
                    self._put_all(database, written)
                else:
                    self._put(database, written.batches[done:])
                self._db, self._written = database, None
        except Exception as error:
            self._half_put = True
            with suppress(Exception):  # closing complains about the same
                database.close()
            raise self._explain(error, "open") from error

    def _put(self, database: rocksdict.Rdict, batches: Sequence[Sequence[Operation]]) -> None:
        """Several at once, each of them whole."""
        batch = RocksBatch()
        for operations in batches:
            add_to(batch, operations)
            if len(batch) >= _SLICE_OPERATIONS:
                database.write(batch.raw, self._write_options)
                batch = RocksBatch()
        if len(batch):
            database.write(batch.raw, self._write_options)

    def _put_all(self, database: rocksdict.Rdict, written: _Written) -> None:
        """What there is in the end, in one step: whatever of it is in the database already, no crash leaves older
        batches in front of newer ones.
        """
        batch = RocksBatch()
        add_to(batch, list(written.values.items()))
        if len(batch):
            database.write(batch.raw, self._write_options)

    def _open_again(self) -> None:
        """For writing: there is room. What is in memory only is lost by it, as by any store: whoever asks for it takes
        what there is then for filed.
        """
        with self._flushing, self._turn:
            if self._written is not None:
                database = self._disk.open_database(self.name, self._disk.report_to(self.name))
                for scan in list(self._scans):
                    scan.take_away()
                self._db.close()
                self._db, self._written, self._merging = database, None, True
                return
        super()._open_again()

    def memory_bytes(self) -> int:
        written = self._written
        if written is None:
            return super().memory_bytes()
        self.check_open()
        return written.bytes
