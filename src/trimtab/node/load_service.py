"""The doors of loads: begun, renewed, committed, aborted and rolled back by way of any member; shown by the one asked.

The leader decides (`trimtab.loads`) and writes on the condition that everything it looked at is as it was. All of it
may be asked again: the answer is the load as it is by then. So a driver that got no answer asks until it has one,
whoever leads meanwhile.

A renewal is no write: the leader remembers when it heard from the driver. That is lost with the leader, and a new one
gives every driver a whole lease (`governor.loads`).

A rollback is announced first, and written when every member that may serve has heard of it (`generations.announce`).
Who does not answer is marked Offline before long, so asking again helps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from trimtab.governor.loads import write_of
from trimtab.loads import generations, protocol, rules
from trimtab.loads.protocol import (
    AbortRequest,
    BeginRequest,
    CommitRequest,
    LoadReply,
    LoadsReply,
    MovedDetails,
    RenewRequest,
    RollbackReply,
    RollbackRequest,
)
from trimtab.loads.records import LoadRecord, LoadState, epoch_key, load_stamp
from trimtab.loads.situation import LoadChange, LoadRefused, Situation
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.figures import Distribution, Sample
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.node.office import Office
from trimtab.node.router.stamping import Stamping
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.node.watching import Watching
from trimtab.tablets.clock import SkewRefused

MAX_SHOWN = 2_000  # loads in one answer, the newest; it has to fit into a frame
HEAR_S = 3.0  # for everybody to hear of a rollback
MAX_ANNOUNCED = 4  # times, in one request: somebody else may withdraw it meanwhile, or load into the table
_MARGIN_S = 0.1
_EVENTS = "load"
T = TypeVar("T")


class LoadService:
    """Answers load.* for one instance, but for what concerns its own replicas; while it leads, it knows the drivers.

    `stamping` is what stamps writes here. `alive` is the leader's knowledge of who was heard from lately. `behind`:
    who of these members has not applied what is applied here, within that time, and why.
    """

    def __init__(
        self,
        watching: Watching,
        door: LeaderDoor,
        office: Office,
        waits: Waits,
        stamping: Stamping,
        *,
        name: str,
        alive: Callable[[int], bool],
        barrier: Callable[[float], Awaitable[None]],
        behind: Callable[[Iterable[int], float], Awaitable[dict[int, str]]],
        clock_s: Callable[[], float],
    ) -> None:
        self._watching = watching
        self._loads = watching.loads
        self._door = door
        self._office = office
        self._waits = waits
        self._name = name
        self._stamping = stamping
        self._alive = alive
        self._barrier = barrier
        self._behind = behind
        self._clock_s = clock_s
        self._loop = asyncio.get_running_loop()
        self._heard_s: dict[tuple[int, str], float] = {}
        self._heard_in = 0  # the term of office that it was heard in

    def methods(self) -> dict[str, Method]:
        return {
            protocol.BEGIN: self.begin,
            protocol.RENEW: self.renew,
            protocol.COMMIT: self.commit,
            protocol.ABORT: self.abort,
            protocol.ROLLBACK: self.rollback,
            protocol.SHOW: self.show,
        }

    def situation(self) -> Situation:
        """What decisions about loads look at, now."""
        watching = self._watching
        return Situation(watching.view, watching.tables, watching.loads, self._stamping.now_ms(), self._alive)

    # What only the leader knows

    def renewed_ms(self) -> dict[tuple[int, str], int]:
        """How long ago the drivers of open loads were heard from, as far as this leader can know."""
        self._begin_office()
        now_s = self._clock_s()
        for key in self._loads.open_loads:
            # It has just begun and its driver is not answered yet, or this leader has just come: its time begins now.
            self._heard_s.setdefault(key, now_s)
        for key in self._heard_s.keys() - self._loads.open_loads.keys():
            del self._heard_s[key]
        # A leader that stood still begins its office anew: who was silent meanwhile was perhaps not heard.
        longest_ms = self._office.in_office_ms
        return {key: min(int((now_s - heard_s) * 1000), longest_ms) for key, heard_s in self._heard_s.items()}

    def _hear(self, table: int, id: str) -> None:
        self._begin_office()
        if (table, id) in self._loads.open_loads:
            self._heard_s[table, id] = self._clock_s()

    def _begin_office(self) -> None:
        """What an earlier term of office heard does not count in this one."""
        if self._heard_in != self._office.term:
            self._heard_in = self._office.term
            self._heard_s.clear()

    def figures(self) -> Iterable[Sample | Distribution]:
        """How many loads are in each state."""
        counts = dict.fromkeys(LoadState, 0)
        for load in self._loads.loads.values():
            counts[load.state] += 1
        for state, count in counts.items():
            yield Sample(
                "loads", "Loads by state; those that ended long ago are forgotten.", count, (("state", state.value),)
            )

    # The driver

    async def begin(self, asked: Asked) -> bytes:
        """A new load with its session and stamp, or the one of the same id."""
        request: BeginRequest = protocol.decode_begin(asked.body)
        if (answer := await self._pass_on(protocol.BEGIN, request, asked)) is not None:
            return answer

        def judge(situation: Situation) -> LoadChange | LoadRecord:
            try:
                now_us, _began_ms = self._stamping.stamp(request.timestamp_us, 0)
            except SkewRefused as error:
                raise LoadRefused("invalid", str(error)) from error
            given = load_stamp(now_us) if request.timestamp_us else 0
            return rules.begin(situation, request, given or rules.stamp_for(situation, request.table, now_us))

        await self._decide("begin", judge)
        self._hear(request.table, request.id)
        return self._reply(request.table, request.id)

    async def renew(self, asked: Asked) -> bytes:
        """The driver is there. The record tells it how the load stands: it may have been ended."""
        request: RenewRequest = protocol.decode_renew(asked.body)
        if (answer := await self._pass_on(protocol.RENEW, request, asked)) is not None:
            return answer
        self._hear(request.table, request.id)
        return self._reply(request.table, request.id)

    async def commit(self, asked: Asked) -> bytes:
        """From now on the load counts, whatever becomes of its driver."""
        request: CommitRequest = protocol.decode_commit(asked.body)
        if (answer := await self._pass_on(protocol.COMMIT, request, asked)) is not None:
            return answer
        self._hear(request.table, request.id)
        await self._decide("commit", lambda situation: rules.commit(situation, request))
        return self._reply(request.table, request.id)

    async def abort(self, asked: Asked) -> bytes:
        """The load is given up, unless it counts already."""
        request: AbortRequest = protocol.decode_abort(asked.body)
        if (answer := await self._pass_on(protocol.ABORT, request, asked)) is not None:
            return answer
        await self._decide("abort", lambda situation: rules.abort(situation, request.table, request.id, request.reason))
        return self._reply(request.table, request.id)

    # Operators

    async def rollback(self, asked: Asked) -> bytes:
        """What a rollback drops; with `apply`, done."""
        request: RollbackRequest = protocol.decode_rollback(asked.body)
        if (answer := await self._pass_on(protocol.ROLLBACK, request, asked)) is not None:
            return answer
        if not request.apply:
            _change, said = _refusing(lambda: generations.rollback(self.situation(), request))
            return _encoded(said)
        for _ in range(MAX_ANNOUNCED):
            await self._decide("announce", lambda situation: generations.announce(situation, request))
            announced = self._loads.revision_of(epoch_key(request.table))
            await self._let_all_hear(request, asked.deadline)
            if (also := await self._roll_back(request, announced)) is not None:
                break
        else:
            raise Refused("not_ready", f"loads of table {request.table} came in between all the time; try again")
        load = self._loads.loads[request.table, request.id]
        return _encoded(
            RollbackReply(load, also, load.published_ms, self._loads.generation(request.table), applied=True)
        )

    async def _let_all_hear(self, request: RollbackRequest, deadline: float) -> None:
        """Returns when all who may serve know that a rollback is coming. Refused: somebody does not answer."""
        situation = self.situation()
        if not situation.loads.epoch_record(request.table).returning_ms:
            return  # it is done already, or has to be announced again
        serving = [raft_id for raft_id in situation.view.instances if not situation.down(raft_id)]
        behind = await self._behind(serving, min(self._door.left_s(deadline) / 2, HEAR_S))
        if not behind:
            return
        await self._decide("withdraw", lambda situation: generations.withdraw(situation, request.table))
        why = next(iter(behind.values()))
        text = f"{situation.names(behind)} could not be told that overwrite {request.id} is to be rolled back ({why})"
        raise Refused("not_ready", f"{text}; nothing was done. Try again in a moment: who is down is marked so by then")

    async def _roll_back(self, request: RollbackRequest, announced: int) -> list[LoadRecord] | None:
        """The loads that went with it; None: what was announced at this revision is not what there is any more."""
        also: list[LoadRecord] | None = None

        def judge(situation: Situation) -> LoadChange | LoadRecord:
            nonlocal also
            load = situation.load(request.table, request.id)
            also = []
            if load.state is LoadState.ROLLED_BACK:
                return load  # asked for again
            is_coming = situation.loads.epoch_record(request.table).returning_ms
            if not is_coming or situation.loads.revision_of(epoch_key(request.table)) != announced:
                also = None
                return load
            change, said = generations.rollback(situation, request)
            also = said.also
            return change

        await self._decide("rollback", judge)
        return also

    async def show(self, asked: Asked) -> bytes:
        """Loads, the newest ones where there are too many, with what can be seen of their tables."""
        request = protocol.decode_show(asked.body)
        if not request.local:
            await self._barrier(self._door.left_s(asked.deadline))
        if request.wait_ms and request.id:
            until = min(self._loop.time() + request.wait_ms / 1000, asked.deadline - _MARGIN_S)
            key = (request.table, request.id)
            # If that takes longer, the load is shown as it is.
            with contextlib.suppress(WaitedTooLong):
                await self._waits.until(lambda: key not in self._loads.open_loads, until, "the end of a load")
        shown = [
            load
            for (table, id), load in self._loads.loads.items()
            if request.table in (0, table) and request.id in ("", id)
        ]
        shown.sort(key=lambda load: (load.begun_ms, load.stamp_us, load.id))
        tables = (request.table,) if request.table else sorted(self._loads.tables)[:MAX_SHOWN]
        epochs = {table: (self._loads.visible(table), self._loads.generation(table)) for table in tables}
        committed = {table: self._loads.epoch_record(table).committed for table in tables}
        return _encoded(LoadsReply(shown[-MAX_SHOWN:], epochs, committed))

    # Deciding

    async def _pass_on(self, method: str, request: Any, asked: Asked) -> bytes | None:
        """The leader's answer; None: this instance leads, and decides."""
        onward = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        return await self._door.pass_on(method, onward, asked.deadline, forwarded=request.forwarded)

    async def _decide(self, what: str, judge: Callable[[Situation], LoadChange | LoadRecord | None]) -> None:
        """Write what is decided; nothing, where the load is as was asked for already."""

        def look() -> Decision:
            decided = _refusing(lambda: judge(self.situation()))
            if decided is None or isinstance(decided, LoadRecord):
                return None
            failpoints.hit(f"load.{what}.before", self._name)
            write = write_of(decided)
            return write, write.sentences

        await self._door.decide(look, _EVENTS, ())
        failpoints.hit(f"load.{what}.after", self._name)

    def _reply(self, table: int, id: str) -> bytes:
        return _encoded(LoadReply(_refusing(lambda: self.situation().load(table, id))))


def _refusing(judge: Callable[[], T]) -> T:
    try:
        return judge()
    except LoadRefused as error:
        details = protocol.encode(MovedDetails(error.missing)) if error.missing else b""
        raise Refused(error.code, str(error), details) from error


def _encoded(reply: Any) -> bytes:
    body: bytes = protocol.encode(reply)
    return body
