"""Taking over a committed load: its sealed files become rows of this instance's replicas, tablet by tablet.

The leader orders it (`load.adopt`), as often as it likes: what is under way is joined, what is done is done. Before
each tablet the load must be COMMITTED and its session open in this instance's own view, so that nothing is ever taken
over under a session that was closed, however late an order, a task or a disk is.

A replica takes its files and its marker in one step (`ingesting`), so after a crash anywhere the marker says what is
left to do. Replicas of which the load has no rows get the marker alone, through the log, all with one sync. An
overwrite goes into replicas of the new generation, which are made beside those that serve (`Shelf.prepare`): of the
files and the marker, in one step too.

Loads of a table are taken over in the order of their epochs. A replica that lacks an earlier one catches up first.
Where sealed files are lost or damaged the replica is repaired from others that have the load. So is one that came to
this instance after it had sealed: the list does not speak of its tablet, and having no files says nothing.

A replica that is arriving takes loads over like any other, in order, from the first one on that was committed after it
was made (`ReplicaMeta.floor`): earlier ones come with its copy. What it can't take is left out and its marker stays
behind, so that only a copy which has that is taken over (`arrivals`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from trimtab.loads import protocol
from trimtab.loads.protocol import AdoptCall, StagedFile
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.loads.view import LoadView
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.group import Group
from trimtab.node.replicas.ingesting import ingest
from trimtab.node.replicas.merging import Merging
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.replica_files import Filling
from trimtab.node.replicas.staging import MARKER, path_of, read_sealed
from trimtab.node.replicas.waiting import off_loop, outcome
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.storage.port import Disk, StorageError
from trimtab.tablets.view import TableView

ADOPTING = "adopting"
SESSION_CLOSED = "session_closed"
MAX_UNDER_WAY = 1_000
OPEN_WAIT_S = 10.0
_MARGIN_S = 0.05
_MAX_TRIES = 40
_AGAIN_S = 0.05


class Generations(Protocol):
    """The replicas of this instance, of any generation."""

    async def opened(self, table: int, tablet: int, deadline: float, generation: int | None = None) -> Replica: ...

    async def prepare(
        self, table: int, tablet: int, generation: int, deadline: float, filling: Filling | None = None
    ) -> Replica: ...

    def in_hand(self, replica: Replica) -> AbstractContextManager[None]:
        """Nobody else exchanges or removes its files meanwhile; Refused `not_ready`: somebody does."""
        ...


# Repairs a replica from others that have taken over a load; returns when it has that too. Refused: it can't be.
Mend = Callable[[Replica, int], Awaitable[None]]


class Adopting:
    """Answers load.adopt for one instance, whose raft id is `own`."""

    def __init__(
        self,
        own: int,
        disk: Disk,
        group: Group,
        tables: TableView,
        loads: LoadView,
        replicas: Generations,
        waits: Waits,
        *,
        mend: Mend,
        merging: Merging,
        name: str,
        story: Callable[[str], None],
    ) -> None:
        self._own = own
        self._disk = disk
        self._group = group
        self._tables = tables
        self._loads = loads
        self._replicas = replicas
        self._waits = waits
        self._mend = mend
        self._merging = merging
        self._name = name
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._running: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._at: dict[tuple[int, str], str] = {}
        self.adopted_loads = 0
        self.adopted_files = 0
        self.adopted_bytes = 0

    def methods(self) -> dict[str, Method]:
        return {protocol.ADOPT: self.adopt}

    def stop(self) -> None:
        for task in self._running.values():
            task.cancel()

    def busy(self, session: str) -> bool:
        """Whether files of a session are being taken over."""
        return any(id == session for _table, id in self._running)

    async def adopt(self, asked: Asked) -> bytes:
        """Answered when every replica of this instance has the load, durably."""
        call: AdoptCall = protocol.decode_adopt(asked.body)
        self._check_term(call.term)
        machine = self._group.machine
        what = f"index {call.index} to be applied (at {machine.applied_index} now)"
        await self._waits.until(lambda: machine.applied_index >= call.index, asked.deadline - _MARGIN_S, what)
        load = self._open_load(call.table, call.id)
        if self._own not in load.sealed:
            raise Refused("not_sealed", f"{self._name} has not sealed load {call.id}; it gets the rows by repair")
        await self._join(load, asked.deadline - _MARGIN_S)
        self._check_term(call.term)
        return b""

    async def _join(self, load: LoadRecord, deadline: float) -> None:
        key = (load.table, load.id)
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= MAX_UNDER_WAY:
                raise Refused("overloaded", f"{MAX_UNDER_WAY} loads are being taken over here already; ask again")
            task = self._running[key] = self._loop.create_task(self._take_over(load), name=f"load {load.id}")
            task.add_done_callback(partial(self._ended, key))
        await asyncio.wait((task,), timeout=max(deadline - self._loop.time(), 0.0))
        if not task.done():
            raise Refused(ADOPTING, f"{self._name} is taking over load {load.id}: {self._at.get(key, '')}; ask again")
        if task.cancelled():
            raise Refused("stopped", "this instance is stopping; ask again when it is back")
        task.result()

    def _ended(self, key: tuple[int, str], task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        self._at.pop(key, None)
        if not task.cancelled():
            task.exception()  # told to whoever still waits, and else to who asks again

    def _check_term(self, term: int) -> None:
        known = self._group.raw.raft.term
        if term < known:
            raise Refused("stale_term", f"an order of term {term} came after term {known} had begun; it is not obeyed")

    def _open_load(self, table: int, id: str) -> LoadRecord:
        """The load, if it may be taken over now: it is committed, and its session is open."""
        load = self._loads.loads.get((table, id))
        if load is None:
            raise Refused("not_found", f"there is no load {id} of table {table}")
        if load.state is not LoadState.COMMITTED:
            raise Refused("not_committed", f"load {id} is {load.state.value}, so nothing of it is taken over")
        if id not in self._loads.sessions:
            raise Refused(SESSION_CLOSED, f"the session of load {id} is closed, so nothing of it is taken over")
        return load

    # Taking over

    async def _take_over(self, load: LoadRecord) -> None:
        try:
            sealed = await off_loop(self._disk, partial(read_sealed, self._disk, load.id, load.nonce))
            failpoints.hit("load.adopt.before", self._name)
            by_tablet: dict[int, list[StagedFile]] = {}
            for file in sealed.files if sealed is not None else ():
                by_tablet.setdefault(file.tablet, []).append(file)
            held = self._tables.held_by(self._own).get(load.table, [])
            without: list[Replica] = []
            for number, tablet in enumerate(held):
                self._at[load.table, load.id] = f"{number} of {len(held)} tablets are done"
                self._open_load(load.table, load.id)
                files = by_tablet.get(tablet, [])
                told = sealed is not None and (files or sealed.tablets is None or tablet in sealed.tablets)
                replica = await self._replica(load, tablet, files if told else None)
                if replica.adopted >= load.epoch:
                    continue
                if not self._in_order(load, replica):
                    continue
                if sealed is None:
                    await self._repair(load, replica, "what says which files it has here is lost")
                elif files:
                    await self._take(load, replica, files)
                elif not told:
                    await self._repair(load, replica, "it came here after the load was sealed")
                else:
                    without.append(replica)
            self._open_load(load.table, load.id)
            failpoints.hit("load.adopt.rest", self._name)
            await asyncio.gather(*(outcome(partial(each.set_adopted, load.epoch)) for each in without))
        except WaitedTooLong as error:
            raise Refused("not_ready", str(error)) from error
        except StorageError as error:
            raise Refused("failed", f"load {load.id} could not be taken over: {error}") from error
        self.adopted_loads += 1
        failpoints.hit("load.adopt.after", self._name)

    async def _replica(self, load: LoadRecord, tablet: int, files: list[StagedFile] | None) -> Replica:
        """`files`: what it has to take over; None: that is not known here."""
        deadline = self._loop.time() + OPEN_WAIT_S
        if load.kind is not LoadKind.OVERWRITE:
            return await self._replicas.opened(load.table, tablet, deadline, load.generation)
        filling = None
        if files is not None:
            names = [path_of(load.id, tablet, file.name) for file in files]
            filling = Filling(names, load.epoch, partial(self._open_load, load.table, load.id))
        replica = await self._replicas.prepare(load.table, tablet, load.generation, deadline, filling)
        if files:
            self._merging.wait(replica)
            if filling is not None and filling.done:
                self._count(files)
        failpoints.hit("load.adopt.prepared", self._name)
        return replica

    def _in_order(self, load: LoadRecord, replica: Replica) -> bool:
        """Whether it is the load's turn; False: its rows come with the copy of a replica that arrives. Refused."""
        needed = self._loads.needed(load.table, load.epoch - 1)
        if replica.arriving:
            return load.kind is LoadKind.OVERWRITE or max(replica.adopted, replica.meta.floor) >= needed
        if load.kind is LoadKind.APPEND and replica.adopted < needed:
            text = f"the replica of {replica.title} lacks an earlier load (it has epoch {replica.adopted} of {needed})"
            raise Refused("not_ready", f"{text}; it catches up before it takes over load {load.id}")
        return True

    async def _take(self, load: LoadRecord, replica: Replica, files: list[StagedFile]) -> None:
        session, tablet = load.id, replica.tablet
        names = [path_of(session, tablet, file.name) for file in files]
        missing = await off_loop(self._disk, lambda: [name for name in names if not self._disk.exists(name)])
        if missing:
            await self._repair(load, replica, f"{missing[0]} is lost")
            return
        failpoints.hit("load.adopt.tablet", self._name)
        self._open_load(load.table, session)
        marker, allowed = (path_of(session, tablet, MARKER), load.epoch), partial(self._open_load, load.table, session)
        for left in reversed(range(_MAX_TRIES)):
            try:
                with self._replicas.in_hand(replica):
                    if replica.adopted < load.epoch:
                        await ingest(self._disk, replica, names, marker=marker, allowed=allowed, merging=self._merging)
                break
            except Refused as refused:
                if refused.code == "corrupt":
                    await self._repair(load, replica, f"its files are damaged: {refused.text}")
                    return
                # While it is being copied, for some milliseconds, it takes over nothing.
                if refused.code != "not_ready" or not left or replica.closed:
                    raise
            await asyncio.sleep(_AGAIN_S)
            self._open_load(load.table, session)
        self._count(files)
        failpoints.hit("load.adopt.ingested", self._name)

    def _count(self, files: list[StagedFile]) -> None:
        self.adopted_files += len(files)
        self.adopted_bytes += sum(file.size_bytes for file in files)

    async def _repair(self, load: LoadRecord, replica: Replica, why: str) -> None:
        if replica.arriving:
            self._story(f"load {load.id} comes to {replica.title} with the copy of that: {why}")
            return
        self._story(f"load {load.id} is taken from other replicas of {replica.title}: {why}")
        await self._mend(replica, load.epoch)
        await outcome(partial(replica.set_adopted, load.epoch))
