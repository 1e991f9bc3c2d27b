"""All tablet replicas of this node: opened, created and removed as the tables say, and brought up to date by replay.

    tablets/<table id>/<tablet>.<generation>/     a replica's store
    quarantine/<table id>/<tablet>.<generation>-<incarnation>/     a damaged one, for whoever wants to look at it
    r <table u64> <tablet u32> <generation u32>   in the log's store: this replica has existed here

- What lies on disk is opened first, all of it, then the log is replayed in one pass, and only then is anything served
  (`ready`). An entry reaches a replica only if it is of its incarnation and beyond its own position.
- A replica takes writes only when its own record is in files: else a crash could leave a directory that does not know
  which entries of the log are its own. A directory without a record is half made, and made again.
- A replica that is missing although it has existed here (`r`) lost its rows, whatever the reason: it begins empty and
  REBUILDING. So does one that was damaged, and one whose record names another log.
- The log is not cut while a replica that may need it could not be opened.
- Replicas that are not wanted are removed only when the tables here are known to be those of now (`settled`): at a
  start the metastore may be older than what it had created before.

Stores are opened one at a time and off the loop; each holds the interpreter for about ten milliseconds.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from trimtab.node.replicas.flushing import FlushBounds, Flushing
from trimtab.node.replicas.replaying import replay
from trimtab.node.replicas.replica import (
    FORMAT,
    Replica,
    ReplicaMeta,
    ReplicaState,
    read_meta,
    read_position,
    write_meta,
)
from trimtab.node.replicas.row_cache import CachedRows, RowCache
from trimtab.node.replicas.waiting import flushed, off_loop, outcome, recorded
from trimtab.node.waits import Waits
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.port import Corrupt, Disk, DiskFull, StorageError, Store

TABLETS = "tablets"
QUARANTINE = "quarantine"
TICK_S = 1.0
ROW_CACHE_BYTES = 32 << 20
_AT_ONCE = 8
_RECORD = struct.Struct(">QII")

Place = tuple[int, int]  # table, tablet
Wanted = Callable[[], Mapping[Place, int]]


@dataclass(frozen=True, order=True)
class Name:
    """Of a replica's directory."""

    table: int
    tablet: int
    generation: int

    @property
    def path(self) -> str:
        return f"{TABLETS}/{self.table}/{self.tablet}.{self.generation}"

    @property
    def record(self) -> bytes:
        return _RECORD.pack(self.table, self.tablet, self.generation)

    @classmethod
    def parse(cls, path: str) -> Name | None:
        parts = path.split("/")
        if len(parts) != 3 or parts[0] != TABLETS:
            return None
        tablet, dot, generation = parts[2].partition(".")
        if not (parts[1].isdigit() and tablet.isdigit() and dot and generation.isdigit()):
            return None
        found = cls(int(parts[1]), int(tablet), int(generation))
        return found if found.path == path else None


