"""`trimtab demo`: the shortest way to see what Trimtab does today. Needs nothing, leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.contact import JsonOption
from trimtab.cli.errors import CommandFailed, WrongUsage


def demo(
    as_json: JsonOption = False,
    picture: Annotated[Path | None, typer.Option(help="Save what is shown as an SVG image.")] = None,
) -> int:
    """Form a cluster of three, kill -9 its leader under writes, see it heal, and check that nothing is lost."""
    import dataclasses
    import json

    import uvloop
    from rich.console import Console
    from rich.table import Table

    from trimtab.client.errors import Error
    from trimtab.playground.demo import DemoFailed, run
    from trimtab.playground.record import LocalFailed

    if picture is not None and not picture.absolute().parent.is_dir():
        raise WrongUsage(f"there is no directory for the picture {picture}.")
    # With --json standard output is the result alone; the story still helps whoever watches.
    console = Console(stderr=as_json, record=picture is not None, highlight=False, width=100 if picture else None)
    step = 0

    def tell(line: str) -> None:
        nonlocal step
        step += 1
        console.print(f"[cyan]{step}[/] {line}")

    folder = Path(tempfile.mkdtemp(prefix="trimtab-demo-"))
    console.print("[bold]Trimtab[/]: three processes form a cluster, lose their leader, and heal\n")
    try:
        outcome = uvloop.run(run(folder, tell))
    except (DemoFailed, LocalFailed, Error) as error:
        # The folder stays, because the instances' logs are in it.
        raise CommandFailed(f"the demo failed: {error} (the logs are {folder}/cluster/i*/log)") from error
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)
    table = Table("instance", "revision", "checksum of the whole history")
    for name, checksum in outcome.checksums.items():
        table.add_row(name, f"{outcome.revision:,}", checksum)
    console.print(table)
    verdict = "[bold green]Nothing was lost.[/]" if outcome.good else "[bold red]The members disagree or lost data.[/]"
    console.print(f"{verdict} ({outcome.seconds:.0f} s)")
    if picture is not None:
        # Without the fonts that rich would have a viewer fetch from elsewhere; any monospace font will do.
        picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="./trimtab demo"), flags=re.S))
    if as_json:
        print(json.dumps(dataclasses.asdict(outcome)))
    if not outcome.good:
        print(f"trimtab: {outcome.lost} lost, {outcome.doubled} applied twice; please report this.", file=sys.stderr)
    return 0 if outcome.good else 1


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)
