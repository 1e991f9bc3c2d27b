"""The schema for people: as CQL that would make it again, and as JSON.

The CQL is CQL's own wherever CQL has words for it. `tablets` and `history_s` are ours; a CQL door has to know them.
JSON fields may be added, not renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.names import quoted
from trimtab.catalog.schema import Column, ColumnKind, Keyspace, Table, TableOptions, UserType
from trimtab.catalog.types import parse

Shape = dict[str, Any]
_INDENT = "    "


def keyspace_cql(catalog: Catalog, name: str) -> str:
    """A keyspace with everything in it, in an order in which it can be run."""
    parts = [create_keyspace(catalog.keyspaces[name])]
    parts += [create_type(user_type) for user_type in in_order_of_use(catalog.types_of(name))]
    parts += [create_table(table) for table in catalog.tables_of(name)]
    return "\n\n".join(parts)


def create_keyspace(keyspace: Keyspace) -> str:
    replication = {"class": "NetworkTopologyStrategy", **{dc: str(n) for dc, n in keyspace.replication.items()}}
    return f"CREATE KEYSPACE {quoted(keyspace.name)} WITH replication = {_map(replication)};"


def create_type(user_type: UserType) -> str:
    fields = ",\n".join(f"{_INDENT}{quoted(name)} {text}" for name, text in user_type.fields)
    return f"CREATE TYPE {quoted(user_type.keyspace)}.{quoted(user_type.name)} (\n{fields}\n);"


def create_table(table: Table) -> str:
    lines = [
        f"{_INDENT}{quoted(column.name)} {column.type}{' static' if column.kind is ColumnKind.STATIC else ''}"
        for column in in_order(table)
    ]
    partition = ", ".join(quoted(column.name) for column in table.of_kind(ColumnKind.PARTITION))
    clustering = table.of_kind(ColumnKind.CLUSTERING)
    if len(table.of_kind(ColumnKind.PARTITION)) > 1:
        partition = f"({partition})"
    key = ", ".join([partition, *(quoted(column.name) for column in clustering)])
    body = ",\n".join([*lines, f"{_INDENT}PRIMARY KEY ({key})"])
    properties = _properties(table)
    if clustering:
        order = ", ".join(f"{quoted(column.name)} {_direction(column)}" for column in clustering)
        properties.insert(0, f"CLUSTERING ORDER BY ({order})")
    name = f"{quoted(table.keyspace)}.{quoted(table.name)}"
    return f"CREATE TABLE {name} (\n{body}\n) WITH {f'{chr(10)}{_INDENT}AND '.join(properties)};"


def _properties(table: Table) -> list[str]:
    options = table.options
    properties = [
        f"comment = {_literal(options.comment)}",
        f"default_time_to_live = {options.default_ttl_s}",
        f"gc_grace_seconds = {options.gc_grace_s}",
        f"history_s = {options.history_s}",
        f"speculative_retry = {_literal(options.speculative_retry)}",
        f"tablets = {table.tablets}",
    ]
    if options.extensions:
        properties.append(f"extensions = {_map(options.extensions)}")
    return properties


def _direction(column: Column) -> str:
    return "DESC" if column.descending else "ASC"


def _literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _map(pairs: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_literal(key)}: {_literal(value)}" for key, value in pairs.items()) + "}"


def in_order(table: Table) -> list[Column]:
    """Keys first, in their order; then static columns, then the others."""
    return [column for kind in ColumnKind for column in table.of_kind(kind)]


def in_order_of_use(udts: Mapping[str, UserType]) -> list[UserType]:
    """Every type after those it is made of."""

    def depth(user_type: UserType) -> tuple[int, str]:
        return parse(f'"{user_type.name}"', udts).depth, user_type.name

    return sorted(udts.values(), key=depth)


# JSON


def keyspace_shape(catalog: Catalog, name: str) -> Shape:
    keyspace = catalog.keyspaces[name]
    return {
        "keyspace": keyspace.name,
        "replication": dict(keyspace.replication),
        "mode": keyspace.mode.value,
        "version": keyspace.version,
        "tables": [table.name for table in catalog.tables_of(name)],
        "types": [type_shape(user_type) for user_type in in_order_of_use(catalog.types_of(name))],
    }


def type_shape(user_type: UserType) -> Shape:
    return {
        "keyspace": user_type.keyspace,
        "type": user_type.name,
        "fields": [{"name": name, "type": text} for name, text in user_type.fields],
        "version": user_type.version,
    }


def table_shape(table: Table) -> Shape:
    return {
        "keyspace": table.keyspace,
        "table": table.name,
        "id": table.id,
        "version": table.version,
        "tablets": table.tablets,
        "columns": [column_shape(column) for column in in_order(table)],
        "partition_key": [column.name for column in table.of_kind(ColumnKind.PARTITION)],
        "clustering_key": [column.name for column in table.of_kind(ColumnKind.CLUSTERING)],
        "options": options_shape(table.options),
    }


def column_shape(column: Column) -> Shape:
    shape: Shape = {
        "id": column.id,
        "name": column.name,
        "type": column.type,
        "kind": column.kind.value,
        "position": column.position,
    }
    if column.kind is ColumnKind.CLUSTERING:
        shape["order"] = _direction(column).lower()
    return shape


def options_shape(options: TableOptions) -> Shape:
    return {
        "comment": options.comment,
        "default_ttl_s": options.default_ttl_s,
        "gc_grace_s": options.gc_grace_s,
        "history_s": options.history_s,
        "speculative_retry": options.speculative_retry,
        "extensions": dict(options.extensions),
    }
