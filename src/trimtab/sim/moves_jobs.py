"""Drivers of jobs that carry tablets: `stream` and `repair` as the pipeline does them, in tasks beside the driver.

A driver is that of the loads scenario: it enters, beats, dies and stands still. What it does for a move it does with
the requests that the pipeline makes, one copy or one tablet a task, and says in the end which of them failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.catalog.schema import Table
from trimtab.jobs.protocol import EndRequest
from trimtab.jobs.records import JobKind, JobRecord, JobState
from trimtab.loads import protocol as loads_protocol
from trimtab.loads.protocol import ReleaseSnapshot, ShowRequest, SnapshotReply, SnapshotRequest
from trimtab.net.errors import NetError, RpcError
from trimtab.node.replicas.replica_meta import FIRST_KEY
from trimtab.pipeline.differences import differences
from trimtab.pipeline.leases import DriverLease
from trimtab.rows import protocol as rows_protocol
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.keys import stamp_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import SchemaRequest
from trimtab.rows.repair_protocol import BeginReply, BeginRequest, RowsRequest
from trimtab.rows.repair_protocol import EndRequest as RepairEnd
from trimtab.sim.loads_drivers import Gone, Loaders
from trimtab.sim.loads_jobs import JobDriver, Queue
from trimtab.sim.machines import Machine
from trimtab.sim.moves_streams import CopyFailed, Copying, Streams, pairs_of
from trimtab.tablets import quorums
from trimtab.tablets.tablet_map import TabletMap

_ASK_S = 1.5
_LEASE_MS = 4_000
_LOOK_S = 0.05
_TIMES = 3
Ending = Callable[..., EndRequest]
Failure = list[Any]  # tablet, target, code, text


class MovesDriver(JobDriver):
    """Runs the jobs of moves, and those of loads."""

    def __init__(self, loaders: Loaders, queue: Queue, number: int, streams: Streams) -> None:
        super().__init__(loaders, queue, number)
        self.streams = streams

    async def _work_at(self, job: JobRecord, lease: DriverLease) -> EndRequest | None:
        if job.command.kind not in (JobKind.STREAM, JobKind.REPAIR):
            return await super()._work_at(job, lease)

        def ending(state: JobState, error: str = "", **more: object) -> EndRequest:
            return EndRequest(job.owner_term, job.number, state, error, attempt=job.attempts, **more)  # type: ignore[arg-type]

        self.queue.did(job)
        given = job.command.parameters
        try:
            await self.client.refresh(self._any())
            table = await self.table(given["table"])
            if job.command.kind is JobKind.STREAM:
                work = await self._streams_of(table, given, job.number)
            else:
                work = await self._repairs_of(table, given)
        except (Gone, RpcError) as error:
            return None if lease.over else ending(JobState.FAILED, f"it did not begin: {error}", again=True)
        failed: list[Failure] = []
        try:
            while any(not task.done() for task, _, _ in work):
                await asyncio.sleep(_LOOK_S)
                if lease.over:
                    return None
                if (order := self._orders.pop(job.number, "")) in ("cancel", "pause"):
                    return ending(JobState.CANCELLED if order == "cancel" else JobState.PAUSED)
            for task, tablet, target in work:
                wrong = task.exception()
                if isinstance(wrong, CopyFailed):
                    failed.append([tablet, target, wrong.code, str(wrong)])
                elif wrong is not None:
                    raise wrong
        finally:
            for task, _, _ in work:
                self.streams.abandon(task)
        result = {"table": given["table"], "copies": len(work), "failed": failed, "bytes": 0}
        return None if lease.over else ending(JobState.SUCCEEDED, result=result)

    def _any(self) -> Machine:
        return self.rng.choice(self.cluster.taking_part())

    async def _streams_of(
        self, table: Table, given: Mapping[str, Any], job: int
    ) -> list[tuple[asyncio.Task[dict[str, Any]], int, int]]:
        epoch = await self._committed(table)
        found = []
        for copy in given["copies"]:
            session = copy.get("session") or given["session"]
            copying = Copying(table, copy["tablet"], copy["target"], tuple(copy["sources"]), session, job)
            found.append((self.streams.begin(copying, epoch), copying.tablet, copying.target))
        return found

    async def _committed(self, table: Table) -> int:
        reply = loads_protocol.decode_loads_reply(await self.ask(loads_protocol.SHOW, ShowRequest(table.id)))
        return int(reply.committed.get(table.id, 0))

    async def _repairs_of(
        self, table: Table, given: Mapping[str, Any]
    ) -> list[tuple[asyncio.Task[dict[str, Any]], int, int]]:
        """All replicas of each tablet against each other, or as many as those that matter need."""
        epoch = await self._committed(table)
        body = await self.ask(rows_protocol.SCHEMA, SchemaRequest((0, 0)))
        places = TabletMap.unpacked(rows_protocol.decode_schema_reply(body).tablets.get(table.id, []))
        wanted = given.get("tablets") or [tablet for tablet, _ in places]
        targets: list[list[int]] = given.get("targets") or []
        repairs = Repairs(self.streams, table, epoch)
        process = self.streams.client.process
        found = []
        for number, tablet in enumerate(wanted):
            if tablet < places.count:
                replicas = tuple(places.replicas(tablet))
                work = repairs.repair(tablet, replicas, tuple(targets[number]) if targets else replicas)
                found.append((process.spawn(work, name=f"repair of {tablet}"), tablet, 0))
        return found


class Repairs:
    """Repairs of one job, tablet by tablet, as `pipeline.repairing` does them."""

    def __init__(self, streams: Streams, table: Table, epoch: int) -> None:
        self._streams = streams
        self._client = streams.client
        self._table = table
        self._epoch = epoch
        self._rng: random.Random = streams.rng

    async def repair(self, tablet: int, replicas: tuple[int, ...], targets: tuple[int, ...]) -> dict[str, Any]:
        """Returns when all of `targets` have what a read quorum of the replicas had. CopyFailed: too few answer."""
        for left in reversed(range(_TIMES)):
            try:
                return await self._once(tablet, replicas, targets)
            except CopyFailed:
                if not left:
                    raise
            await asyncio.sleep(0.1 + 0.2 * self._rng.random())
        raise AssertionError("every try returns or raises")

    async def _once(self, tablet: int, replicas: tuple[int, ...], targets: tuple[int, ...]) -> dict[str, Any]:
        begun: dict[int, BeginReply] = {}
        for raft_id in replicas:
            try:
                begun[raft_id] = await self._begin(tablet, raft_id)
            except CopyFailed:
                if raft_id in targets:
                    raise
        for target in targets:
            if why := quorums.missing(target, replicas, begun, dict.fromkeys(replicas, "dc1"), intact=True):
                raise CopyFailed("not_ready", why)
        name = f"repair-{self._rng.getrandbits(48):012x}"
        held: dict[int, list[tuple[bytes, bytes]]] = {}
        try:
            for raft_id in begun:
                machine, reply = await self._snapshot(tablet, raft_id, name)
                hidden = frozenset(reply.hidden)
                pairs = sorted(pairs_of(machine, reply.tablets[0].path).items())
                held[raft_id] = [pair for pair in pairs if pair[0] >= FIRST_KEY and stamp_of(pair[0]) not in hidden]
            for raft_id, before in begun.items():
                again = await self._begin(tablet, raft_id)
                if (before.generation, before.repaired_through_ms) != (again.generation, again.repaired_through_ms):
                    raise CopyFailed("not_ready", "one was repaired meanwhile")
            await self._mend(tablet, begun, held, whole=len(begun) == len(replicas))
        finally:
            for raft_id in begun:
                await self._release(raft_id, name)
        return {"tablet": tablet}

    async def _mend(
        self,
        tablet: int,
        begun: Mapping[int, BeginReply],
        held: Mapping[int, list[tuple[bytes, bytes]]],
        *,
        whole: bool,
    ) -> None:
        """Send to each what it lacks; where all took part, they note how far that reaches."""
        forget_ms = max(each.repaired_through_ms for each in begun.values())
        begun_ms = min(each.now_ms for each in begun.values())
        lacking: dict[int, list[bytes]] = {}
        for difference in differences(RowLayout(self._table), held, forget_ms):
            for raft_id in difference.lacking:
                for pair in difference.pairs:
                    lacking.setdefault(raft_id, []).extend(pair)
        for raft_id, sent in lacking.items():
            rows = RowsRequest(self._table.id, tablet, begun[raft_id].generation, begun_ms, sent)
            await self._ask(raft_id, protocol.ROWS, rows)
        for raft_id, each in begun.items() if whole else ():
            end = RepairEnd(self._table.id, tablet, each.generation, tuple(begun), begun_ms)
            await self._ask(raft_id, protocol.END, end)

    async def _begin(self, tablet: int, raft_id: int) -> BeginReply:
        body = await self._ask(raft_id, protocol.BEGIN, BeginRequest(self._table.id, tablet))
        reply: BeginReply = protocol.decode_begin_reply(body)
        return reply

    async def _snapshot(self, tablet: int, raft_id: int, name: str) -> tuple[Machine, SnapshotReply]:
        request = SnapshotRequest(self._table.id, [tablet], self._epoch, _LEASE_MS, name, copying=True)
        body = await self._ask(raft_id, loads_protocol.SNAPSHOT, request)
        machine = self._streams.cluster.of_raft_id(raft_id)
        assert machine is not None, "it has just answered"
        return machine, loads_protocol.decode_snapshot_reply(body)

    async def _release(self, raft_id: int, name: str) -> None:
        with contextlib.suppress(CopyFailed):
            await self._ask(raft_id, loads_protocol.SNAPSHOT_RELEASE, ReleaseSnapshot(name))

    async def _ask(self, raft_id: int, method: str, request: Any) -> bytes:
        machine = self._streams.cluster.of_raft_id(raft_id)
        if machine is None:
            raise CopyFailed("no_source", f"there is no instance {raft_id}")
        try:
            return await self._client.ask(machine, method, protocol.encode(request), _ASK_S)
        except RpcError as error:
            raise CopyFailed(error.code, f"{machine.name}: {error.text}") from error
        except NetError as error:
            raise CopyFailed("no_answer", f"{machine.name}: {error}") from error
