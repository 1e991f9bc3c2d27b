"""The table that a write goes to, made from the frame's columns if it is missing and the write says how.

A table that is there is never changed: the key that was asked for has to be the one it has. What is missing (keyspace,
types of structs, table) is made by one command, which the cluster carries out as a whole or not at all; and what can be
wrong with the frame is looked for before it. So a write that is refused leaves nothing in the way of the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from trimtab.catalog import commands, planning
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.commands import ColumnSpec, CreateKeyspace, CreateTable, CreateType
from trimtab.catalog.errors import SchemaError as Refused
from trimtab.catalog.schema import ColumnKind, Table
from trimtab.client.consistency import addresses_of
from trimtab.client.errors import InvalidRequest, NotFound, SchemaError
from trimtab.client.known import table_name
from trimtab.client.loop_thread import LoopThread
from trimtab.client.session import Session
from trimtab.rows.layout import RowLayout
from trimtab.spark.instances import tls_context
from trimtab.spark.options import Connection
from trimtab.spark.struct_types import StructTypes
from trimtab.spark.types import StructNamer, cql_type, names_alike
from trimtab.spark.write_options import Creation, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from trimtab.client.blocking import Database

DEFAULT_REPLICAS = 3  # or as many as there are instances
_ATTEMPTS = 5  # each after somebody else has made something of the same name


Check = Callable[[RowLayout], None]


def ensure_table(
    db: Database,
    options: WriteOptions,
    schema: Callable[[], StructType],
    instances: int,
    check: Check = lambda _: None,
) -> bool:
    """Make sure that the table is there; whether it was made. SchemaError or NotFound say what to do.

    `schema` is asked for what is to be made, and only then; `check` is shown the table before it is, and may raise.
    """
    create = options.create
    found = db.tables().get(options.table)
    if found is None and create is None:
        raise NotFound(
            f"there is no table {options.table}; make it first, or have it made from the columns of the frame with "
            'option("primaryKey", "...")'
        )
    made = create is not None and found is None and _make(db, options, create, schema(), instances, check)
    if create is not None and (there := found or db.tables().get(options.table)) is not None:
        # Somebody else may have been faster.
        _check_key(there, create)
    return made


def _make(
    db: Database, options: WriteOptions, create: Creation, schema: StructType, instances: int, check: Check
) -> bool:
    """Whether it was made here. Nothing was if it raises, unless that is Timeout: then nobody knows."""

    def wanted() -> commands.Bulk:
        command = creation(db.catalog, options.table, create, schema, min(DEFAULT_REPLICAS, instances))
        layout = layout_made(db.catalog, command, options.table)
        if layout is not None:
            check(layout)
        return command

    command = wanted()
    for _ in range(_ATTEMPTS):
        try:
            change(options.connection, command)
            return True
        except SchemaError as error:
            if options.table in db.tables():
                return False
            refused, command = command, wanted()
            if command == refused:
                raise SchemaError(re.sub(r"^command \d+ of \d+: ", "", str(error))) from None
    raise SchemaError(f"{options.table} can't be made while others change its keyspace; write again")


def creation(there: Catalog, name: str, create: Creation, schema: StructType, replicas: int) -> commands.Bulk:
    """The command that makes a missing table for rows of this schema, and all it needs. `replicas`: by default."""
    keyspace, table = table_name(name)
    structs = StructTypes(keyspace, table, there.types_of(keyspace))
    columns = new_columns(create, schema, name, structs.name)
    parts: list[commands.Single] = []
    if keyspace not in there.keyspaces:
        replication = replicas if create.replication is None else create.replication
        wanted = replication if isinstance(replication, int) else dict(replication)
        parts.append(CreateKeyspace(keyspace, wanted, if_not_exists=True))
    parts += [CreateType(keyspace, each.name, list(each.fields)) for each in structs.made]
    specs = [ColumnSpec(column, kind, column in create.static) for column, kind in columns.items()]
    parts.append(
        CreateTable(
            keyspace, table, specs, list(create.partition), list(create.clustering), tablets=create.tablets or 0
        )
    )
    return commands.Bulk(parts)


def layout_made(there: Catalog, command: commands.Bulk, name: str) -> RowLayout | None:
    """The table that such a command makes; None where the cluster will refuse it, and say why."""
    # Where its replicas are to be is not known here, and does not matter.
    parts = [
        CreateKeyspace(each.name, 1, if_not_exists=True) if isinstance(each, CreateKeyspace) else each
        for each in command.commands
    ]
    try:
        update = planning.plan(there, commands.Bulk(parts), 0, (), lambda _: 1)
    except Refused:
        return None
    made = there if update is None else there.apply(update)
    table = made.table(name)
    return RowLayout(table, made.types_of(table.keyspace))


def change(connection: Connection, command: commands.Command) -> None:
    """Change the schema, as a whole or not at all: SchemaError says why not."""
    try:
        encoded = commands.encode(command)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"this can't be said in a command: {error}") from None
    thread = LoopThread()
    try:
        session = thread.session = thread.call(
            lambda: Session.open(
                addresses_of(connection.peer), tls=tls_context(connection), timeout_s=connection.timeout_s
            )
        )
        thread.call(lambda: session.change(encoded, None))
    finally:
        thread.close()


def new_columns(create: Creation, schema: StructType, table: str, user_type: StructNamer) -> dict[str, str]:
    """The columns of a table for rows of this schema, by CQL's types."""
    if alike := names_alike(schema.names):
        raise SchemaError(f"{table}: the frame has the columns {alike}, which Spark can't tell apart; rename one")
    columns = {field.name: cql_type(field.dataType, field.name, user_type) for field in schema.fields}
    keys = [*create.partition, *(name for name, _ in create.clustering)]
    if missing := [name for name in (*keys, *create.static) if name not in columns]:
        raise SchemaError(
            f"{table}: the frame has no column {', '.join(missing)}, which the options name; it has "
            f"{', '.join(columns)}"
        )
    for name in keys:
        if columns[name].startswith(("list<", "map<", "set<")):
            columns[name] = f"frozen<{columns[name]}>"
    return columns


def _check_key(table: Table, create: Creation) -> None:
    partition = tuple(column.name for column in table.of_kind(ColumnKind.PARTITION))
    clustering = tuple((column.name, column.descending) for column in table.of_kind(ColumnKind.CLUSTERING))
    if (partition, clustering) != (create.partition, create.clustering):
        raise SchemaError(
            f"{table.full_name} is there with the primary key {_shown(partition, clustering)}, not "
            f"{_shown(create.partition, create.clustering)}; leave out the option primaryKey, or name another table"
        )


def _shown(partition: tuple[str, ...], clustering: tuple[tuple[str, bool], ...]) -> str:
    return ",".join([f"({','.join(partition)})", *(f"{name}{' desc' if desc else ''}" for name, desc in clustering)])
