"""One RocksDB database as a Store.

What RocksDB answers is turned into the port's errors here, and its traps are closed here: an iterator that meets
damage ends as if the data ended (so every finished scan asks why it ended), an iterator left open keeps the whole
database open, a write that failed for lack of space leaves the database refusing everything until it is reopened,
and a failed sync may succeed when asked again although the data is gone (so it is never asked again).
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rocksdict

from trimtab.storage.linking import link_tables
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
from trimtab.storage.rocks_options import (
    MERGED_WHOLE_BYTES,
    MOSTLY_LOOSE,
    NEARLY_ALL,
    SMALL_MERGED_FROM,
    merged_at_once,
)

if TYPE_CHECKING:
    from trimtab.storage.rocks import RocksDisk

_TABLE_FILE = re.compile(r"\S+\.sst")
_NO_SPACE = ("No space left on device", "Disk quota exceeded")
# Said by RocksDB when it declines a sync because an append failed before; no fsync was tried then.
_AFTER_FAILED_APPEND = "Writer has previous error"
_LOOSE_FILES = "rocksdb.num-files-at-level0"
# Some calls of RocksDB keep the interpreter for milliseconds. Who makes several gives the loop so long in between.
_LET_GO_S = 0.002


def let_go() -> None:
    """Whoever has waited for the interpreter has time to answer what came meanwhile. Nothing, on the loop itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(_LET_GO_S)


class RocksBatch:
    """A WriteBatch whose `put` and `delete` are RocksDB's own: the port's calls cost no Python frame."""

    __slots__ = ("delete", "put", "raw")

    def __init__(self) -> None:
        self.raw = rocksdict.WriteBatch(raw_mode=True)
        self.put: Callable[[bytes, bytes], None] = self.raw.put
        self.delete: Callable[[bytes], None] = self.raw.delete

    def delete_range(self, low: bytes, high: bytes) -> None:
        # RocksDB refuses a range that is the wrong way round only when the batch is written, with all the rest of it.
        if check_bytes(low, "a key") < check_bytes(high, "a key"):
            self.raw.delete_range(low, high)

    def __len__(self) -> int:
        return len(self.raw)


class _Scan:
    """An iterator that the store can take away from under its user, so that close() really closes."""

    __slots__ = ("__weakref__", "_items", "_last", "_lost", "_low", "_options", "_reverse", "_store")

    def __init__(
        self,
        store: RocksStore,
        items: Iterator[tuple[bytes, bytes]],
        options: rocksdict.ReadOptions,
        low: bytes,
        reverse: bool,
    ) -> None:
        self._store: RocksStore = store
        # RocksDB points into the bound that these own: freed early, the scan would end wherever that memory says.
        self._options: rocksdict.ReadOptions | None = options
        self._items: Iterator[tuple[bytes, bytes]] | None = items
        self._low = low
        self._reverse = reverse
        self._last: bytes | None = None
        self._lost = False

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._items is None:
            self._store.check_open()
            if self._lost:
                raise ScanLost(f"{self._store.path} was opened again while it was being read; read it once more")
            raise StopIteration
        pair = next(self._items, None)
        if pair is None:
            self.drop()
            self._store.check_scan_end(self._low if self._last is None else self._last, self._reverse)
            raise StopIteration
        key = pair[0]
        # The lower bound in ReadOptions has no effect in this version of rocksdict.
        if self._reverse and key < self._low:
            self.drop()
            raise StopIteration
        self._last = key
        return pair

    def drop(self) -> None:
        self._items = None
        self._options = None

    def take_away(self) -> None:
        self._lost = self._items is not None
        self.drop()


