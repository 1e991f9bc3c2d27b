"""Stores that rest, for tests: how they are made, and what keeps them from waking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import rocksdict
from tests.unit.storage.external_tables import composed, union

from trimtab.storage.resting_store import RestingStore
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_store import RocksStore

Held = dict[bytes, bytes]
Story = Callable[[], Awaitable[None]]

PATIENCE_S = 30
BASE: list[Held] = [
    {b"key %04d" % number: b"first" for number in range(60)},
    {b"key %04d" % number: b"second" for number in range(40, 100)},
]
HELD = union(BASE)


def open_resting(disk: RocksDisk, name: str = "store", *, coming: int = 0) -> RestingStore:
    store = disk.open(name, wal=False, small=True, resting=True, coming=coming)
    assert isinstance(store, RestingStore) and store.resting
    return store


def rests(store: RocksStore) -> bool:
    return isinstance(store, RestingStore) and store.resting


def resting(disk: RocksDisk, name: str = "store") -> RestingStore:
    composed(disk, name, BASE, {})
    return open_resting(disk, name)


def put(store: RocksStore, *keys: bytes, value: bytes = b"new") -> None:
    batch = store.batch()
    for key in keys:
        batch.put(key, value)
    store.write(batch)


def delete(store: RocksStore, *keys: bytes) -> None:
    batch = store.batch()
    for key in keys:
        batch.delete(key)
    store.write(batch)


def contents(store: RocksStore) -> Held:
    return dict(store.scan(b"", None))


async def flushed(store: RocksStore) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    store.start_flush(done.set_result)
    return await asyncio.wait_for(done, PATIENCE_S)


def begin_flush(store: RocksStore) -> asyncio.Task[BaseException | None]:
    return asyncio.create_task(flushed(store))


async def until(there: threading.Event) -> None:
    assert await asyncio.to_thread(there.wait, PATIENCE_S)


async def until_so(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not so():  # noqa: ASYNC110 threads change it
            await asyncio.sleep(0.002)


def run(story: Story) -> None:
    async def whole() -> None:
        await story()

    asyncio.run(whole())


@dataclass
class Gate:
    """Something that waits, on its thread, until it is let through."""

    begun: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def passes(self) -> None:
        self.begun.set()
        assert self.open.wait(PATIENCE_S)


@contextmanager
def held_while_it_opens(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, opens = Gate(), disk.open_database

    def waits(*how: Any, **more: Any) -> rocksdict.Rdict:
        gate.passes()
        return opens(*how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "open_database", waits)
        try:
            yield gate
        finally:
            gate.open.set()


@contextmanager
def failing_to_open(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[None]:
    def fails(*_: Any, **__: Any) -> rocksdict.Rdict:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(disk, "open_database", fails)
        yield
