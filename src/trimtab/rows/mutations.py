"""Requests to write, as pairs to put: what a table can't take is refused here, before anything is written anywhere.

The result holds the pairs by partition: those of one partition go to the same replicas and are applied together. Equal
requests with equal stamps give equal pairs, so sending one again changes nothing. What is added to lists by different
requests with equal stamps is all kept, as in CQL, where each element that is added has a timeuuid of its own.

How a put is written depends on its columns alone, so that is computed once (`_Plan`), and a row costs little more than
its checks. Rows with multi-cell collections take the general way, over `Row`.

A put is CQL's INSERT: the row exists then, also if all its other cells are deleted. With `update` it is CQL's UPDATE.
Static columns belong to the partition; a put of them alone needs no clustering key and makes no row. A new value of a
whole collection deletes what was there just before its own stamp, and then adds its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from trimtab.catalog.cql_type import Kind
from trimtab.catalog.nested import given_elements, split_elements
from trimtab.catalog.schema import ColumnKind
from trimtab.rows import keys
from trimtab.rows.deletions import deletion_key, deletion_value, range_value
from trimtab.rows.errors import BadRequest
from trimtab.rows.hashing import content_hash
from trimtab.rows.layout import MAX_CELL_BYTES, RowLayout, Shape, ValueColumn
from trimtab.rows.protocol import Cell, DeleteRequest, Pairs, PutRequest, Way
from trimtab.rows.values import (
    ALL_FLAGS,
    DELETED,
    EXPIRING,
    EXPIRY,
    GIVEN,
    GONE,
    HAS_DELETES,
    MARKER,
    PLAIN,
    TTL,
    WRITTEN,
    CellState,
    Collection,
    Row,
    encode_row,
    whole_seconds,
)

MAX_TTL_S = 20 * 365 * 86_400  # CQL's
_LAST_SECOND = (1 << 32) - 1
_MOST_US = (1 << 63) - 1
_FLAGS = [bytes((flags,)) for flags in range(ALL_FLAGS + 1)]
CLIENT = 0  # no instance has this number
_LAST_TURN = (1 << 31) - 1
_ADDED_APART = 1 << 31  # elements that replace a list sort before those that are added with the same stamp
ByPartition = dict[bytes, Pairs]


def checked_ttl(layout: RowLayout, ttl_s: int | None) -> int:
    """How long cells live, 0 for ever: what the request says, which may be 0; else what the table does."""
    ttl_s = layout.table.options.default_ttl_s if ttl_s is None else ttl_s
    if not 0 <= ttl_s <= MAX_TTL_S:
        raise layout.refuse(f"a TTL of {ttl_s} s; it may be from 0 (never) to {MAX_TTL_S} (20 years)")
    return ttl_s


class _Written:
    """What all rows of a request share: its stamp and who gave it, when its cells expire, and when it arrived.

    `turn` is the place of the row that is being written among those of its batch.
    """

    __slots__ = ("expires_s", "expiry", "stamp_us", "stamped_by", "ttl_s", "turn", "written_s")

    def __init__(
        self, layout: RowLayout, stamp_us: int, ttl_s: int | None, now_ms: int, stamped_by: int = CLIENT
    ) -> None:
        if not -_MOST_US < stamp_us < _MOST_US:
            raise layout.refuse(f"a timestamp of {stamp_us} µs; it must fit 64 bits")
        ttl_s = checked_ttl(layout, ttl_s)
        self.stamp_us = stamp_us
        self.stamped_by = stamped_by
        self.turn = 0
        self.ttl_s = ttl_s
        self.expires_s = min(now_ms // 1000 + ttl_s, _LAST_SECOND) if ttl_s else 0
        self.expiry = EXPIRY.pack(ttl_s, self.expires_s) if ttl_s else b""
        self.written_s = whole_seconds(now_ms)

    def cell(self, cell: Cell) -> CellState:
        if cell is None:
            return CellState(self.stamp_us, DELETED, self.written_s)
        return CellState(self.stamp_us, EXPIRING if self.ttl_s else PLAIN, self.expires_s, cell, self.ttl_s)


class _Section:
    """How the regular or the static cells of a request become a value. `slots`: where its cell is, by column; or -1."""

    __slots__ = (
        "all_fixed",
        "checks",
        "fixed",
        "given",
        "has_collections",
        "number",
        "presence",
        "shape",
        "slots",
        "variable",
        "widths",
    )

    def __init__(self, shape: Shape, slots: Sequence[int]) -> None:
        columns = shape.columns
        self.shape = shape
        self.slots = tuple(slots)
        self.given = [(slot, column) for slot, column in zip(slots, columns, strict=True) if slot >= 0]
        self.has_collections = any(column.multicell for _, column in self.given)
        presence = sum(GIVEN << 2 * at for at, slot in enumerate(slots) if slot >= 0)
        self.number, self.presence = shape.number_bytes, presence.to_bytes(shape.presence_bytes, "little")
        self.fixed = [(slots[at], bytes(columns[at].width or 0)) for at in shape.fixed]
        self.variable = [slots[at] for at in shape.variable]
        self.all_fixed = None
        if len(self.fixed) > 1 and all(slot >= 0 for slot, _ in self.fixed):
            self.all_fixed = itemgetter(*(slot for slot, _ in self.fixed))
        self.widths = [(slot, column.width) for slot, column in self.given if column.width is not None]
        self.checks = [
            (slot, column.type.validate) for slot, column in self.given if column.width is None or column.validates
        ]

    def check(self, layout: RowLayout, cells: Sequence[Cell]) -> None:
        """BadRequest if a cell can't be one of its column."""
        for slot, width in self.widths:
            cell = cells[slot]
            if cell is not None and (cell.__class__ is not bytes or len(cell) != width):
                raise self._wrong(layout, slot, cell)
        for slot, validate in self.checks:
            cell = cells[slot]
            if cell is not None:
                if cell.__class__ is not bytes or len(cell) > MAX_CELL_BYTES:
                    raise self._wrong(layout, slot, cell)
                try:
                    validate(cell)
                except ValueError as error:
                    raise self._wrong(layout, slot, cell, str(error)) from None

    def _wrong(self, layout: RowLayout, slot: int, cell: object, why: str = "") -> BadRequest:
        column = next(column for at, column in self.given if at == slot)
        if cell.__class__ is not bytes:
            why = f"a cell is bytes, not {type(cell).__name__}"
        elif column.width is not None and len(cell) != column.width:
            why = f"a cell has {column.width} byte{'s' if column.width > 1 else ''}, not {len(cell)}"
        elif len(cell) > MAX_CELL_BYTES:
            why = f"a cell of {len(cell)} bytes; it may have {MAX_CELL_BYTES}"
        return layout.refuse(f"column {column.name} ({column.type.name}): {why}")

    def value(self, cells: Sequence[Cell], flags: int, written: _Written) -> bytes:
        """A value whose cells share their stamp: what `encode_row` makes of the same cells, without the way there."""
        presence, times = self.presence, b""
        if None in cells and (gone := [at for at, slot in enumerate(self.slots) if slot >= 0 and cells[slot] is None]):
            bits = int.from_bytes(presence, "little")
            for at in gone:
                bits ^= (GIVEN ^ GONE) << 2 * at
            presence = bits.to_bytes(len(presence), "little")
            flags |= HAS_DELETES
            times = WRITTEN.pack(written.written_s * 1000)
            if written.ttl_s and (flags & MARKER or len(gone) < len(self.given)):
                flags |= TTL
                times = written.expiry + times
            fixed: Sequence[bytes] = [(cells[slot] or zeros) if slot >= 0 else zeros for slot, zeros in self.fixed]
        else:
            if written.ttl_s:
                flags |= TTL
                times = written.expiry
            if self.all_fixed is not None:
                fixed = self.all_fixed(cells)
            else:
                fixed = [(cells[slot] or zeros) if slot >= 0 else zeros for slot, zeros in self.fixed]
        if not self.variable:
            return b"".join([_FLAGS[flags], self.number, times, presence, *fixed])
        variable, ends, end = [], [], 0
        for slot in self.variable:
            if slot >= 0 and (cell := cells[slot]):
                variable.append(cell)
                end += len(cell)
            ends.append(end)
        ends_bytes = self.shape.ends.pack(*ends)
        return b"".join([_FLAGS[flags], self.number, times, presence, *fixed, ends_bytes, *variable])

    def collections_value(
        self, layout: RowLayout, cells: Sequence[Cell], ways: Sequence[Way], marker: bool, written: _Written
    ) -> tuple[int, bytes] | None:
        row = Row()
        if marker:
            row.marker = written.cell(b"")
        for slot, column in self.given:
            way = ways[slot] if ways else Way.WHOLE
            if column.multicell:
                row.collections[column.id] = _collection(layout, column, cells[slot], way, written)
            else:
                row.cells[column.id] = written.cell(cells[slot])
        for empty in [id for id, each in row.collections.items() if each.deleted is None and not each.elements]:
            del row.collections[empty]
        return encode_row(self.shape, row)


