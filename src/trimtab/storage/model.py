"""A disk in memory that behaves like the real one where it hurts: for simulation, and as the other half of the
conformance suite.

Deterministic: no clock, no threads, no randomness but what is passed in. Completions run through `call_later`, so a
simulated loop decides when. One ModelDisk is the disk of one machine, and outlives the processes that use it:

- `crash(rng)`: the power fails. Of each store every synced (or flushed) batch survives, and of the later ones a
  prefix that ends where the rng says. The batch after the end may be left torn in the log; it is then found,
  dropped and reported when the store is opened again.
- `abandon()`: only the process died. With a write-ahead log everything written survives, without one what was
  flushed.
- After either, the stores that were open are dead (StoreClosed) and their callbacks never run.
- Space: `capacity_bytes`, or `full = True`. A store that ran into the end refuses writes until reopened, as RocksDB.
- `fail_next_sync()`: the next sync to finish fails, for good.
- `damage(name, key)`: from now on reading that key of that store is Corrupt, as if its block were damaged.

Crashes are undone, not replayed: every batch not yet durable remembers what it overwrote. Copies (checkpoints,
scans) share the table until one side changes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from trimtab.storage.file_sums import sum_of
from trimtab.storage.memory_table import Table
from trimtab.storage.model_store import Contents, ModelStore
from trimtab.storage.port import (
    Corrupt,
    DiskFull,
    Report,
    StorageError,
    check_ascending,
    check_bytes,
    check_file_name,
    check_name,
)

T = TypeVar("T")

CallLater = Callable[[float, Callable[[], None]], object]
UNLIMITED_BYTES = 1 << 50
_TABLE_MARK = b"model table 1\n"
# All that there is of a store is one file.
_STORE_FILE = "CURRENT"
_encode_table = msgspec.msgpack.Encoder().encode
_decode_table = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


@dataclass(slots=True)
class CrashReport:
    """What a power failure cost: batches that were written but not durable, and how many of them left a torn tail."""

    lost_batches: int = 0
    torn: int = 0

    def __str__(self) -> str:
        return f"{self.lost_batches} ({self.torn} torn)" if self.torn else str(self.lost_batches)


class ModelDisk:
    """See the module's text. Latencies are callables that return seconds; by default everything takes none."""

    def __init__(
        self,
        call_later: CallLater,
        *,
        sync_latency: Callable[[], float] = lambda: 0.0,
        flush_latency: Callable[[], float] | None = None,
        work_latency: Callable[[], float] = lambda: 0.0,
        capacity_bytes: int = UNLIMITED_BYTES,
        reserve_bytes: int = 0,
        report: Report | None = None,
    ) -> None:
        self.call_later = call_later
        self.sync_latency = sync_latency
        self.flush_latency = flush_latency or sync_latency
        self.work_latency = work_latency
        self.capacity_bytes = capacity_bytes
        self.full = False
        self._reserve_bytes = reserve_bytes
        self._report = report
        self._stores: dict[str, Contents] = {}
        self._files: dict[str, bytes] = {}
        self._open: dict[str, ModelStore] = {}
        self._life = 0  # counts crashes; what was started in an earlier life never finishes
        self._boots = 0
        self._unsynced: set[str] = set()  # files and stores that do not outlive this boot
        self._failing_syncs = 0

    @property
    def reserve_bytes(self) -> int:
        return self._reserve_bytes

    @property
    def boot_id(self) -> str:
        return str(self._boots)

    # Disk

    def open(
        self,
        name: str,
        *,
        wal: bool,
        report: Report | None = None,
        small: bool = False,
        coming: int = 0,
        resting: bool = False,
    ) -> ModelStore:
        check_name(name)
        if name in self._open:
            raise StorageError(f"{name!r} is open already; close it first")
        if name in self._files:
            raise StorageError(f"can't open the store {name!r}: there is a file of this name")
        self._refuse_inside_store(name)
        if f"{name}/{_STORE_FILE}" in self._files:
            raise Corrupt(name, "its files are not those of a store")
        contents = self._stores.get(name)
        if contents is None:
            contents = self._stores[name] = Contents(Table())
        if contents.torn_bytes:
            tell = report or self._report
            if tell is not None:
                tell(
                    f"torn tail: dropped the last {contents.torn_bytes} bytes of {name}: the last record is "
                    "incomplete; nothing follows, so nothing that was synced is lost"
                )
            contents.torn_bytes = 0
        contents.wal = wal
        store = self._open[name] = ModelStore(self, name, contents, wal=wal)
        return store

    def exists(self, name: str) -> bool:
        check_name(name)
        return any(other == name or other.startswith(name + "/") for other in (*self._stores, *self._files))

    def rename(self, old: str, new: str) -> None:
        check_name(old)
        check_name(new)
        self._refuse_open(old)
        self._refuse_open(new)
        if not self.exists(old):
            raise StorageError(f"can't rename {old!r}: there is nothing of this name")
        if self.exists(new) and not (old in self._files and new in self._files):
            raise StorageError(f"can't rename {old!r} to {new!r}: the new name is taken; remove it first")
        self._refuse_inside_store(new)
        for names in (self._stores, self._files):
            self._move(names, old, new)

    @staticmethod
    def _move(names: dict[str, Any], old: str, new: str) -> None:
        for name in [name for name in names if name == old or name.startswith(old + "/")]:
            names[new + name[len(old) :]] = names.pop(name)

    def remove(self, name: str, *, synced: bool = True) -> None:
        check_name(name)
        self._refuse_open(name)
        for other in [other for other in self._stores if other == name or other.startswith(name + "/")]:
            self._stores.pop(other).table.release()
        for other in [other for other in self._files if other == name or other.startswith(name + "/")]:
            del self._files[other]

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in (*self._stores, *self._files) if name.startswith(prefix))

    def entries(self, name: str) -> list[str]:
        inside = check_name(name) + "/"
        found = {each[len(inside) :].split("/")[0] for each in (*self._stores, *self._files) if each.startswith(inside)}
        return sorted(found)

    def read_file(self, name: str) -> bytes | None:
        data = self._files.get(check_name(name))
        if data is None and name.endswith(f"/{_STORE_FILE}"):
            contents = self._stores.get(name.removesuffix(f"/{_STORE_FILE}"))
            return None if contents is None else contents.encoded()
        return data

    def digest(self, name: str) -> tuple[int, int] | None:
        data = self.read_file(name)
        return None if data is None else (len(data), sum_of(data))

    def write_file(self, name: str, data: bytes, *, synced: bool = True) -> None:
        check_name(name)
        check_bytes(data, "a file's contents")
        if name not in self._files and self.exists(name):
            raise StorageError(f"can't write the file {name!r}: there is a store or directory of this name")
        self._refuse_inside_store(name)
        if len(data) > self.free_bytes():
            raise self.full_error(name)
        self._files[name] = data
        self._note_unsynced(name, synced)

    def write_table(self, name: str, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        written = list(pairs)
        check_ascending(name, [key for key, _ in written])
        data = _TABLE_MARK + _encode_table(written)
        self.write_file(name, data)
        return len(data)

    @property
    def directory(self) -> str:
        return ""

    def files(self, name: str) -> list[tuple[str, int]]:
        inside = check_name(name) + "/"
        stores = [(_STORE_FILE, len(self._stores[name].encoded()))] if name in self._stores else []
        found = (
            (each.removeprefix(inside), len(data)) for each, data in self._files.items() if each.startswith(inside)
        )
        return sorted([*stores, *(each for each in found if "/" not in each[0])])

    def assemble(self, name: str, files: Mapping[str, str]) -> None:
        check_name(name)
        found = {check_file_name(inside): self.read_file(source) for inside, source in files.items()}
        if self.exists(name):
            raise StorageError(f"can't assemble {name!r}: the name is taken")
        self._refuse_inside_store(name)
        if missing := [files[inside] for inside, data in found.items() if data is None]:
            raise StorageError(f"can't assemble {name!r}: there is no file {missing[0]}")
        store = Contents.decoded(found.get(_STORE_FILE) or b"")
        if store is not None:
            self._stores[name] = store
            return
        self._files.update((f"{name}/{inside}", data) for inside, data in found.items() if data is not None)

    def compose(self, name: str, tables: Sequence[str], pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        check_name(name)
        if self.exists(name):
            raise StorageError(f"can't compose {name!r}: the name is taken")
        self._refuse_inside_store(name)
        check_ascending(name, [key for key, _ in pairs])
        try:
            found = [self.read_table(table) for table in tables]
        except StorageError:
            return False
        table = Table()
        for each in (*found, pairs):
            for key, value in each:
                table.put(key, value)
        if table.bytes > self.free_bytes():
            raise self.full_error(name)
        self._stores[name] = Contents(table)
        return True

    def free_bytes(self) -> int:
        if self.full:
            return 0
        if self.capacity_bytes >= UNLIMITED_BYTES:
            return UNLIMITED_BYTES
        tables = {id(contents.table): contents.table.bytes for contents in self._stores.values()}
        used = sum(tables.values()) + sum(map(len, self._files.values()))
        return max(0, self.capacity_bytes - used)

    def start(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        life = self._life

        def run() -> None:
            if life != self._life:
                return
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.call_later(self.work_latency(), run)

    def lock(self) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        for store in list(self._open.values()):
            store.close()

    # Trouble

    def crash(self, rng: random.Random) -> CrashReport:
        """The power fails. What was not durable is cut at a point of the rng's choice, store by store."""
        report = CrashReport()
        for name in sorted(self._stores):
            contents = self._stores[name]
            pending = len(contents.undo)
            if not pending:
                continue
            keep = rng.randint(0, pending)
            lost_bytes = contents.roll_back(keep)
            report.lost_batches += pending - keep
            if keep < pending and contents.wal and rng.random() < 0.5:
                contents.torn_bytes = rng.randint(1, max(1, lost_bytes))
                report.torn += 1
        for name in sorted(self._unsynced):
            self._stores.pop(name, None)
            self._files.pop(name, None)
        self._unsynced.clear()
        self._boots += 1
        self._end_of_process("was open when the machine crashed")
        return report

    def abandon(self) -> None:
        """The process was killed; the machine, and with it the page cache, goes on."""
        for contents in self._stores.values():
            if not contents.wal and contents.undo:
                contents.roll_back(0)
        self._end_of_process("was open when its process was killed")

    def fail_next_sync(self) -> None:
        self._failing_syncs += 1

    def damage(self, name: str, key: bytes) -> None:
        self._stores[name].damaged.add(key)

    def _end_of_process(self, why: str) -> None:
        for store in self._open.values():
            store.kill(why)
        self._open.clear()
        self._life += 1

    # What stores ask of their disk.

    def sync_fails(self) -> bool:
        if not self._failing_syncs:
            return False
        self._failing_syncs -= 1
        return True

    def full_error(self, where: str) -> DiskFull:
        return DiskFull(where, free_bytes=self.free_bytes(), reserve_bytes=self._reserve_bytes)

    def forget(self, name: str) -> None:
        self._open.pop(name, None)

    def read_table(self, name: str) -> list[tuple[bytes, bytes]]:
        data = self.read_file(name)
        if data is None:
            raise StorageError(f"can't ingest {name!r}: there is no such file")
        try:
            if not data.startswith(_TABLE_MARK):
                raise ValueError("it is no table")
            return _decode_table(data[len(_TABLE_MARK) :])
        except (ValueError, msgspec.DecodeError) as error:
            raise Corrupt(name, f"ingest: {error}") from error

    def add_checkpoint(self, name: str, table: Table, *, synced: bool) -> None:
        check_name(name)
        if self.exists(name):
            raise StorageError(f"can't make the checkpoint {name!r}: the name is taken")
        self._refuse_inside_store(name)
        self._stores[name] = Contents(table.share())
        self._note_unsynced(name, synced)

    def _note_unsynced(self, name: str, synced: bool) -> None:
        if synced:
            self._unsynced.discard(name)
        else:
            self._unsynced.add(name)

    def _refuse_open(self, name: str) -> None:
        for other in self._open:
            if other == name or other.startswith(name + "/"):
                raise StorageError(f"{other!r} is open; close it first")

    def _refuse_inside_store(self, name: str) -> None:
        parts = name.split("/")
        for count in range(1, len(parts)):
            above = "/".join(parts[:count])
            if above in self._stores or above in self._files:
                raise StorageError(f"{name!r} would lie inside {above!r}")
