"""Arrow tables to rows that can be stored, whole columns at a time.

`encode_table` makes of a table exactly the pairs that `mutations.pairs_of_put` makes of its rows with one timestamp,
sorted by key, in numpy: 5 million rows take seconds and no row is ever a Python object. Rows of one key are merged into
one by CQL's rule, so that a file holds each row once. What has no form by the column (multi-cell collections) goes
through `pairs_of_put` itself. The way back is `column_reading`.

A column that the Arrow table lacks is not written. A null is not written either, which is what a load of new data
wants; with `delete_nulls` it deletes the cell, which is what CQL's INSERT does. A row that has nothing but static
columns, as partitions without rows are read, is written as its partition's static row (`static_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trimtab.catalog.schema import ColumnKind
from trimtab.rows import arrow_cells
from trimtab.rows.arrow_cells import Cells
from trimtab.rows.column_keys import partition_parts, row_keys, static_keys
from trimtab.rows.column_values import Written, encode_values
from trimtab.rows.keys import PUT, STATIC, TAIL, stamp_of, tail
from trimtab.rows.layout import KeyColumn, RowLayout, ValueColumn
from trimtab.rows.merge import canonical
from trimtab.rows.mutations import checked_ttl, pairs_of_put
from trimtab.rows.protocol import Pairs, PutRequest
from trimtab.rows.ragged import Pile, Ragged, from_list, stack
from trimtab.rows.sorted_rows import SortedRows, order_of, repeats, runs
from trimtab.rows.static_rows import apart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Sorted = tuple[NDArray[np.int64], NDArray[np.int64]]

BLOCK_ROWS = 32_768  # encoded together: what they need fits a core's cache
_BLOCK_BYTES = 32 << 20  # of wide rows, fewer
_LAST_SECOND = (1 << 32) - 1


def encode_table(
    layout: RowLayout,
    table: Any,
    *,
    timestamp_us: int,
    now_ms: int,
    ttl_s: int | None = None,
    update: bool = False,
    delete_nulls: bool = False,
) -> SortedRows:
    """The rows of an Arrow table or record batch as pairs, sorted. BadRequest names what the table can't take.

    `update`: as CQL's UPDATE, the rows do not exist without cells. `ttl_s` as in a put: 0 is never, None the table's.
    """
    ttl_s = checked_ttl(layout, ttl_s)
    if not -(1 << 63) + 1 < timestamp_us < (1 << 63) - 1:
        raise layout.refuse(f"a timestamp of {timestamp_us} µs; it must fit 64 bits")
    names = _check_names(layout, table)
    written = Written(
        stamp_us=timestamp_us,
        ttl_s=ttl_s,
        expires_s=min(now_ms // 1000 + ttl_s, _LAST_SECOND) if ttl_s else 0,
        at_ms=now_ms,
        marker=not update,
        delete_nulls=delete_nulls,
    )
    if any(column.multicell and column.name in names for column in (*layout.regular.columns, *layout.static.columns)):
        return _one_by_one(layout, table, written)
    rows, values = Pile(table.num_rows), Pile(table.num_rows)
    for block in _blocks(layout, table):
        for made_keys, made_values in _encode_block(layout, block, written):
            # Sorted while they are at hand: what puts all of them in order then finds neighbours beside each other.
            order, _ = order_of(made_keys)
            rows.add(made_keys, order)
            values.add(made_values, order)
    all_rows = rows.whole()
    order, ties = order_of(all_rows)
    all_values = values.whole()
    order, again = _each_once(all_values, order, repeats(all_rows, order, ties))
    found = SortedRows(all_rows, all_values, order, timestamp_us)
    return _merged(layout, found, again, timestamp_us) if len(again) else found


def _blocks(layout: RowLayout, table: Any) -> Iterator[Any]:
    """Record batches of rows that have the same columns."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    rows = max(1, min(BLOCK_ROWS, _BLOCK_BYTES * table.num_rows // max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        part = table.slice(start, rows)
        # Put together where the table lies in small pieces, as Spark sends them: each block takes its time. What can't
        # be (dictionaries that are too different) stays as it is.
        with suppress(pa.ArrowInvalid):
            part = part.combine_chunks()
        for block in part.to_batches():
            yield from apart(layout, block)


def _check_names(layout: RowLayout, table: Any) -> frozenset[str]:
    names: list[str] = table.schema.names
    known = {column.name for column in layout.columns.values()}
    for name in names:
        if name not in known:
            raise layout.refuse(f"there is no column {name}; there are: {', '.join(sorted(known))}")
        if names.count(name) > 1:
            raise layout.refuse(f"column {name} is given twice")
    of_rows = {each.name for each in layout.clustering} | {each.name for each in layout.regular.columns}
    no_rows = any(column.name in names for column in layout.static.columns) and of_rows.isdisjoint(names)
    for key in (*layout.partition, *(() if no_rows else layout.clustering)):
        if key.name not in names:
            raise layout.refuse(f"key column {key.name} is missing; a row is written with its whole key")
    return frozenset(names)


def _cells(layout: RowLayout, block: Any, column: Any) -> Cells:
    try:
        return arrow_cells.encode(column.type, block.column(column.name))
    except ValueError as error:
        raise layout.refuse(f"column {column.name} ({column.type.name}): {error}") from None