def _collection(layout: RowLayout, column: ValueColumn, cell: Cell, way: Way, written: _Written) -> Collection:
    """The elements of a multi-cell collection that a cell gives or, with REMOVE, takes away."""
    kind, stamp = column.type.kind, written.stamp_us
    if cell is None:
        if way is not Way.WHOLE:
            raise layout.refuse(f"column {column.name}: nothing was given to add or to remove")
        return Collection((stamp, written.written_s))
    found = Collection((stamp - 1, written.written_s) if way is Way.WHOLE else None)
    of_keys = kind is Kind.MAP and way is Way.REMOVE
    parts = split_elements(cell, column.type.name, 2 if kind is Kind.MAP and not of_keys else 1)
    if column.path is None:
        if way is Way.REMOVE:
            raise layout.refuse(f"column {column.name}: elements of a list have no names to remove them by")
        begin = _list_path(cell, way, written)
        for at, part in enumerate(parts):
            found.elements[begin + at.to_bytes(4, "big")] = written.cell(part)
        return found
    if way is Way.PREPEND:
        raise layout.refuse(f"column {column.name}: only lists have a beginning to add to")
    encode = column.path.encode
    if way is Way.REMOVE:
        for part in parts:
            try:
                column.type.elements[0].validate(part)
            except ValueError as error:
                raise layout.refuse(f"column {column.name} ({column.type.name}): {error}") from None
            found.elements[encode(part)] = written.cell(None)
    elif kind is Kind.MAP:
        for at in range(0, len(parts), 2):
            found.elements[encode(parts[at])] = written.cell(parts[at + 1])
    else:
        for part in parts:
            found.elements[encode(part)] = written.cell(b"")
    return found


