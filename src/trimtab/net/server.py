"""The answering end: accepts connections, checks who they are, and hands requests to handlers.

A handler is a plain function called on the loop. It answers at once or keeps the `Request` and answers later; nothing
is spawned per request. What a handler raises becomes an ERROR "internal" to the caller and a report to `on_error`; the
connection goes on.

Backpressure, per connection: with `max_server_in_flight` unanswered requests, or with a transport that is full because
the peer doesn't read, nothing more is read or started until that changes. Answers of requests already started are
kept; a peer that lets `max_buffered_bytes` of them pile up is disconnected. A stream is told: `push` returns False
above `max_push_buffered_bytes`, and `on_writable` says when to go on; the handler's other choice is to end the stream
with a reason. No connection keeps the loop for long: after TURN_BYTES of requests and answers it goes on in the next
turn.

Deadlines: the peer's remaining milliseconds count from the arrival of its bytes here. A request that waited past its
deadline because we stopped reading is dropped unexecuted. One that passes it while a handler holds it is answered with
"deadline_exceeded", and the handler's `on_cancel` is called. Time spent in the network isn't known and not counted.

Limits on connections hold from the accepted socket on, TLS handshakes included, and a connection that hasn't said
a valid hello within `hello_timeout_s` is closed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Callable, Mapping

from trimtab.net.connection import TURN_BYTES, UP, Connection
from trimtab.net.errors import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    TOO_LARGE,
    TOO_MANY_STREAMS,
    UNKNOWN_METHOD,
    FrameError,
    FrameTooLarge,
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
    encode_failure,
)
from trimtab.net.hello import Hello
from trimtab.net.limits import DEFAULT_LIMITS, Counters, Limits
from trimtab.net.tls import TlsProtocol

CheckHello = Callable[[Hello], str | None]
OnError = Callable[[str, BaseException | None], None]

_ERROR_TEXT_CHARS = 300

_log = logging.getLogger("trimtab.net")


class Request:
    """One request, one-way message or stream on its way through a handler. Answered once; later answers are ignored."""

    __slots__ = (
        "_cancelled",
        "_connection",
        "_on_cancel",
        "body",
        "deadline",
        "done",
        "id",
        "method",
        "oneway",
        "streaming",
    )

    def __init__(
        self,
        connection: ServerConnection,
        id: int,
        method: str,
        body: bytes,
        deadline: float | None,
        oneway: bool,
        streaming: bool,
    ) -> None:
        self._connection = connection
        self.id = id
        self._on_cancel: Callable[[str], None] | None = None
        self._cancelled: str | None = None  # why nobody waits for the answer any more
        self.method = method
        self.body = body
        self.deadline = deadline  # loop time, None = the caller waits for ever
        self.oneway = oneway
        self.streaming = streaming
        self.done = oneway  # answered, cancelled, expired, or its connection is gone

    @property
    def peer(self) -> Hello:
        return self._connection.peer

    @property
    def connection(self) -> object:
        """What all requests that come on the same connection share, and no others."""
        return self._connection

    @property
    def protocol(self) -> int:
        """The protocol version negotiated with this peer."""
        return self._connection.protocol

    def expired(self, loop_time: float) -> bool:
        return self.deadline is not None and loop_time >= self.deadline

    def reply(self, body: bytes = b"") -> None:
        """Answers; ends a stream well. An answer larger than the peer accepts becomes the error "too_large".

        It is not raised here: how much a peer accepts is the peer's choice, and no fault of whoever answers.
        """
        if self.done:
            return
        try:
            self._connection.answer(self.id, RESPONSE, body)
        except FrameTooLarge as error:
            self.fail(TOO_LARGE, str(error))
        self.done = True

    def fail(self, code: str, text: str, details: bytes = b"") -> None:
        """Answers with an error; ends a stream with it."""
        if self.done:
            return
        try:
            self._connection.answer(self.id, ERROR, encode_failure(code, text, details))
        except FrameTooLarge as error:
            self._connection.answer(self.id, ERROR, encode_failure(TOO_LARGE, f"the error itself: {error}"))
        finally:
            self.done = True

    def push(self, body: bytes) -> bool:
        """One item of a stream. False: not sent, because too much is waiting or the stream is over (`done`).

        Too much in one loop turn counts as well, so that a producer faster than the network yields to others.
        An item larger than the peer accepts ends the stream with the error "too_large".
        """
        if self.done or not self.streaming:
            return False
        try:
            return self._connection.push(self.id, body)
        except FrameTooLarge as error:
            self.fail(TOO_LARGE, str(error))
            return False

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Calls back once when this peer can take items again; the way on after `push` returned False."""
        if not self.done:
            self._connection.on_writable(self.id, callback)

    def on_cancel(self, callback: Callable[[str], None]) -> None:
        """Calls back with a reason if the caller cancels, the deadline passes or the connection ends first.

        At once if that has happened already: a handler may register late, after work of its own.
        """
        self._on_cancel = callback
        if self._cancelled is not None:
            self.cancelled(self._cancelled)

    def cancelled(self, reason: str) -> None:
        """For the connection: nobody waits for the answer any more."""
        self.done = True
        self._cancelled = reason
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            try:
                callback(reason)
            except Exception as error:
                self._connection.handler_failed(self, error)


