"""An instance whose process is stopped (SIGSTOP) for longer than its lease, and continued: it answers nothing stale.

Requests pile up at its door while it stands still, and are answered in the very instant it goes on. Each must be
refused, or be as new as what others had been told before it was asked; at ONE it may be old, and must say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cluster.instances import Instances
from tests.cluster.watching import run, status_of
from trimtab.client.cluster import ClusterClient
from trimtab.client.errors import Error
from trimtab.metastore import requests
from trimtab.net.client import Channel
from trimtab.net.errors import NetError, RpcError
from trimtab.net.hello import Hello
from trimtab.net.limits import Limits
from trimtab.topology import protocol
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import Level, ProbeRequest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COUNTER = b"test/counter"
# The connections must outlive the standstill: what piles up in them is what this is about.
PATIENT = Limits(dead_after_s=60, keepalive_s=15)
HAMMERS = 4


@dataclass
class World:
    """What is known outside of the frozen instance."""

    acknowledged: int = 0  # the counter's highest value that somebody was told is written
    version: int = 0  # of the topology, and the index that was committed, when the frozen one was about to go on
    committed: int = 0
    going_on: bool = False  # it is about to be continued, or was
    outcomes: Counter[str] = field(default_factory=Counter)


async def raise_the_counter(client: ClusterClient, world: World) -> None:
    """Through the others, for ever."""
    while True:
        with contextlib.suppress(Error):
            await client.metastore.put(COUNTER, b"%d" % (world.acknowledged + 1), timeout_s=5)
            world.acknowledged += 1
        await asyncio.sleep(0.05)


async def hammer(channel: Channel, world: World) -> None:
    """Ask the frozen instance, for ever: many requests at once, so that some are always at its door."""
    while True:
        with contextlib.suppress(NetError):
            await channel.wait_connected(5)
            await asyncio.gather(ask(channel, world, Level.QUORUM), ask(channel, world, Level.ONE), get(channel, world))
        await asyncio.sleep(0.02)


async def ask(channel: Channel, world: World, level: Level) -> None:
    body = protocol.encode(ProbeRequest(0, level))
    try:
        reply = protocol.decode_probe_reply(await channel.call(protocol.PROBE, body, 20))
    except RpcError as error:
        world.outcomes[f"{level.name} {error.code}"] += 1
        return
    world.outcomes[f"{level.name} {'stale' if reply.stale else 'answered'}"] += 1
    if level is Level.QUORUM:
        assert not reply.stale
    if world.going_on and not reply.stale:
        # It has caught up with what happened while it stood still, its own being marked Offline included.
        assert reply.version >= world.version and reply.applied >= world.committed, (level, reply, world)


async def get(channel: Channel, world: World) -> None:
    before = world.acknowledged
    body = requests.encode(requests.GetRequest(COUNTER))
    try:
        reply = requests.decode_get_reply(await channel.call(requests.GET, body, 20))
    except RpcError as error:
        world.outcomes[f"get {error.code}"] += 1
        return
    world.outcomes["get answered"] += 1
    assert int(reply.entry.value if reply.entry else 0) >= before


@contextlib.contextmanager
def frozen(three: Instances, number: int) -> Iterator[None]:
    """Its node stands still; its supervisor goes on."""
    node = three.node(number)
    assert node, f"i{number} has no node"
    os.kill(node, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node, signal.SIGCONT)


async def freeze(three: Instances, number: int) -> World:
    """Freeze an instance until it was marked Offline; let it go on, and wait until it is Online again."""
    world = World()
    others = set(three.running) - {number}
    rng = random.Random(number)
    channels = [Channel(three.listen[number], Hello(), rng, limits=PATIENT) for _ in range(HAMMERS)]
    async with three.client(*others) as client, contextlib.AsyncExitStack() as ends, asyncio.TaskGroup() as tasks:
        ends.callback(lambda: [channel.close() for channel in channels])
        busy = [tasks.create_task(raise_the_counter(client, world))]
        busy += [tasks.create_task(hammer(channel, world)) for channel in channels]

        async def marked_offline() -> bool:
            view = await client.view()
            row = next(each.record for each in view.instances if each.record.instance_id == f"i{number}")
            world.version = view.version
            return row.grades.current.grade is Grade.OFFLINE and view.fence >= row.since_version

        with frozen(three, number):
            await three.wait_for(marked_offline, f"i{number}, which stands still, is marked Offline")
            world.outcomes.clear()
            world.committed = min([(await status_of(three.listen[each])).applied for each in others])
            world.going_on = True
        await three.online(number)
        for task in busy:
            task.cancel()
    return world


def test_an_instance_that_stood_still_serves_nothing_stale_and_comes_back_by_itself(brisk_three: Instances) -> None:
    three = brisk_three

    async def story() -> None:
        three.start(1, 2, 3)
        await three.online()
        await three.vote(1, 2, 3)
        leader = await three.leader()
        follower = next(number for number in three.running if number != leader)
        for role, number in (("a follower", follower), ("the leader", leader)):
            world = await freeze(three, number)
            print(f"\n{role}: {dict(world.outcomes)}, counter {world.acknowledged}")
            assert world.outcomes["QUORUM no_lease"] + world.outcomes["QUORUM not_ready"] > 0
            # Which of the two depends on when it learns that it was given up.
            assert world.outcomes["ONE stale"] + world.outcomes["ONE not_ready"] > 0
        assert "the cluster has marked this instance Offline" in three.output(follower)

    run(story())
