"""Replicas in memory, and the way between them, for stories about repair."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from trimtab.catalog.schema import Column, ColumnKind, Layout, Table
from trimtab.catalog.types import parse
from trimtab.net.errors import NotConnected, RpcError
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.replicas.repair import Repair, RepairService
from trimtab.node.replicas.walking import Walk
from trimtab.rows.deletions import Pair
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import Bound, DeleteRequest, PutRequest
from trimtab.tablets.missed import tablet_keys
from trimtab.tablets.ring import token_range

TABLE, TABLET = 7, 0
_HELLO = Hello()


def wide_table() -> RowLayout:
    """Partitions of many rows, in descending order, with a static column and a collection."""
    return _layout(
        Column(1, "p", "bigint", ColumnKind.PARTITION, 0),
        Column(2, "c", "int", ColumnKind.CLUSTERING, 0, True),
        Column(3, "s", "text", ColumnKind.STATIC, 0),
        Column(4, "v", "text", ColumnKind.REGULAR, 0),
        Column(5, "tags", "set<text>", ColumnKind.REGULAR, 1),
    )


def narrow_table() -> RowLayout:
    """A partition is one row."""
    return _layout(Column(1, "p", "bigint", ColumnKind.PARTITION, 0), Column(4, "v", "text", ColumnKind.REGULAR, 0))


def _layout(*columns: Column) -> RowLayout:
    def ids(kind: ColumnKind) -> tuple[int, ...]:
        return tuple(each.id for each in columns if each.kind is kind)

    layout = Layout(1, ids(ColumnKind.REGULAR), ids(ColumnKind.STATIC))
    return RowLayout(Table(TABLE, "ks", "t", 1, columns, (layout,), 1))


class MemoryReplica:
    """Pairs in the order of their keys."""

    table, tablet, name = TABLE, TABLET, "tablet 0 of ks.t"

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self.pairs: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.low, self.high = tablet_keys(*token_range(0, 1))
        self.answers = True
        self.gone = False
        self.repaired_through_ms = 0
        self.finished = 0
        self.generation = 1
        self.adopted = 0
        self.needs = 0

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterable[Pair]:
        stop = len(self.keys) if high is None else bisect_left(self.keys, high)
        found = self.keys[bisect_left(self.keys, low) : stop]
        return [(key, self.pairs[key]) for key in (reversed(found) if reverse else found)]

    def add(self, pairs: list[bytes]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if key not in self.pairs:
                insort(self.keys, key)
            self.pairs[key] = value

    def walk(self, forget_ms: int, *, gentle: bool) -> Walk:
        return Walk(self.scan, self.layout, forget_ms, gentle=gentle)

    async def put(self, pairs: list[bytes]) -> None:
        await asyncio.sleep(0)
        self.add(pairs)

    async def mended(self) -> None:
        self.adopted = max(self.adopted, self.needs)

    async def set_repaired_through(self, through_ms: int) -> None:
        self.repaired_through_ms = through_ms

    async def finish(self) -> None:
        self.answers = True
        self.finished += 1

    async def content(self) -> tuple[list[bytes], bytes]:
        """Everything, merged."""
        return await self.walk(0, gentle=False).page(self.low, self.high, 1 << 40)


class Neighbours:
    """Replicas 1, 2, 3 ... of one tablet, each on an instance of its own; `down` ones can't be asked."""

    def __init__(self, layout: RowLayout, count: int) -> None:
        self.layout = layout
        self.held = {raft_id: MemoryReplica(layout) for raft_id in range(1, count + 1)}
        self.down: set[int] = set()
        self.lost: set[int] = set()  # those left the cluster
        self.unsynced: set[int] = set()
        self.on_the_move = False
        self.asked: list[tuple[int, str]] = []
        self.now_ms = 1_000_000
        self.catalog = 1
        self.services = {raft_id: self._service(raft_id) for raft_id in self.held}

    def _service(self, raft_id: int) -> RepairService:
        return RepairService(
            lambda _table, _tablet, _generation: self.held[raft_id],
            synced=lambda: raft_id not in self.unsynced,
            catalog=lambda: self.catalog,
        )

    def repair(self, hint_life_ms: int = 10_000) -> Repair:
        return Repair(self.ask, catalog=lambda: self.catalog, wall_ms=lambda: self.now_ms, hint_life_ms=hint_life_ms)

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self.asked.append((raft_id, method))
        await asyncio.sleep(0)
        if raft_id in self.down:
            raise NotConnected("it is down")
        try:
            deadline = asyncio.get_running_loop().time() + timeout_s
            return await self.services[raft_id].methods()[method](Asked(body, deadline, _HELLO))
        except Refused as refused:
            raise RpcError(refused.code, refused.text) from None

    # mending.Peers

    def replicas(self, _table: int, _tablet: int) -> tuple[int, ...]:
        return tuple(self.held)

    def moving(self, _table: int, _tablet: int) -> bool:
        return self.on_the_move

    def dc_of(self) -> Mapping[int, str]:
        return dict.fromkeys(self.held, "dc1")

    def likely(self, raft_ids: Iterable[int]) -> list[int]:
        return [raft_id for raft_id in raft_ids if raft_id not in self.down | self.lost]

    def left(self, raft_ids: Iterable[int]) -> list[int]:
        return [raft_id for raft_id in raft_ids if raft_id in self.lost]

    def name_of(self, raft_id: int) -> str:
        return f"i{raft_id}"


