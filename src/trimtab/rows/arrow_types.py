"""CQL's types in Arrow: which type a column gets, and single values of the types that have no columns of plain bytes.

    tinyint ... bigint, counter  int8 ... int64        text, ascii, inet  string        uuid, timeuuid  16 bytes
    float, double                float32, float64      blob               binary        varint   decimal(38, 0)
    timestamp                    timestamp[ms, UTC]    date   date32                    decimal  decimal(38, 18)
    time                         time64[ns]            duration  month_day_nano         boolean  bool
    list, set   list             map  map              tuple, user type   struct (of a tuple: named 0, 1, ...)

varint and decimal are as wide as what Spark has; a number that does not fit is refused by name and not rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.nested import join_components, join_elements, split_components, split_elements
from trimtab.catalog.values import UUID, Duration, refused

Plain = Callable[[bytes], Any]
ToCell = Callable[[Any], bytes]

EPOCH_DAY = 1 << 31  # CQL's date of 1970-01-01
_DECIMAL_DIGITS, _DECIMAL_SCALE = 38, 18


@cache
def _simple() -> dict[Kind, Any]:
    import pyarrow as pa

    return {
        Kind.TINYINT: pa.int8(),
        Kind.SMALLINT: pa.int16(),
        Kind.INT: pa.int32(),
        Kind.BIGINT: pa.int64(),
        Kind.COUNTER: pa.int64(),
        Kind.FLOAT: pa.float32(),
        Kind.DOUBLE: pa.float64(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.TEXT: pa.string(),
        Kind.ASCII: pa.string(),
        Kind.INET: pa.string(),
        Kind.BLOB: pa.binary(),
        Kind.UUID: pa.binary(16),
        Kind.TIMEUUID: pa.binary(16),
        Kind.TIMESTAMP: pa.timestamp("ms", "UTC"),
        Kind.DATE: pa.date32(),
        Kind.TIME: pa.time64("ns"),
        Kind.VARINT: pa.decimal128(_DECIMAL_DIGITS, 0),
        Kind.DECIMAL: pa.decimal128(_DECIMAL_DIGITS, _DECIMAL_SCALE),
        Kind.DURATION: pa.month_day_nano_interval(),
    }


def arrow_type(column: Type) -> Any:
    """The Arrow type in which cells of this type are read."""
    import pyarrow as pa

    if column.kind in _simple():
        return _simple()[column.kind]
    inner = [arrow_type(each) for each in column.elements]
    if column.kind is Kind.MAP:
        return pa.map_(*inner)
    if column.kind in (Kind.LIST, Kind.SET):
        return pa.list_(inner[0])
    return pa.struct(list(zip(component_names(column), inner, strict=True)))


def component_names(column: Type) -> list[str]:
    return list(column.fields) or [str(place) for place in range(len(column.elements))]


def plain(column: Type) -> Plain:
    """A cell as the Python value from which Arrow makes this type's."""
    kind = column.kind
    if kind in (Kind.UUID, Kind.TIMEUUID, Kind.BLOB):
        return bytes
    if kind in (Kind.TIMESTAMP, Kind.TIME, Kind.BIGINT, Kind.COUNTER):
        return lambda cell: int.from_bytes(cell, "big", signed=True)
    if kind is Kind.DATE:
        return lambda cell: int.from_bytes(cell, "big") - EPOCH_DAY
    if kind is Kind.VARINT:
        return lambda cell: Decimal(column.deserialize(cell))
    if kind is Kind.DURATION:
        return lambda cell: tuple(column.deserialize(cell))
    inner = [plain(each) for each in column.elements]
    if kind in (Kind.LIST, Kind.SET):
        return lambda cell: [inner[0](each) for each in split_elements(cell, column.name)]
    if kind is Kind.MAP:

        def entries(cell: bytes) -> list[tuple[Any, Any]]:
            found = split_elements(cell, column.name, 2)
            return [(inner[0](key), inner[1](value)) for key, value in zip(found[::2], found[1::2], strict=True)]

        return entries
    if kind in (Kind.TUPLE, Kind.USER):
        names = component_names(column)

        def components(cell: bytes) -> dict[str, Any]:
            found = split_components(cell, column.name, len(inner))
            return {
                name: None if part is None else convert(part)
                for name, convert, part in zip(names, inner, found, strict=True)
            }

        return components
    return column.deserialize


def to_cell(column: Type) -> ToCell:
    """A Python value, as Arrow gives it, as a cell. ValueError where the type can't hold it."""
    kind = column.kind
    if kind in (Kind.UUID, Kind.TIMEUUID):
        return lambda value: _uuid_cell(column, value)
    if kind is Kind.VARINT:
        return lambda value: column.serialize(_whole(value))
    if kind is Kind.DURATION:
        return lambda value: column.serialize(Duration(*value))
    inner = [to_cell(each) for each in column.elements]
    if kind in (Kind.LIST, Kind.SET):

        def elements(value: Any) -> bytes:
            if not isinstance(value, list):
                raise refused(f"a list for {column.name}", value)
            _check_elements(column, value)
            return column.canonical(join_elements([inner[0](each) for each in value]))

        return elements
    if kind is Kind.MAP:

        def entries(value: Any) -> bytes:
            if not isinstance(value, list):
                raise refused(f"a map for {column.name}", value)
            parts = [part for pair in value for part in pair]
            _check_elements(column, parts)
            return column.canonical(join_elements([inner[at % 2](part) for at, part in enumerate(parts)], 2))

        return entries
    if kind in (Kind.TUPLE, Kind.USER):
        names = component_names(column)

        def components(value: Any) -> bytes:
            if not isinstance(value, dict) or not value.keys() <= set(names):
                raise refused(f"a struct of {', '.join(names)} for {column.name}", value)
            parts = [value.get(name) for name in names]
            return join_components(
                [None if part is None else convert(part) for convert, part in zip(inner, parts, strict=True)]
            )

        return components
    return column.serialize


def _check_elements(column: Type, values: list[Any]) -> None:
    if None in values:
        raise ValueError(f"an element of {column.name} is null, and those of a collection can't be; leave it out")


def _whole(value: Any) -> Any:
    if isinstance(value, Decimal):
        if value != value.to_integral_value():
            raise refused("a whole number for varint", value)
        return int(value)
    return value


def _uuid_cell(column: Type, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            value = UUID(value)
        except ValueError:
            raise refused(f"a {column.name} such as 123e4567-e89b-12d3-a456-426614174000", value) from None
    elif isinstance(value, bytes) and len(value) == 16:
        value = UUID(bytes=value)
    return column.serialize(value)
