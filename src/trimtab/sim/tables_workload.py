"""Clients of tables in a simulation: they put, delete, batch, read and change the schema, and write down what they saw.

They speak the protocol of `rows.protocol` to whichever member they choose, as any client may, and never ask again on
their own: what is left open stays open. Rows are few, so that everybody meets everybody.

    sim.flat      id -> a, b                        no clustering columns
    sim.rows      p, c -> a, b, and columns that come and go
    sim.ledger    p, c -> a                         rows of batches, each written once
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import ColumnKind, Table
from trimtab.net.client import Channel
from trimtab.net.errors import FrameTooLarge, NetError, NotConnected, Overloaded, RpcError
from trimtab.net.hello import Hello
from trimtab.rows import protocol
from trimtab.rows.protocol import (
    BatchRequest,
    Bound,
    DeleteRequest,
    GetRequest,
    PutRequest,
    RowsReply,
    ScanRequest,
    SchemaRequest,
    SliceRequest,
)
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.tables_history import Cells, Delete, Outcome, Put, Read, Row, TablesHistory, Write
from trimtab.sim.tables_plan import BARRIERS, WILD_CLOCKS, TablesPlan
from trimtab.tablets.consistency import Level

FLAT, ROWS, LEDGER = "sim.flat", "sim.rows", "sim.ledger"
# Who is told one of these knows that nothing was begun, or will be.
NOTHING_HAPPENED = frozenset(
    ("unavailable", "invalid", "version_mismatch", "not_found", "no_lease", "not_ready", "overloaded")
)
_BEFORE_SENDING = (NotConnected, Overloaded, FrameTooLarge)
_EQUAL_WITHIN_US = 300_000
_MAX_PAGES = 50
_SLOW_S = 0.02

Deed = Callable[[Machine], Coroutine[Any, Any, None]]


def cell(number: int) -> bytes:
    """As CQL writes a bigint."""
    return number.to_bytes(8, "big", signed=True)


@dataclass
class Shared:
    """What clients know of each other: the stamps they gave last, so that some are given twice; and who waits."""

    last_us: dict[Row, int] = field(default_factory=dict)
    waiting: dict[int, Write] = field(default_factory=dict)  # by number, in the order of invocation
    ledger_rows: int = 0
    batches: list[Write] = field(default_factory=list)


class TablesClient:
    """One client, one request at a time."""

    def __init__(
        self, cluster: GovernedCluster, plan: TablesPlan, number: int, history: TablesHistory, shared: Shared
    ) -> None:
        self.cluster = cluster
        self.plan = plan
        self.name = f"c{number}"
        self.process = cluster.world.process(self.name, f"10.0.98.{number}")
        self.history = history
        self.shared = shared
        self.rng = cluster.world.rng(f"client/{number}")
        self.stopped = False
        self.task: asyncio.Task[None] | None = None
        self.catalog = Catalog()
        self._channels: dict[str, Channel] = {}
        self._machines: dict[str, Machine] = {}
        self._values = 0
        self._last_us = 0

    def start(self) -> None:
        self.process.start()
        self.task = self.process.launch(self._work(), name=self.name)

    async def _work(self) -> None:
        self.connect()
        deeds = self._deeds()
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1.0 / self.plan.think_s))
            machine = self.rng.choice(list(self._machines.values()))
            if self.catalog.find(ROWS) is None:
                await self.refresh(machine)
                continue
            await self.rng.choice(deeds)(machine)

    def _deeds(self) -> list[Deed]:
        reads = self.rng.choice((0.3, 0.5))
        many = 40
        writes = 1 - reads
        shares: list[tuple[Deed, float]] = [
            (self._get, 0.7 * reads),
            (self._slice, 0.2 * reads),
            (self._scan, 0.1 * reads),
            (self._put, 0.5 * writes),
            (self._delete, 0.3 * writes),
            (self._batch, 0.1 * writes),
            (self._ledger_batch, 0.1 * writes),
        ]
        return [deed for deed, share in shares for _ in range(max(1, int(many * share)))]

    # -- talking ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """A connection to every machine there is."""
        for name, machine in self.cluster.machines.items():
            if name not in self._channels:
                self._machines[name] = machine
                rng = self.cluster.world.rng(f"{self.name}/{name}")
                limits = machine.settings.net_limits
                self._channels[name] = Channel(machine.settings.address, Hello(), rng, limits=limits)

    async def ask(self, machine: Machine, method: str, body: bytes, timeout_s: float) -> bytes:
        if machine.name not in self._channels:
            self.connect()
        return await self._channels[machine.name].call(method, body, timeout_s)

    async def refresh(self, machine: Machine) -> bool:
        """Learn the schema that a member knows; whether it told."""
        try:
            body = protocol.encode(SchemaRequest((0, 0)))
            reply = protocol.decode_schema_reply(await self.ask(machine, protocol.SCHEMA, body, 2.0))
        except NetError:
            return False
        if reply.catalog and reply.catalog_version >= self.catalog.version:
            self.catalog = Catalog.from_snapshot(reply.catalog)
        return True

    def _patience_s(self) -> float:
        if BARRIERS in self.plan.rates:
            # Barriers wait for what is open, and strike where somebody has waited for too long.
            return self.rng.choice((1.5, 6.0, 6.0))
        return self.rng.choice((0.4, 1.5, 1.5, 4.0))

    # -- writing ---------------------------------------------------------------------------------------------------

    def value(self) -> bytes:
        self._values += 1
        # Not in the order of writing: of equal stamps the greater value wins.
        return f"{self.rng.randrange(100):02d}.{self.name}.{self._values}".encode()

    def _stamp(self, rows: Iterable[Row], *, own: bool) -> int:
        """A stamp of this client's clock, or one that somebody has just given to the same row; 0: the coordinator's."""
        if not own:
            return 0
        now_us = self.process.wall_ms() * 1000
        if not self.plan.forgetful and self.rng.random() < 0.25:
            known = max((self.shared.last_us.get(row, 0) for row in rows), default=0)
            if now_us - _EQUAL_WITHIN_US < known <= now_us:
                return known
        self._last_us = max(self._last_us + 1, now_us)
        return self._last_us

    def _level(self) -> Level:
        rng, dcs = self.rng, len(self.plan.replication)
        if rng.random() < 0.75:
            return Level.QUORUM
        levels = [Level.ONE, Level.ONE, Level.ALL, Level.ANY, Level.LOCAL_QUORUM, Level.TWO]
        if dcs > 1:
            levels += [Level.EACH_QUORUM, Level.LOCAL_QUORUM, Level.LOCAL_QUORUM]
        return rng.choice(levels)

    def _row(self, table: Table) -> Row:
        partition = self.rng.randrange(self.plan.partitions)
        if table.full_name == FLAT:
            return Row(table.id, partition * self.plan.rows + self.rng.randrange(self.plan.rows))
        return Row(table.id, partition, self.rng.randrange(self.plan.rows))

    def _table(self) -> Table:
        return self.catalog.table(self.rng.choice((FLAT, ROWS, ROWS)))

    def _draw_put(self) -> tuple[Put, PutRequest]:
        rng, table = self.rng, self._table()
        row = self._row(table)
        columns = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
        chosen = columns if rng.random() < 0.4 else sorted(rng.sample(columns, rng.randrange(1, len(columns) + 1)))
        insert = rng.random() < 0.5
        cells = {id: None if rng.random() < 0.1 else self.value() for id in chosen}
        ttl_s = rng.choice((1, 2)) if rng.random() < 0.12 and WILD_CLOCKS not in self.plan.rates else 0
        put = Put(row, cells, insert, ttl_s)
        return put, self.put_request(table, put)

    def put_request(self, table: Table, put: Put) -> PutRequest:
        keys = [column.id for column in (*table.of_kind(ColumnKind.PARTITION), *table.of_kind(ColumnKind.CLUSTERING))]
        key = [cell(put.row.partition), cell(put.row.row)][: len(keys)]
        return PutRequest(
            table.id,
            table.version,
            [*keys, *put.cells],
            [[*key, *put.cells.values()]],
            ttl_s=put.ttl_s,
            update=not put.marker,
        )

    async def _put(self, machine: Machine) -> None:
        put, request = self._draw_put()
        write = self._begin(machine, (put,), own=not self.plan.forgetful and self.rng.random() < 0.7)
        fields = {"level": write.level, "timestamp_us": write.stamp_us}
        await self._write(machine, write, protocol.PUT, protocol.encode(_with(request, **fields)))

    async def put_row(self, machine: Machine, table: Table, row: Row, columns: list[int]) -> None:
        """Put one row."""
        put = Put(row, {id: self.value() for id in columns})
        write = self._begin(machine, (put,), own=False)
        request = _with(self.put_request(table, put), level=write.level)
        await self._write(machine, write, protocol.PUT, protocol.encode(request))

    def _draw_delete(self) -> tuple[Delete, DeleteRequest]:
        rng, table = self.rng, self._table()
        row = self._row(table)
        what = rng.choice(("cells", "row", "row", "range", "partition"))
        key = [cell(row.partition)]
        if what == "cells":
            columns = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
            chosen = sorted(rng.sample(columns, rng.randrange(1, len(columns) + 1)))
            delete = Delete(row.table, row.partition, row.row, row.row, tuple(chosen))
            clustering = [] if table.full_name == FLAT else [cell(row.row)]
            return delete, DeleteRequest(table.id, table.version, key, clustering, chosen)
        if table.full_name == FLAT:
            return Delete(row.table, row.partition, 0, 0), DeleteRequest(table.id, table.version, key)
        if what == "row":
            delete = Delete(row.table, row.partition, row.row, row.row)
            return delete, DeleteRequest(table.id, table.version, key, [cell(row.row)])
        if what == "range":
            first = rng.randrange(self.plan.rows)
            last = rng.randrange(first, self.plan.rows)
            start = None if first == 0 and rng.random() < 0.5 else Bound([cell(first)])
            end = Bound([cell(last)]) if rng.random() < 0.5 else Bound([cell(last + 1)], False)
            delete = Delete(row.table, row.partition, first if start else 0, last)
            return delete, DeleteRequest(table.id, table.version, key, start=start, end=end)
        return Delete(row.table, row.partition, 0, 1 << 40), DeleteRequest(table.id, table.version, key)

    async def _delete(self, machine: Machine) -> None:
        delete, request = self._draw_delete()
        write = self._begin(machine, (delete,), own=True)
        fields = {"level": write.level, "timestamp_us": write.stamp_us}
        await self._write(machine, write, protocol.DELETE, protocol.encode(_with(request, **fields)))

    async def _batch(self, machine: Machine) -> None:
        """Of anything, logged where it is of more than one partition."""
        drawn: list[tuple[Put | Delete, PutRequest | DeleteRequest]] = []
        for _ in range(self.rng.randrange(2, 4)):
            drawn.append(self._draw_put() if self.rng.random() < 0.75 else self._draw_delete())
        # In one batch all have the same stamp; what that comes to within one row is not what is tried here.
        seen: set[tuple[int, int]] = set()
        parts = []
        for part, request in drawn:
            place = (part.row.table, part.row.partition) if isinstance(part, Put) else (part.table, part.partition)
            if place not in seen:
                seen.add(place)
                parts.append((part, request))
        deletes = any(isinstance(part, Delete) for part, _ in parts)
        own = deletes or (not self.plan.forgetful and self.rng.random() < 0.5)
        if self.plan.forgetful and deletes:
            parts = [(part, request) for part, request in parts if isinstance(part, Delete)]
        write = self._begin(machine, tuple(part for part, _ in parts), own=own)
        batch = BatchRequest([request for _, request in parts], True, write.level, write.stamp_us)
        await self._write(machine, write, protocol.BATCH, protocol.encode(batch))

    async def _ledger_batch(self, machine: Machine) -> None:
        """New rows of several partitions, which nobody ever writes again."""
        ledger = self.catalog.table(LEDGER)
        column = ledger.of_kind(ColumnKind.REGULAR)[0].id
        self.shared.ledger_rows += 1
        number = self.shared.ledger_rows
        parts = tuple(
            Put(Row(ledger.id, partition, number), {column: self.value()}) for partition in self.rng.sample(range(8), 3)
        )
        write = self._begin(machine, parts, own=False)
        self.shared.batches.append(write)
        batch = BatchRequest([self.put_request(ledger, part) for part in parts], True, write.level)
        await self._write(machine, write, protocol.BATCH, protocol.encode(batch))

    def _begin(self, machine: Machine, parts: tuple[Put | Delete, ...], *, own: bool) -> Write:
        rows = [part.row for part in parts if isinstance(part, Put)]
        level = self._level()
        if level in (Level.TWO,) and sum(self.plan.replication.values()) < 2:
            level = Level.ONE
        write = Write(
            self.history.next_number(),
            self.name,
            level,
            self._dc(machine),
            parts,
            self.cluster.world.now,
            stamp_us=self._stamp(rows, own=own),
            through=machine.name,
        )
        for row in rows:
            self.shared.last_us[row] = write.stamp_us
        self.history.writes.append(write)
        return write

    def _dc(self, machine: Machine) -> str:
        return machine.settings.failure_domain.get("dc", "dc1")

    async def _write(self, machine: Machine, write: Write, method: str, body: bytes) -> None:
        self.shared.waiting[write.number] = write
        try:
            reply = protocol.decode_write_reply(await self.ask(machine, method, body, self._patience_s()))
        except _BEFORE_SENDING as error:
            write.outcome, write.why = Outcome.REFUSED, type(error).__name__
        except RpcError as error:
            write.outcome = Outcome.REFUSED if error.code in NOTHING_HAPPENED else Outcome.UNKNOWN
            write.why = error.code
        except NetError as error:
            write.why = type(error).__name__
        else:
            write.outcome, write.stamp_us = Outcome.ACKED, reply.timestamp_us
            for part in write.parts:
                if isinstance(part, Put):
                    self.shared.last_us[part.row] = reply.timestamp_us
        del self.shared.waiting[write.number]
        write.returned_s = self.cluster.world.now
        if write.why in ("version_mismatch", "not_found"):
            await self.refresh(machine)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_level(self) -> Level:
        if self.rng.random() < 0.75:
            return Level.QUORUM
        levels = [Level.ONE, Level.ONE, Level.ALL, Level.LOCAL_QUORUM, Level.LOCAL_ONE]
        return self.rng.choice(levels)

    async def _get(self, machine: Machine) -> None:
        table = self._table()
        rows = {self._row(table): None for _ in range(1 if self.rng.random() < 0.8 else 3)}
        if self.rng.random() < 0.7 and (doubtful := self._doubtful()) is not None:
            # Whether it is there is what nobody knows: several look, one after the other.
            table = self.catalog.tables[doubtful.table]
            for _ in range(3):
                await self.get(self.rng.choice(list(self._machines.values())), table, [doubtful], Level.QUORUM)
            return
        await self.get(machine, table, list(rows), self._read_level())

    def _doubtful(self) -> Row | None:
        """A row that somebody has been writing for longer than that should take."""
        for write in self.shared.waiting.values():
            if self.cluster.world.now - write.invoked_s > _SLOW_S:
                rows = [part.row for part in write.parts if isinstance(part, Put)]
                known = [row for row in rows if row.table in self.catalog.tables]
                if known:
                    return known[0]
        return None

    async def get(self, machine: Machine, table: Table, rows: list[Row], level: Level, *, final: bool = False) -> str:
        """Read rows by their keys; why that was not possible, or nothing."""
        columns = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
        clustering = bool(table.of_kind(ColumnKind.CLUSTERING))
        keys = [[cell(row.partition), cell(row.row)][: 1 + clustering] for row in rows]
        request = GetRequest(table.id, table.version, keys, columns, level, with_meta=True)
        invoked_s, epoch = self.cluster.world.now, known_epoch(machine, table.id)
        try:
            reply = await self._rows(machine, protocol.GET, protocol.encode(request), final)
        except NetError as error:
            return await self._not_read(machine, error)
        found = {
            row: None if cells is None else _cells(columns, cells, metas)
            for row, cells, metas in zip(rows, reply.rows, reply.metas, strict=True)
        }
        self._saw(machine, level, invoked_s, columns, found, final, epoch)
        return ""

    async def _slice(self, machine: Machine) -> None:
        table = self.catalog.table(ROWS)
        await self.slice(machine, table, self.rng.randrange(self.plan.partitions), self._read_level())

    async def slice(self, machine: Machine, table: Table, partition: int, level: Level) -> str:
        """Read a partition, or a part of it, page by page."""
        rng = self.rng
        first = rng.choice((0, rng.randrange(self.plan.rows)))
        last = rng.randrange(first, self.plan.rows)
        (clustering,) = table.of_kind(ColumnKind.CLUSTERING)
        regular = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
        columns = [clustering.id, *regular]
        reverse, limit = rng.random() < 0.3, rng.choice((1, 2, 100))
        found: dict[Row, Cells | None] = {Row(table.id, partition, row): None for row in range(first, last + 1)}
        invoked_s, epoch, page = self.cluster.world.now, known_epoch(machine, table.id), b""
        for _ in range(_MAX_PAGES):
            request = SliceRequest(
                table.id,
                table.version,
                [cell(partition)],
                columns,
                Bound([cell(first)]),
                Bound([cell(last)]),
                reverse,
                limit,
                page,
                level,
                with_meta=True,
            )
            try:
                reply = await self._rows(machine, protocol.SLICE, protocol.encode(request), False)
            except NetError as error:
                return await self._not_read(machine, error)
            for cells, metas in zip(reply.rows, reply.metas, strict=True):
                assert cells is not None and metas is not None and cells[0] is not None
                number = int.from_bytes(cells[0], "big", signed=True)
                found[Row(table.id, partition, number)] = _cells(regular, cells[1:], metas[1:])
            page = reply.page
            if not page:
                break
        else:
            return "it did not end"
        self._saw(machine, level, invoked_s, regular, found, False, epoch)
        return ""

    async def _scan(self, machine: Machine) -> None:
        table = self._table()
        if table.full_name == ROWS:
            rows = [Row(table.id, p, c) for p in range(self.plan.partitions) for c in range(self.plan.rows)]
        else:
            rows = [Row(table.id, id) for id in range(self.plan.partitions * self.plan.rows)]
        await self.scan(machine, table, rows, self._read_level())

    async def scan(
        self, machine: Machine, table: Table, rows: Iterable[Row], level: Level, *, final: bool = False
    ) -> str:
        """Read a whole table, of which `rows` are all that may be there."""
        keys = [column.id for column in (*table.of_kind(ColumnKind.PARTITION), *table.of_kind(ColumnKind.CLUSTERING))]
        regular = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
        found: dict[Row, Cells | None] = dict.fromkeys(rows)
        invoked_s, epoch, page = self.cluster.world.now, known_epoch(machine, table.id), b""
        limit = self.rng.choice((2, 100)) if not final else 100
        for _ in range(_MAX_PAGES):
            request = ScanRequest(
                table.id, table.version, [*keys, *regular], limit=limit, page=page, level=level, with_meta=True
            )
            try:
                reply = await self._rows(machine, protocol.SCAN, protocol.encode(request), final)
            except NetError as error:
                return await self._not_read(machine, error)
            for cells, metas in zip(reply.rows, reply.metas, strict=True):
                assert cells is not None and metas is not None
                key = [int.from_bytes(each or b"", "big", signed=True) for each in cells[: len(keys)]]
                found[Row(table.id, *key)] = _cells(regular, cells[len(keys) :], metas[len(keys) :])
            page = reply.page
            if not page:
                self._saw(machine, level, invoked_s, regular, found, final, epoch)
                return ""
        return "it did not end"

    async def _rows(self, machine: Machine, method: str, body: bytes, final: bool) -> RowsReply:
        timeout_s = 5.0 if final else self._patience_s()
        reply: RowsReply = protocol.decode_rows(await self.ask(machine, method, body, timeout_s))
        return reply

    async def _not_read(self, machine: Machine, error: NetError) -> str:
        if isinstance(error, RpcError) and error.code in ("version_mismatch", "not_found"):
            await self.refresh(machine)
        return str(error) or type(error).__name__

    def _saw(
        self,
        machine: Machine,
        level: Level,
        invoked_s: float,
        columns: list[int],
        found: dict[Row, Cells | None],
        final: bool,
        epoch: int,
    ) -> None:
        number, now = self.history.next_number(), self.cluster.world.now
        read = Read(number, self.name, level, self._dc(machine), invoked_s, now, tuple(columns), found)
        read.through, read.final, read.epoch = machine.name, final, epoch
        self.history.reads.append(read)


def known_epoch(machine: Machine, table: int) -> int:
    """The newest epoch of a table that a member knows to be visible; no answer of its own can be at an older one."""
    watching = getattr(machine.instance, "watching", None)
    return watching.loads.visible(table) if watching is not None else 0


def _with(request: PutRequest | DeleteRequest, **fields: object) -> PutRequest | DeleteRequest:
    return replace(request, **fields)


def _cells(columns: list[int], cells: Sequence[bytes | None], metas: object) -> Cells:
    assert isinstance(metas, list) and len(metas) == len(cells) == len(columns)
    return {
        id: (value, meta.writetime_us if meta is not None else 0)
        for id, value, meta in zip(columns, cells, metas, strict=True)
    }
