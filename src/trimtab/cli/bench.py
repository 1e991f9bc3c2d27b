"""`trimtab bench`: measures Trimtab beside its peers. The benchmarks themselves live in the checkout's benchmarks/."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.cli.checkout import checkout_root
from trimtab.cli.contact import JsonOption
from trimtab.cli.errors import CommandFailed, WrongUsage


def say(text: str) -> None:
    """Progress is for people; standard output is for the result."""
    print(text, file=sys.stderr, flush=True)


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        if value is None:
            return "missing"
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

    console = Console()
    table = Table(title=f"bench {report['name']}", title_justify="left")
    for column in ("case", "metric"):
        table.add_column(column)
    peers = sorted({row["peer"] for row in report["rows"]})
    for column in ("ours", peers[0] if len(peers) == 1 else "peer", "ratio"):
        table.add_column(column, justify="right")
    previous = None
    for row in report["rows"]:
        if previous not in (None, row["case"]):
            table.add_section()
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}×"
        name = row["case"] if row["case"] != previous else ""
        theirs = number(row["peer_value"]) if len(peers) == 1 else f"{row['peer']}: {number(row['peer_value'])}"
        table.add_row(name, row["metric"], number(row["ours"]), theirs, ratio)
        previous = row["case"]
    console.print(table)
    console.print("machine: " + ", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    for note in report["notes"]:
        console.print(f"note: {note}")
    for peer, reason in report["missing"].items():
        console.print(f"missing: {peer}: {reason}")


def bench(
    name: Annotated[str | None, typer.Argument(help="The benchmark; without it, all of them.")] = None,
    as_json: JsonOption = False,
    install_peers: Annotated[bool, typer.Option("--install-peers", help="Fetch the systems to compare with.")] = False,
    seconds: Annotated[float, typer.Option(min=0.2, max=600, help="How long each run measures.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often each run is repeated, in turns.")] = 3,
    rows: Annotated[int, typer.Option(min=0, max=100_000_000, help="Rows of bench storage; 0: 5 million.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="bench rebalance: less of everything.")] = False,
    quiet_minutes: Annotated[
        float, typer.Option(min=0, max=1440, help="bench rebalance: how long a balanced cluster is left alone.")
    ] = 10,
    work_dir: Annotated[
        Path | None, typer.Option(help="Where data goes while it runs; it decides which disk is measured.")
    ] = None,
) -> None:
    """Measure Trimtab beside its peers, under the same load on this machine."""
    root = checkout_root("bench")
    sys.path.insert(0, str(root))
    benchmarks = importlib.import_module("benchmarks")
    failed: type[Exception] = importlib.import_module("benchmarks.load").BenchmarkFailed
    if name is not None and name not in benchmarks.BENCHMARKS:
        raise WrongUsage(f"there is no benchmark '{name}'; there is: {', '.join(benchmarks.BENCHMARKS)}.")
    try:
        if install_peers:
            importlib.import_module("benchmarks.peers").Peers(root).install(say)
            if name is None:
                return
        reports = []
        for each in [name] if name else benchmarks.BENCHMARKS:
            reports.append(run_one(root, each, seconds, rounds, work_dir, rows, quick, quiet_minutes))
    except failed as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        import json

        print(json.dumps(reports[0] if name else reports, indent=2))
    else:
        for report in reports:
            show(report)


def run_one(
    root: Path,
    name: str,
    seconds: float,
    rounds: int,
    work_dir: Path | None,
    rows: int = 0,
    quick: bool = False,
    quiet_minutes: float = 10,
) -> dict[str, Any]:
    options = importlib.import_module("benchmarks.report").Options
    # Not the system's temporary directory: that may be memory, where a sync costs nothing.
    parent = work_dir or root / "build"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=parent))
    module = importlib.import_module(f"benchmarks.{name}")
    asked = options(
        seconds=seconds, rounds=rounds, folder=folder, root=root, rows=rows, quick=quick, quiet_minutes=quiet_minutes
    )
    report: dict[str, Any] = module.run(asked, say).as_json()
    # After a failure the folder stays: the message points at the logs in it.
    shutil.rmtree(folder)
    return report


def add_to(app: typer.Typer) -> None:
    app.command("bench")(bench)
