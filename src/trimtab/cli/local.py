"""`trimtab local …`: a cluster on this machine, to try things out and to break.

Every command says what it did; with --json it answers with the whole cluster, and `changed` names whom it touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.contact import JsonOption
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.playground.forming import Standing
    from trimtab.playground.local import LocalCluster
    from trimtab.playground.processes import Known

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="The cluster's directory. Default: TRIMTAB_LOCAL_DIR, else the last one brought up."),
]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="Instances, such as i2.")]
WaitOption = Annotated[
    float, typer.Option("--timeout", min=1, max=3600, metavar="SECONDS", help="How long to wait for Online.")
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return at once, not when they are Online.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="A cluster on this machine.", no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (up, add, kill, stop, start, down, env, list_)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="local")


def _cluster(directory: Path | None) -> LocalCluster:
    """The cluster that a command means."""
    from trimtab.playground.local import LocalCluster
    from trimtab.playground.record import present_directory

    return LocalCluster(directory if directory is not None else present_directory(os.environ))


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    from trimtab.playground.record import LocalFailed

    try:
        yield
    except LocalFailed as error:
        raise CommandFailed(f"{str(error).rstrip('.')}.") from error


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """While instances are started and waited for: whoever leaves is told that they go on."""
    with _failures():
        try:
            yield
        except KeyboardInterrupt:
            print(
                "trimtab: no longer waiting; instances that were started go on (`trimtab status` shows how far they "
                "are, `trimtab local down` stops them).",
                file=sys.stderr,
            )
            raise


def up(
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, max=100, help="How many instances; default 3.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="The cluster's directory. Default: TRIMTAB_LOCAL_DIR, else one in ~/.local/state."),
    ] = None,
    base_port: Annotated[
        int | None, typer.Option("--base-port", min=1, max=65_535, help="The port of i1; default 3301.")
    ] = None,
    timeout: WaitOption = 60.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Start a cluster on this machine; returns when all instances are Online."""
    from trimtab.playground.local import DEFAULT_BASE_PORT, DEFAULT_NODES, LocalCluster
    from trimtab.playground.record import LocalFailed, new_directory, note_directory

    cluster = LocalCluster(directory if directory is not None else new_directory(os.environ))
    with _starting(), cluster.coming_up():
        if cluster.exists:
            _check_same(cluster, nodes, base_port)
        else:
            cluster.create(nodes or DEFAULT_NODES, base_port or DEFAULT_BASE_PORT)
        try:
            note_directory(cluster.directory, os.environ)
        except LocalFailed as error:
            print(f"trimtab: {error}.", file=sys.stderr)
        began = time.monotonic()
        started = cluster.start_all()
        wanted = cluster.running()
        if not no_wait:
            standings = _await_online(cluster, wanted, timeout)
            cluster.note_left([name for name, standing in standings.items() if standing.left])
        seconds = time.monotonic() - began
        changed = list(started)
    if as_json:
        print(json.dumps(cluster.as_json(changed)))
    else:
        there = cluster.running()
        done = _arrived(there, seconds, no_wait) if changed else f"{', '.join(there)}: running already."
        print(f"{done[:-1]}; in {cluster.directory}.")
        print("`trimtab status` shows the cluster, `trimtab local down` stops it.")
    return 0


def _check_same(cluster: LocalCluster, nodes: int | None, base_port: int | None) -> None:
    """A cluster that is there is brought up as it is; other numbers than its own are a mistake."""
    record = cluster.record()
    there = sum(not each.left for each in record.instances)
    instead = "leave the option out, or begin anew after `trimtab local down --purge`"
    if nodes is not None and nodes != there:
        raise CommandFailed(
            f"the local cluster in {cluster.directory} has {there} instances, not {nodes}; {instead} "
            "(`trimtab local add` adds one to a running cluster)."
        )
    if base_port is not None and base_port != record.base_port:
        raise CommandFailed(
            f"the local cluster in {cluster.directory} begins at port {record.base_port}, not {base_port}; {instead}."
        )


