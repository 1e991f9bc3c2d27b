"""A read on its way: the data of one replica, digests of as many others as the level needs, and what if they differ.

The best replica is asked for the rows: this node's own, else one of the same data centre, else the fastest. The others
that the level needs are asked for digests only. Where one does not answer in time (the table's `speculative_retry`) or
refuses, another is asked as well; only when none is left the read fails.

If digests differ, everybody's rows are asked for and merged, and whoever is behind is given what it lacks, and the
answer leaves only when so many replicas are known to hold it as the level needs. Without that, a value that had reached
one replica of three could be read at QUORUM once, and not be seen by the next read:

    write of v reaches A only, its coordinator dies · read asks A and B: v · read asks B and C: not v, though v was seen

While a tablet moves, that goes for each set that takes writes: the one that answers now is soon another.

A read as of a time gives nothing to anybody: what was there then may have been deleted since, and a replica that has
forgotten the deletion must not get it back.

A read of one answer (ONE, LOCAL_ONE, or a single replica) compares nothing; from this node's own replica it is answered
at once.

Replicas that have gone from where they were sought, because their tablet is moved and this node has yet to hear of it,
are no reason to fail: the read begins anew by the newer map as soon as it is known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from trimtab.loads.view import LoadView
from trimtab.net.errors import NetError
from trimtab.node.answering import Refused
from trimtab.node.links import Link
from trimtab.node.router import refusals
from trimtab.node.router.deadlines import Deadlines, Ticket
from trimtab.node.router.latencies import Latencies
from trimtab.node.router.parcels import NO_ANSWER, NOT_SENT, Answered, Parcels, refusal_of, weight
from trimtab.node.router.reconciling import Reconciled, differing, digests_of, reconcile, split
from trimtab.node.router.replica_door import STALE_LEVELS
from trimtab.node.router.routes import Quota, ReadRoute, Routes
from trimtab.node.router.schemas import Schemas
from trimtab.node.serving import Serving
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows import protocol
from trimtab.rows.protocol import Failed, Pairs, RangeRows, ReplicaRead, ReplicaRows, ReplicaWrite, WriteKind
from trimtab.topology.barriers import OpenRequests

# Refused, or the merged rows of each range and whether they may be stale.
Done = Callable[[Refused | None, list[RangeRows], bool], None]

_LEAST_TIME_S = 0.005
_MARGIN_S = 0.02
_UNKNOWN = (NO_ANSWER, NOT_SENT)


class OwnReplicas(Protocol):
    """This node's own replicas."""

    def ready(self, table: int, tablet: int) -> bool: ...

    def read(self, read: ReplicaRead) -> ReplicaRows: ...

    def write(self, write: ReplicaWrite, topology: int, deadline: float, answered: Answered) -> None: ...