class Shelf:
    """See the module's text."""

    def __init__(
        self,
        disk: Disk,
        log: MutationLog,
        wanted: Wanted,
        *,
        bounds: FlushBounds | None = None,
        row_cache: RowCache | None = None,
        settled: Callable[[], bool] = lambda: True,
        fatal: Callable[[BaseException], None],
        story: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self.ready = False
        self.replayed = 0
        self.quarantined = 0
        # Told of each replica that has to be filled from others: found so at the start, or just emptied.
        self.on_rebuild: Callable[[Replica], None] = lambda _replica: None
        self.on_open: Callable[[Replica], None] = lambda _replica: None
        self.on_close: Callable[[Replica], None] = lambda _replica: None
        self._disk = disk
        self._log = log
        self.row_cache = row_cache if row_cache is not None else RowCache(ROW_CACHE_BYTES)
        self._ask_wanted = wanted
        self._wants: Mapping[Place, int] | None = None
        self._settled = settled
        self._fatal = fatal
        self._story = story
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._replicas: dict[Place, Replica] = {}
        self._records = log.records(b"r")
        self._recorded: set[Name] = set()
        self._existing: dict[Name, bool] = {}  # directories that are there and not open -> may need the log
        self._damaged: list[tuple[Replica, Corrupt]] = []
        self._full: list[Replica] = []
        self._waits = Waits()
        self._news = asyncio.Event()
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._unsettled = True
        self.flushing = Flushing(
            lambda: self._replicas.values(),
            log,
            bounds or FlushBounds(),
            may_cut=lambda: self.ready and not any(self._existing.values()) and not self._full,
            now=self._loop.time,
            call_soon=self._loop.call_soon,
            fatal=fatal,
        )
        self.refusal = self.flushing.refusal  # every write asks

    # Looking

    def get(self, table: int, tablet: int) -> Replica | None:
        """The replica, if it is open and up to date with the log."""
        return self._replicas.get((table, tablet)) if self.ready else None

    async def opened(self, table: int, tablet: int, deadline: float) -> Replica:
        """The replica as soon as it is open; WaitedTooLong at `deadline` (loop time)."""
        what = f"the replica of tablet {tablet} of table {table} to be open"
        await self._waits.until(lambda: self.get(table, tablet) is not None, deadline, what)
        return self._replicas[(table, tablet)]

    async def all_open(self, deadline: float) -> None:
        """Return when everything that should be here is; WaitedTooLong at `deadline`."""
        await self._waits.until(lambda: self.ready and not self.missing(), deadline, "all replicas to be open")

    async def open_of(self, tables: Collection[int], deadline: float) -> None:
        """Return when everything of these tables that should be here is; WaitedTooLong at `deadline`."""

        def all_there() -> bool:
            return self.ready and not any(table in tables for table, _tablet in self.missing())

        await self._waits.until(all_there, deadline, "the replicas of new tables to be open")

    def held(self) -> list[Replica]:
        return list(self._replicas.values()) if self.ready else []

    def missing(self) -> list[Place]:
        """What should be here and is not open yet."""
        return [
            place
            for place, generation in self._wanted().items()
            if (found := self._replicas.get(place)) is None or found.generation != generation
        ]

    def _wanted(self) -> Mapping[Place, int]:
        if self._wants is None:
            self._wants = self._ask_wanted()
        return self._wants

    # Life

    def start(self) -> None:
        """Open what is here and replay; then go on as the tables change."""
        self._task = self._loop.create_task(self._run())
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def look(self) -> None:
        """The tables may have changed."""
        self._wants = None
        self._news.set()

    def close(self) -> None:
        """Close every replica. What is in memory only is replayed from the log by the next life."""
        if self._closed:
            return
        self._closed = True
        self.flushing.close()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._task is not None:
            self._task.cancel()
        for replica in self._replicas.values():
            replica.close()
            replica.store.close()
        self._replicas.clear()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        try:
            if self.ready:
                self.flushing.tick()
                if self._full or self._existing or self.missing():
                    self._news.set()
        except Exception as error:
            self._fatal(error)

    async def _run(self) -> None:
        try:
            await self._open_existing()
            self.replayed = await replay(self._log, self._replicas.values(), self._loop)
            self.ready = True
            for replica in list(self._replicas.values()):
                self._tell_open(replica)
            self._news.set()
            while True:
                self._waits.look()
                await self._news.wait()
                self._news.clear()
                await self._recover()
                await self._put_in_quarantine()
                await self._open_missing()
                await self._remove_unwanted()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Damage of the log itself, a failing device, a defect of ours.
            self._fatal(error)

    # What replicas tell (Surroundings)

    def wrote(self, replica: Replica, size_bytes: int) -> None:
        self.flushing.wrote(replica, size_bytes)

    def now(self) -> float:
        return self._loop.time()

    def full(self, replica: Replica) -> None:
        if replica not in self._full:
            self._full.append(replica)
            self._complain(f"the replica of {replica.title} takes no writes: {replica.stalled}")

    def damaged(self, replica: Replica, error: Corrupt) -> None:
        if replica.closed or any(each is replica for each, _ in self._damaged):
            return
        self._damaged.append((replica, error))
        # Not within whatever read it, which may hold iterators of it.
        self._replicas.pop((replica.table, replica.tablet), None)
        self._news.set()

    # Opening

    async def _open_existing(self) -> None:
        self._recorded = {Name(*_RECORD.unpack(key)) for key, _ in self._records.scan()}
        found: dict[Place, list[Name]] = {}
        for path in await off_loop(self._disk, lambda: self._disk.names(TABLETS + "/")):
            name = Name.parse(path)
            if name is None:
                self._complain(f"{path} is no replica of a tablet; it is left alone")
                continue
            found.setdefault((name.table, name.tablet), []).append(name)
        wanted = self._wanted()
        for place, names in sorted(found.items()):
            chosen = next((each for each in names if each.generation == wanted.get(place)), max(names))
            for name in names:
                self._existing[name] = name == chosen
            replica = await self._open_or_complain(chosen)
            if replica is not None:
                self._take_up(chosen, replica)

    async def _open_missing(self) -> None:
        """A few at a time: only opening has to be one after the other, the syncs of many can be shared."""
        missing = sorted(self.missing())
        for start in range(0, len(missing), _AT_ONCE):
            await asyncio.gather(*(self._open_one(place) for place in missing[start : start + _AT_ONCE]))

    async def _open_one(self, place: Place) -> None:
        generation, held = self._wanted().get(place), self._replicas.get(place)
        if generation is None or (held is not None and held.generation == generation):
            return  # the tables have changed meanwhile
        if held is not None:
            if not self._settled():
                return  # what is known of the tables may be older than what lies here
            await self._remove(held)
        name = Name(*place, generation)
        replica = await self._open_or_complain(name)
        if replica is not None:
            # It may be of an earlier life and only be opened late; then it has not seen the log yet.
            await replay(self._log, [replica], self._loop)
            self._take_up(name, replica)
            self._tell_open(replica)

    async def _open_or_complain(self, name: Name) -> Replica | None:
        try:
            return await self._open(name)
        except Corrupt as error:
            return await self._replace_damaged(name, error)
        except DiskFull as error:
            self._complain(f"{name.path} could not be opened: {error}")
        except StorageError as error:
            self._complain(f"{name.path} could not be opened: {error}; it is tried again")
        return None

    async def _open(self, name: Name) -> Replica:
        async with self._opening:
            store = await off_loop(self._disk, partial(_open_store, self._disk, name.path), unwanted=_close_store)
        try:
            meta = read_meta(store, name.path)
            if meta is not None and (meta.table, meta.tablet, meta.generation) != _parts(name):
                raise Corrupt(name.path, f"it says that it is tablet {meta.tablet} of table {meta.table}")
            if meta is None:
                if next(iter(store.scan(b"", None)), None) is not None:
                    raise Corrupt(name.path, "there are rows, but no record of whose they are")
                state = ReplicaState.REBUILDING if name in self._recorded else ReplicaState.OPEN
                meta, position = await self._begin(name, store, state)
            elif meta.log_id != self._log.id:
                self._story(f"{name.path} was written with another log; its rows are compared with other replicas'")
                meta, position = await self._begin(name, store, ReplicaState.REBUILDING)
            else:
                position = read_position(store, name.path)
                self._log.note_incarnation(meta.incarnation)
            await self._record(name)
        except BaseException:
            store.close()
            raise
        rows = CachedRows(self.row_cache, name.table)
        return Replica(name.path, store, meta, position, self._log, self, self._loop.call_soon, rows)

    async def _begin(self, name: Name, store: Store, state: ReplicaState) -> tuple[ReplicaMeta, int]:
        """A new incarnation, from here on in the log. In files when it returns, and only then known to others."""
        # Durable first: a number in files that the log has forgotten would be given to another.
        given: list[int] = []
        await outcome(lambda done: given.append(self._log.next_incarnation(done)))
        meta = ReplicaMeta(FORMAT, *_parts(name), given[0], self._log.id, state)
        # What is not synced yet may be lost, and its positions given again, to entries of this one too.
        position = self._log.applied_position
        write_meta(store, meta, position)
        await flushed(store)
        return meta, position

    async def _record(self, name: Name) -> None:
        if name not in self._recorded:
            await recorded(self._records, name.record)
            self._recorded.add(name)

    def _take_up(self, name: Name, replica: Replica) -> None:
        self._existing.pop(name, None)
        self._replicas[(name.table, name.tablet)] = replica

    def _tell_open(self, replica: Replica) -> None:
        if replica.closed or self._closed:
            return
        self.on_open(replica)
        if replica.state is ReplicaState.REBUILDING:
            self.on_rebuild(replica)
        self._waits.look()

    # Trouble

    async def _put_in_quarantine(self) -> None:
        while self._damaged:
            replica, error = self._damaged.pop()
            name = Name(replica.table, replica.tablet, replica.generation)
            self._existing[name] = False
            if self._replicas.get((name.table, name.tablet)) is replica:
                del self._replicas[(name.table, name.tablet)]
            await self._close(replica)
            fresh = await self._replace_damaged(name, error, replica.incarnation)
            if fresh is not None:
                self._take_up(name, fresh)
                self._tell_open(fresh)

    async def _replace_damaged(self, name: Name, error: Corrupt, incarnation: int = 0) -> Replica | None:
        """Put the directory aside and begin an empty one; None: not yet, it is tried again."""
        self.quarantined += 1
        aside = f"{QUARANTINE}/{name.table}/{name.tablet}.{name.generation}-{incarnation}"
        self._story(
            f"the replica of tablet {name.tablet} of table {name.table} is damaged: {error.where}: {error.what}; it is "
            f"put aside as {aside} and rebuilt from the other replicas"
        )
        try:
            # Should this life end before the new one is made, the next one knows that rows are missing.
            await self._record(name)
            await off_loop(self._disk, partial(_put_aside, self._disk, name.path, aside))
            self._existing.pop(name, None)
            return await self._open(name)
        except StorageError as failure:
            self._complain(f"{name.path} could not be replaced: {failure}; it is tried again")
            return None

    async def _recover(self) -> None:
        """Open stores again that ran out of space, and replay what they lost."""
        for replica in list(self._full):
            if replica.closed:
                self._full.remove(replica)
                continue
            if self._disk.free_bytes() <= max(1, self._disk.reserve_bytes):
                return
            try:
                replica.store.reopen()
                replica.recovered(read_position(replica.store, replica.name))
            except DiskFull:
                return
            except Corrupt as error:
                self._full.remove(replica)
                self.damaged(replica, error)
                continue
            replica.stalled = Replaying(f"the replica of {replica.title} is being brought up to date with the log")
            # What was synced while it was stalled lies in the log too; what is synced from now on waits.
            replica.hold()
            await replay(self._log, [replica], self._loop)
            if isinstance(replica.stalled, Replaying):
                self._full.remove(replica)
                replica.stalled = None
                self._story(f"the replica of {replica.title} takes writes again")
            replica.release()

    # Removing

    @property
    def unsettled(self) -> bool:
        """Whether it is still unknown if what lies here unwanted may go."""
        return self._unsettled

    async def _remove_unwanted(self) -> None:
        self._unsettled = not self._settled()
        if self._unsettled:
            return
        wanted = self._wanted()
        for place, replica in sorted(self._replicas.items()):
            if wanted.get(place) is None:
                await self._remove(replica)
        for name in sorted(self._existing):
            if wanted.get((name.table, name.tablet)) != name.generation:
                await self._remove_directory(name)
        for name in sorted(self._recorded):
            if wanted.get((name.table, name.tablet)) != name.generation and name not in self._existing:
                held = self._replicas.get((name.table, name.tablet))
                if held is None or held.generation != name.generation:
                    self._forget(name)

    async def _remove(self, replica: Replica) -> None:
        name = Name(replica.table, replica.tablet, replica.generation)
        self._replicas.pop((replica.table, replica.tablet), None)
        self._existing[name] = False
        await self._close(replica)
        await self._remove_directory(name)

    async def _close(self, replica: Replica) -> None:
        self.on_close(replica)
        replica.close()
        # Off the loop: it waits for a flush that may be under way.
        await off_loop(self._disk, replica.store.close)

    async def _remove_directory(self, name: Name) -> None:
        try:
            await off_loop(self._disk, partial(self._disk.remove, name.path))
        except StorageError as error:
            self._complain(f"{name.path} could not be removed: {error}; it is tried again")
            return
        self._existing.pop(name, None)
        self._forget(name)
        if not any(each.table == name.table for each in (*self._recorded, *self._existing)):
            await off_loop(self._disk, partial(self._disk.remove, f"{TABLETS}/{name.table}"))

    def _forget(self, name: Name) -> None:
        self._recorded.discard(name)
        self._records.delete(name.record)

    # Figures

    def figures(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each table: its id, how many replicas are here, their bytes on disk, and those in memory."""
        tables: dict[int, list[int]] = {}
        for replica in self._replicas.values():
            figures = tables.setdefault(replica.table, [0, 0, 0])
            figures[0] += 1
            memory_bytes = replica.memory_bytes
            figures[1] += replica.held_bytes - memory_bytes
            figures[2] += memory_bytes
        for table, (count, disk_bytes, memory_bytes) in sorted(tables.items()):
            yield table, count, disk_bytes, memory_bytes


class Replaying(StorageError):
    """A replica lost what was in its memory and is replaying the log."""


def _parts(name: Name) -> tuple[int, int, int]:
    return name.table, name.tablet, name.generation


def _open_store(disk: Disk, path: str) -> Store:
    return disk.open(path, wal=False, small=True)


def _close_store(store: Store) -> None:
    store.close()


def _put_aside(disk: Disk, path: str, aside: str) -> None:
    if not disk.exists(path):
        return
    if disk.exists(aside):
        disk.remove(aside)
    disk.rename(path, aside)
