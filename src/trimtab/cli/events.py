"""`trimtab events`: what happened in the cluster, each step with its why; the newest come last."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.asking import ask, present_view, warn_if_stale
from trimtab.cli.contact import Contact, JsonOption, with_contact

if TYPE_CHECKING:
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.records import EventRecord


def add_to(app: typer.Typer) -> None:
    app.command("events")(with_contact(events))


def events(
    contact: Contact,
    limit: Annotated[int, typer.Option("--limit", min=0, max=10_000, help="How many of the newest.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those that happen.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what happened in the cluster, and why; the newest come last."""
    ask(contact, lambda client: _show(client, limit, follow, as_json))


async def _show(client: ClusterClient, limit: int, follow: bool, as_json: bool) -> None:
    seen = await present_view(client)
    warn_if_stale(seen)
    last = max(seen.view.last_event - limit, 0)
    # Without a majority there is nothing to follow, but what is known can still be read.
    for number, event in await client.events(limit=limit, linearizable=not seen.stale) if limit else []:
        print(line_of(number, event, as_json), flush=True)
        last = number
    if follow:
        async for number, event in client.follow_events(last if limit else seen.view.last_event):
            print(line_of(number, event, as_json), flush=True)


def line_of(number: int, event: EventRecord, as_json: bool) -> str:
    """An event as a line: for a program, or with the local time for a person."""
    from trimtab.topology import shapes

    if as_json:
        return json.dumps(shapes.event(number, event))
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_ms // 1000))
    return f"{number:>6}  {when}.{event.at_ms % 1000:03d}  {event.kind:<10}  {event.text}"
