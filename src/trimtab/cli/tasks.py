"""`trimtab tasks`: what the cluster does and was asked to do: look at it, wait for it, steer it.

Requests (joins, leaves, …) and jobs (loads, exports, …) have numbers, and count together. A tablet under way is
`shop.users:17`, all tablets of a table together are `shop.users`. Requests can't be paused. To pause a tablet is to
pause the job that copies it, and with it the other tablets of that job; to cancel it is to undo its move.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.asking import Seen, ask, present_view, warn_if_stale
from trimtab.cli.bulk_work import await_bulk_work
from trimtab.cli.changes import await_end
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.errors import CommandFailed, WrongUsage
from trimtab.cli.jobs import progress_text
from trimtab.cli.moving import LEADER_S, await_move, far_text, known_moves, tell_leaving, told_end

if TYPE_CHECKING:
    from trimtab.cli.drawing import Fitting
    from trimtab.client.cluster import ClusterClient
    from trimtab.client.moves import Ended
    from trimtab.jobs.protocol import JobsReply
    from trimtab.tablets.moves_shown import MovesShown, ShownMove
    from trimtab.topology.protocol import ViewReply

Task = int | tuple[str, int | None]  # a number, or a table and one of its tablets (None: all)

TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="Its id, as `trimtab tasks list` shows it: 12, or shop.users:17.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept with the task.")]
_ENDED = frozenset(("done", "succeeded", "failed", "cancelled", "completed"))
_STYLE = {
    **dict.fromkeys(("done", "succeeded", "completed"), "green"),
    **dict.fromkeys(("cancelled", "undoing"), "yellow"),
    "failed": "red",
    "running": "cyan",
}
# More than the cluster keeps.
_ALL_JOBS = 2_000
_SHOWN_MOVES = 20
_LOOK_AGAIN_S = 0.5
_LONGEST = 120  # of a reason in the list


def add_to(app: typer.Typer) -> None:
    help_text = "See what the cluster does and was asked to do, wait for it, pause, resume and cancel it."
    group = typer.Typer(help=help_text, no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (list_, show, wait, pause, resume, cancel)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(with_contact(command))
    app.add_typer(group, name="tasks")


def task_of(text: str) -> Task:
    """What a task's id says; WrongUsage where it says nothing."""
    from trimtab.tablets.move_shapes import place_of

    if text.isascii() and text.isdigit():
        if not 0 < int(text) < 1 << 63:
            raise WrongUsage(f"'{text[:40]}' is no task; their numbers begin at 1.")
        return int(text)
    try:
        return place_of(text)
    except ValueError:
        raise WrongUsage(
            f"'{text[:80]}' is no task: write a number such as 12, or KEYSPACE.TABLE:TABLET such as shop.users:17."
        ) from None


def title_of(task: Task) -> str:
    if isinstance(task, int):
        return str(task)
    return task[0] if task[1] is None else f"{task[0]}:{task[1]}"


# Looking


