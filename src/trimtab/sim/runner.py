"""Many seeds, in as many processes as there are cores. A seed that fails brings its story home, others their cost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from trimtab.sim.run import Outcomes, run_seed


class WorkerDied(Exception):
    """The seeds could not be run; this says nothing about them."""


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
            _share_out(seeds, scenario, count, take)
    finally:
        report.seconds = time.monotonic() - began
    return report


def _share_out(seeds: Sequence[int], scenario: str, count: int, take: Callable[[Outcomes], bool]) -> None:
    """Run seeds in processes until there are no more or `take` has seen enough. Raises WorkerDied."""
    # An executor gives up when a worker dies; a pool would start another one, and another, for ever.
    # Its workers live to the end: replacing them after so many tasks can deadlock in Python 3.11.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _prepare)
    try:
        for done in as_completed([pool.submit(_one, scenario, seed) for seed in seeds]):
            if take(done.result()):
                break
    except BrokenProcessPool as error:
        raise WorkerDied(
            "a worker process ended without an answer (killed, out of memory, or it can't import the package); "
            "run the seeds again, or one of them alone with --seed"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """A worker: Ctrl-C is its parent's business, whose end is its own; what is imported by now is here to stay."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.collect()
    gc.freeze()


def _end_with_parent() -> None:
    """A parent that is killed tells nobody, and its workers would wait for seeds for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)


def _one(scenario: str, seed: int) -> Outcomes:
    outcome = run_seed(seed, scenario)
    gc.collect()
    outcome.trace = []
    if outcome.passed:
        outcome.story = []
    return outcome


def _seed(outcome: Outcomes) -> int:
    return outcome.seed
