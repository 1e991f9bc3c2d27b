"""A toy protocol under every fault of the network; prints its whole trace. Run by test_determinism, as a process."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from trimtab.sim.world import Process, World

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
PORT = 3301


def frame(body: bytes) -> bytes:
    body = bytes((0x95, 5)) + body
    return len(body).to_bytes(4, "big") + body


class Gossip(asyncio.Protocol):
    def __init__(self, member: Member) -> None:
        self.member = member
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.member.lines.add(self)

    def data_received(self, data: bytes) -> None:
        self.member.heard += len(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.member.lines.discard(self)


class Member:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.rng = process.world.rng(f"member/{process.name}/{process.lives}")
        self.lines: set[Gossip] = set()
        self.heard = 0

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Gossip(self), self.process.host, PORT)
        await asyncio.gather(*(self.talk(host) for host in HOSTS if host != self.process.host))

    async def talk(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        line: Gossip | None = None
        while True:
            await asyncio.sleep(self.rng.random() * 0.05)
            if line is None or line not in self.lines:
                try:
                    async with asyncio.timeout(1.0):
                        _, line = await loop.create_connection(lambda: Gossip(self), host, PORT)
                except OSError:
                    continue
            line.transport.write(frame(self.rng.randbytes(self.rng.randrange(1, 64))))
            if self.process.world.tracing:
                self.process.world.trace(self.process.name, f"heard {self.heard} at {loop.time():.6f}")


def run(seed: int, seconds: float = 20.0) -> str:
    with World(seed, tracing=True) as world:
        processes = [world.process(f"n{number}", host) for number, host in enumerate(HOSTS, 1)]
        rng = world.rng("faults")

        def start(process: Process) -> None:
            process.start()
            process.spawn(Member(process).live())

        async def faults() -> None:
            while True:
                await asyncio.sleep(rng.random())
                one, other = rng.sample(processes, 2)
                network = world.network
                link = network.link(one.host, other.host)
                match rng.randrange(8):
                    case 0:
                        link.loss_rate, link.duplicate_rate, link.reorder_rate = 0.3, 0.1, 0.1
                    case 1:
                        network.block(one.host, other.host)
                    case 2:
                        network.clog(one.host, other.host)
                    case 3:
                        network.heal()
                    case 4 if one.alive:
                        one.kill()
                    case 5 if not one.alive:
                        start(one)
                    case 6 if one.alive:
                        one.resume() if one.paused else one.pause()
                    case _:
                        one.set_clock_rate(0.9 + rng.random() * 0.2)

        for process in processes:
            start(process)
        world.control.spawn(faults())
        world.run(seconds)
        return "\n".join(world.trace_lines) + f"\n{world.events} events, {world.network.frames_sent} frames\n"


if __name__ == "__main__":
    sys.stdout.write(run(int(sys.argv[1])))