def _list_path(cell: bytes, way: Way, written: _Written) -> bytes:
    """How the paths of elements of a list begin: later ones come after (or before) earlier ones.

    An instance never gives a stamp twice, but two may give the same, and all writes of a batch share theirs: without
    more, one client's element would take the place of another's. What a client has stamped itself is told apart by
    what it says, so that the same sent again, through whomever, is the same.
    """
    stamp, turn = written.stamp_us, written.turn
    if way is Way.WHOLE:
        return (stamp + (1 << 63)).to_bytes(8, "big")
    content = content_hash(written.stamped_by.to_bytes(8, "big") + cell)
    if way is Way.PREPEND:
        return ((1 << 63) - stamp).to_bytes(8, "big") + (_ADDED_APART + _LAST_TURN - turn).to_bytes(4, "big") + content
    return (stamp + (1 << 63)).to_bytes(8, "big") + (_ADDED_APART + turn).to_bytes(4, "big") + content


class _Plan:
    """Where the cells of the table's columns are in the rows of requests that name the same columns."""

    __slots__ = ("clustering", "count", "key_slot", "partition", "regular", "static", "whole_row")

    def __init__(self, layout: RowLayout, columns: Sequence[int]) -> None:
        slots = {id: slot for slot, id in enumerate(columns)}
        if len(slots) != len(columns):
            twice = next(id for id in columns if list(columns).count(id) > 1)
            raise layout.refuse(f"{layout.column_name(twice)} is named twice")
        for id in columns:
            if id not in layout.columns:
                raise layout.refuse(f"there is no column {id} in version {layout.table.version} of the table")
        self.count = len(columns)
        self.partition = [slots.get(column.id, -1) for column in layout.partition]
        clustering = [slots.get(column.id, -1) for column in layout.clustering]
        self.regular = _Section(layout.regular, [slots.get(column.id, -1) for column in layout.regular.columns])
        self.static = _Section(layout.static, [slots.get(column.id, -1) for column in layout.static.columns])
        if -1 in self.partition:
            missing = layout.partition[self.partition.index(-1)].name
            raise layout.refuse(f"partition key column {missing} is missing; a row is written with its whole key")
        # Where one column is the whole key.
        self.key_slot = self.partition[0] if len(self.partition) == 1 and not layout.clustering else -1
        # Cells of the partition alone: there is no row in this.
        self.whole_row = not (clustering and set(clustering) == {-1} and self.static.given and not self.regular.given)
        self.clustering = clustering if self.whole_row else []
        if -1 in self.clustering:
            missing = layout.clustering[self.clustering.index(-1)].name
            raise layout.refuse(f"clustering column {missing} is missing; a row is written with its whole key")


