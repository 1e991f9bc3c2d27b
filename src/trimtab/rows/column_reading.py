"""Stored pairs to Arrow, whole columns at a time: what `reading` answers to a scan, without an object a row.

Most rows of a table consist of one version whose cells share their stamp, and nothing deletes in their partition. Those
are decoded by the column, layout by layout: a column that was added later reads as null, one that was dropped is passed
over. All others (several versions, deletions, static rows, stamps per cell, collections) go through `reading`, the same
code as every other read, and take their places between the rest.

Pairs come in batches that may end anywhere. Where a batch ends inside a row, the row's versions go over to the next
one; where it ends inside a partition, so do the partition's deletions and its static row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trimtab.rows import arrow_cells, column_meta
from trimtab.rows.arrow_cells import Cells
from trimtab.rows.arrow_types import arrow_type
from trimtab.rows.batch_view import BatchView
from trimtab.rows.column_keys import key_columns
from trimtab.rows.column_values import decode_values
from trimtab.rows.deletions import Pair
from trimtab.rows.errors import DoesNotFit
from trimtab.rows.keys import ROWS, TAIL, prefix_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.projection import Metas, Rows, rows_of
from trimtab.rows.protocol import Cell, RangeRead
from trimtab.rows.ragged import Ragged, fixed, from_list, stack
from trimtab.rows.reading import NO_LIMITS, judged_s, read_range, scan_of
from trimtab.rows.tokens import AFTER_ALL, TOKEN_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Mask

_MOST_ROWS = 1 << 62
_FROM, _TO = bytes(TOKEN_BYTES), AFTER_ALL

Batch = tuple[Ragged, Ragged]  # keys and values in step
_Found = tuple[bytes, list[Cell], Metas]  # a live row: its key, its cells, what is known of them


@dataclass(slots=True)
class _Open:
    """What the next batch has to know of the partition that goes on in it: see the module's text.

    `live`: whether it has had live rows. A partition without any reads as one row if it has a live static row.
    """

    prefix: bytes = b""
    preamble: list[Pair] = field(default_factory=list)
    last: list[Pair] = field(default_factory=list)
    live: bool = False


class ColumnReader:
    """Reads one table's pairs in the order of their keys. `columns` are ids; the answer has them in this order.

    `meta`: ids of columns of which the answer also has, behind all others, when cells were written and how long they
    will live (`column_meta`).
    """

    def __init__(
        self,
        layout: RowLayout,
        columns: Sequence[int] | None = None,
        *,
        now_s: int,
        as_of_us: int = 0,
        meta: Sequence[int] = (),
    ) -> None:
        import pyarrow as pa

        self._layout = layout
        self._shown = [*layout.columns] if columns is None else [*columns]
        self._ids = [*self._shown, *(id for id in meta if id not in self._shown)]
        self._meta = [*meta]
        types = {each.id: each.type for each in (*layout.partition, *layout.clustering)}
        types |= {each.id: each.type for shape in (layout.regular, layout.static) for each in shape.columns}
        for id in self._ids:
            if id not in types:
                raise layout.refuse(f"there is no column {id} in version {layout.table.version} of the table")
        self._types = [types[id] for id in self._ids]
        self._key_ids = [each.id for each in (*layout.partition, *layout.clustering)]
        self._now_s = judged_s(now_s, as_of_us)
        self._as_of_us = as_of_us
        self._open = _Open()
        self._decoded = [arrow_type(kind) for kind in self._types]
        names = [layout.columns[id].name for id in self._shown]
        self.schema = pa.schema(
            [
                *zip(names, self._decoded, strict=False),
                *column_meta.fields_of([layout.columns[id].name for id in self._meta]),
            ]
        )

    def read(self, batches: Iterable[Batch]) -> Iterator[Any]:
        """Record batches of the live rows, in order."""
        held: Batch | None = None
        for batch in batches:
            if not len(batch[0]):
                continue
            if held is not None:
                yield from self._some(*held, batch[0].bytes_at(0))
            held = self._after_open(*batch)
        if held is not None:
            yield from self._some(*held, None)

    def _after_open(self, keys: Ragged, values: Ragged) -> Batch:
        before = self._open.preamble + self._open.last
        if not before:
            return keys, values
        return stack([from_list([each[0] for each in before]), keys]), stack(
            [from_list([each[1] for each in before]), values]
        )

    def _some(self, keys: Ragged, values: Ragged, next_key: bytes | None) -> Iterator[Any]:
        """The rows of a batch; `next_key` is the first of the batch after it."""
        before, self._open = self._open, _Open()
        view = BatchView(self._layout, keys, values)
        end = len(keys)
        if next_key is not None and next_key[:-TAIL] == keys.bytes_at(end - 1)[:-TAIL]:
            end = view.start_of_row(end - 1)
            self._open.last = view.pairs(range(end, len(keys)))
        if next_key is not None and self._layout.clustering:
            self._open.prefix = prefix_of(self._layout, next_key)
            self._open.preamble = view.preamble(self._open.prefix, end)
            self._open.live = before.live and before.prefix == self._open.prefix
        if end:
            batch = self._decode(view, end, before)
            if batch.num_rows:
                yield batch

    def _decode(self, view: BatchView, end: int, before: _Open) -> Any:
        import numpy as np
        import pyarrow as pa

        special = view.special()[:end]
        arrays: list[Any] = []
        places = np.flatnonzero(~special)
        if len(places):
            arrays, live = self._plain(view, places)
            if live is not None:
                arrays = [array.filter(pa.array(live)) for array in arrays]
                places = places[live]
        others = np.flatnonzero(special)
        if len(others):
            more_places, more_arrays = self._special(view.pairs(others.tolist()), others.tolist(), before)
            if not arrays:
                arrays = more_arrays
            elif len(more_places):
                order = pa.array(np.argsort(np.concatenate([places, more_places]), kind="stable"))
                arrays = [pa.concat_arrays(both).take(order) for both in zip(arrays, more_arrays, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _plain(self, view: BatchView, places: NDArray[np.int64]) -> tuple[list[Any], Mask | None]:
        """Columns of rows that consist of one version whose cells share their stamp; and which of them are live."""
        import numpy as np
        import pyarrow as pa

        keys, values, heads = view.keys, view.values, view.heads
        if len(places) < len(keys):
            keys, values, heads = keys.take(places), values.take(places), heads[places]
        kinds = [int(heads[0])] if bool((heads == heads[0]).all()) else np.unique(heads).tolist()
        parts, lives, found_at = [], [], []
        for head in kinds:
            some = values
            if len(kinds) > 1:
                found_at.append(np.flatnonzero(heads == head))
                some = values.take(found_at[-1])
            decoded = decode_values(self._layout, head & 0xFFFF, head >> 16, some, self._ids, self._now_s)
            columns = [self._array(place, decoded.cells.get(id), len(some)) for place, id in enumerate(self._shown)]
            if self._meta:
                stamps = view.stamps()[places]
                stamps = stamps[found_at[-1]] if found_at else stamps
                given = [decoded.cells.get(id) for id in self._meta]
                columns += column_meta.of_values(head >> 16, some, stamps, given, self._now_s)
            parts.append(columns)
            lives.append(np.ones(len(some), dtype=bool) if decoded.live is None else decoded.live)
        arrays, live = parts[0], lives[0]
        if len(kinds) > 1:
            order = np.argsort(np.concatenate(found_at), kind="stable")
            live = np.concatenate(lives)[order]
            arrays = [pa.concat_arrays(list(each)).take(pa.array(order)) for each in zip(*parts, strict=True)]
        if any(id in self._key_ids for id in self._shown):
            of_keys = dict(zip(self._key_ids, key_columns(self._layout, keys), strict=True))
            for place, id in enumerate(self._shown):
                if id in of_keys:
                    arrays[place] = self._array(place, of_keys[id], len(keys))
        if self._as_of_us:
            live = live & (view.stamps()[places] <= self._as_of_us)
        return arrays, None if bool(live.all()) else live

    def _array(self, place: int, cells: Cells | None, count: int) -> Any:
        import pyarrow as pa

        if cells is None:
            return pa.nulls(count, self._decoded[place])
        try:
            return arrow_cells.decode(self._types[place], cells)
        except DoesNotFit as error:
            column = self._layout.columns[self._shown[place]]
            raise DoesNotFit(f"{self._layout.name}: column {column.name}: {error}") from None

    def _special(self, pairs: list[Pair], at: list[int], before: _Open) -> tuple[NDArray[np.int64], list[Any]]:
        """The live rows that the code for single rows finds among these pairs, and where their pairs are."""
        import numpy as np

        places: dict[bytes, int] = {}
        for place, (key, _) in zip(at, pairs, strict=True):
            places.setdefault(key[:-TAIL], place)
        rows = self._rows(pairs)
        found = _listed(rows)
        if self._layout.has_static:
            found += self._static_rows(pairs, rows, before)
            found.sort(key=lambda row: row[0])
        cells = [[row[place] for _, row, _ in found] for place in range(len(self._shown))]
        arrays = [
            self._array(place, _cells(self._types[place].fixed_width, each), len(each))
            for place, each in enumerate(cells)
        ]
        if self._meta:
            arrays += column_meta.of_rows([metas for _, _, metas in found], [self._ids.index(id) for id in self._meta])
        return np.asarray([places[key] for key, _, _ in found], dtype=np.int64), arrays

    def _rows(self, pairs: list[Pair], *, statics: bool = False) -> Rows:
        asked = RangeRead(_FROM, _TO, limit=_MOST_ROWS)
        found = read_range(self._layout, scan_of(pairs), asked, self._now_s, self._as_of_us, limits=NO_LIMITS)
        bounds = (_FROM, _TO) if statics else (None, None)
        return rows_of(
            self._layout,
            found.pairs,
            self._ids,
            self._now_s,
            low=bounds[0],
            high=bounds[1],
            with_meta=bool(self._meta),
        )

    def _static_rows(self, pairs: list[Pair], rows: Rows, before: _Open) -> list[_Found]:
        """Of the partitions that end here: those of which nothing but the static row is live."""
        live = {prefix_of(self._layout, key) for key in rows.keys}
        if before.live:
            live.add(before.prefix)
        if self._open.prefix in live:
            self._open.live = True
        preambles: dict[bytes, list[Pair]] = {}
        for pair in pairs:
            prefix = prefix_of(self._layout, pair[0])
            if prefix not in live and prefix != self._open.prefix and pair[0][len(prefix)] < ROWS[0]:
                preambles.setdefault(prefix, []).append(pair)
        found: list[_Found] = []
        for preamble in preambles.values():
            found += _listed(self._rows(preamble, statics=True))
        return found


def _listed(rows: Rows) -> list[_Found]:
    return [*zip(rows.keys, rows.cells, rows.metas or [[]] * len(rows.keys), strict=True)]


def _cells(width: int | None, column: list[Cell]) -> Cells:
    """Single cells as a column."""
    import numpy as np

    nothing = bytes(width or 0)
    strings = from_list([nothing if cell is None else cell for cell in column])
    if not column:
        strings = fixed(np.empty((0, width or 0), np.uint8))
    valid = np.asarray([cell is not None for cell in column], dtype=bool)
    return Cells(strings, None if bool(valid.all()) else valid)


__all__ = ["Batch", "ColumnReader", "decode_pairs"]


def decode_pairs(
    layout: RowLayout,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    columns: Sequence[int] | None = None,
    *,
    now_s: int,
    as_of_us: int = 0,
) -> Any:
    """The live rows among sorted pairs as an Arrow table."""
    import pyarrow as pa

    reader = ColumnReader(layout, columns, now_s=now_s, as_of_us=as_of_us)
    batches = [*reader.read([(from_list(keys), from_list(values))])]
    return pa.Table.from_batches(batches, schema=reader.schema)
