"""Whether the columns of a frame, or of files, can be written to a table at all: looked at before any work is done.

What is checked here is a matter of names and types; which values fit is seen row by row (`bad_rows`). All that is wrong
is told at once, so that nobody has to try five times.
"""

from __future__ import annotations

from typing import Any

from trimtab.catalog.cql_type import Kind, Type
from trimtab.rows import arrow_cells
from trimtab.rows.arrow_types import component_names
from trimtab.rows.layout import RowLayout
from trimtab.spark.types import from_spark

_BY_COLUMN = frozenset(
    (
        Kind.TINYINT,
        Kind.SMALLINT,
        Kind.INT,
        Kind.BIGINT,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.TIMESTAMP,
        Kind.TIME,
        Kind.DATE,
        Kind.BOOLEAN,
        Kind.TEXT,
        Kind.ASCII,
        Kind.BLOB,
    )
)


def types_of(layout: RowLayout) -> dict[str, Type]:
    """The columns of a table, by name, in the order of keys and values."""
    found = {column.name: column.type for column in (*layout.partition, *layout.clustering)}
    return found | {column.name: column.type for column in (*layout.regular.columns, *layout.static.columns)}


def wrong_columns(layout: RowLayout, schema: Any) -> list[str]:
    """What keeps rows of this Arrow schema from being written, each by name; empty: nothing."""
    names: list[str] = schema.names
    types = types_of(layout)
    wrong = [f"column {name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if unknown := [name for name in names if name not in types]:
        wrong.append(f"the table has no column {', '.join(unknown)}; it has {', '.join(types)}")
    only_static = {column.name for column in layout.static.columns} & set(names)
    of_rows = {*(each.name for each in layout.clustering), *(each.name for each in layout.regular.columns)} & set(names)
    keys = layout.partition if only_static and not of_rows else (*layout.partition, *layout.clustering)
    if missing := [column.name for column in keys if column.name not in names]:
        wrong.append(f"key column {', '.join(missing)} is missing; a row is written with its whole key")
    for field in schema:
        kind = types.get(field.name)
        if kind is not None and (why := wrong_type(kind, field.type)):
            wrong.append(f"column {field.name} ({kind.name}): {why}")
    return wrong


def wrong_type(column: Type, given: Any) -> str:
    """Why no value of this Arrow type can be one of the column's; empty: some may."""
    import pyarrow as pa

    if pa.types.is_null(given):
        return ""
    if pa.types.is_dictionary(given):
        return wrong_type(column, given.value_type)
    if column.kind is Kind.COUNTER:
        return "counters can't be loaded"
    if column.kind in _BY_COLUMN:
        try:
            arrow_cells.encode(column, from_spark(column, pa.array([], given)))
        except (ValueError, pa.ArrowException) as error:
            return str(error)
        return ""
    inner = _parts(column, given)
    if inner is None:
        return f"{given} can't be {column.name}"
    return next((why for element, part in inner if (why := wrong_type(element, part))), "")


def _parts(column: Type, given: Any) -> list[tuple[Type, Any]] | None:
    """Elements of a nested type with what is given for each; None where the two don't go together."""
    from pyarrow import types as kinds

    text = kinds.is_string(given) or kinds.is_large_string(given) or kinds.is_string_view(given)
    binary = kinds.is_binary(given) or kinds.is_large_binary(given) or kinds.is_fixed_size_binary(given)
    if binary:
        return []  # cells as they are; each is looked at
    if column.kind in (Kind.UUID, Kind.TIMEUUID, Kind.INET):
        return [] if text else None
    if column.kind in (Kind.VARINT, Kind.DECIMAL):
        return [] if kinds.is_decimal(given) or kinds.is_integer(given) else None
    if column.kind is Kind.DURATION:
        return [] if kinds.is_struct(given) or kinds.is_interval(given) else None
    if column.kind in (Kind.LIST, Kind.SET):
        listed = kinds.is_list(given) or kinds.is_large_list(given)
        return [(column.elements[0], given.value_type)] if listed else None
    if column.kind is Kind.MAP:
        mapped = kinds.is_map(given)
        return [(column.elements[0], given.key_type), (column.elements[1], given.item_type)] if mapped else None
    return _components(column, given) if kinds.is_struct(given) else None


def _components(column: Type, given: Any) -> list[tuple[Type, Any]] | None:
    """By name, or by place where a tuple's components have names of their own."""
    names = component_names(column)
    fields = {given.field(at).name: given.field(at).type for at in range(given.num_fields)}
    if len(fields) < given.num_fields:
        return None  # of two with one name only one could be meant
    if column.kind is Kind.TUPLE and not set(names) & set(fields):
        fields = dict(zip(names, fields.values(), strict=False)) if len(fields) <= len(names) else {}
    if not fields or set(fields) - set(names):
        return None
    return [(element, fields[name]) for name, element in zip(names, column.elements, strict=True) if name in fields]
