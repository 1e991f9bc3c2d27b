"""The simulated loop is enough of a loop for asyncio itself, and time on it is virtual."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from trimtab.sim.world import SimulationFailure, World


def run(world: World, coroutine: Any, until: float = 1e9) -> Any:
    process = world.process("one", "10.0.0.1")
    process.start()
    return world.run_until_done(process.spawn(coroutine), until)


def test_an_hour_of_sleep_takes_no_time_and_the_clock_shows_it() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - began

    with World(1) as world:
        assert run(world, story()) == pytest.approx(3600)
        assert world.now == pytest.approx(3600)


def test_wait_for_timeout_gather_queue_lock_and_event_of_asyncio_work() -> None:
    async def story() -> list[Any]:
        told: list[Any] = []
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 1.5)
        except TimeoutError:
            told.append("timed out")
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(10)
        except TimeoutError:
            told.append("timed out too")
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock = asyncio.Lock()

        async def produce() -> None:
            for number in range(3):
                await queue.put(number)

        async def consume() -> list[int]:
            async with lock:
                return [await queue.get() for _ in range(3)]

        _, got = await asyncio.gather(produce(), consume())
        told.append(got)
        told.append(await asyncio.gather(asyncio.sleep(1, "a"), asyncio.sleep(0.5, "b")))
        return told

    with World(1) as world:
        assert run(world, story()) == ["timed out", "timed out too", [0, 1, 2], ["a", "b"]]
        assert world.now == pytest.approx(3.0)


def test_context_variables_travel_with_callbacks_and_tasks() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    async def story() -> list[str]:
        seen: list[str] = []
        who.set("me")
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: seen.append(who.get()))
        loop.call_later(1, lambda: seen.append(who.get()))
        other = contextvars.Context()
        loop.call_soon(lambda: seen.append(who.get()), context=other)
        await asyncio.sleep(2)
        return seen

    with World(1) as world:
        assert run(world, story()) == ["me", "nobody", "me"]


def test_timers_fire_in_the_order_of_their_time_and_then_of_their_birth() -> None:
    with World(1) as world:
        process = world.process("one", "10.0.0.1")
        loop = process.start()
        told: list[str] = []
        base = loop.time()
        loop.call_at(base + 2, told.append, "late")
        loop.call_at(base + 1, told.append, "first")
        loop.call_at(base + 1, told.append, "second")
        cancelled = loop.call_at(base + 1, told.append, "never")
        cancelled.cancel()
        loop.call_soon(told.append, "soon")
        world.run(10)
        assert told == ["soon", "first", "second", "late"]


def test_a_fast_clock_fires_its_timers_early_in_world_time_and_never_goes_back() -> None:
    with World(1) as world:
        process = world.process("fast", "10.0.0.1")
        process.set_clock_rate(1.25)
        loop = process.start()
        began = loop.time()
        fired: list[tuple[float, float]] = []
        loop.call_later(10, lambda: fired.append((world.now, loop.time() - began)))
        world.run(7)
        before = loop.time()
        process.set_clock_rate(0.5)
        assert loop.time() >= before
        world.run(20)
        assert fired == [(pytest.approx(8.0), pytest.approx(10.0))]


def test_a_timer_that_fires_finds_the_clock_at_its_time_whatever_rounding_did() -> None:
    """Code that rearms a timer while `time() < when` would spin for ever otherwise."""
    with World(3) as world:
        process = world.process("odd", "10.0.0.1")
        process.set_clock_rate(1.0 / 3.0)
        loop = process.start()
        wrong: list[float] = []

        def check(when: float) -> None:
            if loop.time() < when:
                wrong.append(when)

        rng = world.rng("test")
        for _ in range(1000):
            when = loop.time() + rng.random() * 100
            loop.call_at(when, check, when)
        world.run(1000)
        assert wrong == []


def test_a_paused_process_runs_nothing_and_then_everything_that_was_due_in_order() -> None:
    with World(1) as world:
        process = world.process("one", "10.0.0.1")
        loop = process.start()
        told: list[tuple[str, float]] = []
        for number in range(3):
            loop.call_later(1 + number, lambda n=number: told.append((f"t{n}", round(world.now, 3))))
        world.run(1.5)
        process.pause()
        world.run(5)
        assert told == [("t0", 1.0)]
        process.resume()
        world.run(6)
        assert told == [("t0", 1.0), ("t1", 5.0), ("t2", 5.0)]


def test_a_killed_process_never_runs_again_not_even_its_finally(recwarn: pytest.WarningsRecorder) -> None:
    told: list[str] = []

    async def life() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            told.append("finally")
            asyncio.get_running_loop().call_soon(told.append, "after death")

    async def unborn() -> None:
        told.append("never")

    with World(1) as world:
        process = world.process("one", "10.0.0.1")
        first = process.start()
        process.spawn(life())
        world.run(1)
        process.spawn(unborn())
        process.kill()
        world.run(20)
        assert told == []
        assert first.is_closed()
        second = process.start()
        assert second is not first
        second.call_soon(told.append, "second life")
        world.run(21)
        assert told == ["second life"]
    assert "after death" not in told
    assert not recwarn.list


def test_an_error_nobody_caught_fails_the_run_and_names_the_process() -> None:
    def wrong() -> None:
        raise ValueError("boom")

    with World(1) as world:
        process = world.process("one", "10.0.0.1")
        process.start().call_later(1, wrong)
        with pytest.raises(SimulationFailure, match=r"unhandled error in one.*ValueError: boom"):
            world.run(2)


def test_an_error_in_a_task_nobody_waits_for_fails_the_run() -> None:
    async def wrong() -> None:
        await asyncio.sleep(1)
        raise ValueError("boom")

    with World(1) as world:
        process = world.process("one", "10.0.0.1")
        process.start()
        process.launch(wrong(), name="work")
        with pytest.raises(SimulationFailure, match=r"unhandled error in one: task work failed: ValueError: boom"):
            world.run(2)


def test_a_callback_that_rearms_itself_at_once_for_ever_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.sim.world.MAX_EVENTS_AT_ONE_INSTANT", 1000)
    with World(1) as world:
        loop = world.process("one", "10.0.0.1").start()

        def again() -> None:
            loop.call_soon(again)

        loop.call_soon(again)
        with pytest.raises(SimulationFailure, match="livelock"):
            world.run(1)


def test_threads_and_tls_are_refused() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotImplementedError, match="threads"):
            await loop.run_in_executor(None, print)
        with pytest.raises(NotImplementedError, match="TLS"):
            await loop.create_connection(asyncio.Protocol, "10.0.0.2", 1, ssl=True)

    with World(1) as world:
        run(world, story())


def test_wall_clocks_jump_but_the_monotonic_clock_does_not() -> None:
    with World(1) as world:
        process = world.process("one", "10.0.0.1")
        loop = process.start()
        wall, monotonic = process.wall_ms(), loop.time()
        process.jump_wall_clock(-60_000)
        assert process.wall_ms() == wall - 60_000
        assert loop.time() == monotonic
