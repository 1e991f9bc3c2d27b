"""Whole members on virtual time, and what must not be able to stop them, or must."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from trimtab.client.metastore import MetastoreClient
from trimtab.metastore import requests
from trimtab.net.client import Channel
from trimtab.net.errors import RpcError
from trimtab.net.hello import Hello
from trimtab.net.limits import Limits as NetLimits
from trimtab.node.group import Group
from trimtab.raft.messages import Message
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import Process, World
from trimtab.storage.port import SyncFailed


class Scene:
    """A calm cluster with a client."""

    def __init__(self, world: World, members: int = 1) -> None:
        self.world = world
        self.cluster = SimCluster(world, dataclasses.replace(draw(1, "calm"), members=members))
        for member in self.cluster.members.values():
            self.cluster.start(member)
        self.client: Process = world.process("client", "10.0.1.1")
        self.client.start()

    def do(self, work: Callable[[MetastoreClient], Awaitable[None]]) -> None:
        async def connected() -> None:
            addresses = [member.address for member in self.cluster.members.values() if member.alive]
            client = await MetastoreClient.connect(addresses, rng=self.world.rng("client"), wall_ms=self.client.wall_ms)
            await work(client)
            await client.close()

        self.world.run_until_done(self.client.spawn(connected()), self.world.now + 60)


@pytest.mark.parametrize("linearizable", [True, False])
def test_a_peer_that_accepts_only_small_frames_harms_nobody(linearizable: bool) -> None:
    with World(1) as world:
        scene = Scene(world)

        async def put(client: MetastoreClient) -> None:
            await client.put(b"large", b"x" * 3000)

        scene.do(put)
        member = scene.cluster.members[1]

        async def ask() -> None:
            channel = Channel(member.address, Hello(), world.rng("small"), limits=NetLimits(max_frame_bytes=1024))
            await channel.wait_connected(5)
            with pytest.raises(RpcError, match="limit of this connection is 1024"):
                await channel.call(requests.GET, requests.encode(requests.GetRequest(b"large", 0, linearizable)), 5)
            channel.close()

        world.run_until_done(scene.client.spawn(ask()), world.now + 20)
        assert member.instance is not None and member.instance.failure is None
        scene.do(put)


def test_a_member_that_can_not_even_write_its_log_still_stops_at_a_failed_sync() -> None:
    with World(2) as world:
        scene = Scene(world)

        async def put(client: MetastoreClient) -> None:
            await client.put(b"a", b"1")

        scene.do(put)
        instance = scene.cluster.members[1].instance
        assert instance is not None

        def broken(_line: str) -> None:
            raise OSError("nowhere to write to")

        instance.story = broken
        with pytest.raises(OSError, match="nowhere"):
            instance.fail(SyncFailed("injected"))
        assert isinstance(instance.failure, SyncFailed)
        assert instance.ended.done()
        answers: list[Exception | None] = []
        instance.host.propose(instance.cluster, b"", lambda _result, error: answers.append(error))
        assert "stopping" in str(answers[0])


def test_the_same_snapshot_again_while_it_is_being_installed_harms_nothing() -> None:
    """A new leader of an idle cluster, or an old one that lost patience, sends a snapshot of the very same index."""
    with World(3) as world:
        scene = Scene(world, members=3)
        cluster = scene.cluster

        async def put(client: MetastoreClient) -> None:
            for number in range(300):
                await client.put(b"%d" % (number % 7), b"x" * 100)

        scene.do(put)
        behind = cluster.members[3]
        cluster.kill(behind, True)
        scene.do(put)
        scene.do(put)
        world.run(world.now + 3)
        again: list[int] = []
        cluster.start(behind)

        def tap() -> None:
            instance = behind.instance
            assert instance is not None
            step = instance.host.step_snapshot

            def step_twice(group: Group, message: Message) -> None:
                step(group, message)
                if group.raw.raft.log.unstable.snapshot is not None and not again:
                    group.flushing = True
                    again.append(message.snapshot.metadata.index if message.snapshot else 0)
                    instance.snapshots.receive(group, message)

            instance.host.step_snapshot = step_twice  # type: ignore[method-assign]

        world.run(world.now + 0.001)
        while behind.instance is None or not hasattr(behind.instance, "host"):
            world.run(world.now + 0.0005)
        tap()
        scene.do(put)
        world.run(world.now + 5)
        assert again, "no snapshot was sent: the log was not cut"
        assert behind.instance is not None and behind.instance.failure is None
        assert behind.group is not None and not behind.group.flushing
        leader = next(member for member in cluster.members.values() if member.leads)
        assert leader.instance is not None
        assert behind.instance.machine.metastore.checksum == leader.instance.machine.metastore.checksum
