"""`trimtab doctor`: would an instance run well on this machine, and do the cluster's members fit together?

Every line says ok, warn or fail, and what to do. The exit code is 1 when something fails. The cluster is looked at when
one is named (--peer, TRIMTAB_CONTACT) or runs locally; that there is none is no fault.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.contact import Contact, JsonOption, checked_address, local_addresses, with_contact
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.cli.checkup import Check
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.protocol import ViewReply

_SKEW_WARN_MS = 200
_SKEW_FAIL_MS = 5_000
_REACH_S = 2.0


def add_to(app: typer.Typer) -> None:
    app.command("doctor")(with_contact(doctor))


def doctor(
    contact: Contact,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where an instance would keep its data. Default: a local one's.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where an instance would listen.")
    ] = "127.0.0.1:3301",
    as_json: JsonOption = False,
) -> int:
    """Check this machine and the cluster, and say what to do about what is not as it should be."""
    from trimtab.cli import checkup, spark_checkup
    from trimtab.net.addresses import parse_address
    from trimtab.playground.record import new_directory

    host, port = parse_address(checked_address(listen))
    checks = [checkup.python(), *checkup.packages()]
    checks += checkup.ports(host, port, _owners())
    checks += checkup.disk(data_dir if data_dir is not None else new_directory(os.environ))
    checks += [*checkup.limits(), checkup.memory(), *checkup.clocks(), *spark_checkup.spark()]
    checks += cluster(contact)
    worst = max(checks, key=lambda check: list(checkup.Grade).index(check.grade)).grade
    if as_json:
        shown = [
            {"name": each.name, "grade": each.grade.value, "text": each.text, "what_to_do": each.what_to_do or None}
            for each in checks
        ]
        print(json.dumps({"grade": worst.value, "checks": shown}))
    else:
        _show(checks)
    return 1 if worst is checkup.Grade.FAIL else 0


def _owners() -> dict[int, str]:
    """The ports of local instances that run, and whose they are."""
    from trimtab.playground.local import LocalCluster
    from trimtab.playground.record import LocalFailed, present_directory

    try:
        cluster = LocalCluster(present_directory(os.environ))
        addresses = cluster.addresses() if cluster.exists else {}
    except LocalFailed:
        # Whoever needs the local cluster is told what is wrong with its record; here it only would have explained.
        return {}
    return {int(address.rpartition(":")[2]): name for name, address in addresses.items()}


def cluster(contact: Contact) -> list[Check]:
    """The cluster's verdict on itself, its versions against ours, its clock against ours."""
    import trimtab
    from trimtab.cli.asking import Seen, ask, present_view
    from trimtab.cli.checkup import fail, ok
    from trimtab.cli.verdict import judge

    if not contact.peers and not local_addresses():
        return [ok("cluster", "none is named and none runs locally, so none was looked at"), _own_version()]

    async def look(client: ClusterClient) -> tuple[Seen, float]:
        seen = await present_view(client)
        before = time.time() * 1000
        view = await client.view(linearizable=False)
        after = time.time() * 1000
        return seen, view.wall_ms - (before + after) / 2 if view.wall_ms else 0.0

    try:
        seen, ahead_ms = ask(contact, look)
    except CommandFailed as error:
        return [fail("cluster", str(error).rstrip("."), "start a member, or name another with --peer")]
    verdict = judge(seen.view, seen.stale, seen.answering)
    return [
        graded(verdict.level, verdict.line, verdict.details),
        *versions(seen.view, trimtab.__version__),
        skew(ahead_ms),
        *bulk(seen.view),
    ]


def graded(level: int, line: str, details: tuple[str, ...]) -> Check:
    """The cluster's verdict as a check."""
    from trimtab.cli.checkup import fail, ok, warn
    from trimtab.cli.verdict import Level

    if level is Level.STOPPED:
        return fail("cluster", line.rstrip("."), " ".join(details))
    if level is Level.WRONG:
        return warn("cluster", line.rstrip("."), "; ".join(details) or "see: trimtab status")
    return ok("cluster", line.rstrip("."))


def _own_version() -> Check:
    import trimtab
    from trimtab.cli.checkup import ok

    return ok("version", f"this is trimtab {trimtab.__version__}")


def versions(view: ViewReply, own: str) -> list[Check]:
    """Ours and the members': only two adjacent minor versions may run side by side."""
    from trimtab.cli.checkup import fail, ok, warn
    from trimtab.topology.names import apart

    members: dict[str, list[str]] = {}
    for each in view.instances:
        if not each.record.left and each.record.release:
            members.setdefault(each.record.release, []).append(each.record.instance_id)
    found = []
    for release, names in members.items():
        who = f"{', '.join(names)} {'runs' if len(names) == 1 else 'run'} {release}"
        if why := apart(own, release):
            found.append(fail("version", f"{who}; this is {own}: {why}", "upgrade one minor version at a time"))
        elif release != own:
            found.append(warn("version", f"{who}; this is {own}", "finish the upgrade: use one version everywhere"))
        else:
            found.append(ok("version", f"{who}, as this does"))
    return found or [_own_version()]


def bulk(view: ViewReply) -> list[Check]:
    """Whether loads and scans from here reach the bulk servers of the instances that are Online."""
    from trimtab.cli.checkup import ok, warn
    from trimtab.topology.grades import Grade

    online = [each.record for each in view.instances if each.record.grades.current.grade is Grade.ONLINE]
    found = []
    for record in online:
        if not record.bulk_address:
            text = f"{record.instance_id} has no bulk server, so nothing can be loaded into its replicas"
            found.append(warn("bulk", text, "start it without --bulk off"))
        elif why := _unreachable(record.bulk_address):
            text = f"the bulk server of {record.instance_id} at {record.bulk_address} can't be reached from here: {why}"
            found.append(warn("bulk", text, f"look at the log of {record.instance_id}, and at firewalls between"))
    names = ", ".join(record.instance_id for record in online)
    return found or ([ok("bulk", f"the bulk servers of {names} can be reached from here")] if online else [])


def _unreachable(address: str) -> str:
    import socket

    from trimtab.net.addresses import parse_address

    try:
        with socket.create_connection(parse_address(address), timeout=_REACH_S):
            return ""
    except (OSError, ValueError) as error:
        return str(error)


def skew(ahead_ms: float) -> Check:
    """The cluster's wall clock against ours."""
    from trimtab.cli.checkup import fail, ok, warn

    text = f"the cluster's is {abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms > 0 else 'behind'} this machine's"
    mend = "synchronise the clocks of both with NTP"
    if abs(ahead_ms) > _SKEW_FAIL_MS:
        return fail("clock", text, mend)
    return warn("clock", text, mend) if abs(ahead_ms) > _SKEW_WARN_MS else ok("clock", text)


def _show(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    from trimtab.cli.checkup import Grade
    from trimtab.cli.drawing import console

    style = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}
    table = Table.grid(padding=(0, 2))
    for each in checks:
        text = Text(each.text)
        if each.what_to_do:
            text.append(f"\n→ {each.what_to_do}", "bold")
        table.add_row(Text(each.grade.value, style[each.grade]), each.name, text)
    console().print(table)
    counts = {grade: sum(each.grade is grade for each in checks) for grade in Grade}
    print(f"{counts[Grade.OK]} ok, {counts[Grade.WARN]} warn, {counts[Grade.FAIL]} fail")
