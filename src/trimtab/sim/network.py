"""A network of simulated hosts: listeners, connections, and everything that can go wrong between two of them.

Protocols see ordinary asyncio transports. What they write is cut at frame boundaries (a big-endian u32 length before
each frame, as `trimtab.net.frames` writes it), and the link between the two hosts decides about each frame: it may be
late, lost, doubled or overtaken by a later one. Frames that belong to an ordered conversation (greetings, pushes of a
stream, farewells) are never lost silently, as TCP would not: where one of them is dropped, the connection breaks.

A killed process resets its connections, unless the link is cut: then the other side hears nothing until it writes
through a healed link. Connecting to a host without that listener is refused; through a cut link it times out.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from trimtab.sim.transport import Pipe, SimServer, SimTransport

if TYPE_CHECKING:
    from trimtab.sim.loop import SimLoop
    from trimtab.sim.world import World

CONNECT_TIMEOUT_S = 3.0
CONNECT_RETRY_S = 0.25
FIRST_EPHEMERAL_PORT = 40_000
# How long a lost frame of an ordered conversation stays unnoticed before the connection is given up.
BROKEN_AFTER_S = 2.0


class Link:
    """One direction between two hosts."""

    def __init__(self, latency_s: tuple[float, float]) -> None:
        self.latency_s = latency_s
        self.loss_rate = 0.0
        self.duplicate_rate = 0.0
        self.reorder_rate = 0.0
        self.delay_rate = 0.0
        self.delay_s = 0.0
        self.blocked = False
        self.clogged = False
        # Deliveries that wait for a clog to end, in the order they were sent.
        self.held: list[tuple[Pipe, bytes | None]] = []

    def heal(self) -> None:
        self.loss_rate = self.duplicate_rate = self.reorder_rate = self.delay_rate = self.delay_s = 0.0

    @property
    def faulty(self) -> bool:
        return bool(self.loss_rate or self.duplicate_rate or self.reorder_rate or self.delay_rate)


class Network:
    """All links, listeners and connections of a world. Faults are set here by the nemesis, per direction."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng: random.Random = world.rng("network")
        self.latency_s = (0.000_2, 0.002)
        self.links: dict[tuple[str, str], Link] = {}
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.pipes: list[Pipe] = []
        self.frames_sent = 0
        self.frames_lost = 0
        # An observer of frames: called with the pipe and the frame's bytes when a frame is written.
        self.on_frame: Callable[[Pipe, bytes], None] | None = None
        self._next_port = FIRST_EPHEMERAL_PORT

    def link(self, source: str, target: str) -> Link:
        link = self.links.get((source, target))
        if link is None:
            link = self.links[source, target] = Link(self.latency_s if source != target else (0.000_02, 0.000_05))
        return link

    def latency(self, link: Link) -> float:
        low, high = link.latency_s
        return low + (high - low) * self.rng.random()

    # -- faults ----------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Cut one direction. A symmetric partition is two of these."""
        self.link(source, target).blocked = True

    def unblock(self, source: str, target: str) -> None:
        self.link(source, target).blocked = False

    def clog(self, source: str, target: str) -> None:
        """Hold everything in one direction until `unclog`, which lets it through in one burst."""
        self.link(source, target).clogged = True

    def unclog(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if not link.clogged:
            return
        link.clogged = False
        held, link.held = link.held, []
        for pipe, chunk in held:
            pipe.schedule(link, chunk)

    def reset_connections(self, one: str, other: str) -> None:
        """Break every connection between two hosts, as a firewall that lost its state does."""
        for pipe in list(self.pipes):
            if (pipe.source.host, pipe.target.host) in ((one, other), (other, one)) and not pipe.source.lost:
                pipe.source.break_off(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def heal(self) -> None:
        """Every link works again. What was held is delivered; what was lost stays lost."""
        for (source, target), link in self.links.items():
            link.heal()
            link.blocked = False
            self.unclog(source, target)

    # -- listening and connecting ----------------------------------------------------------------------------------

    def listen(self, loop: SimLoop, factory: Callable[[], asyncio.Protocol], host: str | None, port: int) -> SimServer:
        address = loop.process.host if host in (None, "", "0.0.0.0") else str(host)
        if address != loop.process.host:
            raise OSError(errno.EADDRNOTAVAIL, f"{address} is not an address of {loop.process.name}")
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (address, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{address}:{port} is in use")
        server = SimServer(self, loop, factory, address, port)
        self.listeners[address, port] = server
        return server

    async def connect(
        self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Knock at host:port from `loop`'s host: SYN out, accepted or refused there, the answer back."""
        answer: asyncio.Future[SimServer] = loop.create_future()
        attempt = _Attempt(self, loop, host, port, answer)
        attempt.knock()
        server = await answer
        here, there = SimTransport.pair(self, loop, server.loop, (loop.process.host, self._next_port), (host, port))
        self._next_port += 1
        protocol = factory()
        server.accept(there)
        here.attach(protocol)
        return here, protocol

    # -- endings ---------------------------------------------------------------------------------------------------

    def process_died(self, loop: SimLoop) -> None:
        for key in [key for key, server in self.listeners.items() if server.loop is loop]:
            del self.listeners[key]
        for pipe in list(self.pipes):
            if pipe.source.loop is loop and not pipe.source.lost:
                pipe.source.vanish()

    def forget(self, pipe: Pipe) -> None:
        if pipe in self.pipes:
            self.pipes.remove(pipe)


Answer = asyncio.Future[SimServer]


class _Attempt:
    """One attempt to connect: repeats its SYN while the link is cut, until the timeout."""

    def __init__(self, network: Network, loop: SimLoop, host: str, port: int, answer: Answer) -> None:
        self.network, self.loop, self.host, self.port, self.answer = network, loop, host, port, answer
        self.give_up_at = network.world.now + CONNECT_TIMEOUT_S

    def knock(self) -> None:
        network, here = self.network, self.loop.process.host
        if self.answer.done():
            return
        out, back = network.link(here, self.host), network.link(self.host, here)
        if out.blocked or back.blocked or out.clogged or back.clogged:
            if network.world.now >= self.give_up_at:
                text = f"connect to {self.host}:{self.port} timed out"
                self.answer.set_exception(TimeoutError(errno.ETIMEDOUT, text))
                return
            network.world.later(self.loop, CONNECT_RETRY_S, self.knock)
            return
        network.world.later(self.loop, network.latency(out) + network.latency(back), self.arrived)

    def arrived(self) -> None:
        if self.answer.done():
            return
        server = self.network.listeners.get((self.host, self.port))
        if server is None:
            text = f"connect to {self.host}:{self.port} refused"
            self.answer.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, text))
        else:
            self.answer.set_result(server)
