"""Sends requests to members: to whom, how many at a time, and what happens when one fails.

At most `max_in_flight` requests are under way; up to `max_waiting` more wait for their turn, in order, until their time
is up; beyond that a request is refused at once. That is the client's own backpressure: an application that asks faster
than the cluster answers finds out here, with `Overloaded`, and not by its memory.

All attempts of a request share one deadline. Reads go to another member when one fails, as often as time allows: a
member gets a moment at first, and twice as long after each attempt that was too short, so that what takes long comes to
its end too; where nobody else can be asked it gets all the time there is. A write goes to another member only if
nothing can have been executed, or if it carries its own timestamp, so that executing it twice is the same as once; else
its outcome is unknown, and `Timeout` says so. A member that has another version of the table makes the client look at
the schema again and make the request anew. A read of one row that takes unusually long is asked of a second replica
while the first has it (`speculation`). Puts of one turn of the loop travel together where one member can
coordinate them (`joining`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from trimtab.client.asks import NOBODY, Ask, SecondAttempt
from trimtab.client.contact import decoded
from trimtab.client.errors import Error, InvalidRequest, Overloaded, Timeout, TooLarge, Unavailable, VersionMismatch
from trimtab.client.joining import Joining, Joint
from trimtab.client.known import Known, UnknownTable
from trimtab.client.members import AVOID_S, Member, Members
from trimtab.client.refusals import DOUBT, HOPELESS, NOT_THERE, NOTHING_DONE, OTHER_SCHEMA, translated
from trimtab.client.speculation import Speculation
from trimtab.client.writes import Put, put_message
from trimtab.net.errors import ConnectionLost, DeadlineExceeded, FrameTooLarge, NetError, NotConnected, RpcError
from trimtab.net.errors import Overloaded as NetOverloaded
from trimtab.rows import protocol

MAX_IN_FLIGHT = 1_024
MAX_WAITING = 100_000
ATTEMPT_S = 2.0  # so long the first member gets to answer what may be asked of another too
BACKOFF_FIRST_S = 0.005
BACKOFF_MAX_S = 0.5
# How often a refusal that may not be for ever is put up with, per request.
_PATIENCE = {"unavailable": 2, "overloaded": 5, "read_failed": 1, "corrupt": 1, "disk_full": 0}
# Errors that say, or let one think, that nothing was done.
_NOT_DONE = (Unavailable, Overloaded, InvalidRequest, VersionMismatch)
# One row of a request may be the reason for these.
_OF_ANOTHER = HOPELESS | {protocol.ALONE}
_MAX_ATTEMPTS = 1_000  # a deadline of hours must not make an endless loop
_SWEEP_S = 0.05


class Dispatcher:
    """Of one client, on its loop.

    `refresh` looks at the schema again. `look` does so too, if that was not done just now, and says whether there is
    news. `reach` waits until anybody is connected.
    """

    def __init__(
        self,
        members: Members,
        known: Known,
        *,
        refresh: Callable[[float], Awaitable[Known]],
        look: Callable[[Known, float], Awaitable[bool]],
        reach: Callable[[float], Awaitable[None]],
        rng: random.Random,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.members = members
        self.known = known
        self.in_flight = 0
        self.closed = False
        self._refresh = refresh
        self._look = look
        self._reach = reach
        self._rng = rng
        self._max_in_flight = max_in_flight
        self._max_waiting = max_waiting
        self._waiting: deque[Ask[Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._detours: set[asyncio.Task[None]] = set()  # asks that wait for a connection or the schema
        self._joining = Joining(self._loop, self._begin_joint, members.holding, self._send_joint)
        self.speculation = Speculation(self._loop, self._ask_another)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Nothing is sent any more; what waits ends."""
        self.closed = True
        self.speculation.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        waiting, self._waiting = self._waiting, deque()
        for ask in [*waiting, *(put for joint in self._joining.taken() for put in joint.puts)]:
            self._end(ask, _closed())
        for task in list(self._detours):
            task.cancel()

    # On the way

    def start(self, ask: Ask[Any]) -> None:
        """Take a new ask, prepared or not. It ends at its sink."""
        ask.dispatcher = self
        ask.deadline = self._loop.time() + ask.timeout_s
        if not ask.ready:
            self._detour(ask, self._prepared)
        else:
            self._submit(ask)

    def _submit(self, ask: Ask[Any]) -> None:
        if ask.over:
            return  # whoever was asked second has answered meanwhile
        if self.closed:
            self._end(ask, _closed())
        elif self.in_flight + self._joining.count < self._max_in_flight:
            self._send_or_hold(ask)
        elif len(self._waiting) < self._max_waiting:
            self._waiting.append(ask)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        else:
            self._end(
                ask,
                Overloaded(
                    f"{self.in_flight} requests are under way and {len(self._waiting)} wait, this client's limits: "
                    "ask less at a time, or give connect() a greater max_waiting"
                ),
            )

    def _send_or_hold(self, ask: Ask[Any]) -> None:
        """Send it, now or with others at the end of this turn. There is room for it."""
        if isinstance(ask, Put) and ask.joins and not ask.attempts and self.in_flight:
            if self._joining.add(ask):
                return
        elif self._joining.count and ask.writes:
            self._joining.flush()  # it may be of the same row
        self._send(ask)

    def _send(self, ask: Ask[Any]) -> None:
        if ask.over:
            return
        now = self._loop.time()
        left_s = ask.deadline - now
        if left_s <= 0:
            self._out_of_time(ask, "its time was over before it could be sent")
            return
        member = self._member_for(ask, now)
        if member is None or member.channel is None:
            self._detour(ask, self._connected)
            return
        ask.attempts += 1
        ask.member = member
        try:
            limit_s = self._attempt_s(ask, member, left_s) if ask.repeatable else left_s
            member.channel.ask(ask.method, ask.message(), limit_s, ask)
        except NetError as error:
            self._judge(ask, member, error)
            return
        self.in_flight += 1
        member.outstanding += 1
        ask.under_way = True
        if ask.alike is not None and ask.attempts == 1:
            self.speculation.patience(ask.alike).sent(ask, now)

    def _begin_joint(self, put: Put) -> Joint | None:
        """To the member that is best for a put. Where that is only the least bad, others may have a better one."""
        now = self._loop.time()
        member = self._member_for(put, now)
        if member is None or member.channel is None or not member.near or member.avoid_until > now:
            return None
        return Joint(self, member)

    def _send_joint(self, joint: Joint) -> None:
        """Puts that nobody was sent yet, as one request."""
        puts, member = joint.puts, joint.member
        left_s = joint.deadline - self._loop.time()
        if len(puts) == 1 or left_s <= 0 or member.channel is None:
            for put in puts:
                put.prefer = member
                self._send(put)
            return
        for put in puts:
            put.attempts += 1
            put.member = member
        try:
            member.channel.ask(Put.method, put_message(puts), left_s, joint)
        except NetError as error:
            self._judge_joint(joint, error)
            return
        self.in_flight += len(puts)
        member.outstanding += len(puts)
        for put in puts:
            put.under_way = True

    def _ask_another(self, ask: Ask[Any]) -> bool:
        """Ask somebody else too, who is as good as the first. False: nobody is, or others wait to be sent at all."""
        if self.in_flight + self._joining.count >= self._max_in_flight or self._waiting:
            return False
        now = self._loop.time()
        others = [each for each in self.members.holding(ask.table, ask.tablet) if each is not ask.member]
        member = self.members.choose(others, now)
        if member is None or member.channel is None or not member.near or member.avoid_until > now:
            return False
        try:
            limit_s = min(ATTEMPT_S, ask.deadline - now)
            member.channel.ask(ask.method, ask.body, limit_s, SecondAttempt(ask, member))
        except NetError:
            return False  # the first one still has it
        self.in_flight += 1
        member.outstanding += 1
        return True

    def _attempt_s(self, ask: Ask[Any], member: Member, left_s: float) -> float:
        limit_s = ATTEMPT_S * 2**ask.lapsed
        if limit_s >= left_s:
            return left_s
        # Whoever could not be connected to while another had its time is not there to be asked.
        others = self.members.another(member, ask.table, ask.tablet, connected=ask.lapsed > 0)
        return limit_s if others else left_s

    def _member_for(self, ask: Ask[Any], now: float) -> Member | None:
        members = self.members
        wanted = ask.prefer
        if wanted is not None and ask.attempts == 0 and wanted.ready and wanted.avoid_until <= now:
            return wanted
        member = None
        if ask.tablet >= 0:
            member = members.choose(members.holding(ask.table, ask.tablet), now, ask.member)
        return member if member is not None else members.anyone(now, ask.member)

    # The end of an attempt

    def answered(self, ask: Ask[Any], body: bytes) -> None:
        self._returned(ask.member)
        self._answered(ask, body)

    def failed(self, ask: Ask[Any], error: NetError) -> None:
        member = self._returned(ask.member)
        ask.under_way = False
        if ask.over:
            self._blame(member, error)
        else:
            self._judge(ask, member, error)

    def second_answered(self, attempt: SecondAttempt, body: bytes) -> None:
        self._returned(attempt.member)
        if attempt.body is attempt.ask.body:
            self._answered(attempt.ask, body)

    def second_failed(self, attempt: SecondAttempt, error: NetError) -> None:
        """The first one is still there, or was tried again: what becomes of that is told."""
        self._blame(self._returned(attempt.member), error)

    def joint_answered(self, joint: Joint, body: bytes) -> None:
        self._returned(joint.member, len(joint.puts))
        try:
            reply = decoded(protocol.decode_write_reply, body)
        except Error as error:
            for put in joint.puts:
                self._end(put, error)
            return
        for put in joint.puts:
            part = reply.refused.get(put.tablet)
            if part is None:
                self._answered(put, body)
                continue
            put.under_way = False
            if part.code == protocol.UNFINISHED:
                put.go_on(reply.timestamp_us, joint.member)
                self._loop.call_soon(self._submit, put)
            else:
                self._judge_one_of_many(put, joint.member, RpcError(part.code, part.text, part.details))

    def joint_failed(self, joint: Joint, error: NetError) -> None:
        self._returned(joint.member, len(joint.puts))
        for put in joint.puts:
            put.under_way = False
        self._judge_joint(joint, error)

    def _judge_joint(self, joint: Joint, error: NetError) -> None:
        for put in joint.puts:
            self._judge_one_of_many(put, joint.member, error)

    def _judge_one_of_many(self, put: Put, member: Member, error: NetError) -> None:
        """What is wrong may be another one's fault: then it is sent again, alone, since it is not its first attempt."""
        if isinstance(error, FrameTooLarge) or (isinstance(error, RpcError) and error.code in _OF_ANOTHER):
            self._loop.call_soon(self._submit, put)
        else:
            self._judge(put, member, error)

    def _answered(self, ask: Ask[Any], body: bytes) -> None:
        if not ask.over:
            ask.over = True
            sink, ask.sink = ask.sink, NOBODY
            sink.answered(ask, body)

    def _returned(self, member: Member | None, count: int = 1) -> Member:
        assert member is not None, "only what was sent comes back"
        self.in_flight -= count
        member.outstanding -= count
        if self._waiting:
            # In the next turn: the connection that tells us may be about to end.
            self._loop.call_soon(self._pump)
        return member

    def _pump(self) -> None:
        while self._waiting and self.in_flight + self._joining.count < self._max_in_flight:
            ask = self._waiting.popleft()
            if not ask.over:
                self._send_or_hold(ask)

    def _sweep(self) -> None:
        """What has waited for its whole time is told so. Everything is looked at: deadlines differ."""
        self._sweeper = None
        now = self._loop.time()
        late = [ask for ask in self._waiting if ask.deadline <= now]
        if late:
            self._waiting = deque(ask for ask in self._waiting if ask.deadline > now)
            for ask in late:
                self._out_of_time(ask, f"it waited in this client, which has {self.in_flight} requests under way")
        if self._waiting:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    # What a failure means

    def _blame(self, member: Member, error: NetError) -> None:
        """Ask others first for a moment, if it is the member that failed and not the request."""
        lost = isinstance(error, ConnectionLost | DeadlineExceeded)
        if lost or (isinstance(error, RpcError) and error.code in NOT_THERE):
            member.avoid_until = self._loop.time() + AVOID_S

    def _judge(self, ask: Ask[Any], member: Member, error: NetError) -> None:
        self._blame(member, error)
        if isinstance(error, FrameTooLarge):
            self._end(ask, TooLarge(str(error)))
        elif isinstance(error, RpcError):
            self._refused(ask, error)
        elif isinstance(error, NotConnected):
            self._again(ask, str(error), at_once=True)
        elif isinstance(error, NetOverloaded):
            self._patiently(ask, "overloaded", Overloaded(str(error)))
        elif isinstance(error, ConnectionLost | DeadlineExceeded):
            ask.doubt = ask.doubt or ask.writes
            ask.lapsed += isinstance(error, DeadlineExceeded)
            if ask.repeatable:
                self._again(ask, str(error), at_once=True)
            else:
                self._out_of_time(ask, str(error))
        else:
            self._end(ask, Error(f"the request failed in this client: {error}"))

    def _refused(self, ask: Ask[Any], error: RpcError) -> None:
        code = error.code
        if ask.goes_on and code == "invalid":
            # It was valid; by the clock of this member the stamp that another gave it is still to come.
            self._again(ask, error.text)
            return
        if code in HOPELESS or (ask.goes_on and code == "write_failed"):
            self._end(ask, translated(error, writes=ask.writes))
            return
        if code not in NOTHING_DONE and ask.writes:
            if not ask.repeatable:
                self._end(ask, translated(error, writes=True))
                return
            ask.doubt = True
        if code in OTHER_SCHEMA:
            self._detour(ask, self._with_new_schema, error)
        elif code in NOT_THERE:
            self._again(ask, error.text, last=translated(error, writes=ask.writes))
        else:
            self._patiently(ask, code, translated(error, writes=ask.writes))

    def _patiently(self, ask: Ask[Any], code: str, error: Error) -> None:
        """Ask again a few times, if this refusal may pass."""
        if ask.attempts > _PATIENCE.get(code, _MAX_ATTEMPTS):
            self._end(ask, error)
        else:
            self._again(ask, str(error), last=error)

    def _again(self, ask: Ask[Any], why: str, *, at_once: bool = False, last: Error | None = None) -> None:
        """Another attempt, at another member if there is one. `last`: what to raise when there is no time for it."""
        now = self._loop.time()
        pause_s = min(BACKOFF_FIRST_S * 2 ** min(ask.attempts, 10), BACKOFF_MAX_S) * (0.5 + self._rng.random())
        if at_once and ask.attempts <= 2:
            pause_s = 0.0
        if now + pause_s >= ask.deadline or ask.attempts >= _MAX_ATTEMPTS:
            if last is not None:
                self._end(ask, last)
            else:
                self._out_of_time(ask, why)
        else:
            self._loop.call_later(pause_s, self._submit, ask)

    def _out_of_time(self, ask: Ask[Any], why: str) -> None:
        why = why.rstrip(".")
        tried = f"{ask.attempts} attempt{'s' if ask.attempts != 1 else ''}, {ask.timeout_s:g} s at most"
        if ask.doubt:
            self._end(ask, Timeout(f"no answer came ({tried}): {why}; {DOUBT}"))
        elif ask.attempts:
            kind = Unavailable if ask.writes else Timeout
            self._end(ask, kind(f"no member carried it out ({tried}): {why}; nothing was done"))
        else:
            self._end(ask, Overloaded(f"not sent within {ask.timeout_s:g} s: {why}; ask less at a time"))

    def _end(self, ask: Ask[Any], error: Error) -> None:
        if ask.doubt and isinstance(error, _NOT_DONE):
            error = Timeout(f"an earlier attempt may have been carried out; the last one was not: {error}")
        if not ask.over:
            ask.over = True
            sink, ask.sink = ask.sink, NOBODY
            sink.failed(ask, error)

    # Detours: what has to wait for something else first. They take a task; requests on the straight way don't.

    def _detour(self, ask: Ask[Any], way: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        async def walk() -> None:
            try:
                await way(ask, *arguments)
            except Error as error:
                self._end(ask, error)
            except asyncio.CancelledError:
                self._end(ask, _closed())
                raise

        task = self._loop.create_task(walk())
        self._detours.add(task)
        task.add_done_callback(self._detours.discard)

    async def _connected(self, ask: Ask[Any]) -> None:
        try:
            await self._reach(ask.deadline)
        except NotConnected as error:
            text = f"no member of the cluster can be reached within {ask.timeout_s:g} s: {error}"
            raise (Timeout(f"{text}; {DOUBT}") if ask.doubt else Unavailable(f"{text}; nothing was done")) from error
        if self.members.anyone(self._loop.time()) is None:
            # Somebody is connected who is no member any more.
            await asyncio.sleep(BACKOFF_MAX_S / 10)
        self._submit(ask)

    async def _prepared(self, ask: Ask[Any]) -> None:
        await self.prepare(ask, ask.deadline)
        self._submit(ask)

    async def prepare(self, ask: Ask[Any], deadline: float) -> None:
        """Make the message of an ask that does not fit what was known: its table, or a column of it, may be new."""
        known = self.known
        try:
            ask.prepare(known)
        except UnknownTable:
            ask.prepare(await self._refresh(deadline))
        except InvalidRequest:
            if not await self._look(known, deadline):
                raise
            ask.prepare(self.known)

    async def _with_new_schema(self, ask: Ask[Any], refusal: RpcError) -> None:
        """A member knows another version of the table than we do: newer, or older for a moment."""
        known = await self._refresh(ask.deadline)
        if ask.over:
            # The second one has answered, and whoever waited may be reading that: it stays what it was made for.
            return
        try:
            ask.prepare(known)
        except UnknownTable as error:
            raise error from refusal
        self._again(ask, refusal.text, last=translated(refusal, writes=ask.writes))


def _closed() -> Error:
    return Error("this client is closed; connect again")
