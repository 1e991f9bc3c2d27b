"""`trimtab status`: how the cluster stands, for a person at once and for scripts as JSON.

The first line says whether all is well. Without a majority it shows what the members that answer last knew, and says
so; the exit code is 0 whenever the cluster could be looked at.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.asking import Seen, ask, present_view
from trimtab.cli.contact import Contact, JsonOption, with_contact

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from trimtab.cli.drawing import Fitting
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.protocol import InstanceView

_REFRESH_S = 1.0
_WHY_WIDTH = 24  # narrower than that, a sentence is a column of single words


def add_to(app: typer.Typer) -> None:
    app.command("status")(with_contact(status))


def status(
    contact: Contact,
    everybody: Annotated[bool, typer.Option("--all", help="Show instances that have left, too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, looking again every second.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how the cluster stands: who leads, who is Online, and what is wrong if anything is.

    The exit code is 0 whenever there was something to show, well or not; scripts read `verdict` of --json.
    """
    from trimtab.cli.drawing import console

    if watch:
        ask(contact, lambda client: _watch(client, everybody, as_json))
        return
    seen = ask(contact, present_view)
    if as_json:
        print(json.dumps(as_dict(seen)))
    else:
        console().print(picture(seen, everybody))


async def _watch(client: ClusterClient, everybody: bool, as_json: bool) -> None:
    import asyncio

    from rich.live import Live

    from trimtab.cli.drawing import console

    if as_json:
        while True:
            print(json.dumps(as_dict(await present_view(client))), flush=True)
            await asyncio.sleep(_REFRESH_S)
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(picture(await present_view(client), everybody), refresh=True)
            await asyncio.sleep(_REFRESH_S)


def as_dict(seen: Seen) -> dict[str, Any]:
    """What scripts rely on, with the verdict in words added."""
    from trimtab.cli.verdict import judge
    from trimtab.topology import shapes

    verdict = judge(seen.view, seen.stale, seen.answering)
    said = {"verdict": verdict.level.name.lower(), "says": [verdict.line, *verdict.details], "stale": bool(seen.stale)}
    return shapes.status(seen.view) | said


def picture(seen: Seen, everybody: bool) -> RenderableType:
    """The verdict, the cluster in a line, and a table of its instances."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from trimtab.cli.verdict import Level, judge, name_of

    verdict = judge(seen.view, seen.stale, seen.answering)
    style = {Level.WELL: "bold green", Level.BUSY: "bold cyan", Level.WRONG: "bold yellow", Level.STOPPED: "bold red"}
    lines: list[RenderableType] = [Text(verdict.line, style[verdict.level])]
    lines += [Padding.indent(Text(line), 2) for line in verdict.details]
    view = seen.view
    leader = "none" if seen.stale or not view.leader else name_of(view, view.leader)
    lines.append(
        Text(f"cluster {view.cluster_id}, leader {leader}, topology version {view.version}, term {view.term}", "dim")
    )
    if seen.stale:
        lines.append(Text(f"as {name_of(view, view.asked)} last knew it, not confirmed by a majority", "yellow"))
    elif view.leader != view.asked:
        lines.append(
            Text(f"{leader} did not answer; {name_of(view, view.asked)} did, but can't tell who is silent", "yellow")
        )
    if view.bulk_rate_bytes_s:
        from trimtab.loads.bulk_settings import show_rate

        lines.append(Text(f"bulk transfers are limited to {show_rate(view.bulk_rate_bytes_s)}", "dim"))
    if view.moving.still:
        lines.append(Text(view.moving.still, "dim"))
    return Group(*lines, _table(seen, everybody))


def _table(seen: Seen, everybody: bool) -> Fitting:
    from rich.text import Text

    from trimtab.cli.drawing import Fitting, in_bytes
    from trimtab.topology.grades import Grade

    shown = [each for each in seen.view.instances if everybody or not each.record.left]
    shown.sort(key=lambda each: natural(each.record.instance_id))
    rows = []
    for each in shown:
        record, grades = each.record, each.record.grades
        # That an instance is Online because it has started is no news; why another is not, is.
        news = not (grades.settled and grades.current.grade is Grade.ONLINE)
        row = {
            "instance": Text(record.instance_id),
            "address": Text(record.address),
            "failure domain": Text(" ".join(f"{key}={value}" for key, value in record.failure_domain.items())),
            "state": Text(record.state.value),
            "grade": _grade(each),
            "role": _role(seen, each),
            "heard": Text(_heard(seen, each)),
            "tablets": Text(str(each.tablets)),
            "size": Text(in_bytes(each.bytes)),
            "why": Text("its disk is full" if each.disk_full and not news else record.reason if news else ""),
        }
        rows.append(row)
    columns = ["instance", "address", "failure domain", "state", "grade", "role", "heard"]
    if any(each.tablets or each.bytes for each in shown):
        columns += ["tablets", "size"]
    if any(row["why"].plain for row in rows):
        columns.append("why")
    # The sentences above the table say why, too, so that goes first; how an instance stands is kept to the last.
    drops = ("why", "failure domain", "address", "heard", "size", "tablets")
    return Fitting(columns, rows, drops, wraps={"failure domain": 0, "why": _WHY_WIDTH})


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts i2 before i10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _grade(each: InstanceView) -> Text:
    from rich.text import Text

    from trimtab.topology.grades import Grade

    current, target = each.record.grades.current.grade, each.record.grades.target.grade
    if current is target:
        style = {Grade.ONLINE: "green", Grade.OFFLINE: "red"}.get(current, "dim")
        return Text(current.value, style)
    return Text(f"{current.value} → {target.value}", "yellow")


def _role(seen: Seen, each: InstanceView) -> Text:
    from rich.text import Text

    if each.raft_id == seen.view.leader and not seen.stale:
        return Text("★ leader", "bold")
    return Text("voter" if each.voter else "learner" if each.learner else "")


def _heard(seen: Seen, each: InstanceView) -> str:
    from trimtab.cli.verdict import QUIET_MS, was_heard

    if each.record.left:
        return ""
    if seen.stale:
        return "answers" if each.record.address in seen.answering else "no answer"
    if each.raft_id == seen.view.leader:
        return "now"
    if each.heard_ms is None:
        return ""
    # Where nothing was heard, the number is only the leader's time in office: no age of anything.
    return ago(each.heard_ms) if was_heard(each) or each.heard_ms < QUIET_MS else "not yet"


def ago(milliseconds: int) -> str:
    """How long ago, as short as a table wants it."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f} s ago"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
