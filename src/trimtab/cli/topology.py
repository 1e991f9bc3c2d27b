"""`trimtab topology`: the topology as data, with the columns of `system.topology`, one row for each instance."""

from __future__ import annotations

import json
from typing import Any

import typer

from trimtab.cli.asking import ask, present_view, warn_if_stale
from trimtab.cli.contact import Contact, JsonOption, with_contact

_SHOWN = (
    "instance_id",
    "host_id",
    "datacenter",
    "rack",
    "node_state",
    "topology_request",
    "release_version",
    "replaced_id",
    "ignore_nodes",
)
# Shown even if they are empty for all; the others only if one has something there. JSON has all columns.
_ALWAYS = frozenset(("instance_id", "host_id", "datacenter", "rack", "node_state", "topology_request"))


def add_to(app: typer.Typer) -> None:
    app.command("topology")(with_contact(topology))


def topology(contact: Contact, as_json: JsonOption = False) -> None:
    """Show the topology as the cluster keeps it: node states, requests and the transition under way."""
    from trimtab.topology import shapes

    seen = ask(contact, present_view)
    warn_if_stale(seen)
    shape = shapes.topology(seen.view)
    if as_json:
        print(json.dumps(shape))
        return
    from rich.text import Text

    from trimtab.cli.drawing import console, table

    out = console()
    for key, value in shape.items():
        if key != "nodes" and value not in (None, []):
            out.print(Text(f"{key}: {_cell(value)}"))
    columns = [column for column in _SHOWN if column in _ALWAYS or any(row[column] for row in shape["nodes"])]
    made = table(*columns, wraps=("ignore_nodes",))
    for row in shape["nodes"]:
        made.add_row(*(Text(_cell(row[column])) for column in columns))
    out.print(made)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)
