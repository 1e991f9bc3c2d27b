"""The smallest loop this package promises to run on: virtual time, in-memory links, and not a method more.

Links can be cut without a word (`cut`), which no real socket on loopback does on request.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any


class Handle:
    """Of a scheduled callback."""

    def __init__(self, when: float, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.when = when
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Link:
    """A transport with exactly the methods a connection may use."""

    def __init__(self, loop: VirtualLoop, protocol: Any, name: tuple[str, int]) -> None:
        self.loop = loop
        self.protocol = protocol
        self.name = name
        self.other: Link | None = None
        self.writes: list[bytes] = []
        self.closing = False
        self.cut = False
        self.unread: list[bytes] = []
        self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.closing, "nothing may be written to a closing transport"
        self.writes.append(data)
        other = self.other
        if other is not None and not self.cut:
            self.loop.call_later(self.loop.latency_s, other.deliver, data)

    def deliver(self, data: bytes) -> None:
        if self.closing:
            return
        if self.paused:
            self.unread.append(data)
        else:
            self.protocol.data_received(data)

    def close(self) -> None:
        self._close(None)

    def abort(self) -> None:
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self.closing:
            return
        self.closing = True
        self.loop.call_soon(self.protocol.connection_lost, error)
        if self.other is not None and not self.cut:
            self.loop.call_later(self.loop.latency_s, self.other._close, None)

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.name if name == "peername" else default

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        unread, self.unread = self.unread, []
        for data in unread:
            self.loop.call_soon(self.deliver, data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Listener:
    def __init__(self, loop: VirtualLoop, port: int) -> None:
        self.loop = loop
        self.port = port

    def close(self) -> None:
        self.loop.listeners.pop(self.port, None)


class VirtualLoop:
    """Runs everything due, then jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.latency_s = 0.001
        self.turns = 0
        self.listeners: dict[int, Callable[[], Any]] = {}
        self.links: list[tuple[Link, Link]] = []
        self._order = itertools.count()
        self._due: list[tuple[float, int, Handle]] = []

    # What the package uses.

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        return self.call_at(self.now, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        return self.call_at(self.now + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Handle:
        handle = Handle(when, callback, args)
        heapq.heappush(self._due, (when, next(self._order), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.Task(coroutine, loop=self)  # type: ignore[arg-type]

    async def create_server(self, factory: Callable[[], Any], host: str, port: int) -> Listener:
        self.listeners[port] = factory
        return Listener(self, port)

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Link, Any]:
        if port not in self.listeners:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        near = Link(self, factory(), (host, port))
        far = Link(self, self.listeners[port](), ("10.0.0.9", 40000 + len(self.links)))
        near.other, far.other = far, near
        self.links.append((near, far))
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near, near.protocol

    # What asyncio's futures and tasks use.

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "never retrieved" not in context["message"]:
            raise AssertionError(context)

    # What tests use.

    def run_for(self, seconds: float) -> None:
        """Everything that happens in the next `seconds` of virtual time."""
        end = self.now + seconds
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            while self._due and self._due[0][0] <= end:
                when, _, handle = heapq.heappop(self._due)
                self.now = max(self.now, when)
                if not handle.is_cancelled:
                    self.turns += 1
                    handle.callback(*handle.args)
        finally:
            asyncio._set_running_loop(None)
        self.now = end

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = self.create_task(coroutine)
        self.run_for(0)
        return task.result()

    def stall(self, seconds: float) -> None:
        """Time passes and this process does not notice: stopped, or busy with one long callback."""
        self.now += seconds
