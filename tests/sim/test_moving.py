"""An instance that is started at another address: the leader can't find it there before it has told where it is."""

from __future__ import annotations

import dataclasses

import pytest

from tests.sim.governed_world import governed, grade, others, row
from trimtab.topology.grades import Grade


@pytest.mark.parametrize("away_s", [0.0, 10.0])
def test_an_instance_that_moved_comes_back_by_way_of_the_others(away_s: float) -> None:
    with governed(3) as cluster:
        mover = next(machine for machine in cluster.machines.values() if not machine.leads)
        mover.crash(power=False)
        host, _, port = mover.settings.listen.rpartition(":")
        mover.settings = dataclasses.replace(mover.settings, listen=f"{host}:{int(port) + 7}")
        cluster.world.run(cluster.world.now + away_s)
        mover.start()
        cluster.world.run(cluster.world.now + 15)
        name = mover.settings.instance_id
        assert row(cluster, name).address == mover.settings.listen
        assert grade(cluster, name) is Grade.ONLINE
        for other in others(cluster, mover):
            assert other.instance is not None
            assert other.instance.members.addresses[mover.raft_id] == mover.settings.listen
