"""The cells that somebody wants of merged rows, in the order they want them.

Where each column is found is computed once per list of columns (`_Plan`). A value without stamps per cell gives up all
its cells in one unpacking; the others are decoded whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error
from typing import NamedTuple

from trimtab.rows.deletions import Pair
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PUT, ROW_DELETE, ROWS, STATIC, TAIL, key_cells, prefix_of, stamp_of
from trimtab.rows.layout import RowLayout, Shape, ValueColumn
from trimtab.rows.merge import merge_versions
from trimtab.rows.protocol import Cell, CellMeta, Pairs
from trimtab.rows.resuming import is_whole
from trimtab.rows.values import ALL_FLAGS, HEAD, MARKER, PER_CELL, TIMES, TTL, Row, collection_cell

Metas = list[CellMeta | None]


class Rows(NamedTuple):
    """Live rows, and in step with them their row keys, and what is known of their cells if that was asked for."""

    cells: list[list[Cell]]
    metas: list[Metas]
    keys: list[bytes]


class _Wanted(NamedTuple):
    """One column of a shape: where its cell goes, and where it lies."""

    into: int
    at: int  # in the shape
    slot: int  # among the fixed, or among the variable cells
    column: ValueColumn


class _Plan:
    __slots__ = ("count", "keys", "regular", "static")

    def __init__(self, layout: RowLayout, columns: Sequence[int]) -> None:
        key_slots = {column.id: at for at, column in enumerate((*layout.partition, *layout.clustering))}
        self.count = len(columns)
        self.keys = [(into, key_slots[id]) for into, id in enumerate(columns) if id in key_slots]
        self.regular = _wanted(layout.regular, columns)
        self.static = _wanted(layout.static, columns)
        if len(self.keys) + len(self.regular) + len(self.static) != len(columns):
            unknown = next(id for id in columns if id not in layout.columns)
            raise layout.refuse(f"there is no column {unknown} in version {layout.table.version} of the table")


def _wanted(shape: Shape, columns: Sequence[int]) -> list[_Wanted]:
    found = []
    for into, id in enumerate(columns):
        for at, column in enumerate(shape.columns):
            if column.id == id:
                slot = shape.variable.index(at) if column.width is None else shape.fixed.index(at)
                found.append(_Wanted(into, at, slot, column))
    return found


def _plan(layout: RowLayout, columns: Sequence[int]) -> _Plan:
    key = ("read", *columns)
    known: _Plan | None = layout.plans.get(key)
    if known is None:
        known = layout.remember(key, _Plan(layout, columns))
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
    plan = _plan(layout, columns)
    rows = Rows([], [], [])
    if not layout.clustering:
        for row_key, versions in _grouped(pairs):
            _add(layout, plan, rows, row_key, versions, None, now_s, with_meta)
    else:
        _by_partition(layout, plan, rows, pairs, now_s, low, high, with_meta)
    if reverse:
        rows.cells.reverse()
        rows.metas.reverse()
        rows.keys.reverse()
    return rows


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
    plan: _Plan,
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


def _static(layout: RowLayout, plan: _Plan, versions: list[Pair], now_s: int) -> _Static | None:
    """The wanted cells of a static row; None if it is not live."""
    row = merge_versions(layout, versions, static=True).row
    if not row.live(now_s):
        return None
    cells, metas = list[tuple[int, Cell]](), list[tuple[int, CellMeta | None]]()
    for wanted in plan.static:
        cell, meta = _cell(wanted.column, row, now_s)
        cells.append((wanted.into, cell))
        metas.append((wanted.into, meta))
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
    plan: _Plan,
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
    plan: _Plan,
    rows: Rows,
    row_key: bytes,
    versions: list[Pair],
    static: _Static | None,
    now_s: int,
    with_meta: bool,
) -> None:
    """One row, if it is live."""
    if len(versions) > 1:
        # Merged rows have at most one deletion beside what is left of them.
        puts = [pair for pair in versions if pair[0][-9] != ROW_DELETE]
    else:
        puts = versions
    if len(puts) == 1:
        key, value = puts[0]
        shape = layout.regular
        if key[-9] == PUT and value[1:HEAD] == shape.number_bytes and not value[0] & PER_CELL and not shape.multicell:
            _add_plain(layout, plan, rows, row_key, key, value, static, now_s, with_meta)
            return
    row = merge_versions(layout, versions).row
    if not row.live(now_s):
        return
    cells, metas = list[tuple[int, Cell]](), list[tuple[int, CellMeta | None]]()
    for wanted in plan.regular:
        cell, meta = _cell(wanted.column, row, now_s)
        cells.append((wanted.into, cell))
        metas.append((wanted.into, meta))
    _append(layout, plan, rows, row_key, cells, metas, static, with_meta)


def _add_plain(
    layout: RowLayout,
    plan: _Plan,
    rows: Rows,
    row_key: bytes,
    key: bytes,
    value: bytes,
    static: _Static | None,
    now_s: int,
    with_meta: bool,
) -> None:
    """A row of one value whose cells share their stamp."""
    shape, flags = layout.regular, value[0]
    ttl: int | None = None
    if flags > ALL_FLAGS:
        raise BadRow(f"a damaged value of {layout.name}: unknown flags {flags:#04x}")
    if flags & TTL:
        ttl = int.from_bytes(value[HEAD + 4 : HEAD + 8], "big") - now_s
        if ttl <= 0:
            return
    begin = HEAD + TIMES[flags]
    base = begin + shape.presence_bytes
    presence = int.from_bytes(value[begin:base], "little")
    if not flags & MARKER and not presence & ~(presence >> 1) & shape.all_given:
        return
    try:
        found = shape.cells.unpack_from(value, base)
    except error:
        raise BadRow(f"a damaged value of {layout.name}: it ends after {len(value)} bytes") from None
    fixed, begin = len(shape.fixed), base + shape.cells.size
    if begin + (found[-1] if shape.variable else 0) != len(value):
        raise BadRow(f"a damaged value of {layout.name}: its {len(value)} bytes don't end where its last cell does")
    out: list[Cell] = [None] * plan.count
    complete = presence == shape.all_given
    for into, at, slot, column in plan.regular:
        if complete or presence >> 2 * at & 3 == 1:
            if column.width is not None:
                out[into] = found[slot]
            else:
                start, end = begin + found[fixed + slot - 1] if slot else begin, begin + found[fixed + slot]
                if start > end:
                    raise BadRow(f"a damaged value of {layout.name}: column {column.name} ends before it begins")
                out[into] = value[start:end]
    if plan.keys:
        of_key = key_cells(layout, row_key)
        for into, at in plan.keys:
            out[into] = of_key[at]
    if static is not None:
        for into, cell in static.cells:
            out[into] = cell
    rows.cells.append(out)
    rows.keys.append(row_key)
    if with_meta:
        meta = CellMeta(stamp_of(key), ttl)
        metas: Metas = [None] * plan.count
        for wanted in plan.regular:
            if out[wanted.into] is not None:
                metas[wanted.into] = meta
        for into, each in static.metas if static is not None else ():
            metas[into] = each
        rows.metas.append(metas)
