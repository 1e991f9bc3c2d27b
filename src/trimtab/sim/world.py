"""One virtual clock, one heap of events, and the processes that live on it.

A world is a pure function of its seed. Everything that happens is an event (a callback of some process's loop) taken
from one queue ordered by virtual time and then by the order of scheduling, so the same seed gives the same run to the
byte. Nothing here reads a real clock, iterates a set or depends on `hash()` or `id()`.

Processes can be paused (their events wait, as after SIGSTOP, while time goes on), killed (their events, timers and
connections vanish; no `finally` of theirs runs) and started again with a fresh loop. The garbage collector is off while
a world runs: a finalizer that ran at a moment of its choosing would be an input that the seed does not control.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import heapq
import random
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trimtab.sim.loop import SimLoop, make_loop

if TYPE_CHECKING:
    from trimtab.sim.network import Network

# Events in a row at one instant of virtual time before we call it a livelock.
MAX_EVENTS_AT_ONE_INSTANT = 200_000
EPOCH_MS = 1_700_000_000_000


class SimulationFailure(Exception):
    """An invariant does not hold, or the code under test raised where nobody expected it."""

    def __init__(self, why: str, evidence: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.evidence = evidence


class Process:
    """A process of the simulated cluster: a host address, a clock of its own and, while it lives, a loop."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.loop: SimLoop | None = None
        self.lives = 0
        self.paused = False
        # Whoever runs on it, for those who look at it after its events.
        self.owner: Any = None
        # The machine's clocks outlive the process: monotonic = base + rate * (now - anchor), wall = now + offset.
        clock = world.rng(f"clock/{name}")
        self.clock_base = 1_000.0 + clock.random() * 100_000.0
        self.clock_anchor = world.now
        self.clock_rate = 1.0
        self.wall_offset_ms = 0

    @property
    def alive(self) -> bool:
        return self.loop is not None

    def monotonic(self) -> float:
        return self.clock_base + (self.world.now - self.clock_anchor) * self.clock_rate

    def boot_s(self) -> float:
        """The clock that goes on while the machine is suspended; pausing a process stops none of them."""
        return self.monotonic()

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.world.now * 1000.0) + self.wall_offset_ms

    def set_clock_rate(self, rate: float) -> None:
        """Let the monotonic clock run at `rate` from now on. Timers that are already set keep their instant."""
        self.clock_base = self.monotonic()
        self.clock_anchor = self.world.now
        self.clock_rate = rate

    def jump_wall_clock(self, milliseconds: int) -> None:
        self.wall_offset_ms += milliseconds

    def start(self) -> SimLoop:
        if self.loop is not None:
            raise RuntimeError(f"process {self.name} already runs")
        self.lives += 1
        self.paused = False
        self.loop = make_loop(self)
        return self.loop

    def kill(self) -> None:
        """End it as SIGKILL does: nothing of it runs again, the kernel closes its sockets."""
        loop = self.loop
        if loop is None:
            return
        self.loop = None
        self.paused = False
        loop.die()
        self.world.graveyard.append(loop)
        self.world.network.process_died(loop)

    def pause(self) -> None:
        if self.loop is not None:
            self.paused = True
            self.loop.paused = True

    def resume(self) -> None:
        loop = self.loop
        self.paused = False
        if loop is not None and loop.paused:
            loop.paused = False
            waiting, loop.deferred = loop.deferred, []
            self.world.ready.extend(waiting)

    def spawn(self, coroutine: Any, name: str | None = None) -> asyncio.Task[Any]:
        """Run a coroutine as the main task of this (living) process."""
        if self.loop is None:
            coroutine.close()
            raise RuntimeError(f"process {self.name} is dead")
        return self.loop.create_task(coroutine, name=name)

    def launch(self, coroutine: Any, name: str | None = None) -> asyncio.Task[Any]:
        """Like `spawn`, for what nobody waits for: an error in it is a failure of the run."""
        task = self.spawn(coroutine, name)
        task.add_done_callback(self._launched)
        return task

    def _launched(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.loop_error(self, {"message": f"task {task.get_name()} failed", "exception": error})

    def __repr__(self) -> str:
        return f"<process {self.name}>"


class World:
    """The queue of events and everything that is shared by the processes of one run."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        from trimtab.sim.network import Network

        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.heap: list[tuple[float, int, asyncio.Handle]] = []
        self.ready: collections.deque[asyncio.Handle] = collections.deque()
        self.processes: list[Process] = []
        self.graveyard: list[SimLoop] = []
        self.failure: SimulationFailure | None = None
        self.tracing = tracing
        self.trace_lines: list[str] = []
        self.story: list[tuple[float, str, str]] = []
        self.after_event: Callable[[Process], None] | None = None
        self.expected_error: Callable[[Process, dict[str, Any]], bool] | None = None
        self._sequence = 0
        self._gc_was_on = False
        self.network: Network = Network(self)
        self.control = self.process("nemesis", "10.99.99.99")
        self.control.start()

    # -- making things ---------------------------------------------------------------------------------------------

    def rng(self, name: str) -> random.Random:
        """A stream of its own for each purpose, so that drawing in one place does not shift another."""
        return random.Random(f"{self.seed}/{name}")

    def process(self, name: str, host: str) -> Process:
        process = Process(self, name, host)
        self.processes.append(process)
        return process

    def at(self, when: float, handle: asyncio.Handle) -> None:
        """Put an event into the queue at a world time (not before now)."""
        self._sequence += 1
        heapq.heappush(self.heap, (when if when > self.now else self.now, self._sequence, handle))

    def later(self, loop: SimLoop, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        """An event of the world itself (a delivery, a completed sync) on `loop`, after `delay` of world time."""
        handle = asyncio.Handle(callback, args, loop, loop.context)
        self.at(self.now + delay, handle)
        return handle

    # -- telling ---------------------------------------------------------------------------------------------------

    def tell(self, who: str, text: str) -> None:
        """A line of the story: what an operator would want to read afterwards."""
        self.story.append((self.now, who, text))
        if self.tracing:
            self.trace_lines.append(f"{self.now:.6f} {who} * {text}")

    def trace(self, who: str, text: str) -> None:
        """A line of the verbose trace. Callers test `tracing` first, formatting is not free."""
        self.trace_lines.append(f"{self.now:.6f} {who} {text}")

    def fail(self, why: str, evidence: str = "") -> None:
        """Record the first failure; the run stops after the event under way."""
        if self.failure is None:
            self.failure = SimulationFailure(why, evidence)
            self.tell("check", f"FAILED: {why}")

    def loop_error(self, process: Process, context: dict[str, Any]) -> None:
        if self.expected_error is not None and self.expected_error(process, context):
            return
        error = context.get("exception")
        text = str(context.get("message", "error in a callback"))
        evidence = ""
        if isinstance(error, BaseException):
            import traceback

            text = f"{text}: {type(error).__name__}: {error}"
            evidence = "".join(traceback.format_exception(error))
        self.fail(f"unhandled error in {process.name}: {_without_addresses(text)}", _without_addresses(evidence))

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, until: float | None = None, *, stop: Callable[[], bool] | None = None) -> bool:
        """Run events up to virtual time `until` (inclusive). True when `stop` said so, False when nothing is left.

        Raises `SimulationFailure` as soon as one is recorded.
        """
        heap, ready, after = self.heap, self.ready, self.after_event
        set_running = asyncio._set_running_loop
        running: SimLoop | None = None
        instant, at_instant = self.now, 0
        try:
            while True:
                if ready:
                    handle = ready.popleft()
                elif heap and (until is None or heap[0][0] <= until):
                    when, _, handle = heapq.heappop(heap)
                    self.now = when
                else:
                    if until is not None and until > self.now:
                        self.now = until
                    return False
                if handle._cancelled:
                    continue
                loop: SimLoop = handle._loop  # type: ignore[attr-defined]
                if loop.paused:
                    loop.deferred.append(handle)
                    continue
                if loop.dead:
                    continue
                if loop is not running:
                    set_running(None)
                    set_running(loop)
                    running = loop
                if handle.__class__ is asyncio.TimerHandle:
                    loop.reached(handle._when)  # type: ignore[attr-defined]
                self.events += 1
                if self.tracing:
                    self._trace_event(loop, handle)
                handle._run()
                if after is not None:
                    after(loop.process)
                if self.failure is not None:
                    raise self.failure
                if self.now != instant:
                    instant, at_instant = self.now, 0
                else:
                    at_instant += 1
                    if at_instant > MAX_EVENTS_AT_ONE_INSTANT:
                        raise SimulationFailure(
                            f"livelock: {at_instant} events at {self.now:.6f} s without time going on",
                            f"the last one: {_describe(handle)} of {loop.process.name}",
                        )
                if stop is not None and stop():
                    return True
        finally:
            set_running(None)

    def run_until_done(self, task: asyncio.Future[Any], until: float) -> Any:
        """Run until a future is done and give its result; a TimeoutError when virtual time `until` comes first."""
        if not task.done() and not self.run(until, stop=task.done):
            raise TimeoutError(f"not done at {self.now:.3f} s of virtual time")
        return task.result()

    def _trace_event(self, loop: SimLoop, handle: asyncio.Handle) -> None:
        self.trace_lines.append(f"{self.now:.6f} {loop.process.name} {_describe(handle)}")

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and take its coroutines apart, in order, with every effect of theirs discarded."""
        self.after_event = None
        for process in self.processes:
            process.kill()
        self.heap.clear()
        self.ready.clear()
        for loop in self.graveyard:
            loop.bury()
        self.graveyard.clear()

    def __enter__(self) -> World:
        self._gc_was_on = gc.isenabled()
        gc.disable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if self._gc_was_on:
            gc.enable()


def _describe(handle: asyncio.Handle) -> str:
    """What an event is, in words that are the same in every run (no addresses of objects)."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', 'coroutine')}"
    name = getattr(callback, "__qualname__", None) or type(callback).__name__
    return f"call {name}"


def _without_addresses(text: str) -> str:
    """Object addresses differ between runs; a report of the same seed must not."""
    import re

    return re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
