"""What one instance's own replicas hold, asked as another member would ask: nobody merges or repairs in between.

A router may read elsewhere when its own replica can't answer. Here only the asked one can, so a refusal is its refusal,
and the rows are its rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cluster.instances import Instances
from trimtab.catalog.catalog import Catalog
from trimtab.client.known import Known
from trimtab.client.plans import TablePlan
from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.rows import protocol
from trimtab.rows.layout import RowLayout
from trimtab.rows.projection import rows_of
from trimtab.rows.protocol import RangeRead, ReplicaRead, SchemaRequest
from trimtab.tablets.consistency import Level
from trimtab.tablets.tablet_map import TabletMap

_CONNECT_S = 60.0
_ASK_S = 30.0
_PAUSE_S = 0.2
_MAX_PAGES = 100_000
_BELOW, _ABOVE = b"\x00" * 8, b"\xff" * 40


@dataclass(frozen=True)
class _Schema:
    """As some instance that serves knows it."""

    topology: int
    catalog: Catalog
    tablets: dict[int, TabletMap]


class ReplicaReads:
    """Reads at ONE from the replicas of one instance."""

    def __init__(self, channel: Channel, raft_id: int, ask_schema: Callable[[], Awaitable[_Schema]]) -> None:
        self._channel = channel
        self._raft_id = raft_id
        self._ask_schema = ask_schema
        self._schema: _Schema

    async def refresh(self) -> None:
        """Learn the topology and the catalog of now: what is asked by older ones is refused as fenced."""
        self._schema = await self._ask_schema()

    async def rows(self, name: str) -> dict[Any, dict[str, Any]]:
        """All rows of a table that this instance's replicas hold, by primary key. RpcError: it refuses to answer."""
        found: dict[Any, dict[str, Any]] = {}
        plan = Known(self._schema.catalog).plan(name)
        for tablet in self.tablets(name):
            for row in await self._tablet_rows(plan, tablet):
                key = tuple(row[column] for column in plan.key)
                found[key if len(key) > 1 else key[0]] = row
        return found

    def tablets(self, name: str) -> list[int]:
        """Those of which this instance should hold a replica."""
        return self._schema.tablets[self._schema.catalog.table(name).id].of(self._raft_id)

    async def _tablet_rows(self, plan: TablePlan, tablet: int) -> list[dict[str, Any]]:
        layout = RowLayout(plan.table, self._schema.catalog.types_of(plan.table.keyspace))
        reading = plan.reading(None)
        found: list[dict[str, Any]] = []
        low = _BELOW
        for _ in range(_MAX_PAGES):
            answer = await self.read(plan.table.id, tablet, RangeRead(low, _ABOVE, limit=1_000))
            rows = rows_of(layout, answer.pairs, reading.ids, int(time.time()), low=low, high=answer.end or _ABOVE)
            found += [row for row in reading.rows(rows.cells) if row is not None]
            if not answer.more:
                return found
            low = answer.end
        raise AssertionError(f"tablet {tablet} of {plan.name} has no end")

    async def read(self, table: int, tablet: int, wanted: RangeRead) -> protocol.RangeRows:
        """One range of one replica. RpcError: it refuses to answer."""
        schema = self._schema
        read = ReplicaRead(
            schema.topology, schema.catalog.version, table, tablet, Level.ONE, [wanted], False, int(time.time())
        )
        body = await self._channel.call(protocol.REPLICA_READ, protocol.encode(read), _ASK_S)
        answer: protocol.RangeRows = protocol.decode_replica_rows(body).ranges[0]
        return answer


@contextlib.asynccontextmanager
async def replicas_of(cluster: Instances, number: int, *, via: int | None = None) -> AsyncIterator[ReplicaReads]:
    """The replicas of an instance; `via` is who is asked for the schema, default: itself."""
    other = next(each for each in cluster.listen if each != number and cluster.identity(each))
    known = cluster.identity(other)
    hello = Hello(
        cluster_id=known["cluster_id"],
        instance_id=known["instance_id"],
        raft_id=known["raft_id"],
        genesis=known["genesis"],
        address=cluster.listen[other],
        data_id=known["uuid"],
    )
    channel = Channel(cluster.listen[number], hello, random.Random(number))
    try:
        await channel.wait_connected(_CONNECT_S)
        raft_id = int(cluster.identity(number)["raft_id"])
        replicas = ReplicaReads(channel, raft_id, lambda: _schema_of(cluster, via or number))
        await replicas.refresh()
        yield replicas
    finally:
        channel.close()


async def rows_on(cluster: Instances, number: int, name: str) -> dict[Any, dict[str, Any]]:
    """All rows of a table that an instance's own replicas hold, as soon as it does not refuse to answer."""
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            async with replicas_of(cluster, number) as replicas:
                return await replicas.rows(name)
        except NetError as error:
            assert time.monotonic() < deadline, f"i{number} refuses: {error}\n{cluster.said()}"
        await asyncio.sleep(_PAUSE_S)


async def await_rows(cluster: Instances, number: int, name: str, rows: Mapping[Any, dict[str, Any]]) -> None:
    """Wait until an instance's own replicas hold these rows and no others.

    Whoever is up may hear a moment later than others what is published, and take a write later than a quorum does.
    """
    deadline = time.monotonic() + _CONNECT_S
    while (found := await rows_on(cluster, number, name)) != rows:
        lacks, more = rows.keys() - found.keys(), found.keys() - rows.keys()
        wrong = f"{len(found)} rows of {name} and not {len(rows)}: lacks {list(lacks)[:5]}, has {list(more)[:5]} more"
        assert time.monotonic() < deadline, f"i{number} holds {wrong}\n{cluster.said()}"
        await asyncio.sleep(_PAUSE_S)


async def _schema_of(cluster: Instances, number: int) -> _Schema:
    channel = Channel(cluster.listen[number], Hello(), random.Random(number))
    try:
        await channel.wait_connected(_CONNECT_S)
        body = await channel.call(protocol.SCHEMA, protocol.encode(SchemaRequest()), _ASK_S)
    finally:
        channel.close()
    reply = protocol.decode_schema_reply(body)
    tablets = {table: TabletMap.unpacked(chunks) for table, chunks in reply.tablets.items()}
    return _Schema(reply.topology_version, Catalog.from_snapshot(reply.catalog), tablets)
