"""Elections on whole members, where the disk decides what is remembered."""

from __future__ import annotations

import dataclasses

import pytest

from trimtab.node.settings import Timing
from trimtab.sim.cluster import SimCluster, SimMember
from trimtab.sim.plan import draw
from trimtab.sim.world import World


@pytest.mark.parametrize("seed", range(8))
def test_a_candidate_that_crashes_before_its_term_is_durable_is_not_elected_twice_in_it(seed: int) -> None:
    """Found by simulation: votes were asked for while the candidate's own term was still being written."""
    plan = dataclasses.replace(draw(1, "calm"), members=3, timing=Timing(tick_ms=50, election_ticks=10))
    with World(seed) as world:
        cluster = SimCluster(world, plan)
        for member in cluster.members.values():
            cluster.start(member)
        world.run(0.2)
        candidate = cluster.members[1]
        candidate.disk.slow_rate, candidate.disk.slow_s = 1.0, 1.0
        control = world.control.loop
        assert control is not None

        def crash(member: SimMember) -> None:
            if member is candidate:
                control.call_soon(cluster.kill, candidate, True)
                control.call_later(0.005, cluster.start, candidate)

        def campaign() -> None:
            if candidate.instance is not None and candidate.group is not None and not candidate.leads:
                candidate.group.raw.campaign()
                candidate.instance.host.nudge(candidate.group)

        cluster.on_leader = crash
        for _ in range(10):
            if candidate.process.loop is not None:
                candidate.process.loop.call_soon(campaign)
            world.run(world.now + 0.15)
