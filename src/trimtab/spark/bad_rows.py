"""Rows that a table can't take, found by name: which they are, and why.

Rows are encoded by the column, and one that does not fit spoils its whole chunk without a word about where it is. This
module looks for it: first what whole columns show at once (keys that are null), then by halving, column by column. A
chunk without bad rows never comes here, so it may take its time; but it is bounded: each bad row costs about twenty
attempts, each on half the rows of the one before.

Two rows of one key with different values are bad, too: a load writes all its rows with one timestamp, so which of them
stays would be a matter of bytes. Rows that are the same in every column are one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.rows import arrow_cells
from trimtab.rows.column_keys import partition_parts, row_keys
from trimtab.rows.columns import encode_table
from trimtab.rows.errors import BadRequest
from trimtab.rows.layout import RowLayout
from trimtab.rows.ragged import Ragged
from trimtab.rows.sorted_rows import order_of, repeats, runs
from trimtab.rows.static_rows import static_alone
from trimtab.spark.checking import types_of, wrong_columns
from trimtab.spark.types import from_spark

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_ROWS = 8192  # that are tried together before they are halved
_SHOWN_CHARACTERS = 60
_OTHERWISE = (Kind.UUID, Kind.TIMEUUID, Kind.TIME, Kind.DURATION)

Try = Callable[[Any], None]


@dataclass(frozen=True)
class Bad:
    """`row` is the row's place in its chunk."""

    row: int
    why: str


class WrongColumn(ValueError):
    """No row of a column fits: its type is wrong, which no policy for rows can mend."""


def storable(layout: RowLayout, chunk: Any) -> Any:
    """A table of Spark's columns as `encode_table` takes it. BadRequest names the column that can't be had so."""
    import pyarrow as pa

    types = types_of(layout)
    static = {column.name for column in layout.static.columns if column.multicell}
    columns = []
    for name, column in zip(chunk.schema.names, chunk.columns, strict=True):
        kind = types.get(name)
        try:
            columns.append(column if kind is None or _same(kind) else from_spark(kind, column))
        except ValueError as error:
            raise layout.refuse(f"column {name} ({kind.name if kind else 'unknown'}): {error}") from None
        if name in static:
            columns[-1] = _without_empty(columns[-1])
    return pa.table(columns, names=chunk.schema.names)


def _without_empty(column: Any) -> Any:
    """Nothing in place of empty collections. Of a static row they would be all there is, and that is a deletion with
    the microsecond before the load's stamp: it could be seen before the load is.
    """
    import pyarrow as pa

    values = [value or None for value in column.to_pylist()]
    return pa.array(values, column.type)


def _same(kind: Type) -> bool:
    """Whether columns of this type are the same for Spark: then their chunks need not be put together."""
    return not kind.elements and kind.kind not in _OTHERWISE


def find_bad(layout: RowLayout, chunk: Any, *, first: bool = False) -> list[Bad]:
    """The rows of an Arrow table that can't be written, in order; with `first` only the first one.

    WrongColumn where it is not a matter of rows.
    """
    _check_types(layout, chunk)
    found: dict[int, str] = {}
    _null_keys(layout, chunk, found)
    for start in range(0, chunk.num_rows, BLOCK_ROWS):
        if first and found and min(found) < start:
            break
        block = chunk.slice(start, BLOCK_ROWS)
        _look(layout, block, start, found)
    bad = [Bad(row, found[row]) for row in sorted(found)]
    return bad[:1] if first else bad


def _look(layout: RowLayout, block: Any, start: int, found: dict[int, str]) -> None:
    """The bad rows of one block. Columns come first: one value is tried faster than a row, and the reason is better."""
    names = set(block.schema.names)
    for name, kind in types_of(layout).items():
        if name not in names:
            continue

        def fits(part: Any, kind: Type = kind, name: str = name) -> None:
            try:
                _check_text(part)
                arrow_cells.encode(kind, from_spark(kind, part))
            except ValueError as error:
                raise BadRequest(f"column {name} ({kind.name}): {error}") from None

        for row, why in _halve(block.column(name), fits):
            found.setdefault(start + row, why)
    import numpy as np

    good = np.asarray([row for row in range(block.num_rows) if start + row not in found], dtype=np.int64)
    rest = block.take(good) if len(good) < block.num_rows else block

    def whole(part: Any) -> None:
        encode_table(layout, storable(layout, part), timestamp_us=0, now_ms=0)

    for row, why in _halve(rest, whole):
        found[start + int(good[row])] = why.removeprefix(f"{layout.name}: ")