def _encode_block(layout: RowLayout, block: Any, written: Written) -> list[tuple[Ragged, Ragged]]:
    """Row keys without tails, and values: of the rows, and of the static rows of their partitions."""
    names, count = set(block.schema.names), block.num_rows
    partition = partition_parts(layout, [_cells(layout, block, column) for column in layout.partition])
    made = []
    if not layout.clustering or layout.clustering[0].name in names:
        keys = row_keys(layout, partition, [_cells(layout, block, column) for column in layout.clustering])
        cells = [_cells(layout, block, each) if each.name in names else None for each in layout.regular.columns]
        places, values = encode_values(layout, layout.regular, cells, count, written)
        made.append((keys if _all(places, count) else keys.take(places), values))
    if any(column.name in names for column in layout.static.columns):
        cells = [_cells(layout, block, each) if each.name in names else None for each in layout.static.columns]
        unmarked = Written(
            written.stamp_us, written.ttl_s, written.expires_s, written.at_ms, False, written.delete_nulls
        )
        places, values = encode_values(layout, layout.static, cells, count, unmarked)
        if len(places):
            made.append((static_keys(partition, places), values))
    return made


def _all(places: Any, count: int) -> bool:
    return len(places) == count and bool((places[1:] > places[:-1]).all())


def _each_once(values: Ragged, order: NDArray[np.int64], again: NDArray[np.int64]) -> Sorted:
    """The order without rows that are the same as the one before, and which of the rest tie with the next.

    Where some rows of a key differ all of them stay: they are merged. What partitions have in common is said again with
    each of their rows, as a rule, and always the same.
    """
    import numpy as np

    if not len(again):
        return order, again
    same = np.isin(again, repeats(values, order, again), assume_unique=True)
    begins = np.flatnonzero(np.append(True, again[1:] != again[:-1] + 1))
    lengths = np.diff(np.append(begins, len(again)))
    of_equals = np.repeat(np.logical_and.reduceat(same, begins), lengths)
    kept = np.ones(len(order), dtype=bool)
    kept[again[of_equals] + 1] = False
    left = again[~of_equals]
    return order[kept], np.cumsum(kept)[left] - 1


def _merged(layout: RowLayout, versions: SortedRows, again: Any, stamp_us: int) -> SortedRows:
    """One version of each row: those that were given several times (`again`) are merged by CQL's rule."""
    import numpy as np

    rows, values, order = versions.rows, versions.values, versions.order
    kept = np.ones(len(order), dtype=bool)
    kept[again + 1] = False
    instead: list[bytes] = []
    places = order.copy()
    for start, stop in runs(again):
        row = rows.bytes_at(int(order[start]))
        pairs = Pairs()
        for at in order[start:stop].tolist():
            value = values.bytes_at(at)
            pairs += (row + tail(stamp_us, PUT, value), value)
        _, value = canonical(layout, pairs, static=_is_static(layout, row))
        # The merged value lies behind all others; its row key is there a second time, too.
        places[start] = len(values) + len(instead)
        instead.append(value)
    first = order[[start for start, _ in runs(again)]]
    return SortedRows(stack([rows, rows.take(first)]), stack([values, from_list(instead)]), places[kept], stamp_us)


def _is_static(layout: RowLayout, row_key: bytes) -> bool:
    if not layout.has_static:
        return False
    end = layout.partition_end
    if end is None:
        end = 8
        for column in layout.partition:
            _, end = column.codec.decode(row_key, end)
    return row_key[end : end + 1] == STATIC


def _one_by_one(layout: RowLayout, table: Any, written: Written) -> SortedRows:
    """The same through the code for single rows."""
    id_of = {column.name: id for id, column in layout.columns.items()}
    kinds = {id: column.kind for id, column in layout.columns.items()}
    types: dict[int, KeyColumn | ValueColumn] = {each.id: each for each in (*layout.partition, *layout.clustering)}
    types |= {each.id: each for each in (*layout.regular.columns, *layout.static.columns)}
    pairs: dict[bytes, list[bytes]] = {}
    for block in _blocks(layout, table):
        ids = [id_of[name] for name in block.schema.names]
        cells = [_with_nones(_cells(layout, block, types[id])) for id in ids]
        for row in zip(*cells, strict=True):
            given = [
                (id, cell)
                for id, cell in zip(ids, row, strict=True)
                if cell is not None
                or written.delete_nulls
                or kinds[id] in (ColumnKind.PARTITION, ColumnKind.CLUSTERING)
            ]
            request = PutRequest(
                layout.table.id,
                layout.table.version,
                [id for id, _ in given],
                [[cell for _, cell in given]],
                ttl_s=written.ttl_s,
                update=not written.marker,
            )
            for made in pairs_of_put(layout, request, written.stamp_us, written.at_ms).values():
                for key, value in zip(made[::2], made[1::2], strict=True):
                    pairs.setdefault(key[:-TAIL], []).extend((key, value))
    found: Pairs = []
    for row_key in sorted(pairs):
        made = pairs[row_key]
        found += made if len(made) == 2 else canonical(layout, made, static=_is_static(layout, row_key))
    return _in_order(found)


def _in_order(pairs: Pairs) -> SortedRows:
    import numpy as np

    rows, values = from_list([key[:-TAIL] for key in pairs[::2]]), from_list(pairs[1::2])
    # A collection that was emptied has the stamp of its deletion, which is just before that of the write.
    stamps = np.asarray([stamp_of(key) for key in pairs[::2]], dtype=np.int64)
    return SortedRows(rows, values, np.arange(len(rows)), stamps)


def _with_nones(cells: Cells) -> Sequence[bytes | None]:
    strings = cells.strings.to_list()
    if cells.valid is None:
        return strings
    return [cell if given else None for cell, given in zip(strings, cells.valid.tolist(), strict=True)]
