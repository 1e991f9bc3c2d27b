"""`trimtab tablets`: where the tablets of a table are, or of all tables."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import use


def add_to(app: typer.Typer) -> None:
    app.command("tablets")(with_contact(tablets))


def tablets(
    contact: Contact,
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="KEYSPACE.TABLE; default: all.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show every tablet: the tokens it covers, which instances hold its replicas, and how large the largest is."""
    shapes: list[dict[str, Any]] = use(contact, lambda database: database.tablets(table))
    if as_json:
        print(json.dumps(shapes))
        return
    if not shapes:
        print("No tablets: there are no tables yet.")
        return
    from rich.text import Text

    from trimtab.cli.drawing import console, in_bytes
    from trimtab.cli.drawing import table as draw

    moves = any(shape["stage"] for shape in shapes)
    sized = any(shape["bytes"] is not None for shape in shapes)
    columns = ["table", "tablet", "after token", "to token", "replicas"]
    columns += ["stage", "pending"] * moves + ["size"] * sized
    made = draw(*columns)
    for shape in shapes:
        cells = [
            f"{shape['keyspace']}.{shape['table']}",
            str(shape["tablet"]),
            str(shape["first_token"]),
            str(shape["last_token"]),
            ", ".join(shape["replicas"]),
        ]
        if moves:
            cells += [shape["stage"] or "", ", ".join(shape["pending"] or [])]
        if sized:
            cells.append("" if shape["bytes"] is None else in_bytes(shape["bytes"]))
        made.add_row(*map(Text, cells))
    console().print(made)
