"""`trimtab sim`: whole clusters on virtual time, one for each seed, with faults drawn from it.

One seed tells its story; many run in parallel and tell only how many passed, and of each failure what broke and how
to see it again. The exit code is 1 when any seed failed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.sim.run import Outcomes
    from trimtab.sim.runner import Report


def add_to(app: typer.Typer) -> None:
    app.command("sim")(sim)


def sim(
    seed: Annotated[int | None, typer.Option("--seed", help="Run one seed and tell its story.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="A:B", help="Run seeds A to B-1 in parallel.")] = None,
    scenario: Annotated[str, typer.Option("--scenario", help="What may go wrong; `--list` names them.")] = "chaos",
    trace: Annotated[Path | None, typer.Option("--trace", help="With --seed: write every event to this file.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first seed that fails.")] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default: all cores.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> int:
    """Run simulated clusters: find bugs by seed, replay them by seed."""
    from trimtab.sim.plan import SCENARIOS

    if show_list:
        return _list(as_json)
    if scenario not in SCENARIOS:
        raise WrongUsage(f"there is no scenario {scenario!r}; there are: {', '.join(SCENARIOS)}")
    if (seed is None) == (seeds is None):
        raise WrongUsage("say either --seed N or --seeds A:B")
    if seed is not None:
        return _one(seed, scenario, trace, as_json)
    if trace is not None:
        raise WrongUsage("--trace needs --seed: a trace of many seeds would be of use to nobody")
    assert seeds is not None
    return _many(parse_seeds(seeds), scenario, workers, fail_fast, as_json)


def parse_seeds(text: str) -> range:
    """`A:B`, half open."""
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise WrongUsage(f"{text!r} is no range of seeds; write A:B with A below B, for example 0:500")
    return range(int(first), int(end))


def _list(as_json: bool) -> int:
    from trimtab.sim.plan import SCENARIOS

    if as_json:
        print(json.dumps([{"scenario": scenario.name, "about": scenario.about} for scenario in SCENARIOS.values()]))
    else:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<12} {scenario.about}")
    return 0


def _one(seed: int, scenario: str, trace: Path | None, as_json: bool) -> int:
    from trimtab.sim import story
    from trimtab.sim.run import run_seed
    from trimtab.sim.runner import Report

    began = time.monotonic()
    outcome = run_seed(seed, scenario, tracing=trace is not None)
    seconds = time.monotonic() - began
    if trace is not None:
        try:
            trace.write_text("\n".join(outcome.trace) + "\n")
        except OSError as error:
            raise CommandFailed(f"can't write the trace to {trace}: {error.strerror}.") from error
    if as_json:
        failed = [] if outcome.passed else [outcome]
        print(
            json.dumps(
                Report(scenario, 1, int(outcome.passed), failed, outcome.events, seconds, outcome.cpu_s).as_json()
            )
        )
    else:
        print(story.tell(outcome))
    return 0 if outcome.passed else 1


def _many(seeds: range, scenario: str, workers: int | None, fail_fast: bool, as_json: bool) -> int:
    from trimtab.sim.runner import WorkerDied

    try:
        report = _run_many(seeds, scenario, workers, fail_fast, as_json)
    except WorkerDied as error:
        raise CommandFailed(f"{error}.") from error
    _tell_many(report, as_json)
    return 1 if report.failed else 0


def _run_many(seeds: range, scenario: str, workers: int | None, fail_fast: bool, as_json: bool) -> Report:
    from trimtab.sim.runner import run_seeds

    shows_progress = sys.stderr.isatty() and not as_json
    if shows_progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("seeds", total=len(seeds))
            bad = 0

            def done(outcome: Outcomes) -> None:
                nonlocal bad
                bad += not outcome.passed
                progress.update(task, advance=1, description=f"seeds, {bad} failed" if bad else "seeds")

            return run_seeds(seeds, scenario, workers=workers, fail_fast=fail_fast, on_done=done)
    return run_seeds(seeds, scenario, workers=workers, fail_fast=fail_fast)


def _tell_many(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json()))
        return
    from trimtab.sim import story

    for outcome in sorted(report.failed, key=lambda outcome: outcome.seed)[:3]:
        print(story.failure(outcome))
        print()
    if report.failed:
        print("failed: " + ", ".join(str(seed) for seed in sorted(outcome.seed for outcome in report.failed)))
    print(
        f"{report.passed} of {report.seeds} seeds passed ({report.scenario}); {report.events} events in "
        f"{report.seconds:.1f} s, {report.cpu_s / max(report.seeds, 1):.2f} s of CPU a seed"
    )
