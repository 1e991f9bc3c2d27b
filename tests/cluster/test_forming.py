"""Three instances become one cluster: in any order, told of part of the others, killed while they do it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.cluster.instances import Instances
from tests.cluster.watching import run

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# Any two of them share a listed peer, and none is told of everybody.
PARTIAL = {1: (1, 2), 2: (2, 3), 3: (3, 1)}
EVERYBODY = (1, 2, 3)


async def form_one_cluster(three: Instances) -> None:
    """All are Online, in one cluster with three rows; whatever happened before."""
    await three.online()
    await three.vote(*EVERYBODY)
    geneses = {three.identity(number)["genesis"] for number in EVERYBODY}
    assert len(geneses) == 1 and all(geneses), three.said()
    for number in EVERYBODY:
        view = await three.view(number)
        assert view.genesis in geneses
        assert sorted(each.record.instance_id for each in view.instances) == ["i1", "i2", "i3"]
        assert sorted(each.raft_id for each in view.instances) == [1, 2, 3]


@pytest.mark.parametrize("order", [None, (3, 1, 2), (2, 3, 1)], ids=str)
def test_three_that_know_only_some_of_the_others_form_one_cluster(
    three: Instances, order: tuple[int, ...] | None, record_property: pytest.RecordProperty
) -> None:
    began = time.monotonic()
    for number in order or EVERYBODY:
        three.start(number, peers=PARTIAL[number])
        if order is not None:
            three.until(lambda number=number: "looking for the cluster" in three.output(number), f"i{number} looks")
    run(form_one_cluster(three))
    seconds = time.monotonic() - began
    print(f"\nthree instances, started {order or 'at once'}: Online after {seconds:.1f} s")
    record_property("online_s", round(seconds, 2))


def test_all_killed_at_each_step_of_the_founder_form_one_cluster(three: Instances, tmp_path: Path) -> None:
    for place in ("boot.persisted", "boot.logged", "boot.member"):
        there = tmp_path / place
        three.start(*EVERYBODY, env={"TRIMTAB_FAILPOINTS": f"{place}=pause:{there}"})
        three.until(there.exists, f"somebody comes to {place}")
        three.kill(*EVERYBODY)
    three.start(*EVERYBODY)
    run(form_one_cluster(three))


def test_all_killed_at_random_moments_of_the_bootstrap_form_one_cluster(three: Instances) -> None:
    rng = random.Random(17)
    for _ in range(3):
        for number in rng.sample(EVERYBODY, 3):
            three.start(number, peers=PARTIAL[number])
        # From before they look for each other until they are about to be Online.
        time.sleep(rng.uniform(0.3, 2.0))
        three.kill(*EVERYBODY)
    three.start(*EVERYBODY)
    run(form_one_cluster(three))
