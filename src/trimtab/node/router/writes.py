"""A write on its way: to every replica of every set that takes writes, until each has acknowledged it or has a hint.

A write is a set of pairs for one tablet. It goes to all replicas that can be reached, whatever the level; the level
says only how many must have synced and applied it before the client is told that it is done, in each set of replicas
where a tablet has several. Whoever does not acknowledge gets a hint, so the level never says how many will have it.
Only what a replica refuses because of the write itself (a stamp from the future, a partition that is too large) gets
none, unless the level was reached all the same: nobody has been promised it, and as a hint it would slip through.

Where every replica refuses, because it is overloaded, its disk is full, or the write is one that it does not take,
nothing was done, and that is said (`refusals.NothingDone`), so that whoever asked can ask again. For that the answers
of all are waited for, and none gets a hint before it is clear that it was not so. But a replica that is silent does not
hold up a refusal: _PATIENCE_S after the level can't be reached any more, the reasons are told, and that the write may
have happened on those that have not answered. A write to a generation that was overwritten waits for nobody: it is
made again, to the one that is served now.

That too few replicas are reachable is said before anything is sent (`unavailable`). Afterwards the outcome of a write
that failed or ran out of time is unknown, and it stays under way here until every replica has answered or its time is
over: a barrier waits for that.

A replica may have gone from where it was sought, because its tablet is moved and this node has yet to hear of it. Where
the level can't be reached because of that, the same write, with the same stamps, is sent once more by the newer map as
soon as it is known here. Whoever asked does not see it. Who holds no replica gets no hint either.

ANY is reached by one replica, or by one hint that is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.deadlines import SLOT_S, Deadlines, Ticket
from trimtab.node.router.parcels import NO_ANSWER, NOT_SENT, Answered, Parcels, weight
from trimtab.node.router.refusals import NothingDone
from trimtab.node.router.routes import Quota, Routes, WriteRoute
from trimtab.node.serving import Serving
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows.protocol import Failed, ReplicaWrite
from trimtab.tablets.consistency import Level
from trimtab.topology.barriers import OpenRequests

# Refused, or how many replicas had synced it (the least of any tablet).
Done = Callable[[Refused | None, int], None]

# These say nothing about whether the replica has taken the write.
_UNKNOWN = (NO_ANSWER, NOT_SENT)
# The answer leaves a little before its time is over.
_MARGIN_S = 0.02
# So long those are waited for who could say that nothing was done, once a write has failed. Other continents answer.
_PATIENCE_S = 0.5
# These are about the write, not about the state that the replica is in.
_FOR_GOOD = frozenset(("invalid", "too_large", "too_late", "skew", refusals.VERSION_MISMATCH))
# These are about the state of a replica, which has taken nothing. It gets a hint, unless nobody has taken anything.
_NOT_NOW = frozenset((refusals.OVERLOADED, refusals.DISK_FULL))
# Who says one of these has not taken the write. (A clock that is wrong may be found out after the replica took it.)
_NOT_TAKEN = (_NOT_NOW | _FOR_GOOD) - {"skew"}


class Hints(Protocol):
    """Where writes are kept for replicas that missed them. `stored`: told whether it is durable, not from within.

    That this instance's own replica missed one is noted there too.
    """

    def add(self, target: int, write: ReplicaWrite, stored: Callable[[bool], None] | None = None) -> None: ...


class OwnReplicas(Protocol):
    """This node's own replicas; answered never from within the call."""

    def write(self, write: ReplicaWrite, topology: int, deadline: float, answered: Answered) -> None: ...


