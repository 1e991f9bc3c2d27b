"""A few seeds of every scenario pass, and the same seed gives the same trace to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.sim.plan import SCENARIOS
from trimtab.sim.run import run_seed
from trimtab.sim.story import failure


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_passes(scenario: str, seed: int) -> None:
    outcome = run_seed(seed, scenario)
    assert outcome.passed, failure(outcome)


@pytest.mark.parametrize("seed", [5, 18])
def test_the_same_seed_gives_the_same_trace_to_the_byte_under_different_hash_seeds(seed: int, tmp_path: Path) -> None:
    traces = []
    for hash_seed in ("1", "31337"):
        path = tmp_path / f"trace-{hash_seed}"
        command = [sys.executable, "-m", "trimtab", "sim", "--seed", str(seed), "--trace", str(path)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        traces.append(path.read_bytes())
    assert len(traces[0].splitlines()) > 1000
    assert traces[0] == traces[1]


def test_a_run_in_the_middle_of_others_is_the_same_as_a_run_alone() -> None:
    """Nothing of one world leaks into the next: counters, caches, garbage."""
    alone = run_seed(5, tracing=True)
    run_seed(6)
    again = run_seed(5, tracing=True)
    assert alone.trace == again.trace
