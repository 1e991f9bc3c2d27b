"""Many instances at once: what one of them costs does not grow with their number, and weight gives each its share."""

from __future__ import annotations

import pytest

from tests.sim.governed_world import governed, leader, others, row, view
from trimtab.sim.joiners import join_at_once
from trimtab.topology.grades import Grade
from trimtab.topology.weights import shares


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_hundred_instances_join_at_once_and_each_costs_as_few_writes_as_one_of_ten() -> None:
    few, some, many = (join_at_once(joiners) for joiners in (10, 30, 100))
    for joined in (few, some, many):
        print(joined.describe())
    assert many.writes_per_joiner <= some.writes_per_joiner + 1 <= few.writes_per_joiner + 2
    assert many.virtual_s < 30


def test_weights_0_and_a_half_and_1_get_shares_0_and_1_and_2() -> None:
    """Weights are those of the rows: 1 while Online, 0 for one that is down. A half is an operator's, later."""
    with governed(3) as cluster:
        lost = others(cluster, leader(cluster))[0]
        lost.crash(power=False)
        cluster.until(
            lambda: row(cluster, lost.settings.instance_id).grades.current.grade is Grade.OFFLINE, what="it is Offline"
        )
        weights = {raft_id: record.weight for raft_id, record in view(cluster).members().items()}
    assert sorted(weights.values()) == [0.0, 1.0, 1.0]
    down, first, second = sorted(weights, key=lambda raft_id: (weights[raft_id], raft_id))
    assert shares(weights, 2) == {down: 0, first: 1, second: 1}
    assert shares({**weights, first: 0.5}, 3) == {down: 0, first: 1, second: 2}
