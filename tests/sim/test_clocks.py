"""Wrong clocks: a client that lags, a leader that runs ahead. Everything is still carried out, once."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from trimtab.client.metastore import MetastoreClient
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import World

HOURS_MS = 3_600_000


@pytest.mark.parametrize(("members_ahead_ms", "client_ahead_ms"), [(0, -2 * HOURS_MS), (2 * HOURS_MS, 0)])
def test_ten_minutes_of_puts_pass_although_clocks_are_hours_apart(members_ahead_ms: int, client_ahead_ms: int) -> None:
    with World(3) as world:
        cluster = SimCluster(world, dataclasses.replace(draw(1, "calm"), members=1))
        client, other = world.process("client", "10.0.1.1"), world.process("other", "10.0.1.2")
        cluster.start(cluster.members[1])
        client.start()
        other.start()

        async def put(process_name: str, count: int) -> MetastoreClient:
            process = client if process_name == "client" else other
            connected = await MetastoreClient.connect(
                [cluster.members[1].address], rng=world.rng(process_name), wall_ms=process.wall_ms
            )
            for number in range(count):
                await connected.put(process_name.encode(), b"%d" % number)
                await asyncio.sleep(1)
            return connected

        # The cluster's time begins while all is well.
        world.run_until_done(other.spawn(put("other", 1)), world.now + 30)
        cluster.members[1].process.jump_wall_clock(members_ahead_ms)
        client.jump_wall_clock(client_ahead_ms)
        connected = world.run_until_done(client.spawn(put("client", 600)), world.now + 700)
        entry = world.run_until_done(client.spawn(connected.get(b"client")), world.now + 10)
        assert (entry.value, entry.version) == (b"599", 600)
        world.run_until_done(other.spawn(put("other", 3)), world.now + 30)
