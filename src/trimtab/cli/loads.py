"""`trimtab loads …`: see the loads of tables, and go back to what a table held before it was overwritten."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import TableArgument, use
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.database import Database
    from trimtab.client.loads import LoadClient

T = TypeVar("T")
_STYLE = {"published": "green", "aborted": "red", "rolled_back": "yellow", "staging": "cyan", "committed": "cyan"}


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="See the loads of tables; undo an overwrite.", no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (list_, rollback)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(with_contact(command))
    app.add_typer(group, name="loads")


def list_(
    contact: Contact,
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="Only those of this table.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show the loads of a table, or of all: those under way, and the last that ended."""
    from trimtab.loads import shapes

    async def look(client: LoadClient) -> dict[str, Any]:
        number = _table_id(client, table) if table else 0
        return shapes.listing(await client.show(number), *_names(client))

    found = _with_loads(contact, look)
    if as_json:
        print(json.dumps(found))
        return
    if not found["loads"]:
        print("No loads: nothing was loaded yet.")
        return
    from rich.text import Text

    from trimtab.cli.drawing import console, in_bytes
    from trimtab.cli.drawing import table as drawn

    made = drawn("load", "table", "kind", "state", "epoch", "rows", "bytes", "begun", "why", wraps=("why",))
    for load in found["loads"]:
        made.add_row(
            load["id"],
            load["table"],
            load["kind"],
            Text(load["state"], _STYLE.get(load["state"], "")),
            str(load["epoch"] or ""),
            str(load["rows"]),
            in_bytes(load["bytes"]),
            (load["begun"] or "").partition(".")[0].replace("T", " "),
            Text(load["reason"] or load["who"]),
        )
    console().print(made)


def rollback(
    contact: Contact,
    table: TableArgument,
    load: Annotated[str, typer.Argument(metavar="LOAD", help="The newest overwrite, by its id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Go back to what a table held before an overwrite; loads and writes since then are dropped, at once."""
    from trimtab.loads import shapes

    async def ask(client: LoadClient, apply: bool) -> dict[str, Any]:
        found = await client.rollback(_table_id(client, table), load, apply=apply)
        return shapes.rollback(found, *_names(client))

    told = _with_loads(contact, lambda client: ask(client, False))
    if not as_json:
        print(_what_goes(told))
    if not yes:
        if as_json or not sys.stdin.isatty():
            if as_json:
                print(json.dumps(told))
            raise CommandFailed("nothing was done: give --yes to do it.")
        typer.confirm("Do it?", abort=True)
    done = _with_loads(contact, lambda client: ask(client, True))
    print(json.dumps(done) if as_json else f"Done: {done['table']} serves generation {done['generation']} again.")


def _what_goes(told: dict[str, Any]) -> str:
    first, *later = told["drops"]
    since = told["drops_writes_since"]
    lines = [f"Rolling back overwrite {first['id']} of {told['table']} drops:", f"  its {first['rows']} rows"]
    lines += [f"  load {each['id']} ({each['kind']}, {each['rows']} rows, {each['published']})" for each in later[:20]]
    if len(later) > 20:
        lines.append(f"  {len(later) - 20} more loads since")
    lines.append(f"  every write since it could be seen ({since})")
    return "\n".join(lines)


def _with_loads(contact: Contact, work: Callable[[LoadClient], Awaitable[T]]) -> T:
    from trimtab.client.loads import LoadClient

    async def on(database: Database) -> T:
        return await work(LoadClient.on(database))

    return use(contact, on)


def _table_id(client: LoadClient, name: str) -> int:
    for table in client.catalog.tables.values():
        if table.full_name == name:
            return table.id
    raise CommandFailed(f"there is no table '{name}'; `trimtab tables list` shows those there are.")


def _names(client: LoadClient) -> tuple[Callable[[int], str], dict[int, str]]:
    tables = client.catalog.tables
    instances = {raft_id: member.instance_id for raft_id, member in client.instances.items()}
    return lambda table: tables[table].full_name if table in tables else f"table {table}", instances
