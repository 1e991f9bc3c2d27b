"""`trimtab tables …`: list, create, alter, drop and describe tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import IfExistsOption, IfNotExistsOption, TableArgument, pairs_of, use
from trimtab.cli.errors import CommandFailed, WrongUsage
from trimtab.cli.keyspaces import catalog_of, done
from trimtab.cli.table_definition import Definition, parse

ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", metavar='"NAME TYPE"', help="A column; may be repeated.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the table, such as gc_grace_s=3600."),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="List, create, alter, drop and describe tables.", no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (list_, create, alter, drop, describe)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(with_contact(command))
    app.add_typer(group, name="tables")


def list_(
    contact: Contact,
    keyspace: Annotated[str, typer.Argument(metavar="[KEYSPACE]", help="Only those of this keyspace.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show all tables."""
    from trimtab.catalog import describe as describing

    catalog = use(contact, catalog_of)
    if keyspace and keyspace not in catalog.keyspaces:
        there = ", ".join(sorted(catalog.keyspaces)) or "none"
        raise CommandFailed(f"there is no keyspace '{keyspace}'; keyspaces: {there}.")
    found = sorted(
        (each for each in catalog.tables.values() if keyspace in ("", each.keyspace)), key=lambda each: each.full_name
    )
    shapes = [describing.table_shape(each) for each in found]
    if as_json:
        print(json.dumps(shapes))
        return
    if not shapes:
        print('No tables yet: `trimtab tables create shop.users "id bigint primary key, name text"` makes one.')
        return
    from trimtab.cli.drawing import console, table

    made = table("table", "primary key", "other columns", "tablets", wraps=("primary key", "other columns"))
    for shape in shapes:
        keys = {*shape["partition_key"], *shape["clustering_key"]}
        others = ", ".join(f"{each['name']} {each['type']}" for each in shape["columns"] if each["name"] not in keys)
        made.add_row(f"{shape['keyspace']}.{shape['table']}", _key(shape), others, str(shape["tablets"]))
    console().print(made)


def create(
    contact: Contact,
    table: TableArgument,
    definition: Annotated[
        str,
        typer.Argument(metavar="[DEFINITION]", help='All in one: "id bigint, name text, primary key (id)".'),
    ] = "",
    column: ColumnOption = None,
    primary_key: Annotated[
        str, typer.Option("--primary-key", metavar="KEY", help='id, or "a, b desc" (partition key a), or "(a, b), c".')
    ] = "",
    static: Annotated[
        list[str] | None, typer.Option("--static", metavar="COLUMN", help="A column of the partition; repeatable.")
    ] = None,
    tablets: Annotated[int, typer.Option("--tablets", min=0, help="A power of two; 0: the cluster chooses.")] = 0,
    option: OptionOption = None,
    if_not_exists: IfNotExistsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a table: trimtab tables create shop.users "id bigint primary key, name text"."""
    found = parse(definition) if definition else Definition()
    for each in column or []:
        found.add_column(each)
    if primary_key:
        found.set_key(primary_key)
    found.static += [name for name in static or [] if name not in found.static]
    if not found.columns:
        raise WrongUsage(
            'a table has columns: give --column "id bigint" --primary-key id, or "id bigint primary key, name text".'
        )
    if not found.partition:
        raise WrongUsage("a table has a primary key: give --primary-key id, or say it in the definition.")
    options = pairs_of(option or [], "option", "comment=people")
    waiting = use(
        contact,
        lambda database: database.create_table(
            table,
            found.columns,
            primary_key=found.primary_key,
            static=found.static,
            tablets=tablets or None,
            if_not_exists=if_not_exists,
            timeout=contact.timeout_s,
            **_free(options),
        ),
    )
    done(waiting, f"table {table} exists", as_json, table=table)


def alter(
    contact: Contact,
    table: TableArgument,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar='"NAME TYPE"', help="A new column; may be repeated.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="COLUMN", help="A column to drop; may be repeated.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="A key column's new name; repeatable.")
    ] = None,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add, drop or rename columns, or change options: trimtab tables alter shop.users --add "age int"."""
    found = Definition()
    for each in add or []:
        found.add_column(each)
    if found.partition:
        raise WrongUsage("the primary key of a table can't be changed.")
    renamed = pairs_of(rename or [], "new name", "old=new")
    options = pairs_of(option or [], "option", "comment=people")
    if not (found.columns or drop or renamed or options):
        raise WrongUsage("nothing to change is given: --add, --drop, --rename or --option.")
    waiting = use(
        contact,
        lambda database: database.alter_table(
            table,
            add=found.columns,
            drop=drop or [],
            rename=renamed,
            static=found.static,
            timeout=contact.timeout_s,
            **_free(options),
        ),
    )
    done(waiting, f"table {table} is changed", as_json, table=table)


def drop(
    contact: Contact, table: TableArgument, if_exists: IfExistsOption = False, as_json: JsonOption = False
) -> None:
    """Drop a table with all its rows."""
    waiting = use(contact, lambda database: database.drop_table(table, if_exists=if_exists, timeout=contact.timeout_s))
    done(waiting, f"table {table} is gone", as_json, table=table)


def describe(contact: Contact, table: TableArgument, as_json: JsonOption = False) -> None:
    """Show a table as CQL that would make it again."""
    from trimtab.catalog import describe as describing
    from trimtab.client.database import Database

    async def look(database: Database) -> Any:
        await database.refresh()
        return database.table(table).schema

    found = use(contact, look)
    print(json.dumps(describing.table_shape(found)) if as_json else describing.create_table(found))


def _key(shape: dict[str, Any]) -> str:
    partition = ", ".join(shape["partition_key"])
    if len(shape["partition_key"]) > 1:
        partition = f"({partition})"
    orders = {each["name"]: each.get("order") for each in shape["columns"]}
    clustering = [f"{name} desc" if orders[name] == "desc" else name for name in shape["clustering_key"]]
    return ", ".join([partition, *clustering])


def _free(options: dict[str, str]) -> dict[str, Any]:
    """Options that are not also parameters of the call."""
    for name in options:
        if name in ("primary_key", "order", "static", "tablets", "if_not_exists", "timeout", "add", "drop", "rename"):
            raise WrongUsage(f"{name} is no option of a table; see --help for how to say it.")
    return dict(options)
