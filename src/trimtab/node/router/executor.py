"""The one executor of requests for rows: put, delete, batch, get, slice and scan, for every door there is.

A door decodes what it was sent into the structs of `rows.protocol` and gives them here with a deadline; it is told the
answer, or a refusal, exactly once. What can be answered at once is: the hot path (a put, or a get from this node's own
replica) makes no task and encodes nothing for a network. Whoever prefers to await uses `ask`.

Here a request is checked against the schema, stamped, and taken apart by tablet. It is carried out as it stands or
refused whole before anything is sent (but for puts that only travel together, see `apart`); the versions of topology
and catalog that it is routed by are those of one moment.

A read as of a time waits until that is further back than clocks may differ: then nobody stamps a write with it any
more, and what one page shows the next one does not contradict. What was stamped before and is still on its way to the
replicas by then may show up late; an export waits for that too (`pipeline.exports`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.apart import Apart
from trimtab.node.router.batches import Batches
from trimtab.node.router.gets import Gets
from trimtab.node.router.large_rows import refusal_of_get
from trimtab.node.router.paging import Paging
from trimtab.node.router.schemas import Behind, Schemas
from trimtab.node.router.stamping import Stamping
from trimtab.node.router.writes import Writes
from trimtab.node.serving import MAX_ROUTED_S
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import CLIENT, ByPartition, pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import (
    BatchRequest,
    DeleteRequest,
    GetRequest,
    PutRequest,
    ReplicaWrite,
    RowsReply,
    ScanRequest,
    SliceRequest,
    WriteKind,
    WriteReply,
)
from trimtab.tablets.clock import SkewRefused

Answer = WriteReply | RowsReply | Refused
Done = Callable[[Answer], None]
AnyRequest = PutRequest | DeleteRequest | BatchRequest | GetRequest | SliceRequest | ScanRequest

MAX_ROWS = 1_000  # of one put, or writes of one batch: more would hold the loop for too long
MAX_WAITING = 4_000  # requests that wait in tasks
_MARGIN_S = 0.03
_PAIR_OVERHEAD_BYTES = 10


class Executor:
    """Of one node. `limit_bytes`: of what goes to one replica in one piece."""

    def __init__(
        self,
        schemas: Schemas,
        loads: LoadView,
        writes: Writes,
        batches: Batches,
        gets: Gets,
        paging: Paging,
        stamping: Stamping,
        waits: Waits,
        *,
        limit_bytes: int,
        complain: Callable[[str], None],
    ) -> None:
        self._schemas = schemas
        self._loads = loads
        self._writes = writes
        self._batches = batches
        self._gets = gets
        self._paging = paging
        self._stamping = stamping
        self._waits = waits
        self._limit_bytes = limit_bytes
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def close(self) -> None:
        """End everything that waits here."""
        for task in list(self._tasks):
            task.cancel()

    async def ask(self, request: AnyRequest, deadline: float) -> WriteReply | RowsReply:
        """The answer to any request; Refused."""
        future: asyncio.Future[WriteReply | RowsReply] = self._loop.create_future()

        def done(answer: Answer) -> None:
            if future.done():
                return
            if isinstance(answer, Refused):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.execute(request, deadline, done)
        return await future

    def execute(self, request: AnyRequest, deadline: float, done: Done) -> None:
        """Carry a request out; `deadline` (loop time) is that of whoever asked."""
        # Answers leave a little before: they have to arrive, and a refusal with its numbers is better than silence.
        deadline = min(deadline, self._loop.time() + MAX_ROUTED_S) - _MARGIN_S
        try:
            if request.__class__ is PutRequest:
                self._put(request, deadline, done)
            else:
                self._begin(request, deadline, done)
        except Behind as behind:
            self.spawn(self._when_known(request, behind.version, deadline, done), done)
        except Refused as refused:
            done(refused)
        except (BadRequest, SkewRefused) as error:
            done(refusals.invalid(str(error)))
        except BadRow as error:
            done(Refused(refusals.CORRUPT, str(error)))

    def too_large(self, request: AnyRequest, answer: Answer, size_bytes: int, limit_bytes: int) -> Answer:
        """What to say instead of an answer that does not fit; pages are made to."""
        if isinstance(request, GetRequest) and isinstance(answer, RowsReply):
            try:
                layout = self._schemas.layout(request.table)
            except Refused as refused:
                return refused
            return refusal_of_get(layout, request, answer, size_bytes, limit_bytes)
        return answer

    def _begin(self, request: AnyRequest, deadline: float, done: Done) -> None:
        if isinstance(request, GetRequest):
            layout = self._schemas.asked(request.table, request.version)
            _check_columns(layout, request.columns)
            if not request.as_of_us or self._is_over(layout, request, deadline, done):
                self._gets.begin(layout, request, deadline, done)
        elif isinstance(request, PutRequest):
            self._put(request, deadline, done)
        elif isinstance(request, DeleteRequest):
            self._delete(request, deadline, done)
        elif isinstance(request, BatchRequest):
            self._batch(request, deadline, done)
        elif isinstance(request, SliceRequest):
            layout = self._schemas.asked(request.table, request.version)
            _check_columns(layout, request.columns)
            if not request.as_of_us or self._is_over(layout, request, deadline, done, resumed=bool(request.page)):
                self.spawn(self._paged(self._paging.slice(layout, request, deadline), done), done)
        else:
            layout = self._schemas.asked(request.table, request.version)
            _check_columns(layout, request.columns)
            resumed = bool(request.page) or request.epoch >= 0
            if not request.as_of_us or self._is_over(layout, request, deadline, done, resumed=resumed):
                self.spawn(self._paged(self._paging.scan(layout, request, deadline), done), done)

    # Writes

    def _put(self, request: PutRequest, deadline: float, done: Done) -> None:
        layout = self._schemas.asked(request.table, request.version)
        if len(request.rows) > MAX_ROWS:
            raise refusals.invalid(f"a put of {len(request.rows)} rows; it may have {MAX_ROWS}, send several")
        _check_number(layout, request.columns)
        stamp_us, now_ms = self._stamping.stamp(request.timestamp_us, request.after_us)
        stamped_by = CLIENT if request.timestamp_us else self._writes.raft_id
        parts = pairs_of_put(layout, request, stamp_us, now_ms, stamped_by=stamped_by)
        table = layout.table
        writes = self._by_tablet(table.id, table.tablets, parts, now_ms)
        if request.apart and writes:
            tablets = [write.tablet for write in writes]
            answer = Apart(tablets, stamp_us, self._writes.deadlines, self._loop.time, deadline, done)
            for write in writes:
                self._writes.begin([write], request.level, deadline, answer.part(write.tablet))
        else:
            self._write(writes, request, stamp_us, deadline, done)

    def _delete(self, request: DeleteRequest, deadline: float, done: Done) -> None:
        layout = self._schemas.asked(request.table, request.version)
        stamp_us, now_ms = self._stamping.stamp(request.timestamp_us, request.after_us)
        parts = pairs_of_delete(layout, request, stamp_us, now_ms)
        writes = self._by_tablet(layout.table.id, layout.table.tablets, parts, now_ms)
        self._write(writes, request, stamp_us, deadline, done)

    def _batch(self, request: BatchRequest, deadline: float, done: Done) -> None:
        if len(request.writes) > MAX_ROWS or sum(_rows(each) for each in request.writes) > MAX_ROWS:
            raise refusals.invalid(f"a batch may write {MAX_ROWS} rows; send several")
        layouts = [self._schemas.asked(each.table, each.version) for each in request.writes]
        stamp_us, now_ms = self._stamping.stamp(request.timestamp_us, request.after_us)
        by_table: dict[int, tuple[int, ByPartition]] = {}
        turn = 0
        for layout, each in zip(layouts, request.writes, strict=True):
            # A write may have a stamp of its own.
            own_us = self._stamping.checked(each.timestamp_us, now_ms) if each.timestamp_us else stamp_us
            if isinstance(each, PutRequest):
                _check_number(layout, each.columns)
                stamped_by = CLIENT if each.timestamp_us or request.timestamp_us else self._writes.raft_id
                parts = pairs_of_put(layout, each, own_us, now_ms, stamped_by=stamped_by, turn=turn)
                turn += len(each.rows)
            else:
                parts = pairs_of_delete(layout, each, own_us, now_ms)
            _, gathered = by_table.setdefault(layout.table.id, (layout.table.tablets, {}))
            for prefix, pairs in parts.items():
                gathered.setdefault(prefix, []).extend(pairs)
        writes: list[ReplicaWrite] = []
        for table, (tablets, gathered) in by_table.items():
            writes.extend(self._by_tablet(table, tablets, gathered, now_ms))
        if request.logged and len(writes) > 1:
            self.spawn(self._logged(writes, request, stamp_us, deadline, done), done)
        else:
            self._write(writes, request, stamp_us, deadline, done)

    async def _logged(
        self, writes: list[ReplicaWrite], request: BatchRequest, stamp_us: int, deadline: float, done: Done
    ) -> None:
        try:
            acknowledged = await self._batches.run(writes, request.level, deadline)
        except Refused as refused:
            done(refused)
        else:
            done(WriteReply(stamp_us, acknowledged))

    def _write(
        self,
        writes: list[ReplicaWrite],
        request: PutRequest | DeleteRequest | BatchRequest,
        stamp_us: int,
        deadline: float,
        done: Done,
    ) -> None:
        if not writes:
            done(WriteReply(stamp_us))
            return

        def written(refused: Refused | None, acknowledged: int) -> None:
            if refused is None:
                done(WriteReply(stamp_us, acknowledged))
            elif refused.code == refusals.VERSION_MISMATCH:
                self.spawn(self._when_overwritten(writes, request, refused, deadline, done), done)
            else:
                done(refused)

        self._writes.begin(writes, request.level, deadline, written)

    def _by_tablet(self, table: int, tablets: int, parts: ByPartition, now_ms: int) -> list[ReplicaWrite]:
        """One write for each tablet, or several where they are large. A partition's pairs stay together."""
        shift = 65 - tablets.bit_length()
        known = self._loads.epochs.get(table)
        # Who does not know yet since when the generation is served must not take it for one that is served no more.
        epoch, generation = (0, 1) if known is None else known.generations[-1]
        if len(parts) == 1:
            # By far the most: one row.
            prefix, pairs = next(iter(parts.items()))
            self._check_size(pairs)
            tablet = int.from_bytes(prefix[:8]) >> shift
            return [ReplicaWrite(table, tablet, pairs, now_ms, WriteKind.FRESH, generation, epoch)] if pairs else []
        open_: dict[int, tuple[list[bytes], int]] = {}
        writes: list[ReplicaWrite] = []
        for prefix, pairs in parts.items():
            if not pairs:
                continue
            size, tablet = self._check_size(pairs), int.from_bytes(prefix[:8]) >> shift
            gathered, bytes_ = open_.get(tablet, (None, 0))
            if gathered is None or bytes_ + size > self._limit_bytes:
                gathered, bytes_ = [], 0
                writes.append(ReplicaWrite(table, tablet, gathered, now_ms, WriteKind.FRESH, generation, epoch))
            gathered.extend(pairs)
            open_[tablet] = (gathered, bytes_ + size)
        return writes

    def _check_size(self, pairs: list[bytes]) -> int:
        if len(pairs) == 2:
            size = len(pairs[0]) + len(pairs[1]) + 2 * _PAIR_OVERHEAD_BYTES
        else:
            size = sum(map(len, pairs)) + _PAIR_OVERHEAD_BYTES * len(pairs)
        if size > self._limit_bytes:
            text = f"{size} bytes for one partition in one request, at most {self._limit_bytes} go at a time"
            raise refusals.invalid(f"{text}; send less at a time")
        return size

    def _is_over(
        self,
        layout: RowLayout,
        request: GetRequest | SliceRequest | ScanRequest,
        deadline: float,
        done: Done,
        *,
        resumed: bool = False,
    ) -> bool:
        """Whether the time that a read is of is over for every clock; if not, it is carried out as soon as it is.

        Refused, where it is to come, or too long ago.
        """
        self._check_history(layout, request.as_of_us, resumed=resumed)
        skew_ms = self._stamping.clock.max_skew_ms
        ahead_ms = request.as_of_us / 1000 - self._stamping.now_ms()
        if ahead_ms > skew_ms:
            text = f"{layout.name} can't be read as of a time that is {ahead_ms:.0f} ms ahead of this instance's clock"
            raise refusals.invalid(f"{text}; give microseconds since 1970, of a time that is over")
        left_s = (ahead_ms + skew_ms) / 1000
        if left_s <= 0:
            return True
        if self._loop.time() + left_s >= deadline:
            text = f"{layout.name} can be read as of {request.as_of_us} in {left_s * 1000:.0f} ms, when no clock of the"
            raise Refused(refusals.READ_TIMEOUT, f"{text} cluster is before it any more; ask again, or give more time")
        self.spawn(self._when_over(request, left_s, deadline, done), done)
        return False

    def _check_history(self, layout: RowLayout, as_of_us: int, *, resumed: bool) -> None:
        """What is older than the table's history may be folded away on some replicas, and not on others.

        Nor is there anything of the time before an overwrite. Later pages are of the generation of the first one.
        """
        kept_s = layout.table.options.history_s
        ago_s = self._stamping.now_ms() / 1000 - as_of_us / 1_000_000
        if as_of_us < 0 or ago_s > kept_s:
            text = f"{layout.name} can be read as it was up to {kept_s} s ago (its option history_s), not {ago_s:.0f} s"
            raise Refused(refusals.INVALID, text, refusals.numbers(history_s=kept_s, ago_s=int(ago_s)))
        if not resumed and as_of_us < (since_us := self._loads.whole_since_us(layout.table.id)):
            text = (
                f"{layout.name} was overwritten since; it can be read as it was from {since_us} µs on, not {as_of_us}"
            )
            raise Refused(refusals.INVALID, text, refusals.numbers(since_us=since_us))

    # What takes its time

    async def _paged(self, work: Coroutine[Any, Any, RowsReply], done: Done) -> None:
        try:
            reply = await work
        except Refused as refused:
            done(refused)
        except BadRequest as error:
            done(refusals.invalid(str(error)))
        except BadRow as error:
            done(Refused(refusals.CORRUPT, str(error)))
        else:
            done(reply)

    async def _when_over(self, request: AnyRequest, left_s: float, deadline: float, done: Done) -> None:
        await asyncio.sleep(left_s)
        self.execute(request, deadline + _MARGIN_S, done)

    async def _when_known(self, request: AnyRequest, version: int, deadline: float, done: Done) -> None:
        try:
            what = f"catalog version {version}, which the request was made for"
            await self._waits.until(lambda: self._schemas.version >= version, deadline, what)
        except WaitedTooLong as error:
            details = refusals.numbers(version=version, current=self._schemas.version)
            done(Refused(refusals.VERSION_MISMATCH, str(error), details))
            return
        self.execute(request, deadline + _MARGIN_S, done)

    async def _when_overwritten(
        self,
        writes: list[ReplicaWrite],
        request: PutRequest | DeleteRequest | BatchRequest,
        refused: Refused,
        deadline: float,
        done: Done,
    ) -> None:
        """Replicas know of a newer generation of a table than this node: once it does too, write to that one."""

        def known() -> bool:
            return any(self._loads.generation(each.table) != each.generation for each in writes)

        try:
            await self._waits.until(known, deadline, "the generation that is served now")
        except WaitedTooLong:
            done(refused)
            return
        self.execute(request, deadline + _MARGIN_S, done)

    def spawn(self, work: Coroutine[Any, Any, None], done: Done | None = None) -> None:
        """Do in a task what has to wait; `done` is told if too many wait already, or if it meets a defect."""
        if len(self._tasks) >= MAX_WAITING and done is not None:
            work.close()
            text = f"{MAX_WAITING} requests wait here already; nothing was begun, try again shortly"
            done(Refused(refusals.OVERLOADED, text, refusals.numbers(under_way=MAX_WAITING, limit=MAX_WAITING)))
            return
        task = self._loop.create_task(work)
        self._tasks[task] = None

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if task.cancelled():
                if done is not None:
                    done(Refused("stopped", "this instance is stopping; ask another"))
            elif (error := task.exception()) is not None:
                self._complain(f"a request for rows met a defect: {error!r}")
                if done is not None:
                    done(Refused("internal", f"{type(error).__name__}: {error}"[:300]))

        task.add_done_callback(ended)


def _check_number(layout: RowLayout, columns: Sequence[int]) -> None:
    """Before anything is made for each of them: a small message must not become a large answer, or much work."""
    if len(columns) > len(layout.columns):
        text = f"{len(columns)} columns are named, and the table has {len(layout.columns)}; name each once"
        raise layout.refuse(text)


def _check_columns(layout: RowLayout, columns: Sequence[int]) -> None:
    """That each is named once; whether there are such columns is found out where they are read."""
    _check_number(layout, columns)
    if len(set(columns)) != len(columns):
        twice = next(id for at, id in enumerate(columns) if id in columns[:at])
        raise layout.refuse(f"{layout.column_name(twice)} is named twice; name each column once")


def _rows(write: PutRequest | DeleteRequest) -> int:
    return len(write.rows) if isinstance(write, PutRequest) else 1