Handler = Callable[[Request], None]


class ServerConnection(Connection):
    """The server's side of one connection."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, server.hello, server.limits, server.counters)
        self._server = server
        self._handlers = server.handlers
        self._requests: dict[int, Request] = {}  # unanswered, streams included
        self._streams = 0
        self._on_writable: dict[int, Callable[[], None]] = {}

    def opened(self, transport: asyncio.Transport) -> None:
        super().opened(transport)
        refusal = self._server.admit(self)
        if refusal is not None:
            self.counters.refused += 1
            self.goodbye(refusal, linger=False)

    @property
    def sends_bytes(self) -> int:
        return self.limits.answer_bytes

    def check_peer(self, hello: Hello) -> str | None:
        return self._server.check_hello(hello) if self._server.check_hello is not None else None

    def came_up(self) -> None:
        self.counters.accepted += 1
        self._server.greeted(self)
        self.send_hello()

    def take_frames(self) -> None:
        next_frame = self._reader.next
        most = self.limits.max_server_in_flight
        left_bytes = TURN_BYTES
        while self.state == UP:
            if left_bytes <= 0:
                self.rest()
                return
            if self.writing_paused or len(self._requests) - self._streams >= most:
                self.pause_reading()
                return
            frame = next_frame()
            if frame is None:
                break
            kind, before_bytes = frame.kind, self.waiting_bytes
            if kind == REQUEST:
                self._start(frame, False)
            elif kind == ONEWAY:
                self._start_oneway(frame)
            elif kind == STREAM:
                self._start(frame, True)
            elif kind == CANCEL:
                self._finish(frame.id, "cancelled by the caller")
            elif kind == PING:
                self.answer_ping(frame.id)
            elif kind == GOODBYE:
                self.told_goodbye(frame)
            elif kind != PONG:
                name = KIND_NAMES.get(kind)
                raise FrameError(f"{name} frames go the other way" if name else f"unknown frame kind {kind}")
            left_bytes -= len(frame.body) + self.waiting_bytes - before_bytes
        if self.reading_paused:
            self.resume_reading()

    def _start(self, frame: Frame, streaming: bool) -> None:
        id = frame.id
        deadline: float | None = None
        if frame.deadline_ms:
            deadline = self.arrived_at + frame.deadline_ms / 1000
            if self.loop.time() >= deadline:
                self.counters.expired += 1
                return
        if id in self._requests:
            raise FrameError(f"request id {id} is already in use on this connection")
        handler = self._handlers.get(frame.method)
        if handler is None:
            self._send(ERROR, id, encode_failure(UNKNOWN_METHOD, f"no method {frame.method!r} here"))
            return
        request = Request(self, id, frame.method, frame.body, deadline, False, streaming)
        if streaming:
            if self._streams >= self.limits.max_streams:
                text = f"{self._streams} streams are open on this connection, the limit"
                self._send(ERROR, id, encode_failure(TOO_MANY_STREAMS, text))
                return
            self._streams += 1
        self._requests[id] = request
        try:
            handler(request)
        except Exception as error:
            self.handler_failed(request, error)

    def _start_oneway(self, frame: Frame) -> None:
        handler = self._handlers.get(frame.method)
        if handler is None:
            self._server.report(f"one-way message to unknown method {frame.method!r} from {self.address}", None)
            return
        deadline: float | None = None
        if frame.deadline_ms:
            deadline = self.arrived_at + frame.deadline_ms / 1000
        request = Request(self, frame.id, frame.method, frame.body, deadline, True, False)
        try:
            handler(request)
        except Exception as error:
            self.handler_failed(request, error)

    def handler_failed(self, request: Request, error: Exception) -> None:
        self.counters.handler_errors += 1
        request.fail(INTERNAL, f"{type(error).__name__}: {error}"[:_ERROR_TEXT_CHARS])
        self._server.report(f"the handler of {request.method!r} failed for {self.address}: {error!r}", error)

    # Answers, called by Request.

    def answer(self, id: int, kind: int, body: bytes) -> None:
        if self.writing_paused or self.state != UP:
            self._send(kind, id, body)
        else:
            self.send_frame(kind, id, "", 0, body)
        request = self._requests.pop(id, None)
        if request is not None and request.streaming:
            self._streams -= 1
            self._on_writable.pop(id, None)
        if self.reading_paused:
            self.go_on_soon()

    def end_streams(self, code: str, text: str) -> None:
        for request in [request for request in self._requests.values() if request.streaming]:
            request.fail(code, text)

    def push(self, id: int, body: bytes) -> bool:
        if self.state != UP or self.waiting_bytes >= self.limits.max_push_buffered_bytes:
            return False
        self.send_frame(PUSH, id, "", 0, body)
        return True

    def on_writable(self, id: int, callback: Callable[[], None]) -> None:
        self._on_writable[id] = callback
        if not self.writing_paused:
            self.loop.call_soon(self._call_writable)

    def _send(self, kind: int, id: int, body: bytes) -> None:
        if self.state != UP:
            return
        self.send_frame(kind, id, "", 0, body)
        if self.writing_paused and self.waiting_bytes > self.limits.max_buffered_bytes:
            self.goodbye(f"{self.waiting_bytes} bytes of answers are waiting for a peer that does not read them")

    # Pauses.

    def writable(self) -> None:
        if self.reading_paused:
            self.go_on_soon()
        if self._on_writable:
            self.loop.call_soon(self._call_writable)

    def _call_writable(self) -> None:
        callbacks, self._on_writable = self._on_writable, {}
        for id, callback in callbacks.items():
            request = self._requests.get(id)
            if request is None:
                continue
            if self.writing_paused:
                self._on_writable.setdefault(id, callback)
                continue
            try:
                callback()
            except Exception as error:
                self.handler_failed(request, error)

    # Ends.

    def tick(self, now: float) -> None:
        overdue = [request for request in self._requests.values() if request.expired(now)]
        for request in overdue:
            self.counters.expired += 1
            self._send(ERROR, request.id, encode_failure(DEADLINE_EXCEEDED, f"{request.method!r} took too long"))
            self._finish(request.id, "the deadline passed")

    def _finish(self, id: int, reason: str) -> None:
        request = self._requests.pop(id, None)
        if request is None:
            return  # answered meanwhile: the two messages crossed
        if request.streaming:
            self._streams -= 1
            self._on_writable.pop(id, None)
        request.cancelled(reason)
        if self.reading_paused:
            self.go_on_soon()

    def ended(self, reason: str, error: BaseException | None, fault: bool) -> None:
        requests, self._requests = self._requests, {}
        self._streams = 0
        self._on_writable.clear()
        for request in requests.values():
            request.cancelled(reason)
        self._server.connection_ended(self, reason, error, fault)

    def gone(self) -> None:
        self._server.connection_gone(self)


class Server:
    """Listens on one address and answers with `handlers`."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        hello: Hello,
        limits: Limits = DEFAULT_LIMITS,
        ssl: ssl_module.SSLContext | None = None,
        check_hello: CheckHello | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self.handlers = dict(handlers)
        self.hello = hello
        self.limits = limits
        self.check_hello = check_hello
        self.counters = Counters()
        self._ssl = ssl
        self._on_error = on_error
        self._listener: asyncio.AbstractServer | None = None
        # A dict as an ordered set: they are told goodbye in the order in which they came, in every run.
        self._connections: dict[ServerConnection, None] = {}
        self._unauthenticated: set[ServerConnection] = set()
        self._closed = False
        self._all_gone: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port, which is `port` unless that is 0."""
        loop = asyncio.get_running_loop()
        context = self._ssl

        def accept() -> asyncio.Protocol:
            connection = ServerConnection(self, loop)
            return connection if context is None else TlsProtocol(connection, context, server_side=True)

        listener = await loop.create_server(accept, host, port)
        self._listener = listener
        return port if port else int(listener.sockets[0].getsockname()[1])

    def close(self, reason: str = "the server is shutting down") -> None:
        """Stops listening and says goodbye to everyone. Unanswered requests are cancelled."""
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.goodbye(reason, fault=False)

    def dismiss(self, raft_id: int, reason: str) -> None:
        """Says goodbye to an instance that is no longer welcome."""
        for connection in list(self._connections):
            if connection.peer.raft_id == raft_id:
                connection.goodbye(reason, fault=False)

    def end_streams(self, code: str, text: str) -> None:
        """Ends every open stream with an error; connections stay."""
        for connection in list(self._connections):
            connection.end_streams(code, text)

    async def wait_closed(self) -> None:
        """Returns when the last connection is gone, at most `goodbye_linger_s` after close()."""
        if self._connections:
            if self._all_gone is None:
                self._all_gone = asyncio.get_running_loop().create_future()
            await self._all_gone

    # For connections.

    def admit(self, connection: ServerConnection) -> str | None:
        """Counts a new connection; a reason when there is no room for it."""
        limits = self.limits
        refusal: str | None = None
        if self._closed:
            refusal = "the server is shutting down"
        elif len(self._connections) >= limits.max_connections:
            refusal = f"too many connections, the limit is {limits.max_connections}"
        elif len(self._unauthenticated) >= limits.max_unauthenticated:
            refusal = f"too many connections without a hello, the limit is {limits.max_unauthenticated}"
        self._connections[connection] = None
        if refusal is None:
            self._unauthenticated.add(connection)
        return refusal

    def greeted(self, connection: ServerConnection) -> None:
        self._unauthenticated.discard(connection)

    def connection_ended(
        self, connection: ServerConnection, reason: str, error: BaseException | None, fault: bool
    ) -> None:
        self._unauthenticated.discard(connection)
        if fault and not self._closed:
            self.report(f"connection of {connection.peer.name()} at {connection.address} ended: {reason}", error)

    def connection_gone(self, connection: ServerConnection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    def report(self, text: str, error: BaseException | None) -> None:
        if self._on_error is not None:
            self._on_error(text, error)
        else:
            _log.warning(text)
