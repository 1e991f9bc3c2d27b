"""Many seeds, in as many processes as there are cores. A seed that fails brings its story home, others their cost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from trimtab.sim.run import Outcomes, run_seed

SEEDS_PER_PROCESS = 200


@dataclass
class Report:
    """What many seeds came to."""

    scenario: str
    seeds: int = 0
    passed: int = 0
    failed: list[Outcomes] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    def as_json(self) -> dict[str, object]:
        failed = [{"seed": outcome.seed, "why": outcome.why} for outcome in sorted(self.failed, key=_seed)]
        return {
            "scenario": self.scenario,
            "seeds": self.seeds,
            "passed": self.passed,
            "failed": failed,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_s, 3),
        }


def run_seeds(
    seeds: Sequence[int],
    scenario: str = "chaos",
    *,
    workers: int | None = None,
    fail_fast: bool = False,
    on_done: Callable[[Outcomes], None] = lambda _outcome: None,
) -> Report:
    """Run all seeds, or until one fails (`fail_fast`). KeyboardInterrupt ends the processes and is passed on."""
    report = Report(scenario)
    began = time.monotonic()
    count = max(1, min(workers or os.cpu_count() or 1, len(seeds)))

    def take(outcome: Outcomes) -> bool:
        report.seeds += 1
        report.events += outcome.events
        report.cpu_s += outcome.cpu_s
        if outcome.passed:
            report.passed += 1
        else:
            report.failed.append(outcome)
        on_done(outcome)
        return fail_fast and not outcome.passed

    try:
        if count == 1:
            for seed in seeds:
                if take(_one(scenario, seed)):
                    break
        else:
            # Leaving the block ends the processes, whatever they are doing.
            with multiprocessing.get_context("spawn").Pool(count, _prepare, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
                for outcome in pool.imap_unordered(partial(_one, scenario), seeds):
                    if take(outcome):
                        break
    finally:
        report.seconds = time.monotonic() - began
    return report


def _prepare() -> None:
    """A worker: Ctrl-C is its parent's business, and what is imported by now is here to stay."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()


def _one(scenario: str, seed: int) -> Outcomes:
    outcome = run_seed(seed, scenario)
    gc.collect()
    outcome.trace = []
    if outcome.passed:
        outcome.story = []
    return outcome


def _seed(outcome: Outcomes) -> int:
    return outcome.seed