def _halve(part: Any, attempt: Try) -> Iterator[tuple[int, str]]:
    """The rows of a part on which the attempt fails by themselves."""
    waiting = [(0, len(part))]
    while waiting:
        start, stop = waiting.pop()
        try:
            if stop > start:
                attempt(part.slice(start, stop - start))
        except BadRequest as error:
            if stop - start == 1:
                yield start, str(error)
                continue
            middle = (start + stop) // 2
            waiting += [(middle, stop), (start, middle)]


def _check_types(layout: RowLayout, chunk: Any) -> None:
    if wrong := wrong_columns(layout, chunk.schema):
        raise WrongColumn(f"{layout.name}: {'; '.join(wrong)}")


def _null_keys(layout: RowLayout, chunk: Any, found: dict[int, str]) -> None:
    """Rows that lack a column of their key, except those that are static rows alone."""
    import numpy as np
    import pyarrow.compute as pc

    names = chunk.schema.names
    alone = static_alone(layout, chunk)
    for column in (*layout.partition, *layout.clustering):
        if column.name not in names or not chunk.column(column.name).null_count:
            continue
        null, why = np.asarray(pc.is_null(chunk.column(column.name))), f"key column {column.name} is null"
        if column in layout.clustering and any(each.name in names for each in layout.static.columns):
            null = null if alone is None else null & ~alone
            why += "; only a row with static values, and none in any clustering or regular column, may lack it"
        for row in np.flatnonzero(null).tolist():
            found.setdefault(row, why)


def check_texts(chunk: Any) -> bool:
    """Whether all texts of a table are UTF-8; files may hold anything, and readers take their word for it."""
    try:
        for column in chunk.columns:
            _check_text(column)
    except ValueError:
        return False
    return True


def _check_text(column: Any) -> None:
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise ValueError("a text that is not UTF-8") from None


# Rows of one key


def keys_of(layout: RowLayout, chunk: Any) -> tuple[Ragged, NDArray[np.intp]] | None:
    """The keys of a table's rows, in its order, with their places in it; None where it has no rows, or only what
    partitions have in common.
    """
    import numpy as np

    chunk = chunk.combine_chunks()
    if layout.clustering and layout.clustering[0].name not in chunk.schema.names:
        return None
    places = np.arange(chunk.num_rows)
    if (alone := static_alone(layout, chunk)) is not None:
        places = np.flatnonzero(~alone)
        chunk = chunk.select([column.name for column in (*layout.partition, *layout.clustering)]).take(places)
    if not chunk.num_rows:
        return None
    cells = {
        column.name: arrow_cells.encode(column.type, from_spark(column.type, chunk.column(column.name)))
        for column in (*layout.partition, *layout.clustering)
    }
    partition = partition_parts(layout, [cells[column.name] for column in layout.partition])
    return row_keys(layout, partition, [cells[column.name] for column in layout.clustering]), places


def find_conflicts(layout: RowLayout, chunk: Any) -> list[Bad]:
    """Rows that have a key in common with another one and differ from it in some column."""
    import numpy as np

    chunk = chunk.combine_chunks()
    own = keys_of(layout, chunk)
    if own is None:
        return []
    keys, places_of = own
    order, ties = order_of(keys)
    found: list[Bad] = []
    for start, stop in runs(repeats(keys, order, ties)):
        places = np.sort(places_of[order[start:stop]])
        rows = chunk.take(places).to_pylist()
        # By their text: a NaN differs from itself.
        if len({repr(row) for row in rows}) > 1:
            why = f"{len(rows)} rows of the load have the key {shown_key(layout, rows[0])} and are not the same"
            found += [Bad(int(place), why) for place in places]
    return sorted(found, key=lambda bad: bad.row)


def describe(layout: RowLayout, chunk: Any, bad: Bad) -> str:
    """A row by its key, and what is wrong with it."""
    row = chunk.slice(bad.row, 1).to_pylist()[0]
    return f"the row with {shown_key(layout, row)}: {bad.why}"


def shown_key(layout: RowLayout, row: dict[str, Any]) -> str:
    """The key of a row as people read it."""
    shown = []
    for column in (*layout.partition, *layout.clustering):
        text = repr(row.get(column.name))
        shown.append(f"{column.name}={text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '…'}")
    return ", ".join(shown)
