"""Callbacks of disks, stores and logs as things a coroutine can wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from trimtab.storage.mutation_log import Records
from trimtab.storage.port import Disk, Store

T = TypeVar("T")


async def off_loop(disk: Disk, work: Callable[[], T], unwanted: Callable[[T], None] | None = None) -> T:
    """The result of blocking work, done beside the loop. `unwanted` gets it if nobody waits any more."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            if result is not None and unwanted is not None:
                unwanted(result)
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    disk.start(work, done)
    return await future


async def flushed(store: Store) -> None:
    """Return when everything written so far is in files."""
    await outcome(store.start_flush)


async def recorded(records: Records, key: bytes, value: bytes = b"") -> None:
    """Return when the record is durable."""
    await outcome(lambda done: records.put(key, value, done, essential=True))


async def outcome(start: Callable[[Callable[[BaseException | None], None]], object]) -> None:
    """Return when `done(None)` was called; raise what `done(error)` was called with."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    start(done)
    await future