class Reads:
    """Everything that is being read through this node."""

    def __init__(
        self,
        raft_id: int,
        routes: Routes,
        schemas: Schemas,
        loads: LoadView,
        own: OwnReplicas,
        links: Mapping[int, Link],
        parcels: Parcels,
        serving: Serving,
        open_requests: OpenRequests,
        waits: Waits,
        deadlines: Deadlines,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.raft_id = raft_id
        self.routes = routes
        self.schemas = schemas
        self.loads = loads
        self.own = own
        self.links = links
        self.parcels = parcels
        self.deadlines = deadlines
        self.latencies = Latencies()
        self.spawn = spawn
        self.loop = asyncio.get_running_loop()
        self._serving = serving
        self._open = open_requests
        self._waits = waits
        self.repaired = 0  # reads whose replicas differed
        self.speculated = 0  # replicas that were asked because others were slow

    def begin(self, read: ReplicaRead, deadline: float, done: Done) -> None:
        """Read ranges of one tablet at the level that `read` names; `done` is told once, perhaps at once."""
        try:
            stale = self._serving.route(may_be_stale=read.level in STALE_LEVELS)
            route = self.routes.read(read.table, read.tablet, read.level)
        except Refused as refused:
            done(refused, [], False)
            return
        refusals_here: dict[int, Failed] = {}
        if route.local and self.own.ready(read.table, read.tablet):
            try:
                rows = self.own.read(read)
            except Refused as refused:
                # Another replica may be better off.
                refusals_here[self.raft_id] = Failed(refused.code, refused.text)
            else:
                done(None, rows.ranges, rows.stale or stale)
                return
        TabletRead(self, read, route, deadline, done, stale, refusals_here).start()

    def candidates(self, route: ReadRoute, table: int, tablet: int, without: Collection[int]) -> list[int]:
        """The replicas that may answer, the best one first."""
        found = []
        for raft_id in route.replicas:
            if raft_id in without:
                continue
            if raft_id == self.raft_id:
                usable = self.own.ready(table, tablet)
            else:
                usable = self.parcels.connected(raft_id)
            if usable and self._serving.answers_reads(raft_id):
                found.append(raft_id)
        routes, latencies, own_dc = self.routes, self.latencies, self.routes.own_dc
        found.sort(key=lambda each: (each != self.raft_id, routes.dc_of(each) != own_dc, latencies.mean_s(each)))
        return found

    def by_newer_map(self, read: ReplicaRead, deadline: float, done: Done, refused: Refused) -> None:
        """Read again what replicas refused because they know a newer map than the one the read was routed by."""
        self.spawn(self._read_again(read, deadline, done, refused))

    async def _read_again(self, read: ReplicaRead, deadline: float, done: Done, refused: Refused) -> None:
        try:
            what = f"a newer map than that of version {read.topology}"
            await self._waits.until(lambda: self.routes.stamp()[0] > read.topology, deadline - _MARGIN_S, what)
        except WaitedTooLong:
            done(refused, [], False)
        except asyncio.CancelledError:
            done(refused, [], False)
            raise
        else:
            topology, catalog = self.routes.stamp()
            self.begin(msgspec.structs.replace(read, topology=topology, catalog=catalog), deadline, done)

    def opened(self, topology: int) -> int:
        return self._open.open(topology)

    def ended(self, token: int, topology: int) -> None:
        self._open.close(token)
        # Barriers wait for the end of requests that were routed by older versions; of this one's they don't.
        if topology != self.routes.stamp()[0]:
            self._waits.look()


class TabletRead:
    """One read of one tablet that needs others, or more than one."""

    def __init__(
        self,
        reads: Reads,
        read: ReplicaRead,
        route: ReadRoute,
        deadline: float,
        done: Done,
        stale: bool,
        failures: dict[int, Failed],
    ) -> None:
        self._reads = reads
        self._read = read
        self._route = route
        self._deadline = deadline
        self._done: Done | None = done
        self._stale = stale
        self._failures = failures
        self._asked: dict[int, bool] = {}  # raft id -> whether for digests only
        self._data: dict[int, ReplicaRows] = {}
        self._digests: dict[int, list[bytes]] = {}
        self._bodies: dict[bool, bytes] = {}
        self._reconciling = False
        self._token = 0
        self._ticket: Ticket | None = None
        self._impatience: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ask as many as the level needs, or say at once that there are too few."""
        reads, read = self._reads, self._read
        usable = reads.candidates(self._route, read.table, read.tablet, self._failures)
        contacts: dict[int, None] = {}
        for quota in self._route.quotas:
            able = [each for each in usable if each in quota.members]
            if len(able) < quota.count:
                self._too_few(quota, len(able))
                return
            contacts.update(dict.fromkeys(able[: quota.count]))
        self._token = reads.opened(read.topology)
        self._ticket = reads.deadlines.add(self._deadline, self._overdue)
        first = min(contacts, key=usable.index)
        for raft_id in contacts:
            if raft_id != first:
                self._ask(raft_id, digest=True)
        self._ask(first, digest=False)
        if self._done is not None and len(contacts) < len(usable):
            patience_s = reads.latencies.patience_s(read.table, reads.schemas.speculative_retry(read.table))
            if patience_s is not None and not (len(contacts) == 1 and first == reads.raft_id):
                self._impatience = reads.loop.call_later(patience_s, self._speculate)

    def _too_few(self, quota: Quota, able: int) -> None:
        done, self._done = self._done, None
        assert done is not None, "it has not begun"
        if self._failures:
            self._tell(done, self._failed_error(quota, 0), [])
        else:
            done(refusals.unavailable(self._read.level, quota.count, able, quota.where), [], False)

    # Asking

    def _ask(self, raft_id: int, *, digest: bool) -> None:
        reads = self._reads
        self._asked[raft_id] = digest
        if raft_id == reads.raft_id:
            try:
                self._answered(raft_id, reads.own.read(self._question(digest)), digest)
            except Refused as refused:
                self._failed(raft_id, Failed(refused.code, refused.text))
            return
        try:
            future = self._call(raft_id, digest)
        except NetError as error:
            reads.loop.call_soon(self._failed, raft_id, refusal_of(error))
            return
        future.add_done_callback(partial(self._came_back, raft_id, digest, reads.loop.time()))

    def _question(self, digest: bool) -> ReplicaRead:
        return msgspec.structs.replace(self._read, digest=True) if digest else self._read

    def _call(self, raft_id: int, digest: bool) -> asyncio.Future[bytes]:
        body = self._bodies.get(digest)
        if body is None:
            body = self._bodies[digest] = protocol.encode(self._question(digest))
        left_s = max(self._deadline - self._reads.loop.time(), _LEAST_TIME_S)
        return self._reads.links[raft_id].channel.call(protocol.REPLICA_READ, body, left_s)

    def _came_back(self, raft_id: int, digest: bool, asked_at: float, future: asyncio.Future[bytes]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._reads.latencies.failed(raft_id)
            self._failed(raft_id, refusal_of(error))
            return
        self._reads.latencies.answered(raft_id, self._read.table, self._reads.loop.time() - asked_at)
        try:
            rows = self._checked(future.result())
        except ValueError as wrong:
            self._failed(raft_id, Failed(NO_ANSWER, f"its answer can't be read: {wrong}"))
            return
        self._answered(raft_id, rows, digest)

    def _checked(self, body: bytes) -> ReplicaRows:
        rows: ReplicaRows = protocol.decode_replica_rows(body)
        if len(rows.ranges) != len(self._read.ranges):
            raise ValueError(f"{len(rows.ranges)} ranges came for {len(self._read.ranges)}")
        return rows

    # Answers

    def _answered(self, raft_id: int, rows: ReplicaRows, digest: bool) -> None:
        if self._done is None or self._reconciling:
            return
        self._stale = self._stale or rows.stale
        if digest:
            self._digests[raft_id] = [each.digest for each in rows.ranges]
        else:
            self._data[raft_id] = rows
        self._look()

    def _look(self) -> None:
        if not self._data or not self._met({*self._data, *self._digests}):
            return
        first, *others = self._data.values()
        if self._digests or others:
            digests = digests_of(first)
            if any(each != digests for each in self._digests.values()) or any(
                digests_of(each) != digests for each in others
            ):
                self._reconciling = True
                self._reads.repaired += 1
                self._reads.spawn(self._reconcile())
                return
        self._conclude(None, first.ranges)

    def _met(self, holders: Collection[int]) -> bool:
        return _reached(self._route.quotas, holders)

    def _failed(self, raft_id: int, failure: Failed) -> None:
        if self._done is None or self._reconciling:
            return
        self._failures[raft_id] = failure
        hopeful = {each for each in self._asked if each not in self._failures}
        if not self._met({*hopeful, *self._spares(self._data)}):
            self._give_up()
        elif not self._met(hopeful) or all(self._asked[each] for each in hopeful):
            self._ask_another()

    def _ask_another(self) -> bool:
        """Ask one that was not asked yet, for data if nobody has sent any; whether there is one."""
        reads, read = self._reads, self._read
        spare = reads.candidates(self._route, read.table, read.tablet, {*self._asked, *self._failures})
        # With several quotas only one of the right place helps.
        open_quotas = [quota for quota in self._route.quotas if self._short_of(quota)]
        for raft_id in spare:
            if not open_quotas or any(raft_id in quota.members for quota in open_quotas):
                self._ask(raft_id, digest=bool(self._data))
                return True
        # Everybody was asked; if only digests are to come, somebody has to be asked for the rows.
        if not self._data:
            for raft_id, digest in self._asked.items():
                if digest and raft_id not in self._failures:
                    self._digests.pop(raft_id, None)
                    self._ask(raft_id, digest=False)
                    return True
        return False

    def _short_of(self, quota: Quota) -> bool:
        hopeful = sum(1 for each in self._asked if each in quota.members and each not in self._failures)
        return hopeful < quota.count

    def _speculate(self) -> None:
        self._impatience = None
        if self._done is None or self._reconciling:
            return
        answered = {*self._data, *self._digests, *self._failures}
        if any(each not in answered for each in self._asked) and self._ask_another():
            self._reads.speculated += 1

    # The end

    def _give_up(self) -> None:
        quota = self._worst()
        received = sum(1 for each in quota.members if each in self._data or each in self._digests)
        self._conclude(self._failed_error(quota, received), [])

    def _failed_error(self, quota: Quota, received: int) -> Refused:
        level = self._read.level
        refused = {
            raft_id: (failure.code, failure.text)
            for raft_id, failure in self._failures.items()
            if failure.code not in _UNKNOWN
        }
        if not refused:
            return refusals.timed_out(False, level, quota.count, received, quota.where)
        return refusals.failed(False, level, quota.count, received, quota.where, refused)

    def _worst(self) -> Quota:
        def missing(quota: Quota) -> int:
            return quota.count - sum(1 for each in quota.members if each in self._data or each in self._digests)

        return max(self._route.quotas, key=missing)

    def _overdue(self) -> None:
        quota = self._worst()
        received = sum(1 for each in quota.members if each in self._data or each in self._digests)
        if self._reconciling:
            text = "replicas differed, and could not be brought in step in time; ask again"
            details = refusals.numbers(consistency=self._read.level.name, required=quota.count, received=received)
            self._conclude(Refused(refusals.READ_TIMEOUT, text, details), [])
        else:
            self._conclude(refusals.timed_out(False, self._read.level, quota.count, received, quota.where), [])

    def _conclude(self, refused: Refused | None, ranges: list[RangeRows]) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if self._impatience is not None:
            self._impatience.cancel()
        if self._ticket is not None:
            self._reads.deadlines.cancel(self._ticket)
        self._reads.ended(self._token, self._read.topology)
        self._tell(done, refused, ranges)

    def _tell(self, done: Done, refused: Refused | None, ranges: list[RangeRows]) -> None:
        gone = any(failure.code in refusals.OTHER_MAP for failure in self._failures.values())
        if refused is not None and gone and self._reads.loop.time() < self._deadline - _MARGIN_S:
            self._reads.by_newer_map(self._read, self._deadline, done, refused)
        else:
            done(refused, ranges, self._stale)

    # Replicas that differ

    async def _reconcile(self) -> None:
        try:
            full = dict(self._data)
            await self._fetch([each for each in self._digests if each not in full], full)
            while not self._met(full):
                spare = self._spares(full)
                if not spare:
                    quota = self._worst()
                    received = sum(1 for each in quota.members if each in full)
                    self._conclude(self._failed_error(quota, received), [])
                    return
                await self._fetch(spare[:1], full)
            layout = self._reads.schemas.layout(self._read.table)
            found = reconcile(layout, self._read, full)
            if not self._read.as_of_us:
                await self._bring_in_step(found, {each for each in full if not found.lacking[each]})
            self._stale = self._stale or any(rows.stale for rows in full.values())
        except Refused as refused:
            self._conclude(refused, [])
        except ValueError as error:
            # A row that can't be what was written: reading on could show something that never was.
            self._conclude(Refused(refusals.CORRUPT, str(error)), [])
        else:
            self._conclude(None, found.ranges)

    def _spares(self, full: Mapping[int, ReplicaRows]) -> list[int]:
        return self._reads.candidates(
            self._route, self._read.table, self._read.tablet, {*full, *self._failures, *self._asked}
        )

    async def _fetch(self, replicas: list[int], full: dict[int, ReplicaRows]) -> None:
        """Everybody's rows, where they can be had."""
        reads = self._reads
        waiting: dict[int, Awaitable[bytes]] = {}
        for raft_id in replicas:
            self._asked[raft_id] = False
            try:
                if raft_id == reads.raft_id:
                    full[raft_id] = reads.own.read(self._read)
                else:
                    waiting[raft_id] = self._call(raft_id, False)
            except Refused as refused:
                self._failures[raft_id] = Failed(refused.code, refused.text)
            except NetError as error:
                self._failures[raft_id] = refusal_of(error)
        for raft_id, coming in waiting.items():
            try:
                full[raft_id] = self._checked(await coming)
            except NetError as error:
                self._failures[raft_id] = refusal_of(error)
            except ValueError as wrong:
                self._failures[raft_id] = Failed(NO_ANSWER, f"its answer can't be read: {wrong}")

    async def _bring_in_step(self, found: Reconciled, holders: set[int]) -> None:
        """Give those that are behind what they lack, until as many hold the result as the level needs, in each set."""
        written = self._reads.routes.write(self._read.table, self._read.tablet, self._read.level)
        quotas = (*self._route.quotas, *written.quotas)
        lacking = {raft_id: pairs for raft_id, pairs in found.lacking.items() if pairs}
        # Whoever takes writes and answers no reads is not asked what it has.
        unseen = [raft_id for raft_id in written.targets if raft_id not in self._route.replicas]
        lacking |= dict.fromkeys(unseen, differing(found) if unseen else [])
        while True:
            await self._write_all(lacking, holders, quotas)
            if _reached(quotas, holders):
                return
            # Somebody could not be brought in step; one that was not asked may hold the result in its place.
            spares = self._spares({})
            if not spares:
                quota = max(quotas, key=lambda each: each.count - _among(each, holders))
                raise self._failed_error(quota, _among(quota, holders))
            self._asked[spares[0]] = False
            lacking = {spares[0]: [part for each in found.ranges for part in each.pairs]}

    async def _write_all(self, lacking: Mapping[int, Pairs], holders: set[int], quotas: Sequence[Quota]) -> None:
        reads, read = self._reads, self._read
        enough: asyncio.Future[None] = reads.loop.create_future()
        left: dict[int, int] = {}
        # As old as the read, not as its repair: in a machine that stood still in between, what was read may have been
        # deleted since, and the deletion be forgotten.
        began_ms, layout = read.now_s * 1000, reads.schemas.layout(read.table)
        epoch, table, tablet = max(read.epoch, 0), read.table, read.tablet
        generation = reads.loads.generation(table, epoch)
        writes = {
            raft_id: [
                ReplicaWrite(table, tablet, part, began_ms, WriteKind.REPAIR, generation, epoch)
                for part in split(layout, pairs)
            ]
            for raft_id, pairs in lacking.items()
        }
        left.update({raft_id: len(parts) for raft_id, parts in writes.items()})

        def answered(raft_id: int, failure: Failed | None) -> None:
            if failure is not None:
                self._failures[raft_id] = failure
            left[raft_id] -= 1
            if not left[raft_id] and raft_id not in self._failures:
                holders.add(raft_id)
            if not enough.done() and (_reached(quotas, holders) or not any(left.values())):
                enough.set_result(None)

        for raft_id, parts in writes.items():
            if not parts:
                holders.add(raft_id)
            for write in parts:
                if raft_id == reads.raft_id:
                    reads.own.write(write, read.topology, self._deadline, answered)
                elif not reads.parcels.send(
                    raft_id, write, weight(write), read.topology, read.catalog, self._deadline, answered
                ):
                    reads.loop.call_soon(answered, raft_id, Failed(NOT_SENT, "too much waits for its answer"))
        if any(left.values()) and not _reached(quotas, holders):
            await enough


def _among(quota: Quota, holders: Collection[int]) -> int:
    return sum(1 for each in quota.members if each in holders)


def _reached(quotas: Sequence[Quota], holders: Collection[int]) -> bool:
    return all(_among(quota, holders) >= quota.count for quota in quotas)
