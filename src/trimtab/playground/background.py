"""An event loop in a thread of its own, for what goes on while the main thread waits, draws and can be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_STOP_S = 5.0


class Background:
    """From its making until `close`. The thread never keeps the process from ending."""

    def __init__(self) -> None:
        import uvloop

        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="trimtab-background", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Let something begin; its result, or what went wrong with it, is in the future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Do something, and wait for it. TimeoutError: it took longer, and was cancelled."""
        future = self.start(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def soon(self, deed: Callable[[], None]) -> None:
        """Do something on the loop, without waiting."""
        self._loop.call_soon_threadsafe(deed)

    def close(self) -> None:
        """Cancel what still goes on, and end the thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Do something that blocks, in a thread that never keeps the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="trimtab-work", daemon=True).start()
    return future
