"""Where requests for this node's own replicas come in: from other routers, and from its own without a network.

The order of things is what the promises rest on. A request that was routed by a newer topology or catalog than this
node knows waits until it knows it. The gate judges it (fence, grade, lease). A write is judged by its age and stamps:
one that began longer ago than a hint lives may be of something whose deletion is forgotten already, and one from the
future would win over everything written until then. Only then it goes to the replica; and when it is synced and
applied, the gate judges once more before it is acknowledged.

Writes are meant for one generation of their table. One for a generation that is served no more is refused if it is
fresh (`version_mismatch`: its coordinator did not know yet), and counts as done if it is a hint or a repair: what it
belongs to is gone. One for a generation that is about to be served waits for it. Reads: see `epochs`.

While an overwrite is committed and not seen yet, it may be seen elsewhere already; so may a rollback that was
announced. Then a fresh write is taken only after a majority has confirmed that what is known here is what there is
(`barrier`): what is acknowledged after the overwrite or the rollback was called done is never in the generation before.
Every replica that may take writes knows of it by then: all have taken the overwrite over, or heard the announcement.

A message of writes is answered when its last one is, in step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from trimtab.loads.view import LoadView
from trimtab.net.hello import Hello
from trimtab.net.server import Handler, Request
from trimtab.node.answering import DEFAULT_DEADLINE_S, Refused
from trimtab.node.background import defect_of
from trimtab.node.errors import GroupError
from trimtab.node.router import refusals
from trimtab.node.router.epochs import Loaded, Veiled, at_epoch, is_coming, plain
from trimtab.node.router.large_rows import MAX_ANSWER_BYTES, refusal_of_replica
from trimtab.node.router.parcels import NO_ANSWER, Answered
from trimtab.node.router.replica_reads import Readable, read_cells, read_ranges
from trimtab.node.router.schemas import Schemas
from trimtab.node.router.shown import Shown
from trimtab.node.serving import Serving
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows import protocol
from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.keys import newest_stamp
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import (
    Cell,
    Failed,
    Pairs,
    ReplicaRead,
    ReplicaRows,
    ReplicaWrite,
    ReplicaWrites,
    ReplicaWritten,
    WriteKind,
)
from trimtab.storage.mutation_log import LogBusy
from trimtab.storage.port import Corrupt, DiskFull, SyncDone
from trimtab.tablets.clock import HybridClock, SkewRefused
from trimtab.tablets.consistency import Level
from trimtab.tablets.missed import refusal_of_age
from trimtab.topology.view import View

NOT_HERE = refusals.NOT_HERE
TOO_LATE = "too_late"
SKEW = "skew"
HISTORY = "history"
MAX_TASKS = 2_000
MAX_OPEN_WAIT_S = 5.0
_MARGIN_S = 0.02
_FRAME_BYTES = 64  # what a frame has beside its body
STALE_LEVELS = frozenset((Level.ONE, Level.LOCAL_ONE))


class Replica(Loaded, Protocol):
    """A replica, as requests see it. Reads as of a time up to `forgot_us` are not exact."""

    @property
    def forgot_us(self) -> int: ...

    def write(self, pairs: Pairs, done: SyncDone, *, repair: bool = False) -> None: ...


class Replicas(Protocol):
    """The replicas that this node holds."""

    def get(self, table: int, tablet: int) -> Replica | None:
        """The one that is served."""
        ...

    def find(self, table: int, tablet: int, generation: int) -> Replica | None: ...

    async def opened(self, table: int, tablet: int, deadline: float, generation: int | None = None) -> Replica: ...


@dataclass(frozen=True)
class Ages:
    """How old a write may be and how far ahead a stamp."""

    hint_life_ms: int = 10_800_000
    max_skew_ms: int = 500


class ReplicaDoor:
    """Of one node. `trusted`: whether a message may claim to come from a member. `complain`: tells operators.

    `judged_ms`: the time that stamps are judged by, where it is known that this node's clock is ahead.
    """

    def __init__(
        self,
        raft_id: int,
        view: View,
        schemas: Schemas,
        loads: LoadView,
        replicas: Replicas,
        serving: Serving,
        waits: Waits,
        clock: HybridClock,
        ages: Ages,
        shown: Shown,
        *,
        wall_ms: Callable[[], int],
        judged_ms: Callable[[], int],
        barrier: Callable[[float], Awaitable[None]],
        trusted: Callable[[Hello], bool],
        complain: Callable[[str], None],
        answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._raft_id = raft_id
        self._view = view
        self._schemas = schemas
        self._loads = loads
        self._replicas = replicas
        self._serving = serving
        self._waits = waits
        self._clock = clock
        self._ages = ages
        self._shown = shown
        self._wall_ms = wall_ms
        self._judged_ms = judged_ms
        self._barrier = barrier
        self._trusted = trusted
        self._complain = complain
        self._answer_bytes = answer_bytes - _FRAME_BYTES
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.refused_stamps = 0

    def handlers(self) -> dict[str, Handler]:
        return {protocol.REPLICA_WRITE: self.take_writes, protocol.REPLICA_READ: self.take_read}

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    # Writes

    def take_writes(self, request: Request) -> None:
        """A parcel of another router."""
        if not self._trusted(request.peer):
            request.fail("not_member", "only members write to replicas")
            return
        try:
            message = protocol.decode_replica_writes(request.body)
        except msgspec.DecodeError as error:
            request.fail(refusals.INVALID, f"the body of {request.method} can't be read: {error}")
            return
        if self._knows(message.topology, message.catalog):
            self._take(request, message)
        else:
            self._later(self._take_when_known(request, message), request)

    def write(self, write: ReplicaWrite, topology: int, deadline: float, answered: Answered) -> None:
        """A write of this node's own router, who has checked its stamps; answered never from within the call."""
        try:
            self._serving.admit_own_write()
        except Refused as refused:
            self._loop.call_soon(answered, self._raft_id, Failed(refused.code, refused.text))
            return
        replica = self._replicas.get(write.table, write.tablet)
        if replica is None or replica.generation != write.generation or self._loads.swapping(write.table):
            finished = partial(self._acknowledge, topology, answered)
            if not self._later(self._write_when_open(write, deadline, finished)):
                failed = Failed(refusals.OVERLOADED, "too many requests wait for replicas to open")
                self._loop.call_soon(answered, self._raft_id, failed)
            return
        finished = partial(self._acknowledge, topology, answered)
        replica.write(write.pairs, finished, repair=write.kind is not WriteKind.FRESH)

    def _take(self, request: Request, message: ReplicaWrites) -> None:
        try:
            self._serving.admit_write(message.topology)
        except Refused as refused:
            request.fail(refused.code, refused.text)
            return
        if not message.writes:
            request.reply(protocol.encode(ReplicaWritten([], self._wall_ms())))
            return
        deadline = request.deadline if request.deadline is not None else self._loop.time() + DEFAULT_DEADLINE_S
        release = partial(self._serving.release_write, message.topology)
        parcel = _Parcel(request, len(message.writes), release, self._wall_ms)
        # One moment for all of them: none is judged by a later time than that at which it came.
        now_ms, judged_us = self._wall_ms(), self._judged_ms() * 1000
        ages = self._ages
        from_ms, to_ms = now_ms - ages.hint_life_ms - ages.max_skew_ms, now_ms + ages.max_skew_ms
        to_us, newest_us = judged_us + self._clock.max_skew_ms * 1000, 0
        find = self._replicas.get
        for position, write in enumerate(message.writes):
            if (
                len(write.pairs) == 2
                and write.kind is WriteKind.FRESH
                and from_ms <= write.written_ms <= to_ms
                and (stamp_us := newest_stamp(write.pairs)) <= to_us
            ):
                # By far the most; what they have shown the clock in the end is the latest of them.
                if stamp_us > newest_us:
                    newest_us = stamp_us
            elif (failure := self._judge(write, now_ms, judged_us)) is not None:
                parcel.one_done(position, failure)
                continue
            replica = find(write.table, write.tablet)
            if (
                replica is not None
                and replica.generation == write.generation
                and (not write.epoch or write.epoch <= self._loads.visible(write.table))
                and not self._loads.swapping(write.table)
            ):
                replica.write(write.pairs, parcel.stored(position), repair=write.kind is not WriteKind.FRESH)
            elif not self._later(self._write_when_open(write, deadline, parcel.stored(position))):
                parcel.one_done(position, Failed(refusals.OVERLOADED, "too many requests wait for replicas to open"))
        if newest_us:
            self._clock.observe(newest_us, judged_us)

    def _judge(self, write: ReplicaWrite, now_ms: int, judged_us: int) -> Failed | None:
        """Whether a write is too old, or from the future."""
        pairs, ages = write.pairs, self._ages
        if len(pairs) % 2 or not pairs:
            return Failed(refusals.INVALID, "a write has as many keys as values, and at least one")
        too_late = refusal_of_age(write.written_ms, now_ms, ages.hint_life_ms, ages.max_skew_ms)
        if too_late is not None:
            return Failed(TOO_LATE, too_late)
        if write.kind is WriteKind.FRESH:
            try:
                self._clock.observe(newest_stamp(pairs), judged_us)
            except SkewRefused as error:
                self.refused_stamps += 1
                self._complain(f"a write was refused: {error}")
                return Failed(SKEW, str(error))
        return None

    def _acknowledge(self, topology: int, answered: Answered, error: BaseException | None) -> None:
        if error is not None:
            answered(self._raft_id, failure_of(error))
            return
        try:
            self._serving.release_write(topology)
        except Refused as refused:
            answered(self._raft_id, Failed(refused.code, refused.text))
            return
        answered(self._raft_id, None)

    async def _take_when_known(self, request: Request, message: ReplicaWrites) -> None:
        if await self._known(request, message.topology, message.catalog):
            self._take(request, message)

    async def _write_when_open(self, write: ReplicaWrite, deadline: float, finished: SyncDone) -> None:
        try:
            if write.kind is WriteKind.FRESH and self._loads.swapping(write.table):
                await self._confirm(write, deadline)
            if not await self._meant_for_now(write, deadline):
                finished(None)
                return
            replica = await self._open(write.table, write.tablet, deadline, write.generation)
        except Refused as refused:
            finished(refused)
            return
        replica.write(write.pairs, finished, repair=write.kind is not WriteKind.FRESH)

    async def _confirm(self, write: ReplicaWrite, deadline: float) -> None:
        """Returns when everything is known here that was written down when the write came. Refused."""
        try:
            await self._barrier(max(deadline - _MARGIN_S - self._loop.time(), 0.001))
        except (WaitedTooLong, GroupError) as error:
            text = f"table {write.table} is overwritten or rolled back, and what is served is not certain: {error}"
            raise Refused(NO_ANSWER, text) from error

    async def _meant_for_now(self, write: ReplicaWrite, deadline: float) -> bool:
        """Whether its generation is served, as soon as that is known; False: it is of one that was. Refused."""
        loads, table = self._loads, write.table

        def known() -> bool:
            if not self._schemas.exists(table):
                return True
            return loads.visible(table) >= write.epoch and not is_coming(loads, table, write.generation)

        try:
            what = f"generation {write.generation} and epoch {write.epoch} of table {table} at instance {self._raft_id}"
            await self._waits.until(known, deadline - _MARGIN_S, what)
        except WaitedTooLong as error:
            raise Refused(NO_ANSWER, str(error)) from None
        served = loads.generation(table)
        if write.generation == served:
            return True
        if write.kind is not WriteKind.FRESH:
            return False
        text = (
            f"the write was meant for generation {write.generation} of table {table}, which was overwritten: "
            f"generation {served} is served now; write it again (nothing was done here)"
        )
        raise Refused(refusals.VERSION_MISMATCH, text)

    # Reads

    def take_read(self, request: Request) -> None:
        """A read of another router."""
        if not self._trusted(request.peer):
            request.fail("not_member", "only members read from replicas")
            return
        try:
            read = protocol.decode_replica_read(request.body)
        except msgspec.DecodeError as error:
            request.fail(refusals.INVALID, f"the body of {request.method} can't be read: {error}")
            return
        replica = self._replicas.get(read.table, read.tablet)
        if replica is None or not self._knows(read.topology, read.catalog) or not self._sees(read):
            self._later(self._read_when_known(request, read), request)
        else:
            self._answer_read(request, read, replica)

    def read(self, read: ReplicaRead) -> ReplicaRows:
        """A read of this node's own router; Refused."""
        replica = self._replicas.get(read.table, read.tablet)
        if replica is None:
            raise Refused(NOT_HERE, f"the replica of tablet {read.tablet} of table {read.table} is not open here")
        return self._read(read, replica)

    def read_cells(
        self,
        layout: RowLayout,
        tablet: int,
        keys: Sequence[bytes],
        columns: Sequence[int],
        now_s: int,
        *,
        may_be_stale: bool,
    ) -> tuple[list[tuple[Cell, ...] | None], bool]:
        """The cells of single rows, for this node's own router, in step with their row keys; and whether stale.

        Only of tables without clustering columns, where nothing but a row's own versions counts. Refused.
        """
        replica = self._replicas.get(layout.table.id, tablet)
        if replica is None or not replica.readable:
            raise Refused("not_ready", f"the replica of tablet {tablet} of {layout.name} is not open here")
        table = layout.table.id
        readable: Readable = replica
        if table in self._loads.epochs and not plain(self._loads, replica, table):
            served, hidden = at_epoch(self._loads, self._replicas, replica, table, tablet, -1)
            if not served.readable:
                raise Refused("not_ready", f"the replica of tablet {tablet} of {layout.name} is being rebuilt")
            readable = Veiled(served, hidden) if hidden else served
        try:
            found = read_cells(readable, layout, keys, columns, now_s, self._shown.version)
        except (Corrupt, BadRow) as error:
            raise Refused(refusals.CORRUPT, str(error)) from error
        return found, self._serving.answer_own(may_be_stale=may_be_stale)

    def ready(self, table: int, tablet: int) -> bool:
        """Whether a read of this node's own replica may be tried."""
        replica = self._replicas.get(table, tablet)
        return replica is not None and replica.readable

    def _read(self, read: ReplicaRead, replica: Replica) -> ReplicaRows:
        may_be_stale = read.level in STALE_LEVELS
        stale = self._serving.admit_read(read.topology, may_be_stale=may_be_stale)
        replica, hidden = at_epoch(self._loads, self._replicas, replica, read.table, read.tablet, read.epoch)
        if not replica.readable:
            text = f"the replica of tablet {read.tablet} of table {read.table} is being rebuilt; ask another"
            raise Refused("not_ready", text)
        if 0 < read.as_of_us < replica.forgot_us:
            text = (
                f"tablet {read.tablet} of table {read.table} can't be read as of {read.as_of_us} here: versions up "
                f"to {replica.forgot_us} were folded, because a row had so many, or lost; ask for a later time"
            )
            raise Refused(HISTORY, text)
        try:
            seen = Veiled(replica, hidden) if hidden else replica
            ranges = read_ranges(seen, self._schemas.layout(read.table), read)
        except (Corrupt, BadRow) as error:
            raise Refused(refusals.CORRUPT, str(error)) from error
        except BadRequest as error:
            raise refusals.invalid(str(error)) from error
        return ReplicaRows(ranges, self._serving.release_read(read.topology, may_be_stale=may_be_stale) or stale)

    def _answer_read(self, request: Request, read: ReplicaRead, replica: Replica) -> None:
        try:
            rows = self._read(read, replica)
            body = protocol.encode(rows)
            if len(body) > self._answer_bytes:
                layout = self._schemas.layout(read.table)
                raise refusal_of_replica(layout, rows.ranges, len(body), self._answer_bytes)
        except Refused as refused:
            request.fail(refused.code, refused.text, refused.details)
        else:
            request.reply(body)

    async def _read_when_known(self, request: Request, read: ReplicaRead) -> None:
        if not await self._known(request, read.topology, read.catalog, read):
            return
        try:
            replica = await self._open(read.table, read.tablet, self._deadline(request))
        except Refused as refused:
            request.fail(refused.code, refused.text)
            return
        self._answer_read(request, read, replica)

    # Waiting

    def _knows(self, topology: int, catalog: int) -> bool:
        return self._view.version >= topology and self._schemas.version >= catalog

    def _sees(self, read: ReplicaRead) -> bool:
        return read.epoch <= 0 or self._loads.visible(read.table) >= read.epoch

    def _deadline(self, request: Request) -> float:
        deadline = request.deadline if request.deadline is not None else self._loop.time() + DEFAULT_DEADLINE_S
        return deadline - _MARGIN_S

    async def _known(self, request: Request, topology: int, catalog: int, read: ReplicaRead | None = None) -> bool:
        """Whether this node came to know these versions, and a read's epoch, in time; else the request is answered."""
        what = f"topology version {topology} and catalog version {catalog} at instance {self._raft_id}"
        if read is not None and read.epoch > 0:
            what = f"epoch {read.epoch} of table {read.table}, {what}"

        def known() -> bool:
            return self._knows(topology, catalog) and (read is None or self._sees(read))

        try:
            await self._waits.until(known, self._deadline(request), what)
        except WaitedTooLong as error:
            request.fail(NO_ANSWER, str(error))
            return False
        return not request.done

    async def _open(self, table: int, tablet: int, deadline: float, generation: int | None = None) -> Replica:
        """The replica as soon as it is open; Refused if it does not belong here, or stays closed for too long."""
        if not self._schemas.exists(table):
            raise Refused(refusals.NOT_FOUND, f"there is no table {table} here")
        if self._gone(table, tablet):
            raise Refused(NOT_HERE, f"instance {self._raft_id} holds no replica of tablet {tablet} of table {table}")
        replicas = self._replicas
        found = replicas.get(table, tablet) if generation is None else replicas.find(table, tablet, generation)
        if found is not None:
            return found
        deadline = min(deadline, self._loop.time() + MAX_OPEN_WAIT_S)
        opening = self._loop.create_task(replicas.opened(table, tablet, deadline, generation))
        # It may be moved away while it is waited for; whoever asks has to know that at once, and goes elsewhere.
        going = self._loop.create_task(self._until_gone(table, tablet, deadline))
        try:
            await asyncio.wait((opening, going), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opening.cancel()
            going.cancel()
        if opening.done():
            with contextlib.suppress(TimeoutError, WaitedTooLong):
                return opening.result()
        if self._gone(table, tablet):
            raise Refused(NOT_HERE, f"tablet {tablet} of table {table} has moved away from instance {self._raft_id}")
        raise Refused("not_ready", f"the replica of tablet {tablet} of table {table} is not open yet")

    async def _until_gone(self, table: int, tablet: int, deadline: float) -> None:
        with contextlib.suppress(WaitedTooLong):
            what = f"tablet {tablet} of table {table} to go"
            await self._waits.until(lambda: self._gone(table, tablet), deadline, what)

    def _gone(self, table: int, tablet: int) -> bool:
        return not self._schemas.holds(self._raft_id, table, tablet)

    def _later(self, work: Coroutine[Any, Any, None], request: Request | None = None) -> bool:
        """Do in a task what has to wait; False: too many wait already (a request is told so)."""
        if len(self._tasks) >= MAX_TASKS:
            work.close()
            if request is not None:
                request.fail(refusals.OVERLOADED, f"{MAX_TASKS} requests wait for this replica already; try again")
            return False
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if (error := defect_of(task)) is not None:
            self._complain(f"a request for a replica met a defect: {error!r}")


class _Parcel:
    """The results of a message, as they come. `release` judges when the answer leaves."""

    __slots__ = ("_left", "_release", "_request", "_results", "_wall_ms")

    def __init__(self, request: Request, count: int, release: Callable[[], None], wall_ms: Callable[[], int]) -> None:
        self._request = request
        self._release = release
        self._wall_ms = wall_ms
        self._left = count
        self._results: list[Failed | None] = [None] * count

    def stored(self, position: int) -> SyncDone:
        """Whom to tell what became of one."""
        return partial(self._stored, position)

    def _stored(self, position: int, error: BaseException | None) -> None:
        if error is None and self._left > 1:
            self._left -= 1
        else:
            self.one_done(position, None if error is None else failure_of(error))

    def one_done(self, position: int, failure: Failed | None) -> None:
        self._results[position] = failure
        self._left -= 1
        if self._left:
            return
        try:
            self._release()
        except Refused as refused:
            self._request.fail(refused.code, refused.text)
            return
        self._request.reply(protocol.encode(ReplicaWritten(self._results, self._wall_ms())))


def failure_of(error: BaseException) -> Failed:
    """What a replica's own error is called on the wire."""
    if isinstance(error, Refused):
        return Failed(error.code, error.text)
    if isinstance(error, DiskFull):
        return Failed(refusals.DISK_FULL, str(error))
    if isinstance(error, LogBusy):
        return Failed(refusals.OVERLOADED, str(error))
    if isinstance(error, Corrupt):
        return Failed(refusals.CORRUPT, str(error))
    return Failed("failed", str(error) or type(error).__name__)
