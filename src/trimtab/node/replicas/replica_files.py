"""The directories of replicas, and the record of which have been here.

    tablets/<table id>/<tablet>.<generation>/     a replica's store
    quarantine/<table id>/<tablet>.<generation>-<incarnation>/     a damaged one, for whoever wants to look at it
    r <table u64> <tablet u32> <generation u32>   in the log's store: this replica has existed here; for which session,
                                                  and what it says of itself where its files don't: of one that arrives
                                                  in memory (\\0 …), of one whose files are a copy (\\1 …)

- One that arrives has no directory (`LateStore`) until it has taken much, or its copy is put in its place: the log has
  all its rows, and `r` its own record.
- In a copy that was put in its place, the files say of their source what they should say of this replica. `r` has its
  own record, and the log the rows that it has taken, until both come into files: with whatever else is flushed.
- Any other takes writes only when its own record is in files: else a crash could leave a directory that does not know
  which entries of the log are its own. A directory without a record is half made, and made again.
- A replica that is missing although it has existed here (`r`) lost its rows, whatever the reason: it begins empty and
  REBUILDING. So does one that was damaged, and one whose record names another log.
- One that arrives begins ARRIVING all the same, and takes writes. But what it had acknowledged may have come after the
  snapshots that its copy is made of, whether anything of them lies here yet or not. So no copy of that session is taken
  (`ReplicaMeta.lost`), and the move begins anew.
- One that a load brings is made of the load's files, its own record and its marker, all at once (`Filling`), where that
  can be done.

Stores are opened one at a time and off the loop; each holds the interpreter for some milliseconds, but for those that
rest at first (`Disk.open`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trimtab.node import failpoints
from trimtab.node.replicas.replica import Replica, Surroundings
from trimtab.node.replicas.replica_meta import (
    FORMAT,
    ReplicaMeta,
    ReplicaState,
    adopted_pair,
    meta_pairs,
    read_meta,
    read_position,
    write_meta,
)
from trimtab.node.replicas.row_cache import CachedRows, RowCache
from trimtab.node.replicas.unfiled import Unfiled, parse_record
from trimtab.node.replicas.waiting import flushed, off_loop, outcome, recorded
from trimtab.storage.late_store import LateStore
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.port import Corrupt, Disk, Store

TABLETS = "tablets"
QUARANTINE = "quarantine"
_RECORD = struct.Struct(">QII")

Place = tuple[int, int]  # table, tablet


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
    def place(self) -> Place:
        return self.table, self.tablet

    @property
    def record(self) -> bytes:
        return _RECORD.pack(self.table, self.tablet, self.generation)

    @classmethod
    def unpack(cls, record: bytes) -> Name:
        return cls(*_RECORD.unpack(record))

    @classmethod
    def of(cls, replica: Replica) -> Name:
        return cls(replica.table, replica.tablet, replica.generation)

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


@dataclass(frozen=True)
class Beginning:
    """What a replica is where none was before. `session` and `floor`: see ReplicaMeta."""

    state: ReplicaState = ReplicaState.OPEN
    session: str = ""
    floor: int = 0


@dataclass
class Filling:
    """Files that lie here, of which a replica is to be made: with the loads up to an epoch it has just these rows.

    `allowed` raises Refused if they must not be taken any more; it is asked at the last moment, not on the loop.
    `done`: the replica was made, and made of them.
    """

    names: Sequence[str]
    epoch: int
    allowed: Callable[[], object]
    done: bool = False

    @property
    def coming(self) -> int:
        """How many tables it will have: with the files comes a marker."""
        return len(self.names) + 1 if self.names else 0


class ReplicaFiles:
    """Of one node. `recorded`: what has existed here, and for which session."""

    def __init__(
        self,
        disk: Disk,
        log: MutationLog,
        around: Surroundings,
        row_cache: RowCache,
        *,
        instance: str,
        story: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self.recorded: dict[Name, str] = {}
        self._unfiled: dict[Name, Unfiled] = {}
        self._disk = disk
        self._log = log
        self._around = around
        self._row_cache = row_cache
        self._instance = instance
        self._story = story
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._records = log.records(b"r")
        self._opening = asyncio.Lock()

    async def found(self) -> list[Name]:
        """What there is: it lies on the disk, or was in memory. And the records are read."""
        for key, value in self._records.scan():
            name = Name.unpack(key)
            self.recorded[name], unfiled = parse_record(value)
            if unfiled is not None:
                self._unfiled[name] = unfiled
        # One whose files are a copy has a directory; without that it was removed, and this is left of it.
        names = {name for name, unfiled in self._unfiled.items() if not unfiled.copied}
        for path in await off_loop(self._disk, lambda: self._disk.names(TABLETS + "/")):
            found = Name.parse(path)
            if found is None:
                self._complain(f"{path} is no replica of a tablet; it is left alone")
            else:
                names.add(found)
        return sorted(names)

    async def open(self, name: Name, beginning: Beginning, filling: Filling | None = None) -> Replica:
        """Open it, or make it; StorageError. It has not seen the log since it was open last.

        `filling`: what is about to be taken over into it. One that is made has it already, if that can be done.
        """
        unfiled = await self._in_memory(name, beginning)
        if unfiled is not None:
            store: Store = self._late_store(name, unfiled)
            meta, position = unfiled.meta, unfiled.position
        else:
            if filling is not None:
                filling.done = await self._fill(name, beginning, filling)
            coming = filling.coming if filling is not None else 0
            try:
                store, meta, position = await self._open_files(name, beginning, coming)
            except Corrupt:
                if filling is None or not filling.done:
                    raise
                # It is the files that are damaged, and whoever takes them over by themselves is told which.
                filling.done = False
                await off_loop(self._disk, partial(self._disk.remove, name.path))
                store, meta, position = await self._open_files(name, beginning, coming)
        self._log.note_incarnation(meta.incarnation)
        rows = CachedRows(self._row_cache, name.table)
        return Replica(name.path, store, meta, position, self._log, self._around, self._loop.call_soon, rows)

    async def _open_files(self, name: Name, beginning: Beginning, coming: int) -> tuple[Store, ReplicaMeta, int]:
        async with self._opening:
            opening = partial(self.open_again, name, coming=coming)
            store = await off_loop(self._disk, opening, unwanted=_close_store)
        try:
            return store, *await self._look_at(name, store, beginning)
        except BaseException:
            store.close()
            raise

    async def _fill(self, name: Name, beginning: Beginning, filling: Filling) -> bool:
        """Whether there was none, and one was made that has these files, and says so. Refused: it must not be."""
        if beginning.state is not ReplicaState.OPEN or name in self.recorded:
            return False
        if await off_loop(self._disk, partial(self._disk.exists, name.path)):
            return False
        meta, position = await self._new_incarnation(name, beginning)
        pairs = sorted([*meta_pairs(meta, position), adopted_pair(filling.epoch)])

        def compose() -> bool:
            filling.allowed()
            return self._disk.compose(name.path, filling.names, pairs)

        composed = await off_loop(self._disk, compose)
        if composed:
            failpoints.hit("load.adopt.composed", self._instance)
        return composed

    async def _in_memory(self, name: Name, beginning: Beginning) -> Unfiled | None:
        """What one says of itself that is in memory, or begins there; None: it has files, or is to have some."""
        unfiled = self._unfiled.get(name)
        if unfiled is None and beginning.state is not ReplicaState.ARRIVING:
            return None
        if await off_loop(self._disk, partial(self._disk.exists, name.path)):
            return None
        if unfiled is not None and unfiled.copied:
            # The copy is gone. Whatever is made in its place must not be taken for it.
            await self.record(name, self.recorded[name])
            unfiled = None
        if unfiled is None and beginning.state is ReplicaState.ARRIVING:
            unfiled = await self._begin_late(name, beginning)
        return unfiled

    async def _look_at(self, name: Name, store: Store, beginning: Beginning) -> tuple[ReplicaMeta, int]:
        """What a store says of itself, and how far it got."""
        meta = read_meta(store, name.path)
        if meta is not None and (meta.table, meta.tablet, meta.generation) != _parts(name):
            raise Corrupt(name.path, f"it says that it is tablet {meta.tablet} of table {meta.table}")
        if meta is None:
            if next(iter(store.scan(b"", None)), None) is not None:
                raise Corrupt(name.path, "there are rows, but no record of whose they are")
            meta, position = await self._begin(name, store, beginning)
        elif meta.log_id != self._log.id:
            self._story(f"{name.path} was written with another log; its rows are compared with other replicas'")
            # For which session it came to be here is in `r`; what the files say of that may be of another instance.
            session = self.recorded.get(name, meta.session)
            meta, position = await self._begin(name, store, Beginning(ReplicaState.REBUILDING, session))
        else:
            position = read_position(store, name.path)
            if name in self._unfiled:
                await flushed(store)
        await self.record(name, meta.session)
        return meta, position

    async def _begin(self, name: Name, store: Store, beginning: Beginning) -> tuple[ReplicaMeta, int]:
        """A new incarnation, from here on in the log. In files when it returns, and only then known to others."""
        meta, position = await self._new_incarnation(name, beginning)
        write_meta(store, meta, position)
        await flushed(store)
        return meta, position

    async def _new_incarnation(self, name: Name, beginning: Beginning) -> tuple[ReplicaMeta, int]:
        # Durable first: a number in files that the log has forgotten would be given to another.
        given: list[int] = []
        await outcome(lambda done: given.append(self._log.next_incarnation(done)))
        # What is not synced yet may be lost, and its positions given again, to entries of this one too.
        return self._new_meta(name, beginning, given[0]), self._log.applied_position

    async def _begin_late(self, name: Name, beginning: Beginning) -> Unfiled:
        """The same for one in memory: what its files would say is in the log, beside the number that it is given."""
        meta = self._new_meta(name, beginning, self._log.next_incarnation())
        unfiled = Unfiled(meta, self._log.applied_position)
        await recorded(self._records, name.record, unfiled.record)
        self.recorded[name] = meta.session
        self._unfiled[name] = unfiled
        return unfiled

    def _new_meta(self, name: Name, beginning: Beginning, incarnation: int) -> ReplicaMeta:
        state, before = beginning.state, self.recorded.get(name)
        session = beginning.session or before or ""
        if before is not None and state is ReplicaState.OPEN:
            state = ReplicaState.REBUILDING
        lost = bool(session) and (before == session or state is ReplicaState.REBUILDING)
        if lost and state is ReplicaState.ARRIVING:
            self._story(f"{name.path} lost what it had taken while it arrived, so its move has to begin anew")
        return ReplicaMeta(
            FORMAT,
            *_parts(name),
            incarnation,
            self._log.id,
            state,
            session=session,
            floor=beginning.floor,
            lost=lost,
        )

    def open_again(self, name: Name, *, coming: int = 0) -> Store:
        """The store of a replica as it is without what was in memory only; the log has that. Blocking."""
        unfiled = self._unfiled.get(name)
        if unfiled is not None and not unfiled.copied and not self._disk.exists(name.path):
            return self._late_store(name, unfiled)
        store = open_store(self._disk, name.path, coming=coming)
        try:
            if unfiled is not None and not unfiled.is_filed(store, name.path):
                unfiled.put_into(store)
        except BaseException:
            store.close()
            raise
        return store

    def _late_store(self, name: Name, unfiled: Unfiled) -> LateStore:
        is_filed = partial(unfiled.is_filed, name=name.path)
        return LateStore(self._disk, name.path, unfiled.pairs, partial(self.has_files, name), is_filed)

    def note_copied(self, name: Name, unfiled: Unfiled) -> None:
        """A copy takes the place of what it had in memory: durable in one step with whatever is noted next."""
        self._records.put(name.record, unfiled.record, essential=True)

    def copied(self, name: Name, store: Store, unfiled: Unfiled) -> Store:
        """That is durable: the copy as it is used from now on."""
        self._unfiled[name] = unfiled
        is_filed = partial(unfiled.is_filed, name=name.path)
        return LateStore.over(store, self._disk, name.path, unfiled.pairs, partial(self.has_files, name), is_filed)

    def has_files(self, name: Name) -> None:
        """From now on its directory says what it is. Whatever is synced later comes after this."""
        if self._unfiled.pop(name, None) is not None:
            self._records.put(name.record, self.recorded[name].encode(), essential=True)

    # The record

    async def record(self, name: Name, session: str = "") -> None:
        """Returns when it is durable that this replica has existed here."""
        if self.recorded.get(name) != session or name in self._unfiled:
            await recorded(self._records, name.record, session.encode())
            self.recorded[name] = session
            self._unfiled.pop(name, None)

    def forget(self, name: Name) -> None:
        self.recorded.pop(name, None)
        self._unfiled.pop(name, None)
        self._records.delete(name.record)

    # Away with it

    async def put_aside(self, name: Name, error: Corrupt, incarnation: int) -> None:
        """A damaged one; StorageError."""
        aside = f"{QUARANTINE}/{name.table}/{name.tablet}.{name.generation}-{incarnation}"
        self._story(
            f"the replica of tablet {name.tablet} of table {name.table} is damaged: {error.where}: {error.what}; it is "
            f"put aside as {aside} and rebuilt from the other replicas"
        )
        # Should this life end before the new one is made, the next one knows that rows are missing. Of a copy it knows
        # that as it is, and without `r` as it is its files would be taken for another's.
        if (unfiled := self._unfiled.get(name)) is None or not unfiled.copied:
            await self.record(name, self.recorded.get(name, ""))
        await off_loop(self._disk, partial(_put_aside, self._disk, name.path, aside))

    async def remove(self, name: Name, *, wholly: bool) -> None:
        """The directory and the record. `wholly`: the tablet does not belong here any more; StorageError."""
        await off_loop(self._disk, partial(self._disk.remove, name.path))
        self.forget(name)
        if wholly:
            await off_loop(self._disk, partial(_remove_quarantined, self._disk, name))

    async def remove_table(self, table: int) -> None:
        """The directory that was of its replicas."""
        await off_loop(self._disk, partial(self._disk.remove, f"{TABLETS}/{table}"))


def _parts(name: Name) -> tuple[int, int, int]:
    return name.table, name.tablet, name.generation


def open_store(disk: Disk, path: str, *, coming: int = 0, resting: bool = True) -> Store:
    return disk.open(path, wal=False, small=True, coming=coming, resting=resting)


def _close_store(store: Store) -> None:
    store.close()


def _put_aside(disk: Disk, path: str, aside: str) -> None:
    if not disk.exists(path):
        return
    if disk.exists(aside):
        disk.remove(aside)
    disk.rename(path, aside)


def _remove_quarantined(disk: Disk, name: Name) -> None:
    folder = f"{QUARANTINE}/{name.table}"
    found = disk.entries(folder)
    doomed = [entry for entry in found if entry.startswith(f"{name.tablet}.")]
    for entry in doomed:
        disk.remove(f"{folder}/{entry}")
    if doomed and len(doomed) == len(found):
        disk.remove(folder)
