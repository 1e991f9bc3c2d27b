"""`trimtab tasks`: what the cluster was asked to do: the list, one of them, waiting for its end, and cancelling it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.asking import ask, present_view, warn_if_stale
from trimtab.cli.changes import await_end
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.protocol import ViewReply

TaskArgument = Annotated[int, typer.Argument(metavar="TASK", min=1, help="Its id, as `trimtab tasks list` shows it.")]
_ENDED = frozenset(("done", "failed", "cancelled"))
_STYLE = {"done": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="See what the cluster was asked to do, wait for it, cancel it.", no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (list_, show, wait, cancel)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(with_contact(command))
    app.add_typer(group, name="tasks")


def list_(
    contact: Contact,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many of those that ended; JSON has all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the tasks: all that are under way, and the last that ended."""
    from trimtab.topology import shapes

    seen = ask(contact, present_view)
    warn_if_stale(seen)
    tasks = shapes.tasks(seen.view)
    if as_json:
        print(json.dumps(tasks))
        return
    from rich.text import Text

    from trimtab.cli.drawing import console, table

    ended = [task["id"] for task in tasks if task["state"] in _ENDED]
    hidden = set(ended[: max(len(ended) - limit, 0)])
    if not tasks:
        print("No tasks: nothing was asked of the cluster yet.")
        return
    made = table("id", "kind", "state", "asked", "why", "error", wraps=("why", "error"))
    for task in tasks:
        if task["id"] not in hidden:
            state = Text(task["state"], _STYLE.get(task["state"], ""))
            asked = (task["asked"] or "").partition(".")[0].replace("T", " ")
            made.add_row(str(task["id"]), task["kind"], state, asked, Text(task["why"]), Text(task["error"] or ""))
    console().print(made)


def show(contact: Contact, number: TaskArgument, as_json: JsonOption = False) -> None:
    """Show all that is known of a task."""
    seen = ask(contact, present_view)
    warn_if_stale(seen)
    found = _task(seen.view, number)
    if as_json:
        print(json.dumps(found))
        return
    width = max(len(key) for key in found)
    for key, value in found.items():
        if value is not None:
            print(f"{key:<{width}}  {value}")


def wait(contact: Contact, number: TaskArgument, as_json: JsonOption = False) -> int:
    """Wait for the end of a task; exit code 1 if it was not done."""
    return await_end(contact, number, as_json)


def cancel(
    contact: Contact,
    number: TaskArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the task.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Cancel a task that has not ended."""

    async def ask_to_cancel(client: ClusterClient) -> dict[str, Any]:
        await client.cancel(number, reason)
        return _task(await client.view(), number)

    found = ask(contact, ask_to_cancel)
    if as_json:
        print(json.dumps(found))
    elif found["state"] in _ENDED:
        print(f"Task {number} ({found['why']}) is {found['state']}.")
    else:
        print(f"Task {number} ({found['why']}) will be cancelled; `trimtab tasks wait {number}` waits for its end.")


def _task(view: ViewReply, number: int) -> dict[str, Any]:
    from trimtab.topology import shapes

    record = dict(view.requests).get(number)
    if record is None:
        raise CommandFailed(f"there is no task {number}; `trimtab tasks list` shows those there are.")
    return shapes.task(number, record, view)
