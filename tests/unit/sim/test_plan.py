"""A seed means one plan, plans differ, and a scenario narrows them."""

from __future__ import annotations

import pytest

from trimtab.sim.plan import SCENARIOS, Fault, draw


def test_a_seed_gives_the_same_plan_every_time_and_another_seed_another() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(7, "reads") != draw(7)


def test_two_hundred_seeds_use_every_fault_and_no_two_of_the_first_use_the_same() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert {fault for plan in plans for fault in plan.rates} == set(Fault)
    assert len({plan.describe() for plan in plans}) == 200


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_keeps_to_its_faults(scenario: object) -> None:
    for seed in range(50):
        plan = draw(seed, scenario.name)  # type: ignore[attr-defined]
        assert set(scenario.always) <= set(plan.rates) <= {*scenario.always, *scenario.maybe}  # type: ignore[attr-defined]
        assert plan.members in scenario.members  # type: ignore[attr-defined]


def test_an_unknown_scenario_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(ValueError, match="there is no scenario 'war'; there are: chaos, calm"):
        draw(1, "war")
