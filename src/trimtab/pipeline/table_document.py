"""`schema.json` of an export: what is needed to make the table again, and which files hold its rows.

    {"format": "trimtab-export", "version": 1,
     "keyspace": {…replication…}, "types": […], "table": {…columns, keys, options, tablets…}, "cql": "CREATE TABLE …",
     "export": {"job", "as_of_us", "epoch", "rows", "bytes", "files": [{"name", "tablet", "rows", "bytes"}], …}}

It is written last: a directory without it is no export. `job` is the name of the job that made it, by which another
attempt at it knows its own work. Fields may be added, not renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trimtab.catalog import describe
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.commands import Bulk, ColumnSpec, CreateKeyspace, CreateTable, CreateType
from trimtab.catalog.schema import Table
from trimtab.client.errors import InvalidRequest, SchemaError
from trimtab.client.known import table_name
from trimtab.rows.layout import RowLayout

if TYPE_CHECKING:
    from trimtab.client.blocking import Database

FORMAT = "trimtab-export"
VERSION = 1
NAME = "schema.json"
DATA = "data"


def document(catalog: Catalog, table: Table, export: Mapping[str, Any]) -> dict[str, Any]:
    """All that has to be known to make the table again."""
    keyspace = describe.keyspace_shape(catalog, table.keyspace)
    types = describe.in_order_of_use(catalog.types_of(table.keyspace))
    return {
        "format": FORMAT,
        "version": VERSION,
        "keyspace": {name: keyspace[name] for name in ("keyspace", "replication", "mode")},
        "types": [describe.type_shape(each) for each in types],
        "table": describe.table_shape(table),
        "cql": "\n\n".join([*(describe.create_type(each) for each in types), describe.create_table(table)]),
        "export": dict(export),
    }


def checked(found: Any, where: str) -> dict[str, Any]:
    """What was read from a schema.json; InvalidRequest if it is none that this version can read."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidRequest(f"{where} is no {NAME} of an export")
    if not isinstance(found.get("version"), int) or not 1 <= found["version"] <= VERSION:
        raise InvalidRequest(f"{where} is of version {found.get('version')}; this release reads up to {VERSION}")
    for name, kind in (("keyspace", dict), ("types", list), ("table", dict), ("export", dict)):
        if not isinstance(found.get(name), kind):
            raise InvalidRequest(f"{where} has no '{name}'; is it whole?")
    return found


def make(
    database: Database, found: Mapping[str, Any], name: str, check: Callable[[RowLayout], None] = lambda _: None
) -> bool:
    """Make the table (and what it needs) under this name if it is missing; whether it was.

    `check` is shown the table before anything is made, and may raise. A keyspace that is there stays as it is.
    SchemaError: a table is there that lacks columns, or has another key.
    """
    keyspace, _ = table_name(name)
    there = database.tables().get(name)
    if there is not None:
        _compare(there, found["table"])
        return False
    if (layout := _layout(database.catalog, found, name)) is not None:
        check(layout)
    if keyspace not in database.keyspaces():
        database.create_keyspace(keyspace, replication=dict(found["keyspace"]["replication"]), if_not_exists=True)
    for each in found["types"]:
        fields = {field["name"]: field["type"] for field in each["fields"]}
        database.create_type(f"{keyspace}.{each['type']}", fields, if_not_exists=True)
    shape = found["table"]
    database.create_table(
        name,
        {column["name"]: column["type"] for column in shape["columns"]},
        primary_key=[list(shape["partition_key"]), *shape["clustering_key"]],
        order={each["name"]: each["order"] for each in shape["columns"] if each.get("order") == "desc"},
        static=[each["name"] for each in shape["columns"] if each["kind"] == "static"],
        tablets=shape["tablets"],
        if_not_exists=True,
        **{option: value for option, value in shape["options"].items() if value not in ("", {}, None)},
    )
    return True


def _layout(there: Catalog, found: Mapping[str, Any], name: str) -> RowLayout | None:
    """The table as it will be; None where the cluster will refuse it, and say why."""
    from trimtab.spark.creating import layout_made

    keyspace, table = table_name(name)
    shape = found["table"]
    kinds = {each["name"]: each for each in shape["columns"]}
    types = [
        CreateType(keyspace, each["type"], [(field["name"], field["type"]) for field in each["fields"]], True)
        for each in found["types"]
    ]
    made = CreateTable(
        keyspace,
        table,
        [ColumnSpec(column, each["type"], each["kind"] == "static") for column, each in kinds.items()],
        list(shape["partition_key"]),
        [(column, kinds[column].get("order") == "desc") for column in shape["clustering_key"]],
        tablets=shape["tablets"],
    )
    return layout_made(there, Bulk([CreateKeyspace(keyspace, 1, if_not_exists=True), *types, made]), name)


def _compare(there: Table, shape: Mapping[str, Any]) -> None:
    own = describe.table_shape(there)
    for kind in ("partition_key", "clustering_key"):
        if list(own[kind]) != list(shape[kind]):
            raise SchemaError(
                f"{there.full_name} has the {kind.replace('_', ' ')} ({_names(own[kind])}), the export has "
                f"({_names(shape[kind])}); load it into another table"
            )
    types = {each["name"]: each["type"] for each in own["columns"]}
    for column in shape["columns"]:
        if types.get(column["name"]) != column["type"]:
            raise SchemaError(
                f"{there.full_name}.{column['name']} is {types.get(column['name'], 'missing')} there, and "
                f"{column['type']} in the export; load it into another table"
            )


def _names(columns: Iterable[str]) -> str:
    return ", ".join(columns)