def add(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=100, help="How many.")] = 1,
    replace: Annotated[str, typer.Option("--replace", metavar="ID", help="The dead instance it replaces.")] = "",
    directory: DirOption = None,
    timeout: WaitOption = 60.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Add an instance; returns when it is Online."""
    if replace and nodes != 1:
        raise WrongUsage("one instance replaces one: --replace and --nodes do not go together.")
    cluster = _cluster(directory)
    with _starting():
        began = time.monotonic()
        started = cluster.add(nodes, replace)
        if not no_wait:
            _await_online(cluster, started, timeout)
    _report(cluster, list(started), as_json, _arrived(started, time.monotonic() - began, no_wait))
    return 0


def start(
    instance_ids: IdsArgument,
    directory: DirOption = None,
    timeout: WaitOption = 60.0,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> int:
    """Start instances again that were stopped or killed; returns when they are Online."""
    cluster = _cluster(directory)
    with _starting():
        began = time.monotonic()
        started = cluster.start(list(dict.fromkeys(instance_ids)))
        if not no_wait:
            _await_online(cluster, started, timeout)
    _report(cluster, list(started), as_json, _arrived(started, time.monotonic() - began, no_wait))
    return 0


def _arrived(started: dict[str, Known], seconds: float, no_wait: bool) -> str:
    names = f"{', '.join(started)} {'is' if len(started) == 1 else 'are'}"
    return f"{names} starting." if no_wait else f"{names} Online after {seconds:.1f} s."


def kill(instance_ids: IdsArgument, directory: DirOption = None, as_json: JsonOption = False) -> int:
    """SIGKILL the processes of instances: a crash."""
    cluster = _cluster(directory)
    wanted = list(dict.fromkeys(instance_ids))
    with _failures():
        cluster.kill(wanted)
    names = ", ".join(wanted)
    them = "it" if len(wanted) == 1 else "them"
    _report(cluster, wanted, as_json, f"{names} killed; `trimtab local start {' '.join(wanted)}` brings {them} back.")
    return 0


def stop(instance_ids: IdsArgument, directory: DirOption = None, as_json: JsonOption = False) -> int:
    """SIGTERM instances: they leave in good order."""
    cluster = _cluster(directory)
    wanted = list(dict.fromkeys(instance_ids))
    with _failures():
        forced = cluster.stop(wanted)
    _warn_forced(forced)
    _report(cluster, wanted, as_json, f"{', '.join(wanted)} stopped.")
    return 0


def down(
    purge: Annotated[bool, typer.Option("--purge", help="Delete the data, the logs and the directory, too.")] = False,
    directory: DirOption = None,
    as_json: JsonOption = False,
) -> int:
    """Stop all instances."""
    cluster = _cluster(directory)
    with _failures():
        stopped, forced = cluster.down(purge=purge)
    _warn_forced(forced)
    if as_json:
        left = {"dir": str(cluster.directory), "instances": []} if purge else cluster.as_json()
        print(json.dumps(left | {"changed": stopped, "purged": purge}))
    else:
        print(f"{', '.join(stopped)} stopped." if stopped else "Nothing was running.")
        if purge:
            print(f"{cluster.directory} is deleted.")
    return 0


def env(directory: DirOption = None, as_json: JsonOption = False) -> int:
    """Print the variables by which other commands and programs find the cluster: eval "$(trimtab local env)"."""
    cluster = _cluster(directory)
    with _failures():
        addresses = ",".join(cluster.addresses().values())
    if not addresses:
        raise CommandFailed(f"no instance of the local cluster in {cluster.directory} runs; `trimtab local up`.")
    print(json.dumps({"TRIMTAB_CONTACT": addresses}) if as_json else f"export TRIMTAB_CONTACT={addresses}")
    return 0


def list_(directory: DirOption = None, as_json: JsonOption = False) -> int:
    """Show the instances: where they listen, and whether they run."""
    cluster = _cluster(directory)
    with _failures():
        found = cluster.as_json()
        running = cluster.running()
    if as_json:
        print(json.dumps(found))
        return 0
    from trimtab.cli.drawing import console, table
    from trimtab.playground.processes import uptime_s

    made = table("instance", "node", "HTTP", "process", "runs for", "log", wraps=("log",))
    for each in found["instances"]:
        name = each["instance_id"]
        since = f"{uptime_s(running[name]):.0f} s" if name in running else ""
        state = str(each["pid"]) if name in running else "left the cluster" if each["left"] else "not running"
        made.add_row(name, each["listen"], each["http"], state, since, each["log"])
    print(f"Local cluster in {cluster.directory}")
    console().print(made)
    return 0


def _warn_forced(forced: list[str]) -> None:
    if forced:
        print(f"trimtab: {', '.join(forced)} did not stop in time and had to be killed.", file=sys.stderr)


def _report(cluster: LocalCluster, changed: list[str], as_json: bool, text: str) -> None:
    if as_json:
        print(json.dumps(cluster.as_json(changed)))
    else:
        print(text)


def _await_online(cluster: LocalCluster, started: dict[str, Known], timeout_s: float) -> dict[str, Standing]:
    """Wait until those are Online, showing where each is; CommandFailed says which is where, and its last words."""
    import uvloop

    from trimtab.cli.progress import Progress
    from trimtab.playground.forming import NotOnline, await_online
    from trimtab.playground.members import last_words, log_path

    wanted = cluster.addresses(started)
    try:
        with Progress() as progress:
            return uvloop.run(
                await_online(
                    wanted,
                    timeout_s=timeout_s,
                    ended=lambda: cluster.ended(started),
                    seen=lambda standings: progress.show({name: each.text for name, each in standings.items()}),
                )
            )
    except NotOnline as error:
        lines = ["not all instances are Online" + ("." if error.ended else f" after {timeout_s:g} s.")]
        for name, standing in error.standings.items():
            if standing.online:
                continue
            where = f"ended by itself: {error.ended[name]}" if name in error.ended else standing.text
            lines.append(f"{name}: {where}")
            lines.append(f"  the end of {log_path(cluster.directory, name)}:")
            lines += [f"    {line}" for line in last_words(cluster.directory, name, lines=8).splitlines()]
        lines.append("The others go on; `trimtab local list` shows them, `trimtab local down` stops them.")
        raise CommandFailed("\n".join(lines)) from error
