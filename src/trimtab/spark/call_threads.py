"""Threads for calls that wait for the cluster: so many at most, made when they are needed.

They are daemons. Those of `concurrent.futures` are joined when the interpreter ends: a program that is told to stop
when its cluster is gone would wait for every answer that does not come.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
G = TypeVar("G")
T = TypeVar("T")


class CallThreads:
    """From its making until `close`. A context manager: leaving it also waits for calls that have begun."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open = 0  # calls that are not done
        self._closed = False

    def __enter__(self) -> CallThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for thread in self._threads:
            thread.join()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it called as soon as a thread is free."""
        future: Future[T] = Future()
        with self._lock:
            assert not self._closed, "its threads have been told to end"
            self._asked.put((future, partial(call, *args, **kwargs)))
            self._open += 1
            if len(self._threads) < min(self._open, self._count):
                name = f"{self._name}-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def each(self, call: Callable[[G], T], given: Iterable[G]) -> list[T]:
        """What comes of all these calls, in their order. Raises what the first of them raises."""
        futures = [self.submit(call, one) for one in given]
        return [future.result() for future in futures]

    def close(self) -> None:
        """What has not begun is cancelled; threads end when they are done with what they are at."""
        with self._lock:
            self._closed = True
            while not self._asked.empty():
                if (asked := self._taken()) is not None:
                    asked[0].cancel()
                    asked[0].set_running_or_notify_cancel()
            for _ in self._threads:
                self._asked.put(None)

    def _taken(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        try:
            return self._asked.get_nowait()
        except queue.Empty:  # a thread was quicker
            return None

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, call = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._open -= 1
            del asked, future, call  # else what came of it would be in memory until there is another
