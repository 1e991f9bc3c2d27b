"""Which keys a filter leaves: the partitions of a table that have to be looked at, and which part of each.

Only what is certain is left out; Spark filters what comes again. A filter narrows the read when every column of the
partition key is compared with values (`=`, `IN`), and further by clustering columns from the first on: those that are
equal to one value, then one range. Bounds always include their value, because a value may be finer in Spark than in CQL
(a timestamp's microseconds).

Types whose equal values may be stored as different bytes (decimal, float, …), or that sort differently in Spark, don't
narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from trimtab.catalog.cql_type import Kind, Type
from trimtab.rows.errors import BadRequest
from trimtab.rows.keys import AFTER_ROWS, ROWS, interval, partition_prefix
from trimtab.rows.layout import KeyColumn, RowLayout
from trimtab.spark.scan_plan import KeyRange

MAX_KEYS = 10_000  # partitions that are looked up one by one; more are read as a whole
_ORDERED = frozenset(
    (
        *(Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.VARINT),
        *(Kind.TEXT, Kind.ASCII, Kind.BLOB, Kind.TIMESTAMP, Kind.DATE, Kind.TIME),
    )
)
_EQUAL = _ORDERED | {Kind.UUID, Kind.TIMEUUID, Kind.BOOLEAN}


@dataclass
class _Column:
    """What the filters say of one column: None in `values` where they name none."""

    values: set[bytes] | None = None
    low: list[bytes] = field(default_factory=list)
    high: list[bytes] = field(default_factory=list)

    def only(self, cells: Iterable[bytes]) -> None:
        given = set(cells)
        self.values = given if self.values is None else self.values & given


def key_ranges(layout: RowLayout, filters: Sequence[Filter]) -> list[KeyRange] | None:
    """The ranges of keys that rows can be in, in order. None: everywhere."""
    columns = _collected(layout, filters)
    named = [columns[each.name].values for each in layout.partition]
    wanted = [each for each in named if each is not None]
    if len(wanted) < len(named):
        return None
    count = 1
    for each in wanted:
        count *= len(each)
    if count > MAX_KEYS:
        return None
    bounds = _clustering(layout, columns)
    found: list[KeyRange] = []
    for cells in product(*(sorted(each) for each in wanted)):
        try:
            prefix = partition_prefix(layout, cells)
        except BadRequest:
            continue  # no row has such a key
        if bounds is None:
            found.append((prefix, prefix + AFTER_ROWS))
            continue
        low, high = bounds
        rows = prefix + ROWS
        # What deletes in the partition, and its static row, lie before its rows.
        found.append((prefix, rows))
        end = prefix + AFTER_ROWS if high is None else rows + high
        if rows + low < end:
            found.append((rows + low, end))
    return sorted(found)


def _collected(layout: RowLayout, filters: Sequence[Filter]) -> dict[str, _Column]:
    keys = {each.name: each for each in (*layout.partition, *layout.clustering)}
    found = {name: _Column() for name in keys}
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        column = keys.get(path[0]) if len(path) == 1 else None
        if column is not None:
            _note(found[column.name], column, each)
    return found


def _note(found: _Column, column: KeyColumn, given: Filter) -> None:
    kind = column.type.kind
    if isinstance(given, EqualTo | EqualNullSafe) and kind in _EQUAL:
        cell = _cell(column.type, given.value)
        if cell is not None:
            found.only([cell])
    elif isinstance(given, In) and kind in _EQUAL:
        cells = [_cell(column.type, value) for value in given.value if value is not None]
        if all(cell is not None for cell in cells):
            found.only([cell for cell in cells if cell is not None])
    elif isinstance(given, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) and kind in _ORDERED:
        cell = _cell(column.type, given.value)
        if cell is not None:
            above = isinstance(given, GreaterThan | GreaterThanOrEqual)
            (found.low if above else found.high).append(cell)


def _cell(column: Type, value: Any) -> bytes | None:
    """The value as it is stored; None: it can't be, or that is not certain, and the filter narrows nothing."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    from trimtab.rows import arrow_cells
    from trimtab.spark.types import from_spark, spark_type

    if value is None:
        return None
    try:
        array = pa.array([value], to_arrow_type(spark_type(column), timezone="UTC"))
        return arrow_cells.encode(column, from_spark(column, array)).strings.bytes_at(0)
    except (ValueError, TypeError, pa.ArrowException):
        return None


def _clustering(layout: RowLayout, columns: dict[str, _Column]) -> tuple[bytes, bytes | None] | None:
    """low <= encoded clustering key < high (None: no end). None: all rows."""
    prefix = b""
    for column in layout.clustering:
        said = columns[column.name]
        if said.values is not None and len(said.values) == 1:
            prefix += column.encode(next(iter(said.values)))
            continue
        # Encoded cells sort as the table does, descending columns too. Of several bounds the narrowest counts.
        lows = [column.encode(cell) for cell in (said.high if column.descending else said.low)]
        highs = [column.encode(cell) for cell in (said.low if column.descending else said.high)]
        if said.values:
            among = [column.encode(cell) for cell in said.values]
            lows, highs = [*lows, min(among)], [*highs, max(among)]
        start, end = max(lows, default=b""), min(highs, default=b"")
        low, high = interval(prefix + start, True, prefix + end, True)
        return (low, high) if low or high is not None else None
    return interval(prefix, True, prefix, True) if prefix else None
