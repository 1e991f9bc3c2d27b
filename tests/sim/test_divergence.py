"""A member whose state has left the majority's stops before it can give another answer."""

from __future__ import annotations

import dataclasses

import pytest

from trimtab.client.metastore import MetastoreClient
from trimtab.node.reports import Diverged
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import World


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_a_member_whose_state_differs_from_the_majoritys_stops_and_the_others_go_on(wrong: int) -> None:
    plan = dataclasses.replace(draw(1, "calm"), members=3)
    with World(wrong) as world:
        cluster = SimCluster(world, plan)
        for member in cluster.members.values():
            cluster.start(member)
        client = world.process("client", "10.0.1.1")
        client.start()

        async def put(*keys: bytes) -> None:
            addresses = [member.address for member in cluster.members.values()]
            connected = await MetastoreClient.connect(addresses, rng=world.rng("client"), wall_ms=client.wall_ms)
            for key in keys:
                await connected.put(key, b"1")
            await connected.close()

        world.run_until_done(client.spawn(put(b"a", b"b")), world.now + 20)
        world.run(world.now + 2)
        # From here on the simulator's own invariants are off: they would see the difference at once.
        world.after_event = None
        stopped: list[str] = []
        world.fail = stopped.append  # type: ignore[method-assign]
        instances = {number: member.instance for number, member in cluster.members.items()}
        victim = instances[wrong]
        assert victim is not None
        victim.machine.metastore._chain = b"\x01" * 8
        world.run_until_done(client.spawn(put(b"c", b"d")), world.now + 20)
        world.run(world.now + 5)
        assert isinstance(victim.failure, Diverged)
        assert len(stopped) == 1 and stopped[0].startswith(f"n{wrong} stopped itself")
        assert "a majority of the voters" in str(victim.failure)
        for number, instance in instances.items():
            if number != wrong:
                assert instance is not None and instance.failure is None
        world.run_until_done(client.spawn(put(b"e")), world.now + 20)
