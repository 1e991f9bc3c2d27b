"""An asyncio event loop of one simulated process, on the virtual clock of a world.

It is enough of a loop for futures, tasks, timeouts, locks and queues of asyncio itself, and for servers and
connections made with `create_server` and `create_connection`: the code that runs on it is the code of production.
Threads, subprocesses, real sockets and TLS are refused, because they would bring in what the seed does not control.

`time()` is the process's own monotonic clock: it may have any origin and run fast or slow, and it never goes back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast

if TYPE_CHECKING:
    from trimtab.sim.world import Process

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# Finished tasks are forgotten when the list of tasks has grown by this many.
FORGET_TASKS_EVERY = 256


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one life of a process. After the process dies it swallows everything it is asked to do."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.context = contextvars.Context()
        self.dead = False
        self.paused = False
        self.deferred: list[asyncio.Handle] = []
        self._floor = process.monotonic()
        self._tasks: list[asyncio.Task[Any]] = []
        self._forget_at = FORGET_TASKS_EVERY

    # -- the clock -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        now = self.process.monotonic()
        return now if now > self._floor else self._floor

    def reached(self, when: float) -> None:
        """A timer for `when` fires: whatever rounding did, the clock shows at least that now."""
        if when > self._floor:
            self._floor = when

    # -- callbacks -------------------------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self.world.ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            process = self.process
            self.world.at(process.clock_anchor + (when - process.clock_base) / process.clock_rate, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells the loop; a cancelled event is dropped when its time comes."""

    # -- futures and tasks -----------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        # A name is always given: asyncio's default is a counter that is shared by all worlds of this Python process.
        coroutine = cast(Coroutine[Any, Any, T], coro)
        task = asyncio.Task(coroutine, loop=self, name=name or self.process.name, context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._forget_at:
            self._tasks = [known for known in self._tasks if not known.done()]
            self._forget_at = len(self._tasks) + FORGET_TASKS_EVERY
        return task

    # -- errors ----------------------------------------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        if enabled:
            raise NotImplementedError("a simulated loop has no debug mode: use the trace of the simulator")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.world.loop_error(self.process, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # -- state -----------------------------------------------------------------------------------------------------

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        raise NotImplementedError("a simulated process has no threads: blocking work goes through the Disk port")

    # -- network ---------------------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if options.get("ssl") is not None:
            raise NotImplementedError("the simulated network has no TLS")
        if isinstance(host, (list, tuple)):
            host = host[0]
        return self.world.network.listen(self, protocol_factory, host, port or 0)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if options.get("ssl") is not None:
            raise NotImplementedError("the simulated network has no TLS")
        connected: Awaitable[Any] = self.world.network.connect(self, protocol_factory, str(host), int(port))
        return await connected

    # -- death -----------------------------------------------------------------------------------------------------

    def die(self) -> None:
        self.dead = True
        self.paused = False
        self.deferred.clear()
        for task in self._tasks:
            # What a killed process left undone is no mistake of its code.
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def bury(self) -> None:
        """Close the coroutines of the dead, in the order of their birth, so that no finalizer has to."""
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                if coroutine is None or task.done():
                    continue
                try:
                    coroutine.close()
                except BaseException:
                    continue
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()


def make_loop(process: Process) -> SimLoop:
    """The one place where the unfinished loop is instantiated: what it lacks is refused by `AbstractEventLoop`."""
    return SimLoop(process)  # type: ignore[abstract]