def _plan(layout: RowLayout, columns: Sequence[int]) -> _Plan:
    key = ("put", *columns)
    known: _Plan | None = layout.plans.get(key)
    if known is None:
        known = layout.remember(key, _Plan(layout, columns))
    return known


def pairs_of_put(
    layout: RowLayout, request: PutRequest, stamp_us: int, now_ms: int, *, stamped_by: int = CLIENT, turn: int = 0
) -> ByPartition:
    """The pairs of a put with this stamp, by the prefix of their partition. BadRequest names what is wrong.

    `stamped_by`: the raft id of the instance that stamped it. `turn`: so many rows of its batch come before.
    """
    plan = _plan(layout, request.columns)
    written = _Written(layout, stamp_us, request.ttl_s, now_ms, stamped_by)
    ways = _ways(layout, request)
    found: ByPartition = {}
    key_slot = plan.key_slot
    for written.turn, cells in enumerate(request.rows, turn):
        if len(cells) != plan.count:
            raise layout.refuse(f"a row of {len(cells)} cells for {plan.count} columns")
        if key_slot >= 0 and (cell := cells[key_slot]).__class__ is bytes:
            row_key, _ = keys.locate(layout, (cell,))
            pairs = found.setdefault(row_key[:-1], [])
            _put(layout, plan.regular, row_key, cells, ways, not request.update, written, pairs)
            continue
        prefix = keys.partition_prefix(layout, [cells[slot] for slot in plan.partition])  # type: ignore[misc]
        pairs = found.setdefault(prefix, [])
        if plan.whole_row:
            row_key = keys.row_in(layout, prefix, [cells[slot] for slot in plan.clustering])
            _put(layout, plan.regular, row_key, cells, ways, not request.update, written, pairs)
        if plan.static.given:
            _put(layout, plan.static, prefix + keys.STATIC, cells, ways, False, written, pairs)
    return found


def _put(
    layout: RowLayout,
    section: _Section,
    row_key: bytes,
    cells: Sequence[Cell],
    ways: Sequence[Way],
    marker: bool,
    written: _Written,
    pairs: Pairs,
) -> None:
    if not marker and not section.given:
        return
    if section.has_collections:
        section.check(layout, cells) if not ways else _check_ways(layout, section, cells, ways)
        made = section.collections_value(layout, cells, ways, marker, written)
        if made is None:
            return
        stamp, value = made
    else:
        section.check(layout, cells)
        stamp, value = written.stamp_us, section.value(cells, MARKER if marker else 0, written)
    pairs.append(row_key + keys.tail(stamp, keys.PUT, value))
    pairs.append(value)


def _ways(layout: RowLayout, request: PutRequest) -> Sequence[Way]:
    if not request.ways:
        return ()
    if len(request.ways) != len(request.columns):
        raise layout.refuse(f"{len(request.ways)} ways of writing {len(request.columns)} columns")
    collections = {each.id for shape in (layout.regular, layout.static) for each in shape.columns if each.multicell}
    for id, way in zip(request.columns, request.ways, strict=True):
        if way is not Way.WHOLE and id not in collections:
            raise layout.refuse(f"{layout.column_name(id)} is no collection that can be changed in parts")
    return request.ways


