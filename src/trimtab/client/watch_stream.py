"""One stream of watch items from one member: what has arrived and was not taken yet, with a bound.

A consumer that is slower than its member must not fill the client's memory. When too much waits here the stream is
cancelled, not paused: what had arrived is still given, then it ends, and whoever reads it opens another from where it
stands. A member keeps history for that.
"""

from __future__ import annotations

import asyncio
from collections import deque

from trimtab.metastore.requests import WATCH, WatchItem, WatchRequest, decode_watch_item, encode
from trimtab.net.client import Channel
from trimtab.net.errors import NetError

MAX_ITEMS = 10_000
MAX_BYTES = 16 << 20


class WatchStream:
    """Opened when it is made; raises as `Channel.stream` does. `close` it in the end."""

    def __init__(
        self, channel: Channel, request: WatchRequest, *, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES
    ) -> None:
        self.heard = False  # whether the member has said anything at all
        self.error: NetError | None = None  # why it ended, if not by itself or by its bound
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()
        self._cancel = channel.stream(WATCH, encode(request), self._take, self._end)

    async def next(self) -> WatchItem | None:
        """The next item; None when there are no more."""
        while not self._waiting:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        body = self._waiting.popleft()
        self._waiting_bytes -= len(body)
        return decode_watch_item(body)

    def close(self) -> None:
        """No more items."""
        self._ended = True
        self._cancel()

    def _take(self, body: bytes) -> None:
        if self._ended:
            return
        self.heard = True
        self._waiting.append(bytes(body))
        self._waiting_bytes += len(body)
        self._arrived.set()
        if len(self._waiting) > self._max_items or self._waiting_bytes > self._max_bytes:
            self.close()

    def _end(self, error: NetError | None) -> None:
        self.error = error
        self._ended = True
        self._arrived.set()
