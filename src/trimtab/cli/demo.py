"""`trimtab demo`: the shortest way to see what Trimtab does. Needs nothing, leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.contact import JsonOption
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.playground.demo_outcome import Outcome

_MAX_ROWS = 100_000_000
_GO_ON = """
  [bold]./trimtab local up --nodes 3[/]
  [bold].venv/bin/python[/]
  >>> import trimtab
  >>> db = trimtab.connect("127.0.0.1:3301")
  >>> db.create_keyspace("shop", replication=3)
  >>> db.create_table("shop.users", {{"id": "bigint", "name": "text"}}, primary_key=["id"])
  >>> db.table("shop.users").put({{"id": 1, "name": "Ada"}})
  >>> db.table("shop.users").get(id=1)"""
_KEPT = """
  [bold]export TRIMTAB_LOCAL_DIR={folder}[/]     # from now on commands here mean this cluster
  [bold]./trimtab status[/]                              # and: tablets, tasks list, events, get shop.orders id=1
  [bold]./trimtab local start {killed}[/]                      # the one that was killed; it gives up what it lost
  [bold].venv/bin/python[/]
  >>> import trimtab
  >>> trimtab.connect("{peer}").table("shop.orders").get(id=1)
  [bold]./trimtab local down --purge[/]                  # ends it, and deletes everything"""


def demo(
    rows: Annotated[
        int, typer.Option("--rows", min=0, max=_MAX_ROWS, help="How many rows Spark loads. Default: 2 million.")
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the rows, and less waiting: well under 90 seconds.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running afterwards, to go on with.")] = False,
    as_json: JsonOption = False,
    picture: Annotated[Path | None, typer.Option(help="Save what is shown as an SVG image.")] = None,
) -> int:
    """Load a table with Spark, use it, add a node, kill another, and check that every row is there."""
    import dataclasses
    import json

    from trimtab.cli.screen import Screen, acts_table
    from trimtab.client.errors import Error
    from trimtab.playground.demo import QUICK_ROWS, ROWS, DemoFailed, Plan, run
    from trimtab.playground.record import LocalFailed

    if picture is not None and not picture.absolute().parent.is_dir():
        raise WrongUsage(f"there is no directory for the picture {picture}.")
    plan = Plan(rows=rows or (QUICK_ROWS if quick else ROWS), use_s=1.0 if quick else 5.0, keep=keep)
    with _folder(keep) as folder, Screen(stderr=as_json, picture=picture is not None) as screen:
        screen.print("[bold]Trimtab[/]: a cluster forms, Spark fills it, a node joins, another dies; nothing is lost\n")
        try:
            outcome = run(folder, plan, screen)
        except (DemoFailed, LocalFailed, Error) as error:
            raise CommandFailed(
                f"the demo failed: {error} (the logs are {folder}/i*/log and {folder}/spark.log)"
            ) from error
        screen.print("")
        screen.print(
            acts_table([(act.what, f"{act.seconds:.1f} s" if act.seconds else "", act.figure) for act in outcome.acts])
        )
        screen.print(_last_words(outcome, folder if keep else None))
        if picture is not None:
            screen.save(picture, "./trimtab demo")
    if as_json:
        told = dataclasses.asdict(outcome)
        print(json.dumps(told | {"good": outcome.good, "dir": str(folder) if keep else None}))
    if not outcome.good:
        print("trimtab: rows were lost, changed, or differ between replicas; please report this.", file=sys.stderr)
    return 0 if outcome.good else 1


def _last_words(outcome: Outcome, kept_in: Path | None) -> str:
    if not outcome.good:
        verdict = "[bold red]Rows were lost, changed, or differ between replicas.[/]"
    else:
        verdict = f"[bold green]Nothing was lost[/], in {outcome.seconds:.0f} s."
    if kept_in is None:
        return f"\n{verdict} Go on with a cluster of your own:\n{_GO_ON.format()}"
    shown = _KEPT.format(folder=kept_in, killed=outcome.killed, peer=outcome.peers[0])
    return f"\n{verdict} The cluster goes on:\n{shown}"


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    """A folder for everything. After an interrupt nothing is left of it; after a failure the logs are.

    Whoever wants it to end (SIGTERM too) waits until everything that was started has ended; a second word changes
    nothing about that.
    """
    from trimtab.playground.demo import spark_folder

    before = {number: signal.signal(number, _interrupted) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    folder = Path(tempfile.mkdtemp(prefix="trimtab-demo-"))
    gone = True
    try:
        yield folder
        gone = not keep
    except CommandFailed:
        gone = False
        raise
    finally:
        shutil.rmtree(spark_folder(folder), ignore_errors=True)
        if gone:
            shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(_number: int, _frame: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)
