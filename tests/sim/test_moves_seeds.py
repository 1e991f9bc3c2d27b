"""Whole clusters whose tablets move: a few seeds pass, and the same seed gives the same trace to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.moving_world import moving
from tests.sim.traces import assert_same_trace
from trimtab.sim.moves_balance import lopsided
from trimtab.sim.moves_plan import Change, draw
from trimtab.sim.run import run_seed
from trimtab.sim.story import failure
from trimtab.tablets.rebalance_settings import RebalanceSettings


@pytest.mark.parametrize("seed", [10, 30, 102])
def test_a_seed_of_clusters_whose_tablets_move_passes(seed: int) -> None:
    """These found something once: a write told as refused, a set that could not shrink, a mark that nobody cleared."""
    outcome = run_seed(seed, "moves")
    assert outcome.passed, failure(outcome)
    for nothing in (" 0 moves begun", " 0 ended", " 0 sets looked at"):
        assert nothing not in outcome.summary, outcome.summary


def test_the_same_seed_gives_the_same_trace_to_the_byte_under_different_hash_seeds(tmp_path: Path) -> None:
    assert_same_trace(83, "moves", tmp_path)


def test_a_seed_draws_all_kinds_of_lives() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert plans[:10] == [draw(seed) for seed in range(10)]
    for change in Change:
        assert sum(change in plan.changes for plan in plans) > 10, change
    assert all(any(getattr(plan, each) for plan in plans) for each in ("mishap", "deaths", "lateness_s", "loading"))
    assert any(plan.tables.forgetful for plan in plans) and not any(plan.tables.remote for plan in plans)
    assert {len(plan.replications) for plan in plans} == {1, 7}


def test_a_cluster_is_found_to_be_uneven_by_counting_whatever_its_planner_says() -> None:
    with moving(3, 2) as world:
        tables = world.run.loads.tables
        assert lopsided(world.cluster, tables) is None
        world.balancing(RebalanceSettings(enabled=False))
        (newcomer,) = world.join()
        world.until(lambda: world.online(newcomer), "it is Online")
        assert "and i3, which are alike, have" in (lopsided(world.cluster, tables) or "")
        world.balancing(RebalanceSettings())
        world.until(lambda: lopsided(world.cluster, tables) is None and not world.moving, "it has its share")
