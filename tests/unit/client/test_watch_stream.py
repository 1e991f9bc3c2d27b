"""What waits for a slow consumer is bounded, by number and by size, and none of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.client.watch_stream import WatchStream
from trimtab.metastore.history import Change
from trimtab.metastore.layout import Entry
from trimtab.metastore.requests import WatchItem, WatchKind, WatchRequest, encode
from trimtab.net.errors import ConnectionLost, NetError


class OneStream:
    """A channel that a test plays the member of."""

    def __init__(self) -> None:
        self.push: Callable[[bytes], None]
        self.end: Callable[[NetError | None], None]
        self.cancelled = 0

    def stream(self, _method: str, _body: bytes, on_item: Any, on_end: Any) -> Callable[[], None]:
        self.push, self.end = on_item, on_end
        return self._cancel

    def _cancel(self) -> None:
        self.cancelled += 1


def item(revision: int, value: bytes = b"") -> bytes:
    return encode(WatchItem(revision, [Change(b"k", None, Entry(b"k", value, revision, revision, 1))]))


async def rest(stream: WatchStream) -> list[int]:
    found = []
    while (next_item := await stream.next()) is not None:
        found.append(next_item.revision)
    return found


REQUEST = WatchRequest(WatchKind.PREFIX, b"k")


@pytest.mark.parametrize(("max_items", "max_bytes", "value"), [(3, 1 << 20, b""), (1_000, 3_000, b"v" * 900)])
def test_a_stream_that_is_too_full_is_cancelled_and_what_had_come_is_given(
    max_items: int, max_bytes: int, value: bytes
) -> None:
    async def run() -> None:
        member = OneStream()
        stream = WatchStream(member, REQUEST, max_items=max_items, max_bytes=max_bytes)  # type: ignore[arg-type]
        for revision in range(1, 9):
            member.push(item(revision, value))
        assert member.cancelled == 1
        assert await rest(stream) == [1, 2, 3, 4]
        assert stream.error is None

    asyncio.run(run())


def test_a_consumer_that_keeps_up_is_never_cancelled() -> None:
    async def run() -> None:
        member = OneStream()
        stream = WatchStream(member, REQUEST, max_items=2, max_bytes=1_000)  # type: ignore[arg-type]
        assert not stream.heard
        for revision in range(1, 50):
            member.push(item(revision, b"v" * 500))
            next_item = await stream.next()
            assert next_item is not None and next_item.revision == revision
        assert stream.heard and not member.cancelled
        member.end(ConnectionLost("gone"))
        assert await stream.next() is None and isinstance(stream.error, ConnectionLost)

    asyncio.run(run())
