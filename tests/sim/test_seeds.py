"""A few seeds of every scenario pass, and the same seed gives the same trace to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.traces import assert_same_trace
from trimtab.sim.plan import SCENARIOS
from trimtab.sim.run import run_seed
from trimtab.sim.story import failure


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", range(2))
def test_a_seed_passes(scenario: str, seed: int) -> None:
    outcome = run_seed(seed, scenario)
    assert outcome.passed, failure(outcome)


@pytest.mark.parametrize("seed", range(3, 9))
def test_a_seed_of_whole_governed_clusters_passes(seed: int) -> None:
    outcome = run_seed(seed, "topology")
    assert outcome.passed, failure(outcome)


@pytest.mark.parametrize(("seed", "scenario"), [(5, "chaos"), (3, "topology")])
def test_the_same_seed_gives_the_same_trace_to_the_byte_under_different_hash_seeds(
    seed: int, scenario: str, tmp_path: Path
) -> None:
    assert_same_trace(seed, scenario, tmp_path)


DIGESTS = """
import hashlib, sys
from trimtab.sim.run import run_seed
for seed in map(int, sys.argv[1:]):
    outcome = run_seed(seed)
    print(seed, outcome.events, hashlib.sha256(repr(outcome.story).encode()).hexdigest())
"""


def test_seeds_do_not_depend_on_each_other_nor_on_the_process_they_run_in() -> None:
    """Nothing of one world leaks into the next: counters, caches, garbage, addresses of objects."""
    seeds = [str(seed) for seed in range(30, 36)]
    answers = []
    for order, hash_seed in ((seeds, "7"), (list(reversed(seeds)), "8")):
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS, *order],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        answers.append(sorted(done.stdout.splitlines()))
    assert len(answers[0]) == len(seeds)
    assert answers[0] == answers[1]