def _check_ways(layout: RowLayout, section: _Section, cells: Sequence[Cell], ways: Sequence[Way]) -> None:
    """As `check`, but the keys that are removed from a map come without values."""
    without = [None if ways[slot] is Way.REMOVE else cell for slot, cell in enumerate(cells)]
    section.check(layout, without)
    for slot, column in section.given:
        cell = cells[slot]
        if ways[slot] is Way.REMOVE and cell is not None:
            try:
                given_elements(cell, column.type.name)
            except ValueError as error:
                raise layout.refuse(f"column {column.name} ({column.type.name}): {error}") from None


def pairs_of_delete(layout: RowLayout, request: DeleteRequest, stamp_us: int, now_ms: int) -> ByPartition:
    """The pairs of a deletion with this stamp, by the prefix of its partition."""
    written = _Written(layout, stamp_us, 0, now_ms)
    prefix = keys.partition_prefix(layout, request.partition)
    pairs: Pairs = []
    if request.start is not None or request.end is not None:
        _delete_range(layout, request, prefix, stamp_us, now_ms, pairs)
    elif request.columns:
        _delete_columns(layout, request, prefix, written, pairs)
    elif request.row is not None or not layout.clustering:
        value = deletion_value(now_ms)
        row_key = keys.row_in(layout, prefix, request.row or [])
        pairs += (row_key + keys.tail(stamp_us, keys.ROW_DELETE, value), value)
    else:
        value = deletion_value(now_ms)
        key = deletion_key(prefix, keys.PARTITION_DELETED, b"", stamp_us, keys.PARTITION_DELETE, value)
        pairs += (key, value)
    return {prefix: pairs}


def _delete_range(
    layout: RowLayout, request: DeleteRequest, prefix: bytes, stamp_us: int, now_ms: int, pairs: Pairs
) -> None:
    if not layout.clustering:
        raise layout.refuse("there are no clustering columns, so there are no ranges of rows to delete")
    if request.row is not None or request.columns:
        raise layout.refuse("a range is deleted with all its rows and columns; leave row and columns out")
    start, end = keys.bound_bytes(layout, request.start), keys.bound_bytes(layout, request.end)
    first, last = request.start is None or request.start.inclusive, request.end is None or request.end.inclusive
    low, high = keys.interval(start, first, end, last)
    if high is not None and low >= high:
        return
    value = range_value(now_ms, first, end, last)
    key = deletion_key(prefix, keys.RANGE_DELETED, start, stamp_us, keys.RANGE_DELETE, value)
    pairs += (key, value)


def _delete_columns(layout: RowLayout, request: DeleteRequest, prefix: bytes, written: _Written, pairs: Pairs) -> None:
    if len(set(request.columns)) != len(request.columns):
        text = f"{len(request.columns)} columns are to be deleted, but some are named twice"
        raise layout.refuse(f"{text}; name each once")
    kinds = {layout.columns[id].kind if id in layout.columns else None for id in request.columns}
    if None in kinds or kinds & {ColumnKind.PARTITION, ColumnKind.CLUSTERING}:
        wrong = next(
            id
            for id in request.columns
            if id not in layout.columns or layout.columns[id].kind in (ColumnKind.PARTITION, ColumnKind.CLUSTERING)
        )
        raise layout.refuse(f"{layout.column_name(wrong)} can't be deleted: it is part of the key, or not there")
    nothing: list[Cell] = [None] * len(request.columns)
    slots = {id: slot for slot, id in enumerate(request.columns)}
    for shape, kind in ((layout.static, ColumnKind.STATIC), (layout.regular, ColumnKind.REGULAR)):
        if kind not in kinds:
            continue
        if kind is ColumnKind.STATIC:
            row_key = prefix + keys.STATIC
        elif request.row is None and layout.clustering:
            raise layout.refuse("columns are deleted of one row: give its clustering key, or delete static columns")
        else:
            row_key = keys.row_in(layout, prefix, request.row or [])
        section = _Section(shape, [slots.get(column.id, -1) for column in shape.columns])
        _put(layout, section, row_key, nothing, (), False, written, pairs)


__all__ = ["BadRequest", "ByPartition", "CLIENT", "MAX_TTL_S", "checked_ttl", "pairs_of_delete", "pairs_of_put"]
