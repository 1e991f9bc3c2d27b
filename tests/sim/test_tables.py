"""Whole clusters with tables: a few seeds pass, and the same seed gives the same trace to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.traces import assert_same_trace
from trimtab.sim.run import run_seed
from trimtab.sim.story import failure
from trimtab.sim.tables_plan import draw


@pytest.mark.parametrize("seed", range(3, 8))
def test_a_seed_of_clusters_with_tables_passes(seed: int) -> None:
    outcome = run_seed(seed, "tables")
    assert outcome.passed, failure(outcome)


def test_a_run_is_about_something() -> None:
    """Most of what clients ask is done, though much is in the way."""
    summary = run_seed(4, "tables").summary
    numbers = [int(word) for word in summary.replace(",", "").split() if word.isdigit()]
    assert "writes acknowledged" in summary and max(numbers) > 50, summary


@pytest.mark.parametrize("seed", [5, 12])
def test_the_same_seed_gives_the_same_trace_to_the_byte_under_different_hash_seeds(seed: int, tmp_path: Path) -> None:
    assert_same_trace(seed, "tables", tmp_path)


def test_a_seed_draws_lives_of_all_kinds() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert plans[:10] == [draw(seed) for seed in range(10)]
    assert 60 < sum(plan.forgetful for plan in plans) < 140
    assert sum(plan.remote for plan in plans) > 10
    assert {sum(plan.replication.values()) for plan in plans} == {1, 2, 3, 4}
    assert {len(plan.replication) for plan in plans} == {1, 2}
    assert {trouble for plan in plans for trouble in (*plan.rates, *plan.topology.rates)}
    assert all("replicas" in plan.describe() for plan in plans)