class RocksStore:
    """See the module's text. It is read and written on the loop's thread; what blocks runs elsewhere."""

    def __init__(self, disk: RocksDisk, name: str, *, wal: bool, merging: bool, database: rocksdict.Rdict) -> None:
        self.name = name
        self.wal = wal
        self.path = disk.path_of(name)
        self._disk = disk
        self._db = database
        self._write_options = rocksdict.WriteOptions()
        if not wal:
            # The stub calls it a method; it is a property.
            self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._closed = False
        self._failed: SyncFailed | None = None
        self._full: DiskFull | None = None
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        # close() must not pull the database away under a thread that is inside it.
        self._syncing = threading.Lock()
        self._flushing = threading.Lock()
        self._merging: bool | None = merging
        self.last_sync_seconds = 0.0

    def get(self, key: bytes) -> bytes | None:
        if self._closed or self._failed is not None:
            self.check_open()
        try:
            value: Any = self._db.get(key)
        except Exception as error:
            raise self._explain(error, "get") from error
        return value  # type: ignore[no-any-return]

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self.check_open()
        check_bytes(low, "a key")
        options = rocksdict.ReadOptions()
        if high is not None:
            if check_bytes(high, "a key") <= low:
                return iter(())
            options.set_iterate_upper_bound(high)
        try:
            items: Any = self._db.items(reverse, high if reverse else low, options)
        except Exception as error:
            raise self._explain(error, "scan") from error
        scan = _Scan(self, items, options, low, reverse)
        self._scans.add(scan)
        return scan

    def read(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        if self._closed or self._failed is not None:
            self.check_open()
        if low.__class__ is not bytes or high.__class__ is not bytes:
            check_bytes(low, "a key")
            check_bytes(high, "a key")
        found: list[tuple[bytes, bytes]] = []
        items: Any = None
        try:
            # An iterator of its own, whose status tells at once whether damage ended it.
            items = self._db.iter()
            items.seek(low)
            while len(found) < limit and items.valid():
                key = items.key()
                if key >= high:
                    return found
                found.append((key, items.value()))
                items.next()
            items.status()
        except Exception as error:
            raise self._explain(error, "read") from error
        finally:
            # The traceback of an error keeps this frame, and an iterator in it would keep the database open.
            items = None
        return found

    def batch(self) -> Batch:
        return RocksBatch()

    def write(self, batch: Batch) -> None:
        if self._closed or self._failed is not None or self._full is not None:
            self._check_writable()
        if type(batch) is not RocksBatch:
            raise TypeError(f"a batch of this store is needed, not {type(batch).__name__}")
        try:
            self._db.write(batch.raw, self._write_options)
        except Exception as error:
            raise self._explain(error, "write") from error

    def start_sync(self, done: SyncDone) -> None:
        self.check_open()
        if not self.wal:
            raise StorageError(f"{self.path} has no write-ahead log to sync; use start_flush")
        self._disk.off_loop.sync(self, done)

    def sync_blocking(self) -> None:
        """Runs on the sync thread. RocksDB releases the GIL for the length of the fsync."""
        with self._syncing:
            refusal = self._failed or self._full
            if refusal is not None:
                raise refusal
            if not self._closed:
                self._db.flush_wal(True)

    def sync_finished(self, callbacks: list[SyncDone], seconds: float, error: BaseException | None) -> None:
        """Runs on the loop, so that a write that failed while the sync ran has been noted by now."""
        if self._closed:
            return
        outcome: BaseException | None = None
        if self._failed is not None:
            outcome = self._failed
        elif isinstance(error, DiskFull) or (error and self._full is not None and _AFTER_FAILED_APPEND in str(error)):
            outcome = self._full or error
        elif error is not None:
            self._failed = outcome = SyncFailed(
                f"sync of {self.path} failed: {error}; what was written since the last sync may be lost, "
                "so the node must stop; check the device, then start it again"
            )
        self.last_sync_seconds = seconds
        for done in callbacks:
            done(outcome)

    def start_flush(self, done: SyncDone) -> None:
        self.check_open()

        def flush() -> None:
            with self._flushing:
                if not self._closed:
                    self._flush()

        def finished(_: None, error: BaseException | None) -> None:
            if not self._closed:
                done(None if error is None else self._explain(error, "flush"))

        self._disk.off_loop.start(flush, finished)

    @property
    def resting(self) -> bool:
        return False

    def _flush(self) -> None:
        self._db.flush()

    def _awaken(self) -> None:
        """See `RestingStore`; any other is awake."""

    def checkpoint(self, name: str, *, synced: bool = True) -> None:
        # May run on a thread of its own: the database must not be closed under it.
        with self._flushing:
            self._check_writable()
            self._disk.adopt_checkpoint(name, self._checkpoint_into, synced=synced)

    def _checkpoint_into(self, path: str) -> None:
        if not self.wal:
            self._flush()
            if link_tables(self.path, Path(path), resting=self.resting):
                return
        rocksdict.Checkpoint(self._db).create_checkpoint(path)
        let_go()

    def ingest(self, names: Sequence[str]) -> None:
        paths = [self._disk.path_of(name) for name in names]
        for name, path in zip(names, paths, strict=True):
            if not path.is_file():
                raise StorageError(f"can't ingest {name!r}: there is no such file")
        if not paths:
            return
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        with self._flushing:
            self._check_writable()
            try:
                self._awaken()
                # First, because it releases the GIL; the flush that ingesting would do itself does not.
                self._flush()
                self._db.ingest_external_file([str(path) for path in paths], options)
                let_go()
            except Exception as error:
                raise self._explain(error, "ingest") from error
        for path in paths:
            # RocksDB moves by linking; a crash may leave the old name, which does no harm.
            path.unlink(missing_ok=True)

    def hold_merging(self, coming: int) -> None:
        with self._flushing:
            self._check_writable()
            files = self._loose_files() + coming
            if files >= SMALL_MERGED_FROM:
                self._set_merging(merged_at_once(files))

    def merge(self) -> None:
        with self._flushing:
            self._check_writable()
            self._set_merging(True)
            if self._loose_for_good():
                try:
                    self._awaken()
                    # RocksDB does it in a thread of its own, without the interpreter.
                    self._db.compact_range(None, None)
                    let_go()
                except Exception as error:
                    raise self._explain(error, "merge") from error

    def _loose_for_good(self) -> bool:
        """Whether much of it is in too few loose files for RocksDB to merge them, and it is small enough to do so now.

        Every read would look into each of them, and who copies it would copy as many files. Where one file has nearly
        all of it nothing would be gained.
        """
        if not 0 < self._loose_files() < SMALL_MERGED_FROM:
            return False
        files = self._db.live_files()
        size_bytes = sum(int(file["size"]) for file in files)
        loose_bytes = sum(int(file["size"]) for file in files if file["level"] == 0)
        if NEARLY_ALL * (size_bytes - max(int(file["size"]) for file in files)) < size_bytes:
            return False
        room_bytes = min(MERGED_WHOLE_BYTES, self._disk.free_bytes() - self._disk.reserve_bytes)
        return MOSTLY_LOOSE * loose_bytes >= size_bytes and size_bytes <= room_bytes

    def _loose_files(self) -> int:
        return int(self._db.property_value(_LOOSE_FILES) or 0)

    def _set_merging(self, on: bool) -> None:
        if on == self._merging:
            return
        self._merging = None  # when it fails it may be either
        try:
            self._db.set_options({"disable_auto_compactions": "false" if on else "true"})
            let_go()
        except Exception as error:
            raise self._explain(error, "change the options of") from error
        self._merging = on

    def reopen(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")
        if self._failed is not None:
            raise self._failed
        if self._full is None:
            return
        self._check_room()
        self._open_again()
        self._full = None

    def _check_room(self) -> None:
        """Raises what keeps it from being opened again."""
        if not self.path.exists():
            # An empty one would be made in its place, and nobody would know what was lost.
            raise StorageError(f"{self.path} is gone, with all that was in it; it can't be opened again")
        needed = self._disk.recovery_bytes(self.name)
        free = self._disk.free_bytes()
        if free < needed:
            raise DiskFull(
                str(self.path),
                free_bytes=free,
                reserve_bytes=self._disk.reserve_bytes,
                detail=f"opening it again needs {needed} bytes",
            )

    def _open_again(self) -> None:
        self._let_go()
        self._db = self._disk.open_database(self.name, self._disk.report_to(self.name))
        self._merging = True

    def approximate_bytes(self) -> int:
        self.check_open()
        tables = self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        return tables + self.memory_bytes()

    def memory_bytes(self) -> int:
        self.check_open()
        return self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    def close(self) -> None:
        if self._closed:
            return
        self._let_go(for_good=True)
        self._disk.forget(self.name)

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")
        if self._failed is not None:
            raise self._failed

    def check_scan_end(self, last: bytes, reverse: bool) -> None:
        """Raise Corrupt when the step after `last` can't be read: that, and not the end of the data, ended the scan."""
        self.check_open()
        probe: Any = None
        try:
            probe = self._db.iter()
            if reverse:
                probe.seek_for_prev(last)
            else:
                probe.seek(last)
            if probe.valid():
                if reverse:
                    probe.prev()
                else:
                    probe.next()
            probe.status()
        except Exception as error:
            raise self._explain(error, "scan") from error
        finally:
            probe = None  # see `read`

    def _check_writable(self) -> None:
        self.check_open()
        if self._full is not None:
            raise self._full

    def _let_go(self, *, for_good: bool = False) -> None:
        for scan in list(self._scans):
            scan.take_away()
        with self._syncing, self._flushing:
            try:
                self._db.close()
            except Exception as error:
                # After a failed write or sync closing complains about that same failure, and closes all the same.
                if self._full is None and self._failed is None:
                    raise self._explain(error, "close") from error
            # Whoever gets the lock next finds it closed.
            if for_good:
                self._closed = True

    def _explain(self, error: BaseException, doing: str) -> BaseException:
        if isinstance(error, (KeyError, ValueError)) and "only support bytes" in str(error):
            return TypeError(f"keys and values must be bytes: {error}")
        explained = explain(error, str(self.path), self._disk, doing)
        if isinstance(explained, DiskFull) and doing in ("write", "flush", "ingest"):
            self._full = explained
        return explained


def explain(error: BaseException, where: str, disk: RocksDisk, doing: str) -> BaseException:
    """RocksDB's text as one of the port's errors."""
    text = str(error)
    if isinstance(error, (StorageError, TypeError)):
        return error
    if any(phrase in text for phrase in _NO_SPACE):
        return DiskFull(where, free_bytes=disk.free_bytes(), reserve_bytes=disk.reserve_bytes, detail=text)
    if isinstance(error, FileNotFoundError):
        # Not RocksDB's words: somebody removed a directory that something was about to be put in.
        return StorageError(f"{doing} {where}: {text}")
    if "Corruption" in text or "checksum mismatch" in text or "No such file" in text:
        named = _TABLE_FILE.search(text)
        return Corrupt(named[0] if named is not None else where, f"{doing}: {text}")
    if "lock file" in text or "lock hold" in text:
        return StorageError(f"{where} is open elsewhere ({text}); only one process at a time may open it")
    return StorageError(f"{doing} {where}: {text}")
