"""`trimtab tablets`: where the tablets of a table are, or of all tables; where those go that are under way; and what
`analyze` last found in them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import use

if TYPE_CHECKING:
    from trimtab.client.database import Database
    from trimtab.jobs.records import JobRecord

_LOOKED_AT = 2_000  # more jobs than the cluster keeps
_JOBS_S = 2.5
# What is left out first where a line is too short.
_DROPS = ("analyzed", "largest partition", "partitions", "after token", "to token", "then")


def add_to(app: typer.Typer) -> None:
    app.command("tablets")(with_contact(tablets))


def tablets(
    contact: Contact,
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="KEYSPACE.TABLE; default: all.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show every tablet: its tokens, who holds its replicas, where it goes, how large it is, what was found in it."""

    async def look(database: Database) -> list[dict[str, Any]]:
        return _with_analysis(await database.tablets(table), await _analyzed(database))

    shapes: list[dict[str, Any]] = use(contact, look)
    if as_json:
        print(json.dumps(shapes))
        return
    if not shapes:
        print("No tablets: there are no tables yet.")
        return
    from rich.text import Text

    from trimtab.cli.drawing import Fitting, console, in_bytes
    from trimtab.cli.moving import move_text

    moves = any(shape["stage"] for shape in shapes)
    plans = any(shape["planned"] for shape in shapes)
    sized = any(shape["bytes"] is not None for shape in shapes)
    columns = ["table", "tablet", "after token", "to token", "replicas"]
    known = any(shape["analyzed"] for shape in shapes)
    columns += ["moves"] * moves + ["then"] * plans + ["size"] * sized
    columns += ["rows", "partitions", "largest partition", "analyzed"] * known
    rows = []
    for shape in shapes:
        cells = [
            f"{shape['keyspace']}.{shape['table']}",
            str(shape["tablet"]),
            str(shape["first_token"]),
            str(shape["last_token"]),
            ", ".join(shape["replicas"]),
        ]
        if moves:
            cells.append(move_text(shape["move"], shape["stage"]) if shape["move"] else "")
        if plans:
            cells.append(", ".join(shape["planned"] or []))
        if sized:
            cells.append("" if shape["bytes"] is None else in_bytes(shape["bytes"]))
        if known and shape["analyzed"]:
            cells += [f"{shape['rows']:,}", f"{shape['partitions']:,}", in_bytes(shape["largest_partition_bytes"])]
            cells.append(shape["analyzed"].partition(".")[0].replace("T", " "))
        elif known:
            cells += [""] * 4
        rows.append(dict(zip(columns, map(Text, cells), strict=True)))
    console().print(Fitting(columns, rows, _DROPS))


async def _analyzed(database: Database) -> list[JobRecord]:
    """The jobs that analyzed tables, oldest first; none where they can't be had: the rest is worth showing alone."""
    from trimtab.client.errors import Error, InvalidRequest
    from trimtab.client.jobs import JobClient
    from trimtab.jobs.records import JobKind, JobState

    try:
        reply = await JobClient.on(database).show(limit=_LOOKED_AT, local=True, timeout_s=_JOBS_S)
    except InvalidRequest:
        return []  # a release that knows no jobs
    except Error as error:
        print(f"trimtab: what analyze found can't be shown now: {str(error).rstrip('.')}.", file=sys.stderr)
        return []
    return [
        job
        for job in reply.jobs
        if job.command.kind is JobKind.ANALYZE and job.state is JobState.SUCCEEDED and "tablets" in job.result
    ]


def _with_analysis(shapes: list[dict[str, Any]], jobs: Iterable[JobRecord]) -> list[dict[str, Any]]:
    """Every tablet with what was last found in it; null where that is not known."""
    from trimtab.topology.shapes import moment

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for job in jobs:
        for tablet, figures in job.result["tablets"].items():
            found[job.result["table"], tablet] = {**figures, "analyzed": moment(job.ended_ms)}
    for shape in shapes:
        known = found.get((f"{shape['keyspace']}.{shape['table']}", str(shape["tablet"])), {})
        shape |= {name: known.get(name) for name in ("rows", "partitions", "analyzed")}
        shape["largest_partition_bytes"] = known.get("largest")
    return shapes
