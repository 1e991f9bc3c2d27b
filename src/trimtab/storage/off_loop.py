"""Blocking work beside the event loop: one thread that syncs, and a few that do everything else.

Syncs have a thread of their own, one for a whole disk, because they are what clients wait for: a long flush or a
checkpoint must not queue in front of them. Requests that are waiting for the same store when the thread gets to them
share one sync. Results are posted to the loop that asked; when that loop is gone, so is whoever was interested.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from trimtab.storage.port import StorageError

T = TypeVar("T")

MAX_WAITING = 10_000


class Syncable(Protocol):
    def sync_blocking(self) -> None: ...

    def sync_finished(self, callbacks: list[SyncCallback], seconds: float, error: BaseException | None) -> None: ...


SyncCallback = Callable[[BaseException | None], None]
_Request = tuple[Syncable, asyncio.AbstractEventLoop, SyncCallback]


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Call on the loop, from any thread. A loop that was closed meanwhile has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


class OffLoop:
    """The threads of one disk. They start when first needed and never keep the process alive."""

    def __init__(self, name: str, *, workers: int = 2) -> None:
        self._name = name
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        self._working = 0
        self._closed = False

    def sync(self, store: Syncable, done: SyncCallback) -> None:
        self._refuse_when_closed()
        if self._requests.qsize() >= MAX_WAITING:
            raise StorageError(f"{self._name}: {MAX_WAITING} syncs are waiting; wait for some before asking for more")
        if self._thread is None:
            self._thread = threading.Thread(target=self._sync_forever, name=f"sync {self._name}", daemon=True)
            self._thread.start()
        self._requests.put((store, asyncio.get_running_loop(), done))

    def start(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._refuse_when_closed()
        if self._working >= MAX_WAITING:
            raise StorageError(f"{self._name}: {MAX_WAITING} tasks are waiting; wait for some before adding more")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=f"work {self._name}")
        loop = asyncio.get_running_loop()
        self._working += 1

        def finish(result: T | None, error: BaseException | None) -> None:
            self._working -= 1
            if not self._closed:
                done(result, error)

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                post(loop, finish, None, error)
            else:
                post(loop, finish, result, None)

        self._pool.submit(run)

    def close(self) -> None:
        """Wait for what is running; callbacks that have not run by now never will."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StorageError(f"{self._name}: the disk was closed")

    def _sync_forever(self) -> None:
        take = self._requests.get
        while True:
            request = take()
            waiting: dict[int, list[_Request]] = {}
            for _ in range(MAX_WAITING):
                if request is None:
                    return
                waiting.setdefault(id(request[0]), []).append(request)
                try:
                    request = take(block=False)
                except queue.Empty:
                    break
            for requests in waiting.values():
                self._sync_one(requests)

    @staticmethod
    def _sync_one(requests: list[_Request]) -> None:
        store = requests[0][0]
        started = time.perf_counter()
        failure: BaseException | None = None
        try:
            store.sync_blocking()
        except BaseException as error:
            failure = error
        seconds = time.perf_counter() - started
        by_loop: dict[int, tuple[asyncio.AbstractEventLoop, list[SyncCallback]]] = {}
        for _, loop, done in requests:
            by_loop.setdefault(id(loop), (loop, []))[1].append(done)
        for loop, callbacks in by_loop.values():
            post(loop, store.sync_finished, callbacks, seconds, failure)
