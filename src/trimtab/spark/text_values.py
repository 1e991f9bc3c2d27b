"""Values of CSV and JSON files: what types they have once they are read, and how text becomes one of them.

    by Arrow    numbers, booleans, texts; dates and times of CSV; lists, sets and user types of such in JSON
    cast        timestamps, and dates of JSON: read as text, and made of it by the column
    by value    all else, in the notation that `catalog.text_forms` has everywhere: 0x00ff for a blob, 1mo2d for a
                duration, JSON for what is nested. What Spark writes as JSON (objects for tuples and durations) is
                understood as well, but not its blobs: base64 can't be told from hexadecimal

So text carries every type; what it can't carry is a difference between a field that is not there and one that is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.text_forms import from_json, from_text, to_text
from trimtab.catalog.values import Duration, refused
from trimtab.rows import arrow_cells
from trimtab.rows.arrow_types import arrow_type, component_names
from trimtab.rows.ragged import from_list

_AS_TEXT = frozenset((Kind.UUID, Kind.TIMEUUID, Kind.INET))
_FRACTIONS = frozenset((Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL))
_DURATION = ("months", "days", "nanoseconds")


class Fraction(str):
    """A number of JSON with a point or an exponent, with all its digits."""

    __slots__ = ()


def column_type(kind: Type) -> Any:
    """The Arrow type in which values of a column come out of a text file."""
    import pyarrow as pa

    if kind.kind in _AS_TEXT:
        return pa.string()
    if kind.kind is Kind.TIMESTAMP:
        return pa.timestamp("us", "UTC")
    return arrow_type(kind)


def csv_type(kind: Type) -> Any:
    """What Arrow's parser makes of a column of CSV; texts are for `of_texts`."""
    import pyarrow as pa

    by_text = kind.elements or kind.kind in (Kind.TIMESTAMP, Kind.BLOB, Kind.DURATION)
    return pa.string() if by_text else column_type(kind)


def json_type(kind: Type) -> Any:
    """What Arrow's parser makes of a field of JSON; texts are for `of_texts`. None: it can't, `cell_of` can."""
    import pyarrow as pa

    if kind.kind in (Kind.TIMESTAMP, Kind.DATE, Kind.TIME):
        return pa.string()
    if kind.kind in (Kind.BLOB, Kind.DURATION, Kind.MAP, Kind.TUPLE):
        return None
    if kind.elements and any(json_type(each) != arrow_type(each) for each in kind.elements):
        return None
    return column_type(kind)


def of_texts(kind: Type, texts: Any) -> Any:
    """A column of texts as one of `column_type`. ValueError, or Arrow's, where one of them is no such value."""
    import pyarrow as pa

    if kind.kind is Kind.TIMESTAMP:
        return _moments(texts)
    if kind.kind is Kind.DATE:
        return texts.cast(pa.date32())
    return of_values(kind, [None if text is None else from_text(kind, text) for text in texts.to_pylist()])


def of_values(kind: Type, values: Sequence[Any]) -> Any:
    """Values of Python as a column of `column_type`."""
    return of_cells(kind, [None if value is None else kind.serialize(value) for value in values])


def of_cells(kind: Type, cells: Sequence[bytes | None]) -> Any:
    """Values as they are stored, as a column of `column_type`."""
    import numpy as np
    import pyarrow as pa

    if kind.kind in _AS_TEXT:
        texts = [None if cell is None else to_text(kind, kind.deserialize(cell)) for cell in cells]
        return pa.array(texts, pa.string())
    if not cells:
        return pa.array([], column_type(kind))
    nothing = bytes(kind.fixed_width or 0)
    valid = np.array([cell is not None for cell in cells])
    strings = from_list([nothing if cell is None else cell for cell in cells])
    found = arrow_cells.decode(kind, arrow_cells.Cells(strings, None if valid.all() else valid))
    return found.cast(column_type(kind)) if kind.kind is Kind.TIMESTAMP else found


def cell_of(kind: Type, data: Any) -> bytes | None:
    """What a field of a line of JSON stands for, as it is stored; ValueError: nothing of this type."""
    if data is None:
        return None
    if isinstance(data, Fraction) and kind.kind not in _FRACTIONS:
        raise refused(f"a JSON value for {kind.name}", data)
    return kind.serialize(from_json(kind, _spelled(kind, data)))


def _spelled(kind: Type, data: Any) -> Any:
    """What Spark writes as objects, in the notation of the CLI."""
    if isinstance(data, dict):
        names = component_names(kind)
        if kind.kind is Kind.DURATION and data.keys() <= set(_DURATION):
            return str(Duration(*(int(data.get(name) or 0) for name in _DURATION)))
        if kind.kind is Kind.TUPLE and data.keys() <= set(names):
            return [_spelled(each, data.get(name)) for name, each in zip(names, kind.elements, strict=True)]
        if kind.kind is Kind.USER:
            inner = dict(zip(names, kind.elements, strict=True))
            return {name: _spelled(inner[name], each) if name in inner else each for name, each in data.items()}
        if kind.kind is Kind.MAP:
            return {key: _spelled(kind.elements[1], each) for key, each in data.items()}
    if isinstance(data, list) and kind.elements:
        elements = kind.elements if kind.kind is Kind.TUPLE else kind.elements[:1] * len(data)
        return [_spelled(each, value) for each, value in zip(elements, data, strict=False)] + data[len(elements) :]
    return data


def _moments(texts: Any) -> Any:
    """Times with a zone, or without one, which is UTC then; Arrow takes a column of either, but not both."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.timestamp("us", "UTC")
    zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d\d(:?\d\d)?)$")
    zoned = pc.and_(zoned, pc.match_substring(texts, ":"))
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(wanted)
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us")).cast(wanted)
    return pc.coalesce(with_zone, without)
