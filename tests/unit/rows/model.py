"""What CQL says about rows, written down as plainly as possible: a list of everything that was written.

A read goes through the whole list. Nothing here knows how rows are stored; cells are compared with the catalog's own
`order`, tokens come from the driver's Python code. Written apart from `trimtab.rows`, to disagree with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any

from cassandra.metadata import Murmur3Token

from trimtab.catalog.schema import Column, ColumnKind, Table, UserType
from trimtab.catalog.types import Kind, Type, parse

Cell = bytes | None


@dataclass
class Write:
    """One row's cells of a put, a deletion of cells, or (with `deletes`) of a row, range or partition."""

    partition: tuple[bytes, ...]
    stamp: int
    now_ms: int
    ttl: int = 0
    row: tuple[bytes, ...] | None = None
    marker: bool = False
    cells: dict[int, Cell] = field(default_factory=dict)
    ways: dict[int, int] = field(default_factory=dict)
    deletes: str = ""
    turn: int = 0  # among writes of one stamp, the later ones are added to lists after the earlier ones
    start: tuple[tuple[bytes, ...], bool] | None = None
    end: tuple[tuple[bytes, ...], bool] | None = None

    @property
    def expires(self) -> int:
        return self.now_ms // 1000 + self.ttl


@dataclass
class Row:
    """A live row as it is read: cells by column id, and of simple cells when they were written and what is left."""

    partition: tuple[bytes, ...]
    row: tuple[bytes, ...] | None
    cells: dict[int, bytes]
    metas: dict[int, tuple[int, int | None]]