def list_(
    contact: Contact,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many of those that ended; JSON has all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the tasks: all that are under way, and the last that ended."""
    from trimtab.jobs import shapes as job_shapes
    from trimtab.tablets import move_shapes
    from trimtab.topology import shapes

    async def look(client: ClusterClient) -> tuple[Seen, JobsReply, MovesShown]:
        return await present_view(client), await _jobs(client), await known_moves(client.moves)

    seen, jobs, moves = ask(contact, look)
    warn_if_stale(seen)
    under_way = move_shapes.tasks(moves, names_of(seen.view))
    tasks = job_shapes.together(shapes.tasks(seen.view), job_shapes.tasks(jobs), under_way)
    if as_json:
        print(json.dumps(tasks))
        return
    if not tasks:
        print("No tasks: nothing was asked of the cluster yet.")
        return
    from trimtab.cli.drawing import console

    ended = [task["id"] for task in tasks if task["state"] in _ENDED]
    hidden = set(ended[: max(len(ended) - limit, 0)])
    tablets = [task["id"] for task in tasks if task["move"] is not None]
    hidden |= set(tablets[_SHOWN_MOVES:])
    console().print(_table([task for task in tasks if task["id"] not in hidden]))
    more = max(len(tablets) - _SHOWN_MOVES, 0) + moves.left_out
    if more:
        print(f"{more} more tablets are under way; `trimtab tablets` shows them all.")


def _table(tasks: list[dict[str, Any]]) -> Fitting:
    from rich.text import Text

    from trimtab.cli.drawing import Fitting

    rows = []
    for task in tasks:
        why_not = task["error"] or (task["reason"] if task["state"] == "queued" else None) or ""
        row = {
            "id": Text(str(task["id"])),
            "kind": Text(task["kind"]),
            "state": Text(_far(task), _STYLE.get(task["state"], "")),
            "asked": Text((task["asked"] or "").partition(".")[0].replace("T", " ")),
            "why": Text(shorten(task["why"], _LONGEST, placeholder=" …")),
            "error": Text(shorten(why_not, _LONGEST, placeholder=" …")),
        }
        rows.append(row)
    columns = ["id", "kind", "state", "asked", "why"]
    if any(row["error"].plain for row in rows):
        columns.append("error")
    # `tasks show` tells all of it.
    wraps = {"state": 20, "why": 24, "error": 20}
    return Fitting(columns, rows, ("asked", "why"), wraps=wraps)


def show(contact: Contact, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Show all that is known of a task."""
    wanted = task_of(task)

    async def look(client: ClusterClient) -> tuple[Seen, dict[str, Any]]:
        seen = await present_view(client)
        if not isinstance(wanted, int):
            return seen, _found(await known_moves(client.moves), wanted, names_of(seen.view))
        return seen, _request(seen.view, wanted) or await _job(client, wanted)

    seen, found = ask(contact, look)
    warn_if_stale(seen)
    if as_json:
        print(json.dumps(found))
        return
    width = max(len(key) for key in found)
    for key, value in found.items():
        if value is not None and value not in ([], {}, False):
            print(f"{key:<{width}}  {json.dumps(value) if isinstance(value, dict | list) else value}")


def wait(contact: Contact, task: TaskArgument, as_json: JsonOption = False) -> int:
    """Wait for the end of a task; exit code 1 if it was not done."""
    wanted = task_of(task)
    if not isinstance(wanted, int):
        return _await_moves(contact, wanted, as_json)
    number = wanted

    async def look(client: ClusterClient) -> str:
        if _request(await client.view(), number) is not None:
            return ""
        return (await client.jobs.get(number))[0].command.kind.value

    if kind := ask(contact, look):
        return await_bulk_work(contact, kind, number, as_json)
    return await_end(contact, number, as_json)


async def _jobs(client: ClusterClient) -> JobsReply:
    """All jobs; without a leader, as whoever answers knows them."""
    from trimtab.client.errors import Timeout, Unavailable

    try:
        return await client.jobs.show(limit=_ALL_JOBS, timeout_s=LEADER_S)
    except (Timeout, Unavailable):
        return await client.jobs.show(limit=_ALL_JOBS, local=True)


async def _job(client: ClusterClient, number: int) -> dict[str, Any]:
    from trimtab.jobs import shapes

    found = [task for task in shapes.tasks(await _jobs(client)) if task["id"] == number]
    if not found:
        raise CommandFailed(_no_task(number))
    return found[0]


def _no_task(number: int) -> str:
    return f"there is no task {number}; `trimtab tasks list` shows those there are."


def _request(view: ViewReply, number: int) -> dict[str, Any] | None:
    from trimtab.topology import shapes

    record = dict(view.requests).get(number)
    return None if record is None else shapes.task(number, record, view)


def _far(task: dict[str, Any]) -> str:
    if task["move"] is not None or task["kind"] == "rebalance":
        return far_text(task)
    text = progress_text(task)
    return f"{text}, {task['progress_tablets']} of {task['total_tablets']} tablets" if task["total_tablets"] else text


# Tablets under way


def names_of(view: ViewReply) -> dict[int, str]:
    return {each.raft_id: each.record.instance_id for each in view.instances}


def _table_id(moves: MovesShown, wanted: tuple[str, int | None]) -> int:
    for table, name in moves.names.items():
        if name == wanted[0]:
            return table
    raise CommandFailed(f"there is no task {title_of(wanted)}: nothing is under way with that table.")


def _moves_of(moves: MovesShown, wanted: tuple[str, int | None]) -> list[ShownMove]:
    """The tablets under way that a task is about; CommandFailed where there are none."""
    table = _table_id(moves, wanted)
    found = [each for each in moves.moves if each.table == table and wanted[1] in (None, each.tablet)]
    if not found:
        raise CommandFailed(f"{title_of(wanted)} is not under way (any more); `trimtab tasks list` shows what is.")
    return found


def _found(moves: MovesShown, wanted: tuple[str, int | None], names: dict[int, str]) -> dict[str, Any]:
    from trimtab.tablets import move_shapes

    for shape in move_shapes.tasks(moves, names):
        if shape["id"] == title_of(wanted):
            return shape
    raise CommandFailed(f"there is no task {title_of(wanted)}; `trimtab tasks list` shows those there are.")


def _await_moves(contact: Contact, wanted: tuple[str, int | None], as_json: bool) -> int:
    """Wait for one tablet, or for all of a table, one after the other."""
    task, began_s = title_of(wanted), time.monotonic()

    async def work(client: ClusterClient) -> tuple[list[tuple[str, Ended, str]], dict[int, str], dict[str, Any] | None]:
        import asyncio

        names = names_of(await client.view())
        moves = await known_moves(client.moves)
        table = _table_id(moves, wanted)
        while wanted[1] is None and _between_moves(moves, table):
            await asyncio.sleep(_LOOK_AGAIN_S)
            moves = await known_moves(client.moves)
        under_way = [each.tablet for each in moves.moves if each.table == table]
        if wanted[1] is None and not under_way:
            return [], names, _found(moves, wanted, names)
        found = []
        for tablet in under_way if wanted[1] is None else [wanted[1]]:
            ended, why = await await_move(client.moves, wanted[0], table, tablet, names)
            found.append((title_of((wanted[0], tablet)), ended, why))
        return found, names, None

    try:
        ends, names, over = ask(contact, work)
    except KeyboardInterrupt:
        tell_leaving(task)
        raise
    if wanted[1] is not None:
        title, ended, why = ends[0]
        if not ended.replicas:
            raise CommandFailed(f"there is no task {title}: {wanted[0]} has no such tablet.")
        return told_end(title, ended, why, names, began_s, as_json)
    if over is not None:
        return _told_over(over, as_json)
    back = [(title, why) for title, ended, why in ends if not ended.arrived and ended.last is not None]
    if as_json:
        state = "undone" if back else "done"
        print(json.dumps({"id": task, "state": state, "tablets": len(ends), "undone": [title for title, _ in back]}))
    if back:
        title, why = back[0]
        because = f": {why.rstrip('.')}" if why else ""
        raise CommandFailed(f"{len(back)} of {len(ends)} tablets went back to where they were ({title}{because}).")
    if not as_json:
        what = "1 tablet has" if len(ends) == 1 else f"{len(ends)} tablets have"
        print(f"{what} arrived ({time.monotonic() - began_s:.1f} s).")
    return 0


def _between_moves(moves: MovesShown, table: int) -> bool:
    """Whether a table's rebalance goes on, though nothing of it moves at this moment."""
    record = moves.rebalances.get(table)
    goes_on = record is not None and record.state.value == "running"
    return goes_on and not any(each.table == table for each in moves.moves)


def _told_over(rebalance: dict[str, Any], as_json: bool) -> int:
    """How a table's rebalance ended, which was over before anybody waited for it."""
    failed = rebalance["state"] == "failed"
    if as_json:
        state = "failed" if failed else "done"
        shape = {"id": rebalance["id"], "state": state, "tablets": rebalance["progress_tablets"], "undone": []}
        print(json.dumps(shape))
    if failed:
        raise CommandFailed(f"{rebalance['id']}: {far_text(rebalance)}: {rebalance['error'].rstrip('.')}.")
    if not as_json:
        print(f"{rebalance['id']}: {far_text(rebalance)}.")
    return 0


# Steering


def pause(contact: Contact, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Let a job, or the copying of a tablet, stop for a while: what is done stays, and `resume` goes on from there."""
    _steer(contact, task_of(task), "pause", "", as_json)


def resume(contact: Contact, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Let a job, or the copying of a tablet, go on that was paused."""
    _steer(contact, task_of(task), "resume", "", as_json)


def cancel(contact: Contact, task: TaskArgument, reason: ReasonOption = "", as_json: JsonOption = False) -> None:
    """Cancel a task that has not ended; a tablet under way goes back to where it was."""
    _steer(contact, task_of(task), "cancel", reason, as_json)


def _steer(contact: Contact, wanted: Task, order: str, reason: str, as_json: bool) -> None:
    if isinstance(wanted, int):
        _steer_numbered(contact, wanted, order, reason, as_json)
    elif order == "cancel":
        _undo_moves(contact, wanted, reason, as_json)
    else:
        _steer_copies(contact, wanted, order, as_json)


def _steer_numbered(contact: Contact, number: int, order: str, reason: str, as_json: bool) -> None:
    from trimtab.client.errors import NotFound
    from trimtab.jobs import shapes

    async def tell(client: ClusterClient) -> dict[str, Any]:
        request = _request(await client.view(), number)
        if request is None:
            try:
                return shapes.task(await client.jobs.steer(number, order, reason))
            except NotFound:
                raise CommandFailed(_no_task(number)) from None
        if order != "cancel":
            raise CommandFailed(
                f"task {number} ({request['why']}) is a request; only jobs and tablets under way can be told to "
                f"{order}."
            )
        await client.cancel(number, reason)
        return _request(await client.view(), number) or request

    found = ask(contact, tell)
    if as_json:
        print(json.dumps(found))
        return
    task = f"Task {number} ({found['why']})"
    if found["cancelling"] or (order == "cancel" and found["state"] not in _ENDED):
        print(f"{task} will be cancelled; `trimtab tasks wait {number}` waits for its end.")
    elif found.get("pausing"):
        print(f"{task} will pause; `trimtab tasks resume {number}` lets it go on.")
    else:
        print(f"{task} is {found['state']}.")


def _steer_copies(contact: Contact, wanted: tuple[str, int | None], order: str, as_json: bool) -> None:
    """Pause or resume the jobs that copy."""
    task = title_of(wanted)

    async def tell(client: ClusterClient) -> tuple[list[dict[str, Any]], list[int], int]:
        names = names_of(await client.view())
        chosen = _moves_of(await known_moves(client.moves), wanted)
        jobs = sorted({each.transition.job for each in chosen if each.transition.job})
        if not jobs:
            stage = chosen[0].transition.stage.value
            raise CommandFailed(
                f"{task} copies nothing now (it is in {stage}), and only a copy can be told to {order}; "
                f"`trimtab tasks cancel {task}` undoes it."
            )
        for number in jobs:
            await client.jobs.steer(number, order, "")
        from trimtab.tablets import move_shapes

        after = await known_moves(client.moves)
        places = {(each.table, each.tablet) for each in chosen}
        shown = [
            move_shapes.move_task(each, after, names) for each in after.moves if (each.table, each.tablet) in places
        ]
        together = sum(each.transition.job in jobs for each in after.moves)
        return shown, jobs, together

    shown, jobs, together = ask(contact, tell)
    if as_json:
        print(json.dumps(shown[0] if wanted[1] is not None and shown else shown))
        return
    others = together - len(shown)
    with_it = f", and with it {others} other tablet{'s' if others != 1 else ''}" if others > 0 else ""
    numbers = f"job{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs))}"
    if order == "pause":
        print(f"{task} will pause ({numbers}{with_it}); `trimtab tasks resume {task}` lets it go on.")
    else:
        print(f"{task} goes on ({numbers}{with_it}).")


def _undo_moves(contact: Contact, wanted: tuple[str, int | None], reason: str, as_json: bool) -> None:
    task = title_of(wanted)

    async def tell(client: ClusterClient) -> tuple[list[str], list[str], bool]:
        from trimtab.client.errors import InvalidRequest

        moves = await known_moves(client.moves)
        chosen = _moves_of(moves, wanted)
        undone, refused = [], []
        for each in chosen:
            try:
                await client.moves.undo(each.table, each.tablet, why=reason)
                undone.append(title_of((wanted[0], each.tablet)))
            except InvalidRequest as error:
                refused.append(str(error))
        balanced = any(each.transition.cause.value == "balance" for each in chosen)
        return undone, refused, balanced and not moves.still

    undone, refused, again = ask(contact, tell)
    if not undone:
        raise CommandFailed(f"{refused[0].rstrip('.')}.")
    if as_json:
        print(json.dumps({"id": task, "state": "undoing", "undone": undone, "refused": refused}))
        return
    what = f"{undone[0]} goes" if len(undone) == 1 else f"{len(undone)} tablets of {wanted[0]} go"
    late = f" {len(refused)} can't any more: {refused[0].rstrip('.')}." if refused else ""
    hint = " Balancing may choose it again: `trimtab rebalance off` stops that." if again else ""
    print(f"{what} back to where it was.{late}{hint}" if len(undone) == 1 else f"{what} back.{late}{hint}")
