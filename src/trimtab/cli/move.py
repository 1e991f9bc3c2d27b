"""`trimtab move`: a replica of a tablet from one instance to another, or back from where it was going.

The cluster carries it out by itself: whoever asked may leave. What can't be is refused with the reason; what would be
unwise (two replicas on one host, fewer racks, more than the target has room for) needs --force.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.database import TableArgument, use
from trimtab.cli.errors import WrongUsage

if TYPE_CHECKING:
    from trimtab.client.database import Database
    from trimtab.client.moves import Ended


def add_to(app: typer.Typer) -> None:
    app.command("move")(with_contact(move))


def move(
    contact: Contact,
    table: TableArgument,
    tablet: Annotated[int, typer.Argument(metavar="TABLET", min=0, help="Its number; `trimtab tablets` lists them.")],
    source: Annotated[str, typer.Option("--from", metavar="ID", help="The instance that gives its replica up.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="ID", help="The instance that gets it.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Give up on what is under way with the tablet.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Although hosts, racks or space speak against it.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is done, not when it is written down.")] = False,
    why: Annotated[str, typer.Option("--why", help="A few words for those who read the events later.")] = "",
    as_json: JsonOption = False,
) -> int:
    """Move a replica of a tablet from one instance to another, or undo what is under way with it."""
    from trimtab.cli.moving import await_move, tell_leaving, told_end
    from trimtab.tablets.move_shapes import task_id

    if undo and (source or to or force):
        raise WrongUsage(
            "--undo takes back what is under way, whatever that is; give it without --from, --to, --force."
        )
    if not undo and not (source and to):
        raise WrongUsage("a move needs --from ID and --to ID; or --undo, to give up on what is under way.")
    task, began_s = task_id(table, tablet), time.monotonic()

    async def work(database: Database) -> tuple[list[str], tuple[Ended, str, dict[int, str]] | None]:
        if undo:
            found = await database.undo_move(table, tablet, why=why)
        else:
            found = await database.move(table, tablet, source=source, to=to, force=force, why=why)
        if not wait:
            return found, None
        from trimtab.client.moves import MoveClient

        names = {raft_id: each.instance_id for raft_id, each in database._session.members.by_id.items()}
        table_id = (await database.tables())[table].id
        ended, reason = await await_move(MoveClient.on(database), table, table_id, tablet, names)
        return found, (ended, reason, names)

    try:
        goes_to, waited = use(contact, work)
    except KeyboardInterrupt:
        tell_leaving(task)
        raise
    if waited is not None:
        ended, reason, names = waited
        if undo:
            return _undone(task, ended, names, as_json)
        return told_end(task, ended, reason, names, began_s, as_json)
    return _written(task, goes_to, undo, as_json)


def _undone(task: str, ended: Ended, names: dict[int, str], as_json: bool) -> int:
    at = [names.get(raft_id, f"raft id {raft_id}") for raft_id in ended.replicas]
    if as_json:
        print(json.dumps({"id": task, "state": "undone", "replicas": at, "error": None}))
    else:
        print(f"{task} is on {', '.join(at)} again.")
    return 0


def _written(task: str, goes_to: list[str], undo: bool, as_json: bool) -> int:
    said: dict[str, Any] = {"id": task, "state": "undoing" if undo else "running", "replicas": goes_to, "error": None}
    if as_json:
        print(json.dumps(said))
    elif undo:
        print(f"{task} goes back to {', '.join(goes_to)}. `trimtab tasks wait {task}` waits for that.")
    else:
        print(f"{task} goes to {', '.join(goes_to)}. `trimtab tasks wait {task}` waits for it, `--undo` takes it back.")
    return 0
