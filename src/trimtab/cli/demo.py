"""`trimtab demo`: the shortest way to see what Trimtab does today. Needs nothing, leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.contact import JsonOption
from trimtab.cli.errors import CommandFailed, WrongUsage

_GO_ON = """
  [bold]./trimtab local up --nodes 3[/]
  [bold].venv/bin/python[/]
  >>> import trimtab
  >>> db = trimtab.connect("127.0.0.1:3301")
  >>> db.create_keyspace("shop", replication=3)
  >>> db.create_table("shop.users", {"id": "bigint", "name": "text"}, primary_key=["id"])
  >>> users = db.table("shop.users")
  >>> users.put({"id": 1, "name": "Ada"})
  >>> users.get(id=1)"""


def demo(
    as_json: JsonOption = False,
    picture: Annotated[Path | None, typer.Option(help="Save what is shown as an SVG image.")] = None,
) -> int:
    """Form a cluster of three, put rows, kill -9 its leader meanwhile, see it heal, and check that nothing is lost."""
    import dataclasses
    import json

    import uvloop
    from rich.console import Console

    from trimtab.client.errors import Error
    from trimtab.playground.demo import DemoFailed, run
    from trimtab.playground.record import LocalFailed

    if picture is not None and not picture.absolute().parent.is_dir():
        raise WrongUsage(f"there is no directory for the picture {picture}.")
    # With --json standard output is the result alone; the story still helps whoever watches.
    console = Console(stderr=as_json, record=picture is not None, highlight=False, width=100 if picture else None)
    began = time.monotonic()

    def tell(line: str) -> None:
        console.print(f"[cyan]{time.monotonic() - began:5.1f} s[/]  {line}")

    folder = Path(tempfile.mkdtemp(prefix="trimtab-demo-"))
    console.print("[bold]Trimtab[/]: three processes form a cluster, take rows, lose their leader, and heal\n")
    try:
        outcome = uvloop.run(run(folder, tell))
    except (DemoFailed, LocalFailed, Error) as error:
        # The folder stays, because the instances' logs are in it.
        raise CommandFailed(f"the demo failed: {error} (the logs are {folder}/cluster/i*/log)") from error
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)
    verdict = "[bold green]Nothing was lost.[/]" if outcome.good else "[bold red]Rows were lost.[/]"
    console.print(f"\n{verdict} Go on with a cluster of your own:\n{_GO_ON}")
    if picture is not None:
        # Without the fonts that rich would have a viewer fetch from elsewhere; any monospace font will do.
        picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="./trimtab demo"), flags=re.S))
    if as_json:
        print(json.dumps(dataclasses.asdict(outcome)))
    if not outcome.good:
        print(
            f"trimtab: {outcome.lost} rows lost, {outcome.missing} missing on {outcome.killed}; please report this.",
            file=sys.stderr,
        )
    return 0 if outcome.good else 1


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)
