"""The asyncio client against a cluster of dictionaries, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.client.fake_cluster import FakeCluster

from trimtab.client.database import Database
from trimtab.client.errors import Error
from trimtab.client.session import Session
from trimtab.net.hello import Hello
from trimtab.net.server import Server
from trimtab.sim.world import Process, World

Work = Callable[[Database, "Stage"], Awaitable[Any]]


class Stage:
    """What a test may do to the cluster while the client works."""

    def __init__(self, world: World, cluster: FakeCluster) -> None:
        self.world = world
        self.cluster = cluster
        self.processes: dict[int, Process] = {}

    def start(self, number: int) -> None:
        process = self.processes.get(number)
        if process is None:
            process = self.processes[number] = self.world.process(f"member {number}", address(number).split(":")[0])
        process.start()
        handlers = self.cluster.handlers(number)

        async def serve() -> None:
            await Server(handlers, Hello(instance_id=f"i{number}")).start(address(number).split(":")[0], 3301)

        process.spawn(serve())

    def kill(self, number: int) -> None:
        self.processes[number].kill()


def address(number: int) -> str:
    return f"10.0.0.{number}:3301"


def fake(members: int = 3, **options: Any) -> FakeCluster:
    return FakeCluster({number: address(number) for number in range(1, members + 1)}, **options)


def play(cluster: FakeCluster, work: Work, *, contact: tuple[int, ...] = (1,), **options: Any) -> Any:
    """What some work with a client gives, or the Error it raises."""
    with World(1) as world:
        stage = Stage(world, cluster)
        for number in cluster.addresses:
            stage.start(number)
        world.run(0.1)
        process = world.process("client", "10.0.0.99")
        process.start()

        async def run() -> Any:
            rng = world.rng("client")
            try:
                session = await Session.open([address(each) for each in contact], rng=rng, **options)
            except Error as error:
                return error
            database = Database(session, "QUORUM")
            try:
                return await asyncio.wait_for(work(database, stage), 300)
            except Error as error:
                return error
            finally:
                await database.close()

        return world.run_until_done(process.spawn(run()), world.now + 400)
