"""What whole members make of what their disks kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.node.settings import Timing
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import World


@pytest.mark.parametrize("seed", range(4))
def test_a_member_applies_nothing_that_an_earlier_life_left_unsynced(seed: int) -> None:
    """Found by simulation: killed, restarted, then the power failed; the machine was ahead of what the log had kept."""
    plan = dataclasses.replace(draw(1, "calm"), members=3, timing=Timing(tick_ms=50, election_ticks=10))
    with World(seed) as world:
        cluster = SimCluster(world, plan)
        for member in cluster.members.values():
            cluster.start(member)
        client = world.process("client", "10.0.1.1")
        client.start()

        async def write() -> None:
            addresses = [member.address for member in cluster.members.values()]
            connected = await MetastoreClient.connect(addresses, rng=world.rng("client"), wall_ms=client.wall_ms)
            while True:
                await asyncio.sleep(0.02)
                with contextlib.suppress(Error):
                    await connected.put(b"k", b"v", timeout_s=1)

        client.spawn(write())
        world.run(2.0)
        follower = next(member for member in cluster.members.values() if not member.leads)
        for _ in range(5):
            follower.disk.slow_rate, follower.disk.slow_s = 1.0, 2.0
            world.run(world.now + 0.2)
            cluster.kill(follower, power=False)
            cluster.start(follower)
            world.run(world.now + 0.2)
            cluster.kill(follower, power=True)
            follower.disk.slow_rate = 0.0
            cluster.start(follower)
            world.run(world.now + 1.0)
        client.kill()
        world.run(world.now + 10.0)
        assert cluster.trouble() is None
