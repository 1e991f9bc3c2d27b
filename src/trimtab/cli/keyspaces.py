"""`trimtab keyspaces …`: list, create, alter, drop and describe keyspaces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import (
    IfExistsOption,
    IfNotExistsOption,
    KeyspaceArgument,
    replication_of,
    tell_waiting,
    use,
)
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.catalog.catalog import Catalog
    from trimtab.client.database import Database

ReplicationOption = Annotated[
    str,
    typer.Option("--replication", metavar="N|DC=N,…", help="How many replicas: 3, or by data centre dc1=3,dc2=2."),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="List, create, alter, drop and describe keyspaces.", no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (list_, create, alter, drop, describe)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(with_contact(command))
    app.add_typer(group, name="keyspaces")


async def catalog_of(database: Database) -> Catalog:
    """The schema as it is now."""
    await database.refresh()
    return database.catalog


def list_(contact: Contact, as_json: JsonOption = False) -> None:
    """Show all keyspaces."""
    from trimtab.catalog import describe as describing

    catalog = use(contact, catalog_of)
    shapes = [describing.keyspace_shape(catalog, name) for name in sorted(catalog.keyspaces)]
    if as_json:
        print(json.dumps(shapes))
        return
    if not shapes:
        print("No keyspaces yet: `trimtab keyspaces create shop --replication 3` makes one.")
        return
    from trimtab.cli.drawing import console, table

    made = table("keyspace", "replication", "mode", "tables", wraps=("tables",))
    for shape in shapes:
        made.add_row(shape["keyspace"], _shown(shape["replication"]), shape["mode"], ", ".join(shape["tables"]))
    console().print(made)


def create(
    contact: Contact,
    keyspace: KeyspaceArgument,
    replication: ReplicationOption,
    mode: Annotated[str, typer.Option("--mode", help="eventual or strong.")] = "eventual",
    if_not_exists: IfNotExistsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a keyspace: trimtab keyspaces create shop --replication 3."""
    wanted = replication_of(replication)
    waiting = use(
        contact,
        lambda database: database.create_keyspace(
            keyspace, replication=wanted, mode=mode, if_not_exists=if_not_exists, timeout=contact.timeout_s
        ),
    )
    done(waiting, f"keyspace {keyspace} exists", as_json, keyspace=keyspace)


def alter(
    contact: Contact, keyspace: KeyspaceArgument, replication: ReplicationOption, as_json: JsonOption = False
) -> None:
    """Change a keyspace's replication."""
    wanted = replication_of(replication)
    waiting = use(
        contact,
        lambda database: database.alter_keyspace(keyspace, replication=wanted, timeout=contact.timeout_s),
    )
    done(waiting, f"keyspace {keyspace} is changed", as_json, keyspace=keyspace)


def drop(
    contact: Contact, keyspace: KeyspaceArgument, if_exists: IfExistsOption = False, as_json: JsonOption = False
) -> None:
    """Drop a keyspace with all its tables, types and rows."""
    waiting = use(
        contact,
        lambda database: database.drop_keyspace(keyspace, if_exists=if_exists, timeout=contact.timeout_s),
    )
    done(waiting, f"keyspace {keyspace} is gone", as_json, keyspace=keyspace)


def describe(contact: Contact, keyspace: KeyspaceArgument, as_json: JsonOption = False) -> None:
    """Show a keyspace with everything in it, as CQL that would make it again."""
    from trimtab.catalog import describe as describing

    catalog = use(contact, catalog_of)
    if keyspace not in catalog.keyspaces:
        there = ", ".join(sorted(catalog.keyspaces)) or "none"
        raise CommandFailed(f"there is no keyspace '{keyspace}'; keyspaces: {there}.")
    if as_json:
        shape = describing.keyspace_shape(catalog, keyspace)
        shape["tables"] = [describing.table_shape(table) for table in catalog.tables_of(keyspace)]
        print(json.dumps(shape))
    else:
        print(describing.keyspace_cql(catalog, keyspace))


def done(waiting: list[str], text: str, as_json: bool, **named: str) -> None:
    """Say that a change of the schema is done."""
    tell_waiting(waiting)
    if as_json:
        print(json.dumps({**named, "waiting": waiting}))
    else:
        print(f"{text[0].upper()}{text[1:]}.")


def _shown(replication: dict[str, int]) -> str:
    return ", ".join(f"{dc}={count}" for dc, count in replication.items())
