"""Whole clusters whose tables are loaded: a few seeds pass, and the same seed gives the same trace to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.traces import assert_same_trace
from trimtab.sim.loads_plan import draw
from trimtab.sim.run import run_seed
from trimtab.sim.story import failure


@pytest.mark.parametrize("seed", [13, 14])
def test_a_seed_of_clusters_whose_tables_are_loaded_passes(seed: int) -> None:
    """The first found something once: files taken over too late."""
    outcome = run_seed(seed, "loads")
    assert outcome.passed, failure(outcome)
    for nothing in (" 0 published", " 0 taken over", " 0 scans", " 0 succeeded"):
        assert nothing not in outcome.summary, outcome.summary


def test_the_same_seed_gives_the_same_trace_to_the_byte_under_different_hash_seeds(tmp_path: Path) -> None:
    assert_same_trace(1, "loads", tmp_path)


def test_a_seed_draws_all_kinds_of_lives() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert plans[:10] == [draw(seed) for seed in range(10)]
    assert 30 < sum(plan.moves > 0 for plan in plans) < 170
    assert {plan.job_drivers for plan in plans} == {1, 2}
    assert all(any(getattr(plan, each) for plan in plans) for each in ("mishap", "deaths", "moves", "slow"))
    assert any(plan.tables.forgetful for plan in plans) and not any(plan.tables.remote for plan in plans)
