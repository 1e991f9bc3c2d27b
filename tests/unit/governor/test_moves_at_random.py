"""The pump on a cluster of values to which anything may happen; see `moving` for what is checked."""

from __future__ import annotations

import random

import pytest
from tests.unit.governor.moving import Moves

from trimtab.tablets.transitions import Cause


def walk(seed: int, steps: int = 250) -> Moves:
    rng = random.Random(seed)
    count = rng.choice([3, 4, 5, 6, 7])
    factor = rng.randint(1, min(5, count))
    dcs = {raft_id: f"dc{1 + raft_id % 2}" for raft_id in range(1, count + 1)} if rng.random() < 0.3 else None
    tablets = rng.choice([1, 2, 4])
    everybody = list(range(1, count + 1))
    world = Moves([tuple(rng.sample(everybody, factor)) for _ in range(tablets)], instances=count, dcs=dcs, seed=seed)
    old_jobs = []
    for _ in range(steps):
        event = rng.random()
        if event < 0.35:
            step = world.next_step()
            if step is not None:
                if rng.random() < 0.1:
                    world.in_flight[step.key] = step
                else:
                    world.carry_out(step)
        elif event < 0.45 and world.in_flight:
            # A step that was decided a while ago is carried out now.
            world.carry_out(world.in_flight.pop(rng.choice(list(world.in_flight))))
        elif event < 0.7:
            router = rng.choice(everybody)
            if world.up(router):
                world.write(rng.randrange(tablets), router, rng.choice([0.6, 1.0]))
        elif event < 0.78:
            raft_id = rng.choice(everybody)
            if world.up(raft_id):
                world.learn(raft_id)
        elif event < 0.84 and world.open_jobs():
            job = rng.choice(world.open_jobs())
            old_jobs.append(job)
            world.run_job(job)
        elif event < 0.86 and old_jobs:
            # A stream that was given up long ago is released.
            for copy in rng.choice(old_jobs).command.parameters.get("copies", ()):
                world._copy(copy)
        elif event < 0.92:
            tablet = rng.randrange(tablets)
            target = rng.sample(everybody, rng.randint(1, min(5, count)))
            world.proposals = [each for each in world.proposals if each.tablet != tablet]
            world.propose(tablet, *target, cause=rng.choice(list(Cause)[:1] + list(Cause)[2:]))
        elif event < 0.94:
            world.took_office()
        elif event < 0.96:
            down = [raft_id for raft_id in everybody if not world.up(raft_id)]
            if len(down) < (count - 1) // 2:
                world.kill(rng.choice(everybody))
        elif event < 0.98:
            for raft_id in everybody:
                if not world.up(raft_id) and not world.marked(raft_id):
                    world.mark(raft_id)
        else:
            for raft_id in everybody:
                if not world.up(raft_id) and world.marked(raft_id):
                    world.start(raft_id)
        world.now_ms += 300
        world.resting.clear()
        world.check()
    world.in_flight.clear()
    for raft_id in everybody:
        if not world.up(raft_id):
            if not world.marked(raft_id):
                world.mark(raft_id)
            world.start(raft_id)
    world.proposals.clear()
    world.run(steps=1_000)
    assert not world.tables.transitions and not world.loads.sessions and not world.open_jobs()
    for tablet in range(tablets):
        for raft_id in everybody:
            world.learn(raft_id)
        there = {raft_id for raft_id, number in world.replicas if number == tablet}
        assert there == set(world.stable(tablet))
    return world


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_no_acknowledged_write_is_lost(seed: int) -> None:
    walk(seed)
