"""Rows in a whole cluster: written, read, repaired, fenced, while machines come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from tests.sim.governed_world import TIMING, cut, governed
from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, Command, CreateKeyspace, CreateTable
from trimtab.catalog.schema import Table
from trimtab.net.errors import RpcError
from trimtab.node.settings import Limits
from trimtab.rows import protocol
from trimtab.rows.protocol import (
    BatchRequest,
    Bound,
    ChangeRequest,
    DeleteRequest,
    GetRequest,
    PutRequest,
    RowsReply,
    ScanRequest,
    SliceRequest,
    WriteReply,
)
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.world import World
from trimtab.tablets.consistency import Level


def big(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


class Rows:
    """A cluster with tables shop.users (id bigint, name text) and shop.events (id bigint, at bigint, what text)."""

    def __init__(self, cluster: GovernedCluster, replication: int | dict[str, int], tablets: int) -> None:
        self.cluster = cluster
        self.changes = 0
        self.change(CreateKeyspace("shop", replication))
        columns = [ColumnSpec("id", "bigint"), ColumnSpec("name", "text")]
        self.change(CreateTable("shop", "users", columns, ["id"], tablets=tablets))
        columns = [ColumnSpec("id", "bigint"), ColumnSpec("at", "bigint"), ColumnSpec("what", "text")]
        self.change(CreateTable("shop", "events", columns, ["id"], [("at", False)], tablets=tablets))
        self.users, self.events = self.table("shop.users"), self.table("shop.events")
        self.machines = list(cluster.machines.values())

    def change(self, command: Command) -> None:
        self.changes += 1
        body = protocol.encode(ChangeRequest(commands.encode(command), f"c{self.changes}"))
        protocol.decode_change_reply(self.ask(self.any(), protocol.CHANGE, body))

    def any(self) -> Machine:
        return self.cluster.running()[0]

    def table(self, name: str) -> Table:
        instance = self.any().instance
        assert instance is not None
        return instance.watching.tables.catalog.table(name)

    def ask(self, machine: Machine, method: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        return self.cluster.do(self.asking(machine, method, body, timeout_s))  # type: ignore[no-any-return]

    async def asking(self, machine: Machine, method: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        rng = self.cluster.world.rng(f"client/{self.cluster.world.events}")
        return await self.cluster.ask(machine, method, body, rng, timeout_s)

    def put(self, machine: Machine, id: int, name: str | None, level: Level = Level.QUORUM, **more: Any) -> WriteReply:
        cells = [[big(id), name.encode() if name is not None else None]]
        request = PutRequest(self.users.id, self.users.version, [1, 2], cells, level, **more)
        reply: WriteReply = protocol.decode_write_reply(self.ask(machine, protocol.PUT, protocol.encode(request)))
        return reply

    def get(self, machine: Machine, id: int, level: Level = Level.QUORUM) -> str | None:
        reply = self.get_reply(machine, [id], level)
        row = reply.rows[0]
        return row[0].decode() if row is not None and row[0] is not None else None

    def get_reply(self, machine: Machine, ids: list[int], level: Level = Level.QUORUM) -> RowsReply:
        request = GetRequest(self.users.id, self.users.version, [[big(id)] for id in ids], [2], level)
        reply: RowsReply = protocol.decode_rows(self.ask(machine, protocol.GET, protocol.encode(request)))
        return reply

    def refusal(self, call: Any, *args: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        with pytest.raises(RpcError) as refused:
            call(*args, **more)
        details = refused.value.details
        return refused.value.code, msgspec.msgpack.decode(details) if details else {}

    def held(self, machine: Machine, id: int) -> str | None:
        """What this machine's own replica says, past its router."""
        return self.get_at(machine, id)

    def get_at(self, machine: Machine, id: int) -> str | None:
        return self.get(machine, id, Level.ONE)

    def cut_rows(self, machine: Machine) -> None:
        """Nobody's writes reach this machine's replicas, though everything else does."""
        assert machine.instance is not None

    def event(self, id: int, at: int, what: str) -> PutRequest:
        cells = [[big(id), big(at), what.encode()]]
        return PutRequest(self.events.id, self.events.version, [1, 2, 3], cells, Level.QUORUM)


@contextmanager
def rows(
    machines: int = 3, replication: int | dict[str, int] = 3, *, tablets: int = 8, seed: int = 1
) -> Iterator[Rows]:
    with governed(machines, seed=seed) as cluster:
        yield Rows(cluster, replication, tablets)


def test_what_is_written_through_one_is_read_through_another() -> None:
    with rows() as shop:
        a, b, c = shop.machines
        for id in range(20):
            shop.put(a, id, f"name {id}")
        for id in range(20):
            assert shop.get(b, id) == f"name {id}"
            assert shop.get(c, id, Level.ALL) == f"name {id}"
            assert shop.get(c, id, Level.ONE) == f"name {id}"
        many = shop.get_reply(b, [5, 99, 3, 5])
        assert [row and row[0] for row in many.rows] == [b"name 5", None, b"name 3", b"name 5"]
        assert shop.put(b, 3, None).timestamp_us > 0
        assert shop.get(a, 3) is None


def test_a_slice_and_a_scan_page_through_everything_once_and_in_order() -> None:
    with rows() as shop:
        a, b, _ = shop.machines
        for at in range(30):
            request = shop.event(7, at, f"e{at}")
            shop.ask(a, protocol.PUT, protocol.encode(request))
        found, page = [], b""
        for _ in range(20):
            request = SliceRequest(
                shop.events.id, shop.events.version, [big(7)], [2, 3], Bound([big(5)]), Bound([big(25)], False), limit=7, page=page
            )
            reply = protocol.decode_rows(shop.ask(b, protocol.SLICE, protocol.encode(request)))
            found += [int.from_bytes(row[0]) for row in reply.rows]
            page = reply.page
            if not page:
                break
        assert found == list(range(5, 25))
        found, page = [], b""
        for _ in range(20):
            request = SliceRequest(
                shop.events.id, shop.events.version, [big(7)], [2], None, None, True, 4, page
            )
            reply = protocol.decode_rows(shop.ask(b, protocol.SLICE, protocol.encode(request)))
            found += [int.from_bytes(row[0]) for row in reply.rows]
            page = reply.page
            if not page:
                break
        assert found == list(range(29, -1, -1))
        for id in range(50):
            shop.put(a, id, f"n{id}")
        seen, page = [], b""
        for _ in range(60):
            scan = ScanRequest(shop.users.id, shop.users.version, [1], limit=9, page=page)
            reply = protocol.decode_rows(shop.ask(b, protocol.SCAN, protocol.encode(scan)))
            seen += [int.from_bytes(row[0]) for row in reply.rows]
            page = reply.page
            if not page:
                break
        assert sorted(seen) == list(range(50))
        assert shop.refusal(shop.ask, b, protocol.SCAN, protocol.encode(ScanRequest(shop.users.id, shop.users.version, [1], page=b"x")))[0] == "invalid"
