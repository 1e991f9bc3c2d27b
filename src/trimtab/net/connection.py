"""What both ends of a connection have in common: framing, writing, staying alive, and ending with a reason.

Guarantees:

* At most one `transport.write` per connection and loop turn, however many frames the turn made.
* While the transport is full (`pause_writing`) nothing more is given to it; frames wait here and are counted in
  `waiting_bytes`, which the two ends bound.
* No connection keeps the loop for long: after TURN_BYTES it rests for a turn. Others have theirs, and what was sent or
  answered so far goes out, and is worked on at the other end, while the rest is worked on here.
* A peer that is silent for `dead_after_s` is gone: half-open links end like closed ones. Either side PINGs when a
  `keepalive_s` passed without sending or without hearing anything. A peer we chose not to read is not silent, and a
  pause of our own process doesn't count against anybody.
* Every connection ends once, with one reason. A reason of ours is sent as GOODBYE; the socket then stays for
  `goodbye_linger_s`, with all input ignored, because closing it with unread input would reset it and could take
  the reason away from the peer.
* Whatever a peer sends can end its own connection only: decoding errors are caught here, at the one door for bytes.

Only call_soon, call_later and time of the loop are used, and of the transport write, close, abort, is_closing,
get_extra_info, pause_reading, resume_reading and set_write_buffer_limits.
"""

from __future__ import annotations

import asyncio
import errno
import struct
from abc import ABC, abstractmethod
from typing import Final

import msgspec

from trimtab.net.errors import FrameError, FrameTooLarge
from trimtab.net.frames import (
    FORMAT,
    GOODBYE,
    HELLO,
    PING,
    PONG,
    PREFIX_BYTES,
    Frame,
    FrameReader,
    decode_reason,
    encode_frame,
    encode_reason,
)
from trimtab.net.hello import Greeting, Hello, encode_greeting, negotiate, read_greeting
from trimtab.net.limits import Counters, Limits

# A connection's life, in order; it never goes back.
OPENING: Final = 0  # no valid hello yet
UP: Final = 1
ENDING: Final = 2  # the reason is known, input is ignored
LOST: Final = 3  # the transport is gone

# What is taken and answered in one turn of the loop, give or take a frame: a few milliseconds.
# A fraction of what clients with many requests in flight send at once: the first of them are answered, and a sync for
# them is under way, while the others are read. With four times as much, half as many gets were answered a second.
TURN_BYTES: Final = 16 * 1024

_pack_length = struct.Struct(">I").pack
_encode = msgspec.msgpack.Encoder().encode


