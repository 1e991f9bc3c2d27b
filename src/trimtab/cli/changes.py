"""`trimtab expel`, `decommission`, `remove`, `rebuild`: changes of the topology, asked for and waited for.

Each creates a request, which the cluster carries out by itself: whoever asked may leave, and Ctrl-C does. Then the
command says how to look at the request and how to cancel it. The exit code is 1 when the request did not end as done.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.asking import IdArgument, ask
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.protocol import RequestReply, ViewReply
    from trimtab.topology.records import RequestKind, RequestRecord

NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return when it is asked for, not when it is done.")]
DeadlineOption = Annotated[
    float,
    typer.Option("--deadline", min=0, metavar="SECONDS", help="The cluster gives up after so long; 0 is never."),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="ID", help="A dead instance not to wait for; may be repeated."),
]


def add_to(app: typer.Typer) -> None:
    for command in (expel, decommission, remove, rebuild):
        app.command(command.__name__)(with_contact(command))


def expel(
    contact: Contact,
    instance_id: IdArgument,
    drain: Annotated[bool, typer.Option("--drain", help="Move its data away first, if it owns any.")] = False,
    deadline: DeadlineOption = 0.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take an instance out of the cluster for good, dead or alive."""
    from trimtab.topology.records import RequestKind

    options = {"expel": True, "drain": drain, "deadline_ms": _ms(deadline)}
    return _change(contact, RequestKind.LEAVE, instance_id, options, no_wait, as_json)


def decommission(
    contact: Contact,
    instance_id: IdArgument,
    deadline: DeadlineOption = 0.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Drain a living instance and take it out of the cluster for good."""
    from trimtab.topology.records import RequestKind

    options = {"drain": True, "deadline_ms": _ms(deadline)}
    return _change(contact, RequestKind.LEAVE, instance_id, options, no_wait, as_json)


def remove(
    contact: Contact,
    instance_id: IdArgument,
    ignore: IgnoreOption = None,
    deadline: DeadlineOption = 0.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take a dead instance out of the cluster for good."""
    from trimtab.topology.records import RequestKind

    options = {"ignore": ignore or [], "deadline_ms": _ms(deadline)}
    return _change(contact, RequestKind.REMOVE, instance_id, options, no_wait, as_json)


def rebuild(
    contact: Contact,
    instance_id: IdArgument,
    source: Annotated[str, typer.Option("--source", metavar="DC", help="The data centre to read from.")] = "",
    deadline: DeadlineOption = 0.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Rebuild what an instance should hold from the others."""
    from trimtab.topology.records import RequestKind

    options = {"source": source, "deadline_ms": _ms(deadline)}
    return _change(contact, RequestKind.REBUILD, instance_id, options, no_wait, as_json)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _change(
    contact: Contact, kind: RequestKind, instance_id: str, options: dict[str, Any], no_wait: bool, as_json: bool
) -> int:
    """Create the request, and see it to its end."""

    async def create(client: ClusterClient) -> tuple[RequestReply, ViewReply]:
        return await client.create(kind, instance_id, **options), await client.view()

    reply, view = ask(contact, create)
    if not no_wait:
        return await_end(contact, reply.number, as_json)
    if as_json:
        from trimtab.topology import shapes

        print(json.dumps(shapes.task(reply.number, reply.record, view)))
    else:
        print(
            f"{described(reply.number, reply.record, instance_id)} is {reply.record.state.value}. {_how(reply.number)}"
        )
    return 0


def await_end(contact: Contact, number: int, as_json: bool) -> int:
    """Wait for a request's end, showing how far it is; the exit code, and CommandFailed with why it was not done."""
    from trimtab.cli.progress import Progress
    from trimtab.topology import shapes
    from trimtab.topology.records import RequestState

    began = time.monotonic()
    last: list[ViewReply] = []
    progress = Progress()

    def seen(record: RequestRecord, view: ViewReply) -> None:
        last[:] = [view]
        progress.show(_lines(number, record, view))

    async def wait(client: ClusterClient) -> RequestRecord:
        return await client.wait(number, seen)

    try:
        with progress:
            record = ask(contact, wait)
    except KeyboardInterrupt:
        print(f"trimtab: no longer waiting; request {number} goes on. {_how(number)}", file=sys.stderr)
        raise
    task = shapes.task(number, record, last[0])
    if as_json:
        print(json.dumps(task))
    what = described(number, record, task["instance_id"] or "")
    why = f": {record.reason.rstrip('.')}" if record.reason else ""
    if record.state is not RequestState.DONE:
        raise CommandFailed(f"{what} is {record.state.value}{why}.")
    if not as_json:
        print(f"{what[0].upper()}{what[1:]} is done{why} ({time.monotonic() - began:.1f} s).")
    return 0


def described(number: int, record: RequestRecord, instance_id: str) -> str:
    """A request in words."""
    return f"request {number}, {record.kind.value}" + (f" of {instance_id}," if instance_id else ",")


def _how(number: int) -> str:
    return f"`trimtab tasks show {number}` shows it, `trimtab tasks cancel {number}` cancels it."


def _lines(number: int, record: RequestRecord, view: ViewReply) -> dict[str, str]:
    """How far a request is: its state, the topology's, and the instance's."""
    why = f": {record.reason}" if record.reason else ""
    lines = {f"request {number}": f"{record.kind.value} {record.state.value}{why}"}
    if view.transition is not None and number in view.transition.requests:
        lines["topology"] = view.transition.state.value
    for each in view.instances:
        if record.raft_id and each.raft_id == record.raft_id:
            grades = each.record.grades
            lines[each.record.instance_id] = (
                f"{each.record.state.value}, {grades.current.grade.value} → {grades.target.grade.value}"
            )
    for number, sentence in enumerate((*view.moving.problems, *view.moving.sentences)):
        lines["tablets" if not number else " " * number] = sentence
    return lines
