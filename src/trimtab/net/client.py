"""The asking end: one channel to one peer, which connects and reconnects by itself until it is closed.

A call either raises at once, and then nothing was sent (`NotConnected`, `Overloaded`, `FrameTooLarge`), or gives a
future that ends with the answer, `RpcError`, `DeadlineExceeded` or `ConnectionLost`. Nothing is sent again after a
reconnect: whether that is safe only the caller knows. One-way messages are best effort: dropped and counted when there
is no connection or too much is waiting.

Deadlines are kept by one timer per connection, not one per call; the remaining milliseconds travel with the request. A
call whose future was cancelled keeps its place until its answer or its deadline comes. The peer is told of every call
that was given up, so that it may stop, or not begin.

Reconnecting: the first retry comes within 50 ms, then with exponential backoff and jitter up to `backoff_max_s`; a
connection that held for `stable_after_s` starts over. `poke` tries at once, for callers who have heard that the peer is
back. `on_down` is called for every lost connection and every failed attempt, until `close`; `refused` is true when
the peer's host answered that nobody listens (its process is dead), which is far stronger news than silence.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import random
import ssl as ssl_module
from collections.abc import Callable
from typing import Protocol

from trimtab.net.addresses import Address, format_address, parse_address
from trimtab.net.backoff import Backoff
from trimtab.net.connection import TURN_BYTES, UP, Connection
from trimtab.net.errors import (
    DEADLINE_EXCEEDED,
    ConnectionLost,
    DeadlineExceeded,
    FrameError,
    NetError,
    NotConnected,
    Overloaded,
    RpcError,
)
from trimtab.net.frames import (
    CANCEL,
    ERROR,
    GOODBYE,
    KIND_NAMES,
    ONEWAY,
    PING,
    PONG,
    PUSH,
    REQUEST,
    RESPONSE,
    STREAM,
    Frame,
    decode_failure,
)
from trimtab.net.hello import Hello
from trimtab.net.limits import DEFAULT_LIMITS, Counters, Limits
from trimtab.net.tls import TlsProtocol

OnUp = Callable[[Hello], None]
OnDown = Callable[[str, bool], None]
OnItem = Callable[[bytes], None]
OnEnd = Callable[[NetError | None], None]
CheckHello = Callable[[Hello], str | None]
OnError = Callable[[str, BaseException | None], None]

_SWEEP_SPACING_S = 0.005  # expiring many calls one by one must not scan them all each time
_NEVER = math.inf

_log = logging.getLogger("trimtab.net")


class Asker(Protocol):
    """Who waits for an answer: a future, or what a caller that asks very often keeps in place of one.

    Told once, on the loop, in the middle of the connection's own work: it must not raise. A failure may be told while
    the connection ends, so whoever asks again because of it does so in the loop's next turn.
    """

    def done(self) -> bool: ...
    def set_result(self, result: bytes, /) -> None: ...
    def set_exception(self, exception: NetError, /) -> None: ...


class _Stream:
    __slots__ = ("method", "on_end", "on_item")

    def __init__(self, method: str, on_item: OnItem, on_end: OnEnd) -> None:
        self.method = method
        self.on_item = on_item
        self.on_end = on_end


class ClientConnection(Connection):
    """The channel's side of one connection; it dies with it, the channel makes another."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, channel.hello, channel.limits, channel.counters)
        self._channel = channel
        self._last_id = 0
        self._calls: dict[int, tuple[Asker, float, str]] = {}  # who waits, deadline, method
        self._streams: dict[int, _Stream] = {}
        self._sweep_at = _NEVER
        self._sweeper: asyncio.TimerHandle | None = None

    def opened(self, transport: asyncio.Transport) -> None:
        super().opened(transport)
        if not self._channel.connection_opened(self):
            self.goodbye("no longer wanted", fault=False, linger=False)

    @property
    def takes_bytes(self) -> int:
        return self.limits.answer_bytes

    def ready(self) -> None:
        self.send_hello()

    def check_peer(self, hello: Hello) -> str | None:
        return self._channel.check_hello(hello) if self._channel.check_hello is not None else None

    def came_up(self) -> None:
        self._channel.connection_up(self)

    # Asking.

    def send(self, method: str, body: bytes) -> bool:
        if self.waiting_bytes + len(body) > self.limits.max_buffered_bytes:
            return False
        self.send_frame(ONEWAY, 0, method, 0, body)
        return True

    def ask(self, method: str, body: bytes, timeout_s: float, asker: Asker) -> None:
        calls = self._calls
        self._check_room(len(calls), self.limits.max_in_flight, len(body))
        id = self._last_id + 1
        self.send_frame(REQUEST, id, method, math.ceil(timeout_s * 1000), body)
        self._last_id = id
        deadline = self.loop.time() + timeout_s
        calls[id] = (asker, deadline, method)
        if deadline < self._sweep_at:
            self._arm(deadline)

    def stream(self, method: str, body: bytes, on_item: OnItem, on_end: OnEnd) -> Callable[[], None]:
        self._check_room(len(self._streams), self.limits.max_streams, len(body))
        id = self._last_id + 1
        self.send_frame(STREAM, id, method, 0, body)
        self._last_id = id
        self._streams[id] = _Stream(method, on_item, on_end)

        def cancel() -> None:
            if self._streams.pop(id, None) is not None and self.state == UP:
                self.send_frame(CANCEL, id, "", 0, b"")

        return cancel

    def _check_room(self, under_way: int, limit: int, body_bytes: int) -> None:
        if under_way >= limit:
            self.counters.overloaded += 1
            raise Overloaded(f"{under_way} requests to {self.address} are unanswered, the limit: ask less at a time")
        if self.waiting_bytes + body_bytes > self.limits.max_buffered_bytes:
            self.counters.overloaded += 1
            raise Overloaded(
                f"{self.waiting_bytes} bytes wait to be sent to {self.address} and {body_bytes} more would exceed the "
                f"limit of {self.limits.max_buffered_bytes}: the peer reads too slowly, try again later"
            )

    # Hearing.

    def take_frames(self) -> None:
        next_frame = self._reader.next
        calls = self._calls
        left_bytes = TURN_BYTES
        while self.state == UP:
            if left_bytes <= 0:
                self.rest()
                return
            frame = next_frame()
            if frame is None:
                break
            left_bytes -= len(frame.body)
            kind = frame.kind
            if kind == RESPONSE:
                call = calls.pop(frame.id, None)
                if call is None:
                    self._stream_ended(frame.id, None)
                elif not call[0].done():
                    call[0].set_result(frame.body)
            elif kind == PUSH:
                self._pushed(frame)
            elif kind == ERROR:
                self._failed(frame)
            elif kind == PING:
                self.answer_ping(frame.id)
            elif kind == GOODBYE:
                self.told_goodbye(frame)
            elif kind != PONG:
                name = KIND_NAMES.get(kind)
                raise FrameError(f"{name} frames go the other way" if name else f"unknown frame kind {kind}")
        if self.reading_paused:
            self.resume_reading()

    def _failed(self, frame: Frame) -> None:
        failure = decode_failure(frame.body)
        error: NetError
        if failure.code == DEADLINE_EXCEEDED:
            error = DeadlineExceeded(failure.text)
        else:
            error = RpcError(failure.code, failure.text, failure.details)
        call = self._calls.pop(frame.id, None)
        if call is None:
            self._stream_ended(frame.id, error)
        elif not call[0].done():
            call[0].set_exception(error)

    def _pushed(self, frame: Frame) -> None:
        stream = self._streams.get(frame.id)
        if stream is None:
            self.counters.unknown_answers += 1
            return
        try:
            stream.on_item(frame.body)
        except Exception as error:
            self._channel.report(f"the consumer of stream {stream.method!r} failed: {error!r}", error)
            if self.state == UP and frame.id in self._streams:
                self.send_frame(CANCEL, frame.id, "", 0, b"")
                self._stream_ended(frame.id, NetError(f"its own consumer failed: {error!r}"))

    def _stream_ended(self, id: int, error: NetError | None) -> None:
        stream = self._streams.pop(id, None)
        if stream is None:
            self.counters.unknown_answers += 1
            return
        try:
            stream.on_end(error)
        except Exception as fault:
            self._channel.report(f"the consumer of stream {stream.method!r} failed at its end: {fault!r}", fault)

    # Deadlines.

    def _arm(self, when: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_at = when
        self._sweeper = self.loop.call_at(when, self._sweep)

    def _sweep(self) -> None:
        now = self.loop.time()
        self._sweeper = None
        self._sweep_at = _NEVER
        expired = [id for id, call in self._calls.items() if call[1] <= now or call[0].done()]
        for id in expired:
            asker, _, method = self._calls.pop(id)
            if self.state == UP:
                # Nobody waits for the answer any more: a peer that stood still should not even begin.
                self.send_frame(CANCEL, id, "", 0, b"")
            if not asker.done():
                self.counters.expired += 1
                asker.set_exception(DeadlineExceeded(f"no answer to {method!r} from {self.address} in time"))
        if self._calls:
            earliest = min(call[1] for call in self._calls.values())
            self._arm(max(earliest, now + _SWEEP_SPACING_S))

    # The end.

    def ended(self, reason: str, error: BaseException | None, fault: bool) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        calls, self._calls = self._calls, {}
        for asker, _, _ in calls.values():
            if not asker.done():
                asker.set_exception(ConnectionLost(reason))
        for id in list(self._streams):
            self._stream_ended(id, ConnectionLost(reason))
        self._channel.connection_ended(self, reason)


class Channel:
    """To one peer. Made inside a running loop; starts to connect at once."""

    def __init__(
        self,
        address: Address | str,
        hello: Hello,
        rng: random.Random,
        ssl: ssl_module.SSLContext | None = None,
        on_up: OnUp | None = None,
        on_down: OnDown | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        check_hello: CheckHello | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self.address: Address = parse_address(address) if isinstance(address, str) else address
        self.hello = hello
        self.limits = limits
        self.check_hello = check_hello
        self.counters = Counters()
        self._loop = asyncio.get_running_loop()
        self._ssl = ssl
        self._on_up = on_up
        self._on_down = on_down
        self._on_error = on_error
        self._backoff = Backoff(rng, limits.backoff_first_s, limits.backoff_max_s)
        self._up: ClientConnection | None = None  # the connection that passed the hello
        self._up_since = 0.0
        self._trying: ClientConnection | None = None  # the one that hasn't yet; None while a backoff runs
        self._attempt: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # the next attempt, or the limit of this one
        self._last_reason = "not tried yet"
        self._waiters: list[asyncio.Future[Hello]] = []
        self._closed = False
        self._connect()

    def __repr__(self) -> str:
        return f"<Channel to {self._name()}, {'up' if self._up else 'down: ' + self._last_reason}>"

    @property
    def connected(self) -> bool:
        return self._up is not None

    @property
    def peer(self) -> Hello | None:
        """The other side's hello, while connected."""
        return self._up.peer if self._up is not None else None

    @property
    def protocol(self) -> int:
        """The negotiated protocol version; 0 while not connected."""
        return self._up.protocol if self._up is not None else 0

    @property
    def waiting_bytes(self) -> int:
        """What has been sent but not yet taken by the transport, for callers that pace themselves."""
        return self._up.waiting_bytes if self._up is not None else 0

    def send(self, method: str, body: bytes) -> bool:
        """One-way. False: dropped and counted, not connected or too much waiting. Raises FrameTooLarge."""
        if self._up is not None and self._up.send(method, body):
            return True
        self.counters.dropped_oneway += 1
        return False

    def call(self, method: str, body: bytes, timeout_s: float) -> asyncio.Future[bytes]:
        """Asks. Raises NotConnected, Overloaded or FrameTooLarge when nothing was sent; see the module for the rest."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        self.ask(method, body, timeout_s, future)
        return future

    def ask(self, method: str, body: bytes, timeout_s: float, asker: Asker) -> None:
        """Like `call`, with whom to tell: no future is made."""
        if self._up is None:
            raise self._not_connected()
        if timeout_s <= 0:
            raise DeadlineExceeded(f"{method!r} was not sent: its time was over before")
        self._up.ask(method, body, timeout_s, asker)

    def stream(self, method: str, body: bytes, on_item: OnItem, on_end: OnEnd) -> Callable[[], None]:
        """Subscribes; returns the function that cancels. Raises like `call`.

        on_end is called once: with None when the server ended the stream, else with the error; not after a cancel.
        """
        if self._up is None:
            raise self._not_connected()
        return self._up.stream(method, body, on_item, on_end)

    async def wait_connected(self, timeout_s: float) -> Hello:
        """The peer's hello as soon as there is a connection; NotConnected with the last reason after `timeout_s`."""
        if self._up is not None:
            return self._up.peer
        if self._closed:
            raise self._not_connected()
        waiter: asyncio.Future[Hello] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = self._loop.call_later(timeout_s, self._give_up, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def poke(self) -> None:
        """Ends a backoff at once: there is reason to believe the peer is back."""
        if not self._closed and self._up is None and self._trying is None:
            self._connect()

    def close(self, reason: str = "the channel was closed") -> None:
        """For good. Calls under way end with ConnectionLost; on_down is not called."""
        if self._closed:
            return
        self._closed = True
        self._last_reason = reason
        self._stop_timer()
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        live = (self._up, self._trying)
        self._up = self._trying = None
        for connection in live:
            if connection is not None:
                connection.goodbye(reason, fault=False, linger=False)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._not_connected())

    # Connecting.

    def _connect(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(self.limits.connect_timeout_s, self._connect_overdue)
        self.counters.connects += 1
        self._trying = ClientConnection(self, self._loop)
        self._attempt = self._loop.create_task(self._open(self._trying))

    async def _open(self, connection: ClientConnection) -> None:
        context = self._ssl

        def make() -> asyncio.Protocol:
            return connection if context is None else TlsProtocol(connection, context, server_side=False)

        try:
            await self._loop.create_connection(make, self.address[0], self.address[1])
        except Exception as error:
            if self._trying is connection and self._attempt is not None:
                self._failed(f"cannot connect to {self._name()}: {error}", _is_refusal(error))

    def _connect_overdue(self) -> None:
        self._timer = None
        if self._attempt is not None:
            self._attempt.cancel()
            self._failed(f"no connection to {self._name()} within {self.limits.connect_timeout_s:g} s", False)

    def _failed(self, reason: str, refused: bool) -> None:
        self.counters.connect_failures += 1
        self._trying = None
        self._attempt = None
        self._went_down(reason, refused)

    def _went_down(self, reason: str, refused: bool) -> None:
        self._last_reason = reason
        if self._closed:
            return
        self._stop_timer()
        self._timer = self._loop.call_later(self._backoff.next_s(), self._connect)
        if self._on_down is not None:
            try:
                self._on_down(reason, refused)
            except Exception as error:
                self.report(f"on_down of the channel to {self._name()} failed: {error!r}", error)

    # For the connection.

    def connection_opened(self, connection: ClientConnection) -> bool:
        """There is a socket; from here on the connection's own timeouts hold. False: it came too late."""
        if self._trying is not connection:
            return False
        self._attempt = None
        self._stop_timer()
        return True

    def connection_up(self, connection: ClientConnection) -> None:
        self._trying = None
        self._up = connection
        self._up_since = self._loop.time()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(connection.peer)
        if self._on_up is not None:
            try:
                self._on_up(connection.peer)
            except Exception as error:
                self.report(f"on_up of the channel to {self._name()} failed: {error!r}", error)

    def connection_ended(self, connection: ClientConnection, reason: str) -> None:
        if self._closed:
            return
        if connection is self._up:
            self._up = None
            if self._loop.time() - self._up_since >= self.limits.stable_after_s:
                self._backoff.reset()
            self._went_down(reason, False)
        elif connection is self._trying:
            self._failed(reason, False)

    def report(self, text: str, error: BaseException | None) -> None:
        if self._on_error is not None:
            self._on_error(text, error)
        else:
            _log.warning(text)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, waiter: asyncio.Future[Hello]) -> None:
        if not waiter.done():
            waiter.set_exception(self._not_connected())

    def _not_connected(self) -> NotConnected:
        return NotConnected(f"not connected to {self._name()}: {self._last_reason}")

    def _name(self) -> str:
        return format_address(self.address)


def _is_refusal(error: BaseException) -> bool:
    """Whether every address that was tried answered that nobody listens."""
    if isinstance(error, ConnectionRefusedError):
        return True
    # asyncio folds the errors of several addresses into one text without an errno.
    text = str(error)
    refusals = text.count(f"[Errno {errno.ECONNREFUSED}]")
    return isinstance(error, OSError) and refusals > 0 and refusals == text.count("[Errno ")