class Connection(asyncio.Protocol, ABC):
    """One connection. Subclasses say what frames mean (`take_frames`) and what follows from its end (`ended`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hello: Hello, limits: Limits, counters: Counters) -> None:
        self.loop = loop
        self.limits = limits
        self.counters = counters
        self.state = OPENING
        self.peer = Hello()  # the other side's, once UP
        self.protocol = 0  # the negotiated version, once UP
        self.address = "unknown"
        self.writing_paused = False
        self.waiting_bytes = 0  # encoded frames not yet given to the transport
        self.reading_paused = False
        self._resting = False
        self._goes_on = False
        self.arrived_at = 0.0  # when the newest bytes came
        self._hello = hello
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._flush_scheduled = False
        self._reader = FrameReader(min(limits.max_hello_bytes, limits.max_frame_bytes))
        self._max_send_bytes = self.sends_bytes
        self._heard_at = 0.0
        self._paused_at = 0.0
        self._sent_since_tick = False
        self._timer: asyncio.TimerHandle | None = None  # hello timeout, then keepalive, then linger

    # What subclasses fill in.

    @property
    def sends_bytes(self) -> int:
        """The largest frame that this side sends, if the other takes it."""
        return self.limits.max_frame_bytes

    @property
    def takes_bytes(self) -> int:
        """The largest frame that this side takes."""
        return self.limits.max_frame_bytes

    def ready(self) -> None:
        """Bytes can flow (after the TLS handshake, if any)."""

    @abstractmethod
    def check_peer(self, hello: Hello) -> str | None:
        """A reason to refuse this peer, or None."""

    def came_up(self) -> None:
        """The peer's hello was accepted."""

    @abstractmethod
    def take_frames(self) -> None:
        """Handles the frames the reader has; may stop early. FrameError ends the connection."""

    def ended(self, reason: str, error: BaseException | None, fault: bool) -> None:
        """Called exactly once, when the connection can no longer carry anything."""

    def writable(self) -> None:
        """The transport takes bytes again after a pause."""

    # Opening.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.opened(transport)  # type: ignore[arg-type]
        if self.state == OPENING:
            self.ready()

    def opened(self, transport: asyncio.Transport) -> None:
        """The socket exists. With TLS the handshake comes next, and `ready` after it."""
        self._transport = transport
        self.address = describe_peer(transport)
        transport.set_write_buffer_limits(self.limits.write_high_bytes, self.limits.write_low_bytes)
        self._heard_at = self.loop.time()
        self._timer = self.loop.call_later(self.limits.hello_timeout_s, self._hello_overdue)

    def send_hello(self) -> None:
        greeting = encode_greeting(self._hello, self.takes_bytes)
        self.send_frame(HELLO, 0, FORMAT, 0, greeting)

    def _hello_overdue(self) -> None:
        self.goodbye(f"no hello within {self.limits.hello_timeout_s:g} s")

    def _greeted(self, greeting: Greeting) -> None:
        protocol = negotiate(self._hello, greeting.hello)
        try:
            refusal = self.check_peer(greeting.hello)
        except Exception as error:
            refusal = f"the hello could not be checked: {error!r}"
        if refusal is not None:
            self.counters.refused += 1
            self.goodbye(refusal)
            return
        self.peer = greeting.hello
        self.protocol = protocol
        self._max_send_bytes = min(self.sends_bytes, greeting.max_frame_bytes)
        self._reader.max_frame_bytes = self.takes_bytes
        self.state = UP
        self._start_timer(self.limits.keepalive_s)
        self.came_up()

    # Reading.

    def data_received(self, data: bytes) -> None:
        self.arrived_at = self._heard_at = self.loop.time()
        self.counters.bytes_in += len(data)
        if self.state <= UP:
            self._reader.feed(data)
            self.read_on()

    def read_on(self) -> None:
        """Handles what has been received; also called when a subclass that stopped early goes on."""
        try:
            if self.state == OPENING:
                frame = self._reader.next()
                if frame is None:
                    return
                if frame.kind == GOODBYE:
                    self.told_goodbye(frame)
                    return
                self._greeted(read_greeting(frame))
            if self.state == UP:
                self.take_frames()
        except FrameError as error:
            if self.state == OPENING:
                self.counters.refused += 1
            else:
                self.counters.malformed += 1
            self.goodbye(error.reason)

    def pause_reading(self, *, resting: bool = False) -> None:
        """`resting`: only for a turn, so that others get theirs; no limit was met."""
        if self._transport is None or self._transport.is_closing():
            return
        if not resting and (self._resting or not self.reading_paused):
            self.counters.reading_paused += 1
        self._resting = resting
        if not self.reading_paused:
            self.reading_paused = True
            self._transport.pause_reading()

    def rest(self) -> None:
        """Goes on in the next turn."""
        self.pause_reading(resting=True)
        self.go_on_soon()

    def go_on_soon(self) -> None:
        # In a turn of its own: an answer is often given from within a handler, that is from within take_frames.
        if not self._goes_on:
            self._goes_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self.state == UP:
            self.read_on()

    def resume_reading(self) -> None:
        if self.reading_paused and self._transport is not None:
            self.reading_paused = False
            self._heard_at = self.loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    # Writing.

    def send_frame(self, kind: int, id: int, method: str, deadline_ms: int, body: bytes) -> None:
        """Queues one frame for the write at the end of this loop turn. FrameTooLarge: nothing was queued."""
        payload = _encode((kind, id, method, deadline_ms, body))
        size = len(payload)
        if size > self._max_send_bytes:
            raise FrameTooLarge(method, size, self._max_send_bytes)
        waiting = self._waiting
        waiting.append(_pack_length(size))
        waiting.append(payload)
        self.waiting_bytes += size + PREFIX_BYTES
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.writing_paused or not self._waiting or self.state > UP or self._transport is None:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # its connection_lost is on the way
        self.counters.writes += 1
        self.counters.bytes_out += len(data)
        self._sent_since_tick = True
        self._transport.write(data)

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._paused_at = self.loop.time()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._waiting and not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)
        if self.state == UP:
            self.writable()

    # Staying alive.

    def _start_timer(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(after_s, self._tick, self.loop.time() + after_s)

    def _tick(self, due: float) -> None:
        now = self.loop.time()
        limits = self.limits
        if self.reading_paused:
            self._heard_at = now
        elif now - due > limits.keepalive_s:
            # This process was stopped or busy: the peer's bytes may wait in the socket, unread. Give it one round.
            self._heard_at = max(self._heard_at, now - limits.dead_after_s + limits.keepalive_s)
        silent_s = now - self._heard_at
        if silent_s >= limits.dead_after_s:
            self.counters.dead_peers += 1
            self.fail_link(f"nothing heard from {self.address} for {silent_s:.1f} s")
            return
        if self.writing_paused and now - self._paused_at >= limits.write_stall_s:
            self.counters.dead_peers += 1
            self.fail_link(f"{self.address} has not read what we sent for {now - self._paused_at:.1f} s")
            return
        self.tick(now)
        if self.state != UP:
            return
        if not self._sent_since_tick or silent_s >= limits.keepalive_s:
            self.send_frame(PING, 0, "", 0, b"")
        self._sent_since_tick = False
        self._start_timer(min(limits.keepalive_s, max(limits.dead_after_s - silent_s, 0.001)))

    def tick(self, now: float) -> None:
        """Once every keepalive_s while UP."""

    def answer_ping(self, id: int) -> None:
        # A peer that pings without reading must not make us hoard answers.
        if not self.writing_paused:
            self.send_frame(PONG, id, "", 0, b"")

    # Ending.

    def goodbye(self, reason: str, *, fault: bool = True, linger: bool = True) -> None:
        """Ends the connection from our side, telling the peer why. Not a fault: an end that either side wanted."""
        if self.state >= ENDING or self._transport is None:
            return
        last = encode_frame(GOODBYE, int(fault), "", 0, encode_reason(reason))
        if not self.writing_paused:
            last = b"".join(self._waiting) + last
        self._write(last)
        self._end(reason, None, fault)
        if linger:
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        if self._transport is not None:
            self._timer = self.loop.call_later(self.limits.goodbye_linger_s, self._transport.abort)
            self.resume_reading()

    def told_goodbye(self, frame: Frame) -> None:
        self._end(f"{self.address} said goodbye: {decode_reason(frame.body)}", None, frame.id != 0)
        if self._transport is not None:
            self._transport.close()

    def refuse_tls(self, reason: str, error: BaseException) -> None:
        """The TLS layer can't go on with this peer. Its alert, if any, is on the way: no GOODBYE without TLS."""
        self.counters.refused += 1
        self._end(reason, error, True)
        self._linger()

    def fail_link(self, reason: str) -> None:
        """Ends the connection at once, without a word: the link or the peer can't carry one."""
        self._end(reason, None, True)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        interrupted = self.state == OPENING and self.arrived_at > 0
        self._end(describe_loss(self.address, exc), exc, exc is not None or interrupted)
        self.state = LOST
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self.gone()

    def gone(self) -> None:
        """The socket no longer exists."""

    def _end(self, reason: str, error: BaseException | None, fault: bool) -> None:
        if self.state >= ENDING:
            return
        self.state = ENDING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self.waiting_bytes = 0
        self.ended(reason, error, fault)


def describe_peer(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    if isinstance(name, (tuple, list)) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(name) if name else "unknown"


def describe_loss(address: str, error: BaseException | None) -> str:
    if error is None:
        return f"{address} closed the connection"
    if isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE):
        return f"{address} reset the connection"
    return f"connection to {address} failed: {error or type(error).__name__}"
