"""The two ends of a simulated connection, the pipe between them, and the listening server.

A pipe carries one direction. It cuts what is written into frames and asks the link what happens to each; several
frames of one write to which nothing happens travel as one chunk, and sometimes a chunk arrives in two pieces, because
a stream owes nobody its write boundaries.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from trimtab.net import frames

if TYPE_CHECKING:
    from trimtab.sim.loop import SimLoop
    from trimtab.sim.network import Link, Network

HIGH_WATER_BYTES = 64 * 1024
# One chunk in this many arrives in two pieces.
SPLIT_ONE_IN = 50
EXTRA_LATE_S = 0.05
_LENGTH = struct.Struct(">I")

# Kinds of frames a link may lose, double or reorder. All others belong to a conversation that TCP keeps in order.
LOSSY_KINDS = frozenset((frames.REQUEST, frames.RESPONSE, frames.ERROR, frames.ONEWAY, frames.PING, frames.PONG))
# A request is not doubled: its id is unique on its connection, and the server rightly ends one that repeats it.
DOUBLED_KINDS = frozenset((frames.RESPONSE, frames.ERROR, frames.ONEWAY))


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: SimTransport, target: SimTransport) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.in_flight_bytes = 0
        self.broken = False
        self._tail = b""
        self._last_at = 0.0

    def send(self, data: bytes) -> None:
        network = self.network
        link = network.link(self.source.host, self.target.host)
        if self._tail:
            data = self._tail + data
        cut: list[bytes] = []
        at, size = 0, len(data)
        while size - at >= 4:
            end = at + 4 + _LENGTH.unpack_from(data, at)[0]
            if end > size:
                break
            cut.append(data[at:end])
            at = end
        self._tail = data[at:]
        network.frames_sent += len(cut)
        if network.on_frame is not None:
            for frame in cut:
                network.on_frame(self, frame)
        if self.target.loop.dead:
            # The host answers with a reset, if the packet gets there and the answer gets back.
            back = network.link(self.target.host, self.source.host)
            if not link.blocked and not back.blocked:
                self.source.break_off(ConnectionResetError(errno.ECONNRESET, "connection reset"), both=False)
            return
        if self.broken:
            return
        if not (link.blocked or link.faulty):
            if cut:
                self.schedule(link, b"".join(cut) if len(cut) > 1 else cut[0])
            return
        for frame in cut:
            self._send_through_faults(link, frame)

    def _send_through_faults(self, link: Link, frame: bytes) -> None:
        network, rng = self.network, self.network.rng
        lossy = len(frame) > 5 and frame[5] in LOSSY_KINDS
        if link.blocked or (lossy and link.loss_rate and rng.random() < link.loss_rate):
            network.frames_lost += 1
            if network.world.tracing:
                network.world.trace(self.source.loop.process.name, f"lost {len(frame)} bytes to {self.target.host}")
            if not lossy:
                self.break_later()
            return
        if not lossy:
            self.schedule(link, frame)
            return
        if link.duplicate_rate and frame[5] in DOUBLED_KINDS and rng.random() < link.duplicate_rate:
            self.schedule(link, frame, late_s=rng.random() * EXTRA_LATE_S, ordered=False)
        late_s = 0.0
        if link.delay_rate and rng.random() < link.delay_rate:
            late_s = rng.random() * link.delay_s
        ordered = not (link.reorder_rate and rng.random() < link.reorder_rate)
        if not ordered and not late_s:
            late_s = rng.random() * EXTRA_LATE_S
        self.schedule(link, frame, late_s=late_s, ordered=ordered)

    def schedule(self, link: Link, chunk: bytes | None, late_s: float = 0.0, ordered: bool = True) -> None:
        """Bring a chunk (None: the end of the stream) to the other side, or hold it while the link is clogged."""
        if link.clogged:
            link.held.append((self, chunk))
            return
        network = self.network
        world = network.world
        when = world.now + network.latency(link) + late_s
        if ordered:
            when = self._last_at = max(when, self._last_at)
        target = self.target
        if chunk is None:
            world.at(when, asyncio.Handle(target.end_of_stream, (), target.loop, target.loop.context))
            return
        self.in_flight_bytes += len(chunk)
        if self.in_flight_bytes > HIGH_WATER_BYTES:
            self.source.writing_too_fast()
        if ordered and len(chunk) > 1 and network.rng.randrange(SPLIT_ONE_IN) == 0:
            middle = network.rng.randrange(1, len(chunk))
            world.at(when, asyncio.Handle(target.arrived, (chunk[:middle],), target.loop, target.loop.context))
            chunk = chunk[middle:]
        world.at(when, asyncio.Handle(target.arrived, (chunk,), target.loop, target.loop.context))

    def break_later(self) -> None:
        """A frame that must not be lost was lost: the connection is of no use, and both sides learn it in a while."""
        if not self.broken:
            self.broken = True
            from trimtab.sim.network import BROKEN_AFTER_S

            error = ConnectionResetError(errno.ECONNRESET, "connection broken")
            control = self.network.world.control.loop
            assert control is not None
            self.network.world.later(control, BROKEN_AFTER_S, self.source.break_off, error)


class SimTransport(asyncio.Transport):
    """One end of a connection, owned by one life of a process."""

    def __init__(self, network: Network, loop: SimLoop, here: tuple[str, int], there: tuple[str, int]) -> None:
        super().__init__()
        self.network = network
        self.loop = loop
        self.host = here[0]
        self.lost = False
        self.out: Pipe
        self.inwards: Pipe
        self._here, self._there = here, there
        self._protocol: Any = None
        self._closing = False
        self._reading = True
        self._waiting: list[bytes] = []
        self._ended = False
        self._writing_paused = False

    @staticmethod
    def pair(
        network: Network, loop: SimLoop, other: SimLoop, here: tuple[str, int], there: tuple[str, int]
    ) -> tuple[SimTransport, SimTransport]:
        one, two = SimTransport(network, loop, here, there), SimTransport(network, other, there, here)
        one.out = two.inwards = Pipe(network, one, two)
        two.out = one.inwards = Pipe(network, two, one)
        network.pipes.extend((one.out, two.out))
        return one, two

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # -- what protocols call ---------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing and not self.lost and not self.loop.dead:
            self.out.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing or self.lost or self.loop.dead:
            return
        self._closing = True
        link = self.network.link(self.host, self.out.target.host)
        if not link.blocked and not self.out.broken and not self.out.target.loop.dead:
            self.out.schedule(link, None)
        self.network.world.later(self.loop, 0.0, self.connection_over, None)

    def abort(self) -> None:
        if not self.lost and not self.loop.dead:
            self.break_off(None)

    def is_closing(self) -> bool:
        return self._closing or self.lost

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._there, "sockname": self._here}.get(name, default)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self.out.in_flight_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, HIGH_WATER_BYTES

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The simulated limits are fixed; a protocol may ask for others and get these."""

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.network.world.later(self.loop, 0.0, self._drain)

    # -- what the network calls, as events of the owner's loop -----------------------------------------------------

    def arrived(self, chunk: bytes) -> None:
        pipe = self.inwards
        pipe.in_flight_bytes -= len(chunk)
        if pipe.source._writing_paused and pipe.in_flight_bytes <= HIGH_WATER_BYTES // 4:
            pipe.source.writing_is_fine()
        if self.lost or self._closing:
            return
        if not self._reading or self._waiting:
            self._waiting.append(chunk)
            return
        self._protocol.data_received(chunk)

    def _drain(self) -> None:
        while self._waiting and self._reading and not self.lost and not self._closing:
            self._protocol.data_received(self._waiting.pop(0))
        if self._ended and not self._waiting:
            self.end_of_stream()

    def end_of_stream(self) -> None:
        if self.lost or self._closing:
            return
        self._ended = True
        if self._waiting:
            return
        self._protocol.eof_received()
        self.close()

    def connection_over(self, error: BaseException | None) -> None:
        """The protocol is told, once, that this end is gone."""
        if self.lost:
            return
        self.lost = True
        self._closing = True
        self._waiting.clear()
        self.network.forget(self.out)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def break_off(self, error: BaseException | None, both: bool = True) -> None:
        """Reset: this end hears of it now, the other after a latency (if it can)."""
        if self.lost:
            return
        world = self.network.world
        if not self.loop.dead:
            world.later(self.loop, 0.0, self.connection_over, error)
        other = self.out.target
        if both and not other.lost and not other.loop.dead:
            link = self.network.link(self.host, other.host)
            reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            world.later(other.loop, self.network.latency(link), other.connection_over, reset)

    def vanish(self) -> None:
        """The process of this end was killed: its kernel resets the connection, unless the link is cut."""
        self.lost = True
        self.network.forget(self.out)
        other = self.out.target
        link = self.network.link(self.host, other.host)
        if not other.lost and not other.loop.dead and not link.blocked:
            when = max(self.network.world.now + self.network.latency(link), self.out._last_at)
            reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            handle = asyncio.Handle(other.connection_over, (reset,), other.loop, other.loop.context)
            self.network.world.at(when, handle)

    def writing_too_fast(self) -> None:
        if not self._writing_paused and not self.loop.dead:
            self._writing_paused = True
            self.network.world.later(self.loop, 0.0, self._pause_writing)

    def writing_is_fine(self) -> None:
        self._writing_paused = False
        if not self.loop.dead:
            self.network.world.later(self.loop, 0.0, self._resume_writing)

    def _pause_writing(self) -> None:
        if not self.lost:
            self._protocol.pause_writing()

    def _resume_writing(self) -> None:
        if not self.lost:
            self._protocol.resume_writing()


class _BoundSocket:
    """What callers of `server.sockets` want of a socket: its address."""

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimServer(asyncio.AbstractServer):
    """A listener of a living process."""

    def __init__(
        self, network: Network, loop: SimLoop, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> None:
        self._network = network
        self.loop = loop
        self._factory = factory
        self._address = (host, port)
        self.sockets = (_BoundSocket(self._address),)

    def accept(self, transport: SimTransport) -> None:
        """The kernel has accepted; the process hears of it when it runs."""
        if self.loop.dead:
            transport.vanish()
            return
        self._network.world.later(self.loop, 0.0, self._accepted, transport)

    def _accepted(self, transport: SimTransport) -> None:
        if not transport.lost:
            transport.attach(self._factory())

    def close(self) -> None:
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]

    def is_serving(self) -> bool:
        return self._network.listeners.get(self._address) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    async def start_serving(self) -> None:
        """It serves from the start."""

    async def serve_forever(self) -> None:
        await self.loop.create_future()

    async def wait_closed(self) -> None:
        """Connections that are open stay open, as with asyncio's servers of 3.11."""
