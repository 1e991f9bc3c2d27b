"""`trimtab probe`: a request without data, on the way every data request takes: router, stamp, fence, lease, replica.

It says whether an instance would serve now, and if not, why. Whoever is asked routes it: --peer chooses the router.
"""

from __future__ import annotations

import enum
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.asking import IdArgument, ask, instance_named
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.protocol import ProbeReply


class LevelName(enum.Enum):
    """The consistency levels, as they are written."""

    ONE = "ONE"
    QUORUM = "QUORUM"


def add_to(app: typer.Typer) -> None:
    app.command("probe")(with_contact(probe))


def probe(
    contact: Contact,
    instance_id: IdArgument,
    level: Annotated[
        LevelName, typer.Option("--level", case_sensitive=False, help="ONE may be stale, QUORUM needs a lease.")
    ] = LevelName.QUORUM,
    as_json: JsonOption = False,
) -> int:
    """Ask an instance for an answer without data: would it serve now?"""
    from trimtab.topology.protocol import Level

    async def ask_it(client: ClusterClient) -> tuple[ProbeReply, float]:
        target = instance_named(await client.view(linearizable=False), instance_id)
        if target.record.left:
            raise CommandFailed(f"{instance_id} has left the cluster for good, so it serves nothing.")
        began = time.monotonic()
        reply = await client.probe(target.raft_id, Level[level.value])
        return reply, (time.monotonic() - began) * 1000

    reply, took_ms = ask(contact, ask_it, follow_leader=False)
    if as_json:
        answer = {"instance_id": instance_id, "raft_id": reply.raft_id, "topology_version": reply.version}
        answer |= {"stale": reply.stale, "applied": reply.applied, "level": level.value, "ms": round(took_ms, 3)}
        print(json.dumps(answer))
    else:
        fresh = "maybe stale: it has no lease" if reply.stale else "under its lease"
        print(
            f"{instance_id} answered at {level.value}, {fresh}, by topology version {reply.version}, "
            f"with everything applied up to {reply.applied} ({took_ms:.1f} ms)."
        )
    return 0
