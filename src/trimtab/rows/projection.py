"""The cells that somebody wants of merged rows, in the order they want them.

Where each column is found is computed once per list of columns (`Plan`). A value without stamps per cell gives up all
its cells in one unpacking; the others are decoded whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from struct import error
from typing import NamedTuple

from trimtab.rows.deletions import Pair
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PUT, ROW_DELETE, ROWS, STATIC, TAIL, check_content, key_cells, prefix_of, stamp_of
from trimtab.rows.layout import RowLayout, Shape, ValueColumn
from trimtab.rows.merge import merge_versions
from trimtab.rows.protocol import Cell, CellMeta, Pairs
from trimtab.rows.resuming import is_whole
from trimtab.rows.values import ALL_FLAGS, GIVEN, HEAD, MARKER, PER_CELL, TIMES, TTL, Row, collection_cell

Metas = list[CellMeta | None]


class Rows(NamedTuple):
    """Live rows, and in step with them their row keys, and what is known of their cells if that was asked for."""

    cells: list[list[Cell]]
    metas: list[Metas]
    keys: list[bytes]


_numbers = count()


class Plan:
    """Where each wanted cell goes (`into`) and comes from.

    Of values whose cells share their stamp: `fixed` holds (into, bits to shift its presence by, place in what is
    unpacked), `variable` (into, bits, place of the end of the cell before it or -1, place of its own end).
    No two plans have the same `number`.
    """

    __slots__ = ("count", "fixed", "keys", "number", "regular", "static", "variable")

    def __init__(self, layout: RowLayout, columns: Sequence[int]) -> None:
        key_slots = {column.id: at for at, column in enumerate((*layout.partition, *layout.clustering))}
        self.number = next(_numbers)
        self.count = len(columns)
        self.keys = [(into, key_slots[id]) for into, id in enumerate(columns) if id in key_slots]
        self.regular = _wanted(layout.regular, columns)
        self.static = _wanted(layout.static, columns)
        if len(self.keys) + len(self.regular) + len(self.static) != len(columns):
            unknown = next(id for id in columns if id not in layout.columns)
            raise layout.refuse(f"there is no column {unknown} in version {layout.table.version} of the table")
        places = {id: (bits, place, before) for id, bits, place, before in layout.regular.places}
        self.fixed: list[tuple[int, int, int]] = []
        self.variable: list[tuple[int, int, int, int]] = []
        for into, column in self.regular:
            bits, place, before = places[column.id]
            if column.width is not None:
                self.fixed.append((into, bits, place))
            else:
                self.variable.append((into, bits, before, place))


def _wanted(shape: Shape, columns: Sequence[int]) -> list[tuple[int, ValueColumn]]:
    known = {column.id: column for column in shape.columns}
    return [(into, known[id]) for into, id in enumerate(columns) if id in known]


def plan_of(layout: RowLayout, columns: Sequence[int]) -> Plan:
    """How these columns are read; the same for as long as layout and columns are. BadRequest: no such column."""
    key = ("read", *columns)
    known: Plan | None = layout.plans.get(key)
    if known is None:
        known = layout.remember(key, Plan(layout, columns))
    return known


def rows_of(
    layout: RowLayout,
    pairs: Pairs,
    columns: Sequence[int],
    now_s: int,
    *,
    low: bytes | None = None,
    high: bytes | None = None,
    reverse: bool = False,
    with_meta: bool = False,
) -> Rows:
    """The live rows among merged pairs.

    `low` and `high`, if given, are the row keys that the pairs were read between (`high` where the reading ended): a
    partition that lies wholly between them and has a live static row, but no live row, is one row of nulls.
    """
    plan = plan_of(layout, columns)
    rows = Rows([], [], [])
    if len(pairs) == 2 and not layout.clustering:
        _add(layout, plan, rows, pairs[0][:-TAIL], [(pairs[0], pairs[1])], None, now_s, with_meta)
    elif not layout.clustering:
        for row_key, versions in _grouped(pairs):
            _add(layout, plan, rows, row_key, versions, None, now_s, with_meta)
    else:
        _by_partition(layout, plan, rows, pairs, now_s, low, high, with_meta)
    if reverse:
        rows.cells.reverse()
        rows.metas.reverse()
        rows.keys.reverse()
    return rows


def row_cells(layout: RowLayout, plan: Plan, pairs: Pairs, now_s: int) -> list[Cell] | None:
    """The wanted cells of the one row that is in merged pairs of a table without clustering columns; None: not live."""
    if len(pairs) == 2 and _is_plain(layout.regular, pairs[0], pairs[1]):
        return _plain_row(layout, plan, pairs[0], pairs[1], now_s)
    rows = Rows([], [], [])
    for row_key, versions in _grouped(pairs):
        _add(layout, plan, rows, row_key, versions, None, now_s, with_meta=False)
    return rows.cells[0] if rows.cells else None


def _grouped(pairs: Pairs) -> Iterator[tuple[bytes, list[Pair]]]:
    known, versions = b"", list[Pair]()
    for at in range(0, len(pairs), 2):
        key = pairs[at]
        row_key = key[:-TAIL]
        if row_key == known:
            versions.append((key, pairs[at + 1]))
            continue
        if versions:
            yield known, versions
        known, versions = row_key, [(key, pairs[at + 1])]
    if versions:
        yield known, versions


class _Static(NamedTuple):
    cells: list[tuple[int, Cell]]
    metas: list[tuple[int, CellMeta | None]]


def _by_partition(
    layout: RowLayout,
    plan: Plan,
    rows: Rows,
    pairs: Pairs,
    now_s: int,
    low: bytes | None,
    high: bytes | None,
    with_meta: bool,
) -> None:
    prefix = b""
    static: _Static | None = None
    before = 0

    def leave(prefix: bytes, static: _Static | None, before: int) -> None:
        if static is None or len(rows.cells) > before or low is None or high is None:
            return
        if is_whole(layout, prefix, low, high):
            _append(layout, plan, rows, prefix + STATIC, [], [], static, with_meta)

    for row_key, versions in _grouped(pairs):
        if not prefix or not row_key.startswith(prefix):
            leave(prefix, static, before)
            prefix, static, before = prefix_of(layout, row_key), None, len(rows.cells)
        section = row_key[len(prefix) : len(prefix) + 1]
        if section == ROWS:
            _add(layout, plan, rows, row_key, versions, static, now_s, with_meta)
        elif section == STATIC:
            static = _static(layout, plan, versions, now_s)
    leave(prefix, static, before)


def _static(layout: RowLayout, plan: Plan, versions: list[Pair], now_s: int) -> _Static | None:
    """The wanted cells of a static row; None if it is not live."""
    row = merge_versions(layout, versions, static=True).row
    if not row.live(now_s):
        return None
    cells, metas = list[tuple[int, Cell]](), list[tuple[int, CellMeta | None]]()
    for into, column in plan.static:
        cell, meta = _cell(column, row, now_s)
        cells.append((into, cell))
        metas.append((into, meta))
    return _Static(cells, metas)


def _cell(column: ValueColumn, row: Row, now_s: int) -> tuple[Cell, CellMeta | None]:
    if column.multicell:
        collection = row.collections.get(column.id)
        return (None if collection is None else collection_cell(column, collection, now_s)), None
    state = row.cells.get(column.id)
    if state is None or not state.live(now_s):
        return None, None
    return state.value, CellMeta(state.stamp_us, state.until_s - now_s if state.ttl_s else None)


def _append(
    layout: RowLayout,
    plan: Plan,
    rows: Rows,
    row_key: bytes,
    cells: list[tuple[int, Cell]],
    metas: list[tuple[int, CellMeta | None]],
    static: _Static | None,
    with_meta: bool,
) -> None:
    out: list[Cell] = [None] * plan.count
    if plan.keys:
        of_key = key_cells(layout, row_key)
        for into, at in plan.keys:
            if at < len(of_key):
                out[into] = of_key[at]
    for into, cell in cells:
        out[into] = cell
    if static is not None:
        for into, cell in static.cells:
            out[into] = cell
    rows.cells.append(out)
    rows.keys.append(row_key)
    if with_meta:
        meta: Metas = [None] * plan.count
        for into, each in (*metas, *(static.metas if static is not None else ())):
            meta[into] = each
        rows.metas.append(meta)


def _add(
    layout: RowLayout,
    plan: Plan,
    rows: Rows,
    row_key: bytes,
    versions: list[Pair],
    static: _Static | None,
    now_s: int,
    with_meta: bool,
) -> None:
    """One row, if it is live."""
    # Merged rows have at most one deletion beside what is left of them, and that comes first.
    key, value = versions[0]
    if (len(versions) == 1 or (len(versions) == 2 and versions[1][0][-9] == ROW_DELETE)) and _is_plain(
        layout.regular, key, value
    ):
        out = _plain_row(layout, plan, key, value, now_s)
        if out is None:
            return
        if with_meta:
            rows.metas.append(_plain_metas(plan, key, value, out, static, now_s))
        if static is not None:
            for into, cell in static.cells:
                out[into] = cell
        rows.cells.append(out)
        rows.keys.append(row_key)
        return
    row = merge_versions(layout, versions).row
    if not row.live(now_s):
        return
    cells, metas = list[tuple[int, Cell]](), list[tuple[int, CellMeta | None]]()
    for into, column in plan.regular:
        cell, meta = _cell(column, row, now_s)
        cells.append((into, cell))
        metas.append((into, meta))
    _append(layout, plan, rows, row_key, cells, metas, static, with_meta)


def _is_plain(shape: Shape, key: bytes, value: bytes) -> bool:
    """Whether the cells of a value share their stamp, and lie where the newest layout has them."""
    return key[-9] == PUT and value[1:HEAD] == shape.number_bytes and not value[0] & PER_CELL and not shape.multicell


def _plain_row(layout: RowLayout, plan: Plan, key: bytes, value: bytes, now_s: int) -> list[Cell] | None:
    """The wanted cells of key and plain value; None if the row is not live."""
    check_content(key, value)
    out = _plain_cells(layout, plan, value, now_s)
    if out is not None and plan.keys:
        of_key = key_cells(layout, key[:-TAIL])
        for into, at in plan.keys:
            out[into] = of_key[at]
    return out


def _plain_cells(layout: RowLayout, plan: Plan, value: bytes, now_s: int) -> list[Cell] | None:
    """The wanted regular cells of a plain value; None if its row is not live."""
    shape, flags = layout.regular, value[0]
    if flags > ALL_FLAGS:
        raise _damaged(layout, value, f"unknown flags {flags:#04x}")
    if flags & TTL and int.from_bytes(value[HEAD + 4 : HEAD + 8], "big") <= now_s:
        return None
    begin = HEAD + TIMES[flags]
    base = begin + shape.presence_bytes
    presence = int.from_bytes(value[begin:base], "little")
    if not flags & MARKER and not presence & ~(presence >> 1) & shape.all_given:
        return None
    try:
        found = shape.cells.unpack_from(value, base)
    except error:
        raise _damaged(layout, value, "it ends inside its cells") from None
    begin = base + shape.cells.size
    if begin + (found[-1] if shape.variable else 0) != len(value):
        raise _damaged(layout, value, "it does not end where its last cell does")
    out: list[Cell] = [None] * plan.count
    complete = presence == shape.all_given
    for into, bits, place in plan.fixed:
        if complete or presence >> bits & 3 == GIVEN:
            out[into] = found[place]
    for into, bits, before, place in plan.variable:
        if complete or presence >> bits & 3 == GIVEN:
            start, end = begin + found[before] if before >= 0 else begin, begin + found[place]
            if start > end:
                raise _damaged(layout, value, "a cell ends before it begins")
            out[into] = value[start:end]
    return out


def _damaged(layout: RowLayout, value: bytes, why: str) -> BadRow:
    return BadRow(f"a damaged value of {layout.name} ({len(value)} bytes, beginning with {value[:16].hex()}): {why}")


def _plain_metas(plan: Plan, key: bytes, value: bytes, out: list[Cell], static: _Static | None, now_s: int) -> Metas:
    left = int.from_bytes(value[HEAD + 4 : HEAD + 8], "big") - now_s if value[0] & TTL else None
    meta = CellMeta(stamp_of(key), left)
    metas: Metas = [None] * plan.count
    for into, _ in plan.regular:
        if out[into] is not None:
            metas[into] = meta
    for into, each in static.metas if static is not None else ():
        metas[into] = each
    return metas
