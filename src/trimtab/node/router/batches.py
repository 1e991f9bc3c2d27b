"""Logged batches: writes to several tablets of which all happen, or none, whoever dies on the way.

Before the first write is sent, the whole batch is durable on two live instances (its holders; on other hosts than the
coordinator where there are such, and on the coordinator itself only where there are too few others). When every write
has reached its level, the holders are told to forget it. A holder that was not told in time carries the batch out
itself, with the stamps it has: replicas that have it already lose nothing by it. So a client that was told
`write_timeout` can count on the batch happening as a whole, and one that was told `unavailable` on nothing having
happened. Only where too few could hold the batch nothing is sent, and whoever may have it is told to forget it: should
one of them not hear that, the whole batch happens, else nothing of it. Where nobody may have it, because all that were
asked have refused, nothing was done. The refusal says which of the three it is.

A batch that fits into one tablet needs none of this: a replica takes it as one.

Replicas refuse what began longer ago than a hint lives. A batch that no holder could carry out in that time is dropped,
and operators are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.background import defect_of
from trimtab.node.router import refusals
from trimtab.node.router.parcels import NOT_SENT, refusal_of
from trimtab.node.router.refusals import NothingDone
from trimtab.node.router.writes import Writes
from trimtab.rows.protocol import Failed, ReplicaWrite
from trimtab.storage.mutation_log import Records
from trimtab.tablets.consistency import Level

STORE = "batch.store"
REMOVE = "batch.remove"
NOT_MEMBER = "not_member"
HOLDERS = 2
STORE_TIMEOUT_S = 2.0
REMOVE_TIMEOUT_S = 5.0
MAX_HELD_BYTES = 256 << 20
_REPLAYS_A_ROUND = 200
_MAY_HAPPEN = (refusals.WRITE_TIMEOUT, refusals.WRITE_FAILED)
# A holder that says one of these does not have the batch; one that was not asked (NOT_SENT) does not either.
_NOT_STORED = frozenset((refusals.DISK_FULL, refusals.OVERLOADED, refusals.INVALID, NOT_MEMBER, NOT_SENT))
_REPLAY_TIMEOUT_S = 10.0


class BatchRecord(msgspec.Struct, array_like=True, frozen=True):
    """A batch as its holders keep it. `written_ms` is the coordinator's clock when it began."""

    id: bytes
    coordinator: int
    written_ms: int
    level: Level
    writes: list[ReplicaWrite]


class BatchRemoval(msgspec.Struct, array_like=True, frozen=True):
    ids: list[bytes]


encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(BatchRecord).decode
_decode_removal = msgspec.msgpack.Decoder(BatchRemoval).decode


class Neighbours(Protocol):
    """What batches have to know of the others."""

    def holders(self) -> list[int]:
        """The instances that can hold a batch now, the best ones first; this one last."""
        ...

    def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> Awaitable[bytes]: ...


