"""The event loop of a blocking client, in a thread of its own, and how other threads wait for it.

Any number of threads may ask at the same time; their requests share the client's few connections. A request is made,
and its answer read, in the thread that asks; the loop only sends and receives.

A process that was forked has the memory of this thread but not the thread: using the client there would wait for ever,
so it is refused. Connect after the fork (in each worker of a pool, say), not before.

When a program ends its loops do, before the interpreter: one that woke up later (a member has closed its connection,
say) would crash the process, which had done its work.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import uvloop

from trimtab.client.asks import Ask
from trimtab.client.errors import Error, Timeout
from trimtab.client.known import Known
from trimtab.client.session import Session

T = TypeVar("T")
_GRACE_S = 5.0  # the loop ends every request at its deadline; this long after it, the loop is not running
_STOP_S = 5.0


class Waiter:
    """The sink of one request, and where its thread waits."""

    __slots__ = ("_body", "_error", "_gate")

    gone = False

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._body = b""
        self._error: Exception | None = None

    def answered(self, ask: Ask[Any], body: bytes) -> None:
        self._body = body
        self._gate.release()

    def failed(self, ask: Ask[Any], error: Exception) -> None:
        self._error = error
        self._gate.release()

    def wait(self, ask: Ask[T]) -> T:
        if not self._gate.acquire(timeout=ask.timeout_s + _GRACE_S):
            raise Timeout(f"the client's own thread has not answered for {ask.timeout_s + _GRACE_S:g} s")
        if self._error is not None:
            raise self._error
        return ask.read(self._body)


class LoopThread:
    """Runs a session. `session` is set once it is connected."""

    session: Session

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="trimtab-client", daemon=True)
        self._thread.start()
        _running.add(self)

    # From other threads

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and os.getpid() == self._pid

    def start(self, ask: Ask[Any]) -> Waiter:
        """Send a request; wait for it with `waiter.wait(ask)`."""
        waiter = Waiter()
        ask.sink = waiter
        self.submit(ask)
        return waiter

    def submit(self, ask: Ask[Any]) -> None:
        """Send a request that has its sink already."""
        self._check()
        try:
            self._loop.call_soon_threadsafe(self.session.submit, ask)
        except RuntimeError:
            raise _closed() from None

    def ask(self, ask: Ask[T]) -> T:
        """Send a request and wait for its answer."""
        return self.start(ask).wait(ask)

    def look(self, known: Known) -> bool:
        """Whether there is news since `known`, which something does not fit."""
        session = self.session
        return self.call(lambda: session.look(known, session.loop.time() + session.timeout_s))

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Do something on the loop, and wait for it."""
        self._check()
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            if future.done():
                raise
            future.cancel()
            raise Timeout(f"the client's own thread has not answered for {timeout_s} s") from None

    def close(self) -> None:
        """Close the session and end the thread."""
        if self._closed or os.getpid() != self._pid:
            return
        if hasattr(self, "session"):
            with contextlib.suppress(Timeout):
                self.call(self.session.close, _STOP_S)
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def abandon(self) -> None:
        """The application has lost its client without closing it: end the thread, without waiting."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def end(self) -> None:
        """The process ends."""
        self.abandon()
        if self.alive:
            self._thread.join(_STOP_S)

    def _check(self) -> None:
        if self._closed:
            raise _closed()
        if os.getpid() != self._pid:
            raise Error(
                f"this client was made by process {self._pid} before it forked, and can't be used in {os.getpid()}: "
                "call trimtab.connect() in the new process"
            )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()


_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """After whatever the program itself does when it ends: what was registered last is called first."""
    for thread in list(_running):
        thread.end()


def _closed() -> Error:
    return Error("this client is closed; call trimtab.connect() again")
