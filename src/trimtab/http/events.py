"""Events as a stream that a browser's EventSource, or `curl -N`, can follow.

    id: 17                                     the number of the event; a reader that comes back says Last-Event-ID: 17
    data: {"number": 17, ...}                  the event, as in /api/v1/events

A stream holds no queue: it keeps a number, and reads what is newer when the reader has taken the last one. A reader
that falls behind further than events are kept sees the numbers jump, and a comment that says so; single numbers may be
missing anyway, because a step that came to nothing used one up. Streams are few, each sends a comment now and then so
that a lost reader is noticed, and all end when the door closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trimtab.http.guard import DoorLimits
from trimtab.topology.records import EventRecord

Shape = Callable[[int, EventRecord], dict[str, Any]]
Events = AsyncIterator[tuple[int, EventRecord]]

_RETRY_MS = 2_000
_KEEP_ALIVE = b": keep-alive\n\n"


class Streams:
    """All event streams of the door: how many there may be, and their common end."""

    def __init__(self, limits: DoorLimits) -> None:
        self.limits = limits
        self.closing = asyncio.Event()
        self.open = 0

    @property
    def full(self) -> bool:
        return self.open >= self.limits.streams

    def close(self) -> None:
        self.closing.set()


class EventStream(Response):
    """An answer that goes on until the reader leaves, stops reading, or the door closes."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, events: Events, after: int, shape: Shape) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._streams = streams
        self._events = events
        self._after = after
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._streams.open += 1
        scope["streaming"]()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["head"] or await self._until_told(receive):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                scope["state"]["abort"]()
        finally:
            self._streams.open -= 1

    async def _until_told(self, receive: Receive) -> bool:
        """Write until somebody says it is enough; whatever ends first ends the others. False: nobody reads."""
        tasks = [
            asyncio.ensure_future(self._write()),
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._streams.closing.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        error = None if tasks[0].cancelled() else tasks[0].exception()
        if error is not None and not isinstance(error, TimeoutError):
            raise error
        return error is None

    async def _write(self) -> None:
        await self._put(b"retry: %d\n\n" % _RETRY_MS)
        events, last = self._events, self._after
        coming: asyncio.Future[tuple[int, EventRecord]] = asyncio.ensure_future(anext(events))
        try:
            while True:
                await asyncio.wait([coming], timeout=self._streams.limits.stream_keepalive_ms / 1000)
                if not coming.done():
                    await self._put(_KEEP_ALIVE)
                    continue
                try:
                    number, record = coming.result()
                except StopAsyncIteration:
                    return
                if number > last + 1 and last >= 0:
                    await self._put(b": no events are kept between %d and %d\n\n" % (last, number))
                body = msgspec.json.encode(self._shape(number, record))
                await self._put(b"id: %d\ndata: %s\n\n" % (number, body))
                last = number
                coming = asyncio.ensure_future(anext(events))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            if hasattr(events, "aclose"):
                await events.aclose()

    async def _put(self, chunk: bytes) -> None:
        async with asyncio.timeout(self._streams.limits.stream_send_ms / 1000):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _gone(receive: Receive) -> None:
    """Until the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