class Batches:
    """The batches that this node coordinates, and those that it holds for others."""

    def __init__(
        self,
        raft_id: int,
        writes: Writes,
        records: Records,
        neighbours: Neighbours,
        *,
        new_id: Callable[[], bytes],
        wall_ms: Callable[[], int],
        limit_bytes: int,
        replay_after_ms: int,
        hint_life_ms: int,
        trusted: Callable[[Hello], bool],
        complain: Callable[[str], None],
        name: str = "",
    ) -> None:
        self._name = name
        self._trusted = trusted
        self._raft_id = raft_id
        self._writes = writes
        self._records = records
        self._neighbours = neighbours
        self._new_id = new_id
        self._wall_ms = wall_ms
        self._limit_bytes = limit_bytes
        self._replay_after_ms = replay_after_ms
        self._hint_life_ms = hint_life_ms
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._held: dict[bytes, tuple[int, int]] = {}  # id -> since when (wall ms), bytes
        self._held_bytes = 0
        self._begun: set[bytes] = set()  # those that were carried out here, perhaps in part
        self._replaying: asyncio.Task[None] | None = None
        self._removals: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.replayed = 0
        self.dropped = 0

    def methods(self) -> dict[str, Method]:
        return {STORE: self.store, REMOVE: self.remove}

    @property
    def held(self) -> int:
        """How many batches are held here for whoever coordinates them."""
        return len(self._held)

    def start(self) -> None:
        """Take up what an earlier life held, and look from now on for batches that nobody has finished."""
        for key, value in self._records.scan():
            # Nobody tells a life that has ended to forget something: all of it is looked at again.
            self._held[key] = (0, len(value))
            self._held_bytes += len(value)
        self._look_again()

    def stop(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._removals, *((self._replaying,) if self._replaying is not None else ())]:
            task.cancel()

    # As coordinator

    async def run(self, writes: Sequence[ReplicaWrite], level: Level, deadline: float) -> int:
        """Carry a batch out; how many replicas had it (the least of any tablet). Refused like any write."""
        refused, _ = self._writes.check(writes, level)
        if refused is not None:
            raise refused
        record = BatchRecord(self._new_id(), self._raft_id, writes[0].written_ms, level, list(writes))
        body = encode(record)
        if len(body) > self._limit_bytes:
            text = f"the batch makes {len(body)} bytes, a logged one may have {self._limit_bytes}; send less at a time"
            raise refusals.invalid(text)
        holders = await self._spread(record, body, deadline)
        failpoints.hit("batch.stored", self._name)
        try:
            acknowledged = await self._write(writes, level, deadline)
        except Refused as failure:
            if failure.code in _MAY_HAPPEN and not isinstance(failure, NothingDone):
                raise
            # Nothing was sent from here, but the holders carry it out: nobody may be told that nothing happens.
            text = failure.text.replace(refusals.NOTHING, f"{refusals.NOTHING} yet", 1)
            text = f"{text}; the batch will still happen"
            raise Refused(refusals.WRITE_TIMEOUT, text, failure.details) from None
        failpoints.hit("batch.written", self._name)
        self._forget_at(holders, record.id)
        return acknowledged

    async def _spread(self, record: BatchRecord, body: bytes, deadline: float) -> list[int]:
        """Store the record where it outlives this process; who holds it then."""
        candidates = self._neighbours.holders()
        wanted = min(HOLDERS, len(candidates))
        holders: list[int] = []
        others: list[int] = []  # who may have it too, though they have not said so
        refused: dict[int, Failed] = {}
        while len(holders) < wanted:
            missing = wanted - len(holders)
            asked, candidates = candidates[:missing], candidates[missing:]
            left_s = min(deadline - self._loop.time(), STORE_TIMEOUT_S)
            if not asked or left_s <= 0:
                # Nothing was written, but whoever stored the record would carry it out.
                self._forget_at([*holders, *others], record.id)
                raise _not_held(wanted, len(holders), refused, in_doubt=bool(holders or others))
            answers = await asyncio.gather(
                *(self._neighbours.ask(each, STORE, body, left_s) for each in asked), return_exceptions=True
            )
            for raft_id, answer in zip(asked, answers, strict=True):
                if isinstance(answer, bytes):
                    holders.append(raft_id)
                elif isinstance(answer, Refused | NetError):
                    failure = Failed(answer.code, answer.text) if isinstance(answer, Refused) else refusal_of(answer)
                    refused[raft_id] = failure
                    if failure.code not in _NOT_STORED:
                        others.append(raft_id)
                elif isinstance(answer, BaseException):
                    raise answer
        return holders

    async def _write(self, writes: Sequence[ReplicaWrite], level: Level, deadline: float) -> int:
        future: asyncio.Future[int] = self._loop.create_future()

        def done(refused: Refused | None, acknowledged: int) -> None:
            if future.done():
                return
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result(acknowledged)

        self._writes.begin(writes, level, deadline, done)
        return await future

    def _forget_at(self, holders: Sequence[int], id: bytes) -> None:
        """Tell the holders that the batch is done. One that does not hear it carries it out once more, in vain."""
        if holders and not self._closed:
            task = self._loop.create_task(self._tell(list(holders), encode(BatchRemoval([id]))))
            self._removals[task] = None
            task.add_done_callback(lambda ended: self._removals.pop(ended, None))

    async def _tell(self, holders: list[int], body: bytes) -> None:
        asking = (self._neighbours.ask(each, REMOVE, body, REMOVE_TIMEOUT_S) for each in holders)
        for answer in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, Refused | NetError):
                self._complain(f"holders could not be told to forget a batch: {answer!r}")

    # As holder

    async def store(self, asked: Asked) -> bytes:
        """Answered when the record is durable here."""
        self._check_member(asked)
        record = _decode_record(asked.body)
        if len(asked.body) > self._limit_bytes:
            raise refusals.invalid(f"a batch of {len(asked.body)} bytes is too large to be held here")
        if self._held_bytes + len(asked.body) > MAX_HELD_BYTES:
            text = f"{len(self._held)} batches of {self._held_bytes} bytes are held here already"
            raise Refused(refusals.OVERLOADED, text)
        if record.id not in self._held:
            self._held[record.id] = (self._wall_ms(), len(asked.body))
            self._held_bytes += len(asked.body)
        done: asyncio.Future[None] = self._loop.create_future()

        def synced(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(Refused(refusals.DISK_FULL, str(error)))

        self._records.put(record.id, bytes(asked.body), synced)
        try:
            await done
        except Refused:
            self._let_go(record.id)
            raise
        return b""

    async def remove(self, asked: Asked) -> bytes:
        self._check_member(asked)
        for id in _decode_removal(asked.body).ids:
            # What was begun here is finished, or a part of it would stay.
            if id not in self._begun:
                self._let_go(id)
        return b""

    def _check_member(self, asked: Asked) -> None:
        if not self._trusted(asked.peer):
            raise Refused(NOT_MEMBER, "only members hold batches for each other")

    def _let_go(self, id: bytes) -> None:
        self._begun.discard(id)
        held = self._held.pop(id, None)
        if held is not None:
            self._held_bytes -= held[1]
            self._records.delete(id)

    # Carrying out what others left

    def _look_again(self) -> None:
        if self._closed:
            return
        self._timer = self._loop.call_later(self._replay_after_ms / 2000, self._look_again)
        due = self._wall_ms() - self._replay_after_ms
        if self._replaying is None and any(since <= due for since, _ in self._held.values()):
            self._replaying = self._loop.create_task(self._replay(due))
            self._replaying.add_done_callback(self._replay_ended)

    def _replay_ended(self, task: asyncio.Task[None]) -> None:
        self._replaying = None
        if (error := defect_of(task)) is not None:
            self._complain(f"batches that others left could not be carried out: {error!r}")

    async def _replay(self, due: int) -> None:
        ids = [id for id, (since, _) in self._held.items() if since <= due][:_REPLAYS_A_ROUND]
        for id in ids:
            value = self._records.get(id)
            if value is None:
                self._let_go(id)
                continue
            try:
                record = _decode_record(value)
            except msgspec.DecodeError as error:
                self._complain(f"a batch that was held here can't be read and is dropped: {error}")
                self._let_go(id)
                continue
            await self._carry_out(record)

    async def _carry_out(self, record: BatchRecord) -> None:
        if self._wall_ms() - record.written_ms > self._hint_life_ms:
            self.dropped += 1
            text = f"a batch of {len(record.writes)} tablets that instance {record.coordinator} left"
            self._complain(f"{text} could not be carried out in time and is dropped; its tables may disagree")
            self._let_go(record.id)
            return
        deadline = self._loop.time() + _REPLAY_TIMEOUT_S
        self._begun.add(record.id)
        try:
            if writes := self._writes.of_known_tables(record.writes):
                await self._write(writes, record.level, deadline)
        except Refused:
            return  # it is tried again in a while; nothing is lost by that
        self.replayed += 1
        self._let_go(record.id)


def _not_held(wanted: int, held: int, refused: Mapping[int, Failed], *, in_doubt: bool) -> Refused:
    """What is said of a batch that too few could store. `in_doubt`: somebody may have it, and carry it out."""
    why = "; ".join(f"instance {raft_id}: {each.text}" for raft_id, each in refused.items()) or "the time was over"
    text = f"a logged batch has to be stored on {wanted} instances, {held} could ({why})"
    details = refusals.numbers(
        required=wanted, received=held, alive=held, failures=len(refused), reasons=_reasons(refused)
    )
    if in_doubt:
        text += "; nothing of it was written yet, and it will happen wholly or not at all"
        return Refused(refusals.WRITE_TIMEOUT, text, details)
    codes = {each.code for each in refused.values()}
    only = codes.pop() if len(codes) == 1 else ""
    code = only if only in (refusals.DISK_FULL, refusals.OVERLOADED) else refusals.UNAVAILABLE
    return NothingDone(code, f"{text}; {refusals.NOTHING}", details)


def _reasons(refused: Mapping[int, Failed]) -> dict[str, int | str]:
    return {str(raft_id): each.code for raft_id, each in sorted(refused.items())}
