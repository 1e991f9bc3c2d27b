"""A write on its way: to every replica of every set that takes writes, until each has acknowledged it or has a hint.

A write is a set of pairs for one tablet. It goes to all replicas that can be reached, whatever the level; the level
says only how many must have synced and applied it before the client is told that it is done, in each set of replicas
where a tablet has several. Whoever does not acknowledge gets a hint, so the level never says how many will have it.
Only what a replica refuses because of the write itself (a stamp from the future, a partition that is too large) gets
none, unless the level was reached all the same: nobody has been promised it, and as a hint it would slip through.

That too few replicas are reachable is said before anything is sent (`unavailable`). Afterwards the outcome of a write
that failed or ran out of time is unknown, and it stays under way here until every replica has answered or its time is
over: a barrier waits for that.

ANY is reached by one replica, or by one hint that is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.deadlines import Deadlines, Ticket
from trimtab.node.router.parcels import NO_ANSWER, NOT_SENT, Answered, Parcels, weight
from trimtab.node.router.routes import Quota, Routes, WriteRoute
from trimtab.node.serving import Serving
from trimtab.node.waits import Waits
from trimtab.rows.protocol import Failed, ReplicaWrite
from trimtab.tablets.consistency import Level
from trimtab.topology.barriers import OpenRequests

# Refused, or how many replicas had synced it (the least of any tablet).
Done = Callable[[Refused | None, int], None]

# These say nothing about whether the replica has taken the write.
_UNKNOWN = (NO_ANSWER, NOT_SENT)
# These are about the write, not about the state that the replica is in.
_FOR_GOOD = frozenset(("invalid", "too_large", "too_late", "skew"))


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
        self.hinted = 0

    def begin(self, writes: Sequence[ReplicaWrite], level: Level, deadline: float, done: Done) -> None:
        """Send writes of one request; `done` is told once, when all of them have reached the level or one can't."""
        refused, routes = self.check(writes, level)
        if refused is not None:
            done(refused, 0)
            return
        topology, catalog = self._routes.stamp()
        if len(writes) == 1:
            if routes[0].own:
                OwnWrite(self, writes[0], routes[0], level, deadline, done, topology)
            else:
                TabletWrite(self, writes[0], routes[0], level, deadline, done, topology, catalog)
            return
        together = _Together(len(writes), done)
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
        """Without those of tables that were dropped."""
        return [write for write in writes if self._routes.exists(write.table, write.tablet)]

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

    def opened(self, topology: int) -> int:
        return self._open.open(topology)

    def ended(self, token: int, topology: int) -> None:
        self._open.close(token)
        # Barriers wait for the end of requests that were routed by older versions; of this one's they don't.
        if topology != self._routes.stamp()[0]:
            self._waits.look()


class _Together:
    """Writes of several tablets that are answered as one."""

    __slots__ = ("_done", "_least", "_left")

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done: Done | None = done
        self._least = 1 << 30

    def one_done(self, refused: Refused | None, acknowledged: int) -> None:
        self._left -= 1
        self._least = min(self._least, acknowledged)
        if self._done is not None and (refused is not None or not self._left):
            done, self._done = self._done, None
            done(refused, 0 if refused is not None else self._least)


class OwnWrite:
    """A write that concerns this node's own replica and nobody else's."""

    __slots__ = ("_done", "_level", "_route", "_ticket", "_token", "_topology", "_writes")

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
        self._route = route
        self._level = level
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
        done(refusals.failed(True, self._level, quota.count, 0, quota.where, reason), 0)

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
        "_done",
        "_failures",
        "_hints_on_the_way",
        "_level",
        "_missing",
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
        self._done: Done | None = done
        self._missing = [quota.count for quota in route.quotas]
        self._waiting = set(route.targets)
        self._acknowledged = 0
        self._failures: dict[int, Failed] = {}
        self._hints_on_the_way = 0
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
        else:
            self._failures[raft_id] = failure
            if failure.code not in _FOR_GOOD or self._reached:
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

    def _look_for_hope(self) -> None:
        """Give up when the level can't be reached any more, whoever still answers."""
        if self._hints_on_the_way:
            return
        for position, quota in enumerate(self._route.quotas):
            missing = self._missing[position]
            if missing > 0 and missing > sum(1 for raft_id in self._waiting if raft_id in quota.members):
                refused = {
                    raft_id: (failure.code, failure.text)
                    for raft_id, failure in self._failures.items()
                    if failure.code not in _UNKNOWN
                }
                received = quota.count - missing
                if refused:
                    error = refusals.failed(True, self._level, quota.count, received, quota.where, refused)
                else:
                    error = refusals.timed_out(True, self._level, quota.count, received, quota.where)
                self._conclude(error)
                return

    def _overdue(self) -> None:
        if self._done is not None:
            quota, missing = self._worst()
            received = quota.count - missing
            self._conclude(refusals.timed_out(True, self._level, quota.count, received, quota.where))
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
        done(refused, self._acknowledged)

    def _end(self) -> None:
        self._writes.deadlines.cancel(self._ticket)
        self._writes.ended(self._token, self._topology)
