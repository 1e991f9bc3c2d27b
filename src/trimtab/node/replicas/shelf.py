"""All tablet replicas of this node: opened, created and removed as the tables say, and brought up to date by replay.

- What lies on disk is opened first, all of it, then the log is replayed in one pass, and only then is anything served
  (`ready`). An entry reaches a replica only if it is of its incarnation and beyond its own position.
- What a replica begins as, and what directories and records there are: see `replica_files`.
- The log is not cut while a replica that may need it could not be opened.
- Of a tablet there may be several generations. One is served; others are open beside it: the one before, which scans
  that began earlier still read, and one that a load is being taken over into (`prepare`). When the tables say that
  another one is served, they change places at once. Those that are not kept any more are removed. One that others had
  before this node belonged to the tablet (a load was rolled back after a move) begins REBUILDING.
- A tablet that moves here has a replica for the *session* of the move (`arriving`). What lies here of another session,
  or was left over from a time when the tablet belonged here, is dropped and made anew: its rows may have been deleted
  since, and the deletion forgotten. Where the move has ended without a copy having been taken over, because the replica
  was lost after it had been, it is rebuilt.
- What can't be opened, made or removed is tried again, once a second; why it could not be is told to whoever waits for
  it (`failure`), so that a tablet that was to come here goes elsewhere.
- Replicas that are not wanted are removed only when the tables here are known to be those of now (`settled`): at a
  start the metastore may be older than what it had created before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from trimtab.loads.records import EpochRecord
from trimtab.node.answering import Refused
from trimtab.node.replicas.flushing import FlushBounds, Flushing
from trimtab.node.replicas.out_of_space import OutOfSpace
from trimtab.node.replicas.replaying import replay
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.node.replicas.replica_files import Beginning, Filling, Name, Place, ReplicaFiles
from trimtab.node.replicas.row_cache import RowCache
from trimtab.node.replicas.swapping import Swaps
from trimtab.node.replicas.waiting import off_loop, outcome
from trimtab.node.waits import Waits
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.port import Corrupt, Disk, DiskFull, StorageError

__all__ = ["Name", "Place", "Shelf"]

TICK_S = 1.0
ROW_CACHE_BYTES = 32 << 20
_AT_ONCE = 8
_REMOVED_AT_ONCE = 4

Wanted = Callable[[], Mapping[Place, int]]
# Of tablets that move here: the session that a replica is made for. None: it was to come here and does not any more,
# but is kept, as it is, until nobody writes to it.
Arriving = Callable[[], Mapping[Place, str | None]]


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
        arriving: Arriving = dict,
        kept: Callable[[int], Collection[int]] = lambda _table: (),
        epochs: Callable[[int], EpochRecord] = lambda _table: EpochRecord(),
        name: str = "",
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
        self._ask_arriving = arriving
        self._wants: Mapping[Place, int] | None = None
        self._arrives: Mapping[Place, str | None] = {}
        self._kept = kept
        self._epochs = epochs
        self._settled = settled
        self._fatal = fatal
        self._story = story
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._replicas: dict[Place, Replica] = {}  # those that are served
        self._others: dict[Name, Replica] = {}  # of other generations
        self._in_hand: set[Name] = set()  # being opened, made or exchanged
        self._put_off: set[Name] = set()  # what could not be done because they were
        self._files = ReplicaFiles(disk, log, self, self.row_cache, instance=name, story=story, complain=complain)
        self.swaps = Swaps(disk, log, self._files, name=name, fatal=fatal, complain=complain)
        self._existing: dict[Name, bool] = {}  # directories that are there and not open -> may need the log
        # Why something of a tablet could not be opened or removed the last time; for which session it was to be made.
        self._failures: dict[Place, tuple[str, StorageError]] = {}
        self._damaged: list[tuple[Replica, Corrupt]] = []
        self._full = OutOfSpace(disk, log, damaged=self.damaged, story=story, complain=complain)
        self._waits = Waits()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._unsettled = True
        self.flushing = Flushing(
            self._all_open,
            log,
            bounds or FlushBounds(),
            may_cut=self._may_cut,
            now=self._loop.time,
            call_soon=self._loop.call_soon,
            lost=self.damaged,
            fatal=fatal,
            complain=complain,
        )
        self.refusal = self.flushing.refusal  # every write asks

    # Looking

    def get(self, table: int, tablet: int) -> Replica | None:
        """The replica, if it is open and up to date with the log."""
        return self._replicas.get((table, tablet)) if self.ready else None

    def find(self, table: int, tablet: int, generation: int) -> Replica | None:
        """The replica of a generation, whether that is served or not, if it is open and up to date with the log."""
        if not self.ready:
            return None
        served = self._replicas.get((table, tablet))
        if served is not None and served.generation == generation:
            return served
        return self._others.get(Name(table, tablet, generation))

    async def opened(self, table: int, tablet: int, deadline: float, generation: int | None = None) -> Replica:
        """The replica (that of a generation) as soon as it is open; WaitedTooLong at `deadline` (loop time)."""

        def found() -> Replica | None:
            return self.get(table, tablet) if generation is None else self.find(table, tablet, generation)

        what = f"the replica of tablet {tablet} of table {table} to be open"
        await self._waits.until(lambda: found() is not None, deadline, what)
        replica = found()
        assert replica is not None, "it was there in this very turn"
        return replica

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
            if (found := self._replicas.get(place)) is None or found.generation != generation or not self._fits(found)
        ]

    def places(self) -> set[Place]:
        """The tablets of which anything is here, or should be."""
        left = (*self._others, *self._existing, *self._in_hand, *self._files.recorded)
        return {*self._replicas, *self._wanted(), *(name.place for name in left)}

    def failure(self, place: Place) -> StorageError | None:
        """Why what is wanted of a tablet could not be opened or made, or what is not wanted removed, the last time."""
        session, error = self._failures.get(place, ("", None))
        return error if session == self._session_of(place) else None

    async def until(self, so: Callable[[], bool], deadline: float, what: str) -> None:
        """Returns when it is so, looking whenever a replica came or went; WaitedTooLong at `deadline`."""
        await self._waits.until(so, deadline, what)

    def _all_open(self) -> Collection[Replica]:
        """Of all generations."""
        return self._replicas.values() if not self._others else [*self._replicas.values(), *self._others.values()]

    def _may_cut(self) -> bool:
        """Whether all who may need the log are open, and say from where on they do."""
        return self.ready and not (any(self._existing.values()) or self._full or self._damaged)

    def _wanted(self) -> Mapping[Place, int]:
        if self._wants is None:
            self._wants, self._arrives = self._ask_wanted(), self._ask_arriving()
        return self._wants

    def _arriving(self) -> Mapping[Place, str | None]:
        self._wanted()
        return self._arrives

    def _fits(self, replica: Replica) -> bool:
        """Whether it is one that its tablet, if that moves here, may have."""
        session = self._arriving().get((replica.table, replica.tablet))
        return session is None or replica.meta.session == session

    # Life

    def start(self) -> None:
        """Open what is here and replay; then go on as the tables change."""
        self._task = self._loop.create_task(self._run())
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def look(self) -> None:
        """The tables, or the generation of them that is served, may have changed."""
        self._wants = None
        if self._others and self.ready:
            for name, replica in list(self._others.items()):
                self._take_up(name, replica)
            self._waits.look()
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
        for replica in self._all_open():
            replica.close()
            if not replica.swapping:
                replica.store.close()
        self._replicas.clear()
        self._others.clear()

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
            await self.swaps.settle()
            await self._open_existing()
            self.replayed = await replay(self._log, list(self._all_open()), self._loop)
            self.ready = True
            for replica in list(self._replicas.values()):
                self._tell_open(replica)
            self._news.set()
            while True:
                self._waits.look()
                await self._news.wait()
                self._news.clear()
                await self._full.recover()
                await self._put_in_quarantine()
                await self._drop_strangers()
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
        self._full.add(replica)

    def damaged(self, replica: Replica, error: Corrupt) -> None:
        if replica.closed or any(each is replica for each, _ in self._damaged):
            return
        self._damaged.append((replica, error))
        # Not within whatever read it, which may hold iterators of it.
        self._put_down(replica)
        self._news.set()

    def _put_down(self, replica: Replica) -> Name:
        """Show it to nobody any more."""
        name = Name.of(replica)
        if self._replicas.get(name.place) is replica:
            del self._replicas[name.place]
        elif self._others.get(name) is replica:
            del self._others[name]
        return name

    # Opening

    async def _open_existing(self) -> None:
        for name in await self._files.found():
            self._existing[name] = True
            replica = await self._open_or_complain(name)
            if replica is not None:
                replica.was_away = self._arrives_yet(replica)
                self._take_up(name, replica)

    async def _open_missing(self) -> None:
        """A few at a time: only opening has to be one after the other, the syncs of many can be shared."""
        await _few_at_a_time(_AT_ONCE, [partial(self._open_one, place) for place in sorted(self.missing())])

    async def _open_one(self, place: Place) -> None:
        generation, held = self._wanted().get(place), self._replicas.get(place)
        if generation is None or (held is not None and held.generation == generation):
            return  # the tables have changed meanwhile, or it has to be dropped first
        if held is not None and not self._settled():
            return  # what is known of the tables may be older than what lies here
        await self._open_in_hand(Name(*place, generation))

    async def _open_in_hand(self, name: Name, filling: Filling | None = None) -> None:
        """Open or make it, unless somebody is at it or has done it."""
        if name in self._in_hand or name in self._others:
            return
        self._in_hand.add(name)
        of_earlier_life = name in self._existing
        try:
            replica = await self._open_or_complain(name, filling)
            if replica is not None:
                replica.was_away = of_earlier_life and self._arrives_yet(replica)
                # It may be of an earlier life and only be opened late; then it has not seen the log yet.
                await replay(self._log, [replica], self._loop)
                self._take_up(name, replica)
                self._tell_open(replica)
        finally:
            self._in_hand.discard(name)

    def _arrives_yet(self, replica: Replica) -> bool:
        """Whether nobody reads it before the leader has ordered that its copy be taken over, be it there or not."""
        return replica.arriving or self._arriving().get((replica.table, replica.tablet)) is not None

    async def prepare(
        self, table: int, tablet: int, generation: int, deadline: float, filling: Filling | None = None
    ) -> Replica:
        """The replica of a generation, made if there is none; WaitedTooLong where it could not be made by then.

        It is made of these files, or is about to take them over, and may not merge them by itself: whoever asked sees
        to that it is noted (`Merging.wait`). Refused: they must not be taken.
        """
        if self.ready and self.find(table, tablet, generation) is None:
            await self._open_in_hand(Name(table, tablet, generation), filling)
        return await self.opened(table, tablet, deadline, generation)

    async def _open_or_complain(self, name: Name, filling: Filling | None = None) -> Replica | None:
        session = self._session_of(name.place)
        try:
            replica = await self._files.open(name, self._beginning(name), filling)
            self._failures.pop(name.place, None)
            return replica
        except Corrupt as error:
            return await self._replace_damaged(name, error)
        except DiskFull as error:
            self._complain(f"{name.path} could not be opened: {error}")
            self._failures[name.place] = session, error
        except StorageError as error:
            self._complain(f"{name.path} could not be opened: {error}; it is tried again")
            self._failures[name.place] = session, error
        return None

    def _session_of(self, place: Place) -> str:
        return self._arriving().get(place) or ""

    def _beginning(self, name: Name) -> Beginning:
        """What it is if there is none yet."""
        arriving, epochs = self._arriving(), self._epochs(name.table)
        if name.place in arriving:
            session, held = arriving[name.place], self._replicas.get(name.place)
            # Beside one that has been copied: what comes to a new generation comes here from the first row on.
            whole = held is not None and held.generation < name.generation and held.readable and self._fits(held)
            state = ReplicaState.OPEN if whole and session is not None else ReplicaState.ARRIVING
            return Beginning(state, session or "", epochs.committed)
        return Beginning(ReplicaState.REBUILDING if epochs.has_served(name.generation) else ReplicaState.OPEN)

    def _take_up(self, name: Name, replica: Replica) -> None:
        """It is open. Of several generations that one is served which the tables want, else the newest."""
        self._existing.pop(name, None)
        self._others.pop(name, None)
        place = (name.table, name.tablet)
        served, wanted = self._replicas.get(place), self._wanted().get(place)
        if served is None or served is replica:
            self._replicas[place] = replica
            return
        if (name.generation == wanted, name.generation) > (served.generation == wanted, served.generation):
            self._replicas[place], replica = replica, served
        self._others[Name(*place, replica.generation)] = replica

    def _tell_open(self, replica: Replica) -> None:
        if replica.closed or self._closed:
            return
        self.on_open(replica)
        if replica.state is ReplicaState.REBUILDING:
            self.on_rebuild(replica)
        self._waits.look()

    # Trouble

    async def _put_in_quarantine(self) -> None:
        for found in list(self._damaged):
            replica, error = found
            if not self._idle([replica]):
                continue
            name = self._put_down(replica)
            # Until it is put aside it is what a start, or another try, finds and opens, and brings up with the log.
            self._existing[name] = True
            self._damaged.remove(found)
            await self._close(replica)
            fresh = await self._replace_damaged(name, error, replica.incarnation)
            if fresh is not None:
                self._take_up(name, fresh)
                self._tell_open(fresh)

    async def _replace_damaged(self, name: Name, error: Corrupt, incarnation: int = 0) -> Replica | None:
        """Put the directory aside and begin an empty one; None: not yet, it is tried again."""
        self.quarantined += 1
        session = self._session_of(name.place)
        try:
            await self._files.put_aside(name, error, incarnation)
            self._existing.pop(name, None)
            replica = await self._files.open(name, self._beginning(name))
            self._failures.pop(name.place, None)
            return replica
        except StorageError as failure:
            self._complain(f"{name.path} could not be replaced: {failure}; it is tried again")
            self._failures[name.place] = session, failure
            return None

    # Moving

    async def _drop_strangers(self) -> None:
        """Replicas of tablets that move here, but of another session. The others are what the move wants of them."""
        if not self._settled():
            return
        strangers = self._idle([each for each in self._all_open() if not self._fits(each)])
        await _few_at_a_time(_REMOVED_AT_ONCE, [partial(self._remove, each) for each in strangers])
        for replica in self._all_open():
            place = (replica.table, replica.tablet)
            if replica.arriving and place in self._wanted() and place not in self._arriving():
                self._story(f"the replica of {replica.title} came here without its copy; it is rebuilt from others")
                if self._turn(replica, ReplicaState.REBUILDING):
                    self.on_rebuild(replica)
            elif replica.state is ReplicaState.REBUILDING and self._arriving().get(place) is not None:
                # It was lost while the tables here were those of earlier.
                self._turn(replica, ReplicaState.ARRIVING)

    def _turn(self, replica: Replica, state: ReplicaState) -> bool:
        """Whether it is that from now on; else it is tried again."""
        if replica.change_meta(state=state):
            return True
        self._loop.call_later(TICK_S, self._news.set)
        return False

    @contextmanager
    def in_hand(self, replica: Replica) -> Iterator[None]:
        """Meanwhile it is neither dropped nor removed; Refused where somebody is at it already."""
        name = Name.of(replica)
        if name in self._in_hand:
            raise Refused("not_ready", f"somebody is at the replica of {replica.title} already; try again")
        self._in_hand.add(name)
        try:
            yield
        finally:
            self._in_hand.discard(name)
            if name in self._put_off:
                self._put_off.discard(name)
                self._news.set()

    def _idle(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Those that nobody is at; the others have their turn when that has ended."""
        self._put_off.update(busy := {Name.of(each) for each in replicas} & self._in_hand)
        return [each for each in replicas if Name.of(each) not in busy]

    async def copied(self, replica: Replica) -> None:
        """Its copy was taken over. Newer generations, which came here from the first row on, are whole as well: returns
        when that is durable. Refused: not now.
        """
        newer = [
            other
            for name, other in self._others.items()
            if name.place == (replica.table, replica.tablet) and other.generation > replica.generation
        ]
        for other in newer:
            if other.arriving:
                if not other.change_meta(state=ReplicaState.OPEN):
                    raise Refused("not_ready", f"generation {other.generation} of {other.title} is busy; try again")
                await outcome(other.flush)
        self._waits.look()

    # Removing

    @property
    def unsettled(self) -> bool:
        """Whether it is still unknown if what lies here unwanted may go."""
        return self._unsettled

    async def _remove_unwanted(self) -> None:
        self._unsettled = not self._settled()
        if self._unsettled:
            return
        doomed = [each for place, each in sorted(self._replicas.items()) if self._wanted().get(place) is None]
        doomed += [each for name, each in sorted(self._others.items()) if not self._keeps(name)]
        doomed = self._idle(doomed)
        await _few_at_a_time(_REMOVED_AT_ONCE, [partial(self._remove, each) for each in doomed])
        for name in sorted(self._existing):
            if not self._keeps(name):
                await self._remove_directory(name)
        for name in sorted(self._files.recorded):
            if not self._keeps(name) and name not in self._existing and self._found(name) is None:
                self._files.forget(name)
        for place in self._failures.keys() - self._wanted().keys() - {name.place for name in self._existing}:
            del self._failures[place]
        if doomed:
            self.row_cache.sweep()

    def _found(self, name: Name) -> Replica | None:
        return self.find(name.table, name.tablet, name.generation)

    def _keeps(self, name: Name) -> bool:
        wanted = self._wanted().get(name.place)
        return name in self._in_hand or (
            wanted is not None and (name.generation == wanted or name.generation in self._kept(name.table))
        )

    async def _remove(self, replica: Replica) -> None:
        name = self._put_down(replica)
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
            await self._files.remove(name, wholly=name.place not in self._wanted())
            self._existing.pop(name, None)
            self._failures.pop(name.place, None)
            if not any(table == name.table for table, _tablet in self.places()):
                await self._files.remove_table(name.table)
            self._waits.look()
        except StorageError as error:
            self._complain(f"{name.path} could not be removed: {error}; it is tried again")
            self._failures[name.place] = self._session_of(name.place), error

    # Figures

    def figures(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each table: its id, how many replicas are here, their bytes on disk, and those in memory."""
        tables: dict[int, list[int]] = {}
        for replica in self._all_open():
            figures = tables.setdefault(replica.table, [0, 0, 0])
            figures[0] += 1
            memory_bytes = replica.memory_bytes
            figures[1] += replica.held_bytes - memory_bytes
            figures[2] += memory_bytes
        for table, (count, disk_bytes, memory_bytes) in sorted(tables.items()):
            yield table, count, disk_bytes, memory_bytes


async def _few_at_a_time(count: int, work: Sequence[Callable[[], Coroutine[None, None, None]]]) -> None:
    """All of it, so many at once."""
    waiting = iter(work)

    async def one_after_another() -> None:
        for each in waiting:
            await each()

    await asyncio.gather(*(one_after_another() for _ in range(min(count, len(work)))))