class Writes:
    """Everything that is being written through this node."""

    def __init__(
        self,
        raft_id: int,
        routes: Routes,
        own: OwnReplicas,
        parcels: Parcels,
        hints: Hints,
        serving: Serving,
        open_requests: OpenRequests,
        waits: Waits,
        deadlines: Deadlines,
    ) -> None:
        self.raft_id = raft_id
        self.own = own
        self.parcels = parcels
        self.hints = hints
        self.deadlines = deadlines
        self._routes = routes
        self._serving = serving
        self._open = open_requests
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._alive: set[int] = set()  # who was found so in this turn
        self._again: dict[asyncio.Task[None], None] = {}
        self.hinted = 0
        self.rerouted = 0  # writes that were sent again because a tablet had moved

    def begin(self, writes: Sequence[ReplicaWrite], level: Level, deadline: float, done: Done) -> None:
        """Send writes of one request; `done` is told once, when all of them have reached the level or one can't."""
        refused, routes = self.check(writes, level)
        if refused is not None:
            done(NothingDone(refused.code, refused.text, refused.details), 0)
            return
        topology, catalog = self._routes.stamp()
        if len(writes) == 1:
            if routes[0].own:
                OwnWrite(self, writes[0], routes[0], level, deadline, done, topology)
            else:
                TabletWrite(self, writes[0], routes[0], level, deadline, done, topology, catalog)
            return
        together = _Together(self, len(writes), deadline, done)
        for write, route in zip(writes, routes, strict=True):
            TabletWrite(self, write, route, level, deadline, together.one_done, topology, catalog)

    def check(self, writes: Sequence[ReplicaWrite], level: Level) -> tuple[Refused | None, list[WriteRoute]]:
        """The routes, and whether it is known already that they can't reach the level."""
        try:
            self._serving.route()
            routes = [self._routes.write(write.table, write.tablet, level) for write in writes]
        except Refused as refused:
            return refused, []
        if level is Level.ANY:
            return None, routes
        for route in routes:
            if route.own:
                continue
            for quota in route.quotas:
                alive = 0
                for raft_id in quota.members:
                    if raft_id in self._alive or self.alive(raft_id):
                        alive += 1
                if alive < quota.count:
                    return refusals.unavailable(level, quota.count, alive, quota.where), []
        return None, routes

    def of_known_tables(self, writes: Sequence[ReplicaWrite]) -> list[ReplicaWrite]:
        """Without those of tables that were dropped, or overwritten since.

        Refused without a lease: what is known here may be older than the writes, right after a start for one.
        """
        self._serving.route()
        known = self._routes.exists
        return [each for each in writes if known(each.table, each.tablet, each.generation, each.epoch)]

    def close(self) -> None:
        """End what waits for a newer map."""
        for task in list(self._again):
            task.cancel()

    def alive(self, raft_id: int) -> bool:
        """Whether a replica there can be expected to take a write."""
        if raft_id == self.raft_id:
            return True  # a lease was looked for; what else may be wrong, its answer tells
        if not self.parcels.connected(raft_id) or not self._serving.takes_writes(raft_id):
            return False
        if not self._alive:
            self._loop.call_soon(self._alive.clear)
        self._alive.add(raft_id)
        return True

    # For the writes under way

    def moved(self, write: ReplicaWrite, level: Level, route: WriteRoute) -> bool:
        """Whether a write would go elsewhere now: then it is no wonder that it was refused where it went."""
        try:
            return self._routes.write(write.table, write.tablet, level) != route
        except Refused:
            return False

    def by_newer_map(
        self, write: ReplicaWrite, level: Level, deadline: float, done: Done, topology: int, refused: Refused
    ) -> None:
        """Send a write again that replicas refused because they know a newer map than `topology`."""
        self.rerouted += 1
        task = self._loop.create_task(self._send_again(write, level, deadline, done, topology, refused))
        self._again[task] = None
        task.add_done_callback(self._again.pop)

    async def _send_again(
        self, write: ReplicaWrite, level: Level, deadline: float, done: Done, topology: int, refused: Refused
    ) -> None:
        def told(now: Refused | None, acknowledged: int) -> None:
            # What was done before is all there is, if now nothing was (too few are there, no lease, another schema, …).
            done(refused if isinstance(now, NothingDone) else now, acknowledged)

        try:
            what = f"a newer map than that of version {topology}"
            await self._waits.until(lambda: self._routes.stamp()[0] > topology, deadline - _MARGIN_S, what)
        except WaitedTooLong:
            done(refused, 0)
        except asyncio.CancelledError:
            done(refused, 0)
            raise
        else:
            self.begin([write], level, deadline, told)

    def patience(self, deadline: float, over: Callable[[], None]) -> Ticket:
        """Call `over` when a write that has failed was given time to say that nothing was done; before its deadline."""
        return self.deadlines.add(min(self._loop.time() + _PATIENCE_S, deadline - 2 * SLOT_S), over)

    def opened(self, topology: int) -> int:
        return self._open.open(topology)

    def ended(self, token: int, topology: int) -> None:
        self._open.close(token)
        # Barriers wait for the end of requests that were routed by older versions; of this one's they don't.
        if topology != self._routes.stamp()[0]:
            self._waits.look()