class Model:
    def __init__(self, table: Table, udts: dict[str, UserType]) -> None:
        self.udts = udts
        self.table = table
        self.writes: list[Write] = []

    def type(self, column: Column) -> Type:
        return parse(column.type, self.udts)

    def columns(self, kind: ColumnKind) -> tuple[Column, ...]:
        return self.table.of_kind(kind)

    # Keys

    def compare(self, one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
        """Two (beginnings of) clustering keys, by as many columns as both have."""
        for column, left, right in zip(self.columns(ColumnKind.CLUSTERING), one, other, strict=False):
            order = self.type(column).order
            a, b = order(left), order(right)
            if a != b:
                return (-1 if a < b else 1) * (-1 if column.descending else 1)
        return 0

    def same_row(self, one: tuple[bytes, ...], other: tuple[bytes, ...]) -> bool:
        return self.compare(one, other) == 0

    def token(self, partition: tuple[bytes, ...]) -> int:
        if len(partition) == 1:
            whole = partition[0]
        else:
            whole = b"".join(len(each).to_bytes(2, "big") + each + b"\0" for each in partition)
        found: int = Murmur3Token.hash_fn(whole)
        return found

    def inside(self, row: tuple[bytes, ...], start: Any, end: Any) -> bool:
        if start is not None and start[0]:
            side = self.compare(row, start[0])
            if side < 0 or (side == 0 and not start[1]):
                return False
        if end is not None and end[0]:
            side = self.compare(row, end[0])
            if side > 0 or (side == 0 and not end[1]):
                return False
        return True

    # Reading

    def partitions(self) -> list[tuple[bytes, ...]]:
        return sorted({each.partition for each in self.writes}, key=lambda each: (self.token(each), each))

    def read_partition(
        self,
        partition: tuple[bytes, ...],
        now: int,
        as_of: int = 0,
        start: Any = None,
        end: Any = None,
        *,
        whole: bool = True,
    ) -> list[Row]:
        """Rows in the table's order, as they were. `whole`: without bounds, so a static row alone is a row."""
        now = min(now, as_of // 1_000_000) if as_of else now
        writes = [each for each in self.writes if each.partition == partition and (not as_of or each.stamp <= as_of)]
        gone = max((each.stamp for each in writes if each.deletes == "partition"), default=None)
        static_ids = {each.id for each in self.columns(ColumnKind.STATIC)}
        static_cells, static_metas = self._cells(writes, static_ids, gone, now)
        rows: list[tuple[bytes, ...]] = []
        for each in writes:
            if each.row is not None and not any(self.same_row(each.row, known) for known in rows):
                rows.append(each.row)
        found: list[Row] = []
        for key in sorted(rows, key=cmp_to_key(self.compare)):
            if not self.inside(key, start, end):
                continue
            live = self._row(writes, key, gone, now)
            if live is not None:
                cells, metas = live
                found.append(Row(partition, key, {**static_cells, **cells}, {**static_metas, **metas}))
        if not found and whole and static_cells:
            found.append(Row(partition, None, static_cells, static_metas))
        return found

    def _row(self, writes: list[Write], key: tuple[bytes, ...], gone: int | None, now: int) -> Any:
        stamps = [] if gone is None else [gone]
        for each in writes:
            if each.deletes == "row" and each.row is not None and self.same_row(each.row, key):
                stamps.append(each.stamp)
            if each.deletes == "range" and self.inside(key, each.start, each.end):
                stamps.append(each.stamp)
        covered = max(stamps, default=None)
        mine = [each for each in writes if each.row is not None and self.same_row(each.row, key)]
        regular = {each.id for each in self.columns(ColumnKind.REGULAR)}
        cells, metas = self._cells(mine, regular, covered, now)
        markers = [
            (each.stamp, bool(each.ttl), each.expires if each.ttl else 0)
            for each in mine
            if each.marker and (covered is None or each.stamp > covered)
        ]
        marker = max(markers, default=None)
        if not cells and (marker is None or (marker[1] and marker[2] <= now)):
            return None
        return cells, metas

    def _cells(self, writes: list[Write], ids: set[int], covered: int | None, now: int) -> Any:
        cells: dict[int, bytes] = {}
        metas: dict[int, tuple[int, int | None]] = {}
        for column in self.table.columns:
            if column.id not in ids:
                continue
            of_column = [each for each in writes if column.id in each.cells]
            given = self.type(column)
            if given.multicell:
                found = self._collection(given, column.id, of_column, covered, now)
                if found is not None:
                    cells[column.id] = found
                continue
            best = max((_rank(each, each.cells[column.id]) for each in of_column), default=None)
            if best is None or (covered is not None and best[0] <= covered) or not _live(best, now):
                continue
            cells[column.id] = best[3]
            metas[column.id] = (best[0], best[2] - now if best[1] == 1 else None)
        return cells, metas

    def _collection(self, given: Type, id: int, writes: list[Write], covered: int | None, now: int) -> bytes | None:
        deleted = [] if covered is None else [covered]
        elements: dict[Any, list[Any]] = {}
        for each in writes:
            cell, way = each.cells[id], each.ways.get(id, 0)
            if cell is None:
                deleted.append(each.stamp)
                continue
            if way == 0:
                deleted.append(each.stamp - 1)
            for path, value in _elements(given, cell, way, each):
                elements.setdefault(path, []).append(_rank(each, None if way == 2 else value))
        live = {}
        for path, ranks in elements.items():
            best = max(ranks)
            if best[0] > max(deleted, default=-(1 << 70)) and _live(best, now):
                live[path] = best[3]
        if not live:
            return None
        if given.kind is Kind.LIST:
            parts = [live[path] for path in sorted(live)]
        else:
            order = given.elements[0].order
            paths = sorted(live, key=lambda path: (order(path), path))
            parts = [part for path in paths for part in ((path, live[path]) if given.kind is Kind.MAP else (path,))]
        return len(live).to_bytes(4, "big") + b"".join(len(each).to_bytes(4, "big") + each for each in parts)


def _elements(given: Type, cell: bytes, way: int, write: Write) -> list[tuple[Any, bytes]]:
    parts, at = [], 4
    while at < len(cell):
        size = int.from_bytes(cell[at : at + 4], "big")
        parts.append(cell[at + 4 : at + 4 + size])
        at += 4 + size
    if given.kind is Kind.LIST:
        # What is added has a name that nobody else gives: nothing takes its place. A whole list has places.
        named = {0: (write.stamp, 0, 0), 1: (write.stamp, 1, write.turn), 3: (-write.stamp, 1, -write.turn)}[way]
        return [((*named, place), part) for place, part in enumerate(parts)]
    if given.kind is Kind.MAP and way != 2:
        return list(zip(parts[::2], parts[1::2], strict=True))
    return [(part, b"") for part in parts]


def _rank(write: Write, cell: Cell) -> tuple[int, int, int, bytes]:
    """What wins: the later one; then the deletion, then what expires; then the later expiry; then the greater bytes."""
    if cell is None:
        return write.stamp, 2, 0, b""
    return write.stamp, 1 if write.ttl else 0, write.expires if write.ttl else 0, cell


def _live(rank: tuple[int, int, int, bytes], now: int) -> bool:
    return rank[1] == 0 or (rank[1] == 1 and rank[2] > now)