def some_writes(layout: RowLayout, rng: random.Random, count: int, partitions: int) -> list[list[bytes]]:
    """Puts and deletions of all kinds, each as pairs, with stamps that often tie."""
    return [_write(layout, rng, partitions) for _ in range(count)]


def put(layout: RowLayout, number: int, value: str, stamp_us: int, row: int = 0) -> list[bytes]:
    cells: list[bytes | None] = [number.to_bytes(8, "big"), value.encode()]
    columns = [1, 4]
    if layout.clustering:
        cells.insert(1, row.to_bytes(4, "big"))
        columns.insert(1, 2)
    request = PutRequest(TABLE, 1, columns, [cells])
    return _flat(pairs_of_put(layout, request, stamp_us, stamp_us // 1000))


def delete(layout: RowLayout, number: int, stamp_us: int, row: int | None = None) -> list[bytes]:
    whole = [row.to_bytes(4, "big")] if row is not None else ([] if not layout.clustering else None)
    request = DeleteRequest(TABLE, 1, [number.to_bytes(8, "big")], whole)
    return _flat(pairs_of_delete(layout, request, stamp_us, stamp_us // 1000))


def _write(layout: RowLayout, rng: random.Random, partitions: int) -> list[bytes]:
    stamp_us = 1_000_000 + rng.randrange(50)
    number = rng.randrange(partitions)
    partition = number.to_bytes(8, "big")
    kind = rng.random()
    if not layout.clustering:
        if kind < 0.2:
            return delete(layout, number, stamp_us)
        return put(layout, number, f"v{rng.randrange(5)}", stamp_us)
    row = rng.randrange(8).to_bytes(4, "big")
    if kind < 0.1:
        return delete(layout, number, stamp_us)
    if kind < 0.2:
        ends = sorted(rng.randrange(8) for _ in range(2))
        # The order of the column is descending: what comes first is greater.
        start, end = (Bound([each.to_bytes(4, "big")], rng.random() < 0.5) for each in reversed(ends))
        request = DeleteRequest(TABLE, 1, [partition], None, [], start, end)
        return _flat(pairs_of_delete(layout, request, stamp_us, stamp_us // 1000))
    if kind < 0.3:
        return delete(layout, number, stamp_us, rng.randrange(8))
    if kind < 0.4:
        static = PutRequest(TABLE, 1, [1, 3], [[partition, b"s%d" % rng.randrange(3)]], update=True)
        return _flat(pairs_of_put(layout, static, stamp_us, 1_000))
    if kind < 0.6:
        tags = parse("set<text>", {}).serialize({f"t{rng.randrange(4)}"})
        request_ = PutRequest(TABLE, 1, [1, 2, 5], [[partition, row, tags]], update=rng.random() < 0.5)
        return _flat(pairs_of_put(layout, request_, stamp_us, 1_000))
    ttl_s = rng.choice((0, 0, 100))
    full = PutRequest(TABLE, 1, [1, 2, 4], [[partition, row, b"v%d" % rng.randrange(5)]], ttl_s=ttl_s)
    return _flat(pairs_of_put(layout, full, stamp_us, 1_000))


def _flat(found: Mapping[bytes, list[bytes]]) -> list[bytes]:
    return [part for pairs in found.values() for part in pairs]
