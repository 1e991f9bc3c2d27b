"""The production RPC layer runs unchanged on the simulated loop, and survives what the simulated network does to it."""

from __future__ import annotations

import asyncio

import pytest

from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.net.server import Request, Server
from trimtab.sim.world import Process, World


class Echo:
    """A server process that echoes, and a client process with a channel to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server_process = world.process("server", "10.0.0.1")
        self.client_process = world.process("client", "10.0.0.2")
        self.heard: list[bytes] = []
        self.down: list[tuple[str, bool]] = []
        self.start_server()
        self.client_process.start()
        self.channel = run(world, self.client_process, self._connect())

    def start_server(self) -> None:
        self.server_process.start()
        run(self.world, self.server_process, self._serve())

    async def _serve(self) -> None:
        server = Server({"echo": self._echo, "note": self._note}, Hello(instance_id="server"))
        assert await server.start("10.0.0.1", 3301) == 3301

    def _echo(self, request: Request) -> None:
        request.reply(bytes(request.body))

    def _note(self, request: Request) -> None:
        self.heard.append(bytes(request.body))

    async def _connect(self) -> Channel:
        channel = Channel(
            "10.0.0.1:3301",
            Hello(),
            self.world.rng("channel"),
            on_down=lambda reason, refused: self.down.append((reason, refused)),
        )
        await channel.wait_connected(5)
        return channel

    def call(self, body: bytes, timeout_s: float = 5.0) -> bytes:
        async def ask() -> bytes:
            return await self.channel.call("echo", body, timeout_s)

        answer: bytes = run(self.world, self.client_process, ask())
        return answer


def run(world: World, process: Process, coroutine: object) -> object:
    return world.run_until_done(process.spawn(coroutine), world.now + 60)  # type: ignore[return-value]


def test_calls_and_one_way_messages_go_through() -> None:
    with World(1) as world:
        echo = Echo(world)
        assert echo.call(b"hello") == b"hello"
        assert echo.channel.send("note", b"a") is True
        world.run(world.now + 1)
        assert echo.heard == [b"a"]


def test_a_call_through_a_cut_link_ends_at_its_deadline_in_virtual_time() -> None:
    with World(1) as world:
        echo = Echo(world)
        world.network.block("10.0.0.2", "10.0.0.1")
        began = world.now
        with pytest.raises(NetError):
            echo.call(b"lost", timeout_s=2.0)
        assert 1.9 < world.now - began < 2.5


def test_a_channel_comes_back_by_itself_after_its_server_was_killed_and_restarted() -> None:
    with World(1) as world:
        echo = Echo(world)
        echo.server_process.kill()
        world.run(world.now + 3)
        assert not echo.channel.connected
        assert any(refused for _, refused in echo.down)
        echo.start_server()
        world.run(world.now + 10)
        assert echo.channel.connected
        assert echo.call(b"again") == b"again"


def test_a_silent_death_behind_a_partition_is_noticed_by_keepalives() -> None:
    with World(1) as world:
        echo = Echo(world)
        world.network.block("10.0.0.1", "10.0.0.2")
        world.network.block("10.0.0.2", "10.0.0.1")
        echo.server_process.kill()
        world.run(world.now + 10)
        assert not echo.channel.connected


@pytest.mark.parametrize("seed", range(5))
def test_under_loss_duplication_and_reordering_every_answer_that_comes_is_the_right_one(seed: int) -> None:
    with World(seed) as world:
        echo = Echo(world)
        for source, target in (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")):
            link = world.network.link(source, target)
            link.loss_rate = link.duplicate_rate = link.reorder_rate = link.delay_rate = 0.25
            link.delay_s = 0.3

        async def ask(number: int) -> bool:
            body = b"%d" % number
            try:
                return await echo.channel.call("echo", body, 1.0) == body
            except NetError:
                return True

        async def all_of_them() -> list[bool]:
            return await asyncio.gather(*(ask(number) for number in range(200)))

        assert all(run(world, echo.client_process, all_of_them()))  # type: ignore[call-overload]