class _Together:
    """Writes of several tablets that are answered as one. That nothing was done is said only if it is true of all."""

    __slots__ = ("_deadline", "_done", "_happened", "_least", "_left", "_not_done", "_patience", "_writes")

    def __init__(self, writes: Writes, count: int, deadline: float, done: Done) -> None:
        self._writes = writes
        self._left = count
        self._deadline = deadline
        self._done: Done | None = done
        self._least = 1 << 30
        self._happened = False  # one of them at least
        self._not_done: NothingDone | None = None
        self._patience: Ticket | None = None

    def one_done(self, refused: Refused | None, acknowledged: int) -> None:
        self._left -= 1
        self._least = min(self._least, acknowledged)
        if refused is None:
            self._happened = True
        elif isinstance(refused, NothingDone):
            self._not_done = self._not_done or refused
        else:
            self._conclude(refused)
            return
        if self._not_done is None:
            if not self._left:
                self._conclude(None)
        elif not self._left and not self._happened:
            self._conclude(self._not_done)
        elif self._happened or self._not_done.code == refusals.VERSION_MISMATCH:
            self._in_part()
        elif self._patience is None:
            self._patience = self._writes.patience(self._deadline, self._in_part)

    def _in_part(self) -> None:
        if self._not_done is not None:
            self._conclude(_in_part(self._not_done))

    def _conclude(self, refused: Refused | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            if self._patience is not None:
                self._writes.deadlines.cancel(self._patience)
            done(refused, 0 if refused is not None else self._least)


def _in_part(refused: NothingDone) -> Refused:
    """What is said of a request, of a part of which this is true."""
    text = refused.text.replace(refusals.NOTHING, f"{refusals.NOTHING} of this part", 1)
    code = refusals.WRITE_FAILED if refused.code == refusals.OVERLOADED else refused.code
    return Refused(code, f"{text}; other parts of the request may have happened", refused.details)


class OwnWrite:
    """A write that concerns this node's own replica and nobody else's."""

    __slots__ = ("_deadline", "_done", "_level", "_route", "_ticket", "_token", "_topology", "_write", "_writes")

    def __init__(
        self,
        writes: Writes,
        write: ReplicaWrite,
        route: WriteRoute,
        level: Level,
        deadline: float,
        done: Done,
        topology: int,
    ) -> None:
        self._writes = writes
        self._write = write
        self._route = route
        self._level = level
        self._deadline = deadline
        self._done: Done | None = done
        self._topology = topology
        self._token = writes.opened(topology)
        self._ticket: Ticket = writes.deadlines.add(deadline, self._overdue)
        writes.own.write(write, topology, deadline, self.answered)

    def answered(self, raft_id: int, failure: Failed | None) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        writes = self._writes
        writes.deadlines.cancel(self._ticket)
        writes.ended(self._token, self._topology)
        if failure is None:
            done(None, 1)
            return
        quota = self._route.quotas[0]
        reason = {raft_id: (failure.code, failure.text)}
        not_taken = failure.code in _NOT_TAKEN
        refused = refusals.failed(True, self._level, quota.count, 0, quota.where, reason, nothing_done=not_taken)
        if failure.code in refusals.OTHER_MAP:
            writes.by_newer_map(self._write, self._level, self._deadline, done, self._topology, refused)
        else:
            done(refused, 0)

    def _overdue(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._writes.ended(self._token, self._topology)
            quota = self._route.quotas[0]
            done(refusals.timed_out(True, self._level, quota.count, 0, quota.where), 0)


class TabletWrite:
    """One write of one tablet: it begins when it is made, and ends when nobody's answer is waited for."""

    __slots__ = (
        "_acknowledged",
        "_deadline",
        "_done",
        "_failures",
        "_hints_on_the_way",
        "_level",
        "_missing",
        "_not_now",
        "_patience",
        "_reached",
        "_refused_for_good",
        "_route",
        "_ticket",
        "_token",
        "_topology",
        "_waiting",
        "_write",
        "_writes",
    )

    def __init__(
        self,
        writes: Writes,
        write: ReplicaWrite,
        route: WriteRoute,
        level: Level,
        deadline: float,
        done: Done,
        topology: int,
        catalog: int,
    ) -> None:
        self._writes = writes
        self._write = write
        self._route = route
        self._level = level
        self._deadline = deadline
        self._done: Done | None = done
        self._missing = [quota.count for quota in route.quotas]
        self._waiting = set(route.targets)
        self._acknowledged = 0
        self._failures: dict[int, Failed] = {}
        self._hints_on_the_way = 0
        self._not_now: list[int] = []  # those that may get no hint as long as nothing was done
        self._patience: Ticket | None = None
        self._reached = False
        self._refused_for_good: list[int] = []
        self._topology = topology
        self._token = writes.opened(topology)
        self._ticket: Ticket = writes.deadlines.add(deadline, self._overdue)
        own, parcels, bytes_ = writes.raft_id, writes.parcels, 0
        away: list[tuple[int, str]] = []
        for raft_id in route.targets:
            if raft_id == own:
                writes.own.write(write, topology, deadline, self.answered)
            elif not parcels.connected(raft_id):
                away.append((raft_id, "it is not connected"))
            else:
                bytes_ = bytes_ or weight(write)
                if not parcels.send(raft_id, write, bytes_, topology, catalog, deadline, self.answered):
                    away.append((raft_id, "too many writes wait for its answer"))
        for raft_id, why in away:
            self.answered(raft_id, Failed(NOT_SENT, why))

    def answered(self, raft_id: int, failure: Failed | None) -> None:
        """A replica has synced and applied it, or says why not."""
        if raft_id not in self._waiting:
            return  # its time was over; it has a hint, which will find it done already
        self._waiting.discard(raft_id)
        if failure is None:
            self._acknowledged += 1
            if self._done is not None:
                self._count(raft_id)
                if self._failures and self._done is not None:
                    self._look_for_hope()
        else:
            self._failures[raft_id] = failure
            if failure.code == refusals.NOT_HERE:
                pass  # it knows a newer map, by which it holds no replica: there is nobody to give it to
            elif failure.code in _NOT_NOW and self._done is not None and self._level is not Level.ANY:
                self._not_now.append(raft_id)
            elif failure.code not in _FOR_GOOD or self._reached:
                self._hint(raft_id)
            else:
                self._refused_for_good.append(raft_id)
            if self._done is not None:
                self._look_for_hope()
        if not self._waiting:
            self._end()

    def _count(self, raft_id: int) -> None:
        missing, reached = self._missing, True
        for position, quota in enumerate(self._route.quotas):
            if raft_id in quota.members:
                missing[position] -= 1
            if missing[position] > 0:
                reached = False
        if reached:
            self._conclude(None)

    def _hint(self, raft_id: int) -> None:
        writes = self._writes
        if raft_id == writes.raft_id:
            # A hint for itself would need the same log and the same space: it is only noted.
            writes.hints.add(raft_id, self._write)
            return
        writes.hinted += 1
        if self._level is Level.ANY and self._done is not None:
            self._hints_on_the_way += 1
            writes.hints.add(raft_id, self._write, self._hint_stored)
        else:
            writes.hints.add(raft_id, self._write)

    def _hint_stored(self, durable: bool) -> None:
        self._hints_on_the_way -= 1
        if self._done is None:
            return
        if durable:
            self._conclude(None)
        else:
            self._look_for_hope()

    def _look_for_hope(self, *, patiently: bool = True) -> None:
        """Give up when the level can't be reached any more, whoever still answers."""
        if self._hints_on_the_way:
            return
        for position, quota in enumerate(self._route.quotas):
            missing = self._missing[position]
            if missing > 0 and missing > sum(1 for raft_id in self._waiting if raft_id in quota.members):
                nothing_yet = self._nothing_done()
                if patiently and nothing_yet and self._waiting and not self._overwritten():
                    # One that takes it decides whether nothing was done.
                    if self._patience is None:
                        self._patience = self._writes.patience(self._deadline, self._patience_over)
                    return
                received, reasons = quota.count - missing, self._reasons()
                if reasons:
                    error = refusals.failed(
                        True,
                        self._level,
                        quota.count,
                        received,
                        quota.where,
                        reasons,
                        nothing_done=nothing_yet and not self._waiting,
                        unanswered=sorted(self._waiting) if nothing_yet else (),
                    )
                else:
                    error = refusals.timed_out(True, self._level, quota.count, received, quota.where)
                self._give_up(error)
                return

    def _patience_over(self) -> None:
        if self._done is not None:
            self._look_for_hope(patiently=False)

    def _overwritten(self) -> bool:
        return any(failure.code == refusals.VERSION_MISMATCH for failure in self._failures.values())

    def _reasons(self) -> dict[int, tuple[str, str]]:
        """Code and text of those who said why they don't take it."""
        return {
            raft_id: (failure.code, failure.text)
            for raft_id, failure in self._failures.items()
            if failure.code not in _UNKNOWN
        }

    def _nothing_done(self) -> bool:
        """Whether nobody so far has it, or will get it."""
        if self._acknowledged or len(self._not_now) + len(self._refused_for_good) != len(self._failures):
            return False
        return all(failure.code in _NOT_TAKEN for failure in self._failures.values())

    def _give_up(self, error: Refused) -> None:
        done = self._done
        if error.code == refusals.OVERLOADED:
            self._conclude(error)
            return
        gone = any(failure.code in refusals.OTHER_MAP for failure in self._failures.values())
        if done is not None and (gone or self._writes.moved(self._write, self._level, self._route)):
            self._done = None
            if not isinstance(error, NothingDone):
                self._hint_not_now()
            self._writes.by_newer_map(self._write, self._level, self._deadline, done, self._topology, error)
        else:
            self._conclude(error)

    def _overdue(self) -> None:
        if self._done is not None:
            quota, missing = self._worst()
            received, reasons = quota.count - missing, self._reasons()
            self._conclude(refusals.timed_out(True, self._level, quota.count, received, quota.where, reasons))
        waiting, self._waiting = self._waiting, set()
        for raft_id in sorted(waiting):
            self._hint(raft_id)
        self._end()

    def _worst(self) -> tuple[Quota, int]:
        position = max(range(len(self._missing)), key=lambda each: self._missing[each])
        return self._route.quotas[position], self._missing[position]

    def _conclude(self, refused: Refused | None) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if refused is None:
            self._reached = True
            for raft_id in self._refused_for_good:
                self._hint(raft_id)
        if not isinstance(refused, NothingDone):
            self._hint_not_now()
        done(refused, self._acknowledged)

    def _hint_not_now(self) -> None:
        not_now, self._not_now = self._not_now, []
        for raft_id in not_now:
            self._hint(raft_id)

    def _end(self) -> None:
        self._writes.deadlines.cancel(self._ticket)
        if self._patience is not None:
            self._writes.deadlines.cancel(self._patience)
        self._writes.ended(self._token, self._topology)
