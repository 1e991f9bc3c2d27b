"""How a driver ends jobs that were cancelled: those whose code stops, does not stop, or had done its work already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from trimtab.jobs.protocol import BeatReply, BeatRequest, EndRequest, EnterRequest
from trimtab.jobs.records import Command, DriverRecord, JobKind, JobRecord, JobState
from trimtab.jobs.rules import CANCEL
from trimtab.pipeline import driver
from trimtab.pipeline.driver import Driver, DriverSettings
from trimtab.pipeline.registry import Registry
from trimtab.pipeline.running import JobCode, JobContext

WAIT_S = 60.0


class Leader:
    """The queue, as a driver sees it: what ends first counts."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobRecord] = {}
        self.wanted: list[tuple[int, str]] = []
        self.left = False
        self.told: list[int] = []  # jobs whose end was told, late or not

    def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.jobs[number] = JobRecord(number, Command(JobKind.COUNT), JobState.QUEUED, request_id=f"r{number}")

    async def enter(self, request: EnterRequest) -> DriverRecord:
        return DriverRecord(request.driver_id, 1, 0, request.lease_ms, "", "")

    async def beat(self, _request: BeatRequest, *, timeout_s: float) -> BeatReply:
        ready = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        return BeatReply(True, ready, list(self.wanted))

    async def take(self, term: int, number: int) -> JobRecord:
        return self._set(number, state=JobState.RUNNING, owner_term=term, attempts=1)

    async def end(self, request: EndRequest, *, timeout_s: float) -> JobRecord:
        self.told.append(request.number)
        if self.jobs[request.number].state is not JobState.RUNNING:
            return self.jobs[request.number]
        return self._set(request.number, state=request.state, error=request.error, result=request.result)

    async def leave(self, _driver_id: str, _term: int, *, timeout_s: float) -> None:
        self.left = True

    async def close(self) -> None: ...

    def _set(self, number: int, **fields: Any) -> JobRecord:
        self.jobs[number] = msgspec.structs.replace(self.jobs[number], **fields)
        return self.jobs[number]


class NoSpark:
    def join(self, _group: str, _why: str) -> Any: ...

    def cancel(self, _group: str) -> None: ...


async def soon(so: Callable[[], bool]) -> None:
    while not so():  # noqa: ASYNC110 it is changed by threads, too
        await asyncio.sleep(0.005)


class Stage:
    """A driver of two threads, the leader it asks, and jobs whose code runs until it may end."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.may_end = threading.Event()
        self.story: list[str] = []

    def drive(self, code: JobCode, story: Callable[[Stage], Any]) -> None:
        """Run the driver while this goes on; it must have ended well in the end."""

        async def run() -> None:
            settings = DriverSettings(("h:1",), beat_s=0.01, jobs_at_once=2)
            made = Driver(settings, Registry(given={JobKind.COUNT: code}), NoSpark(), story=self.story.append)
            driving = asyncio.create_task(made.run())
            try:
                await asyncio.wait_for(story(self), WAIT_S)
            finally:
                self.may_end.set()
                made.stop()
                try:
                    await asyncio.wait_for(driving, WAIT_S)
                finally:
                    await asyncio.wait_for(soon(lambda: not made._at_work), WAIT_S)

        asyncio.run(run())

    def deaf(self, _context: JobContext, _parameters: dict[str, Any]) -> dict[str, Any]:
        """Code that does not look whether it is to stop."""
        self.may_end.wait(WAIT_S)
        return {}

    async def cancelled(self, number: int) -> None:
        await self.until(number, JobState.RUNNING)
        self.leader.wanted.append((number, CANCEL))
        await self.until(number, JobState.CANCELLED)

    async def until(self, number: int, state: JobState) -> JobRecord:
        await soon(lambda: self.leader.jobs[number].state is state)
        return self.leader.jobs[number]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage()
    monkeypatch.setattr(driver, "HALT_S", 0.05)
    monkeypatch.setattr(driver.JobClient, "connect", lambda *_args, **_named: made.leader)
    yield made
    made.may_end.set()


@pytest.mark.parametrize("raises", [False, True])
def test_a_job_that_is_cancelled_when_its_work_counts_already_is_told_as_done(
    stage: Stage, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, give_up = threading.Event(), Driver._give_up

    def when_settled(self: Driver, office: Any, context: JobContext) -> None:
        """As with all of a minute: by then what stops it has had its turn."""
        if context.settled is None:
            self._loop.call_later(0.005, when_settled, self, office, context)
        else:
            give_up(self, office, context)

    monkeypatch.setattr(Driver, "_give_up", when_settled)

    def load(context: JobContext, _parameters: dict[str, Any]) -> dict[str, Any]:
        context.on_stop(lambda: context.settle({"rows": 7}))
        began.set()
        context.stopped.wait(WAIT_S)
        if raises:
            while context.settled is None:
                context.stopped.wait(0.001)
            context.check()
        stage.may_end.wait(WAIT_S)
        return {"rows": 7, "late": True}

    async def story(stage: Stage) -> None:
        stage.leader.ask(1)
        await soon(began.is_set)
        stage.leader.wanted = [(1, CANCEL)]
        job = await stage.until(1, JobState.SUCCEEDED)
        assert job.result == {"rows": 7}

    stage.drive(load, story)


def test_a_driver_whose_given_up_jobs_end_after_all_has_their_threads_back(stage: Stage) -> None:
    """Each thread that was ever given up counted as lost: after a few cancelled jobs the driver ended itself."""

    async def story(stage: Stage) -> None:
        for number in (1, 2, 3):
            stage.leader.ask(number)
            await stage.cancelled(number)
            stage.may_end.set()
            await soon(lambda: stage.leader.told.count(number) == 2)  # noqa: B023 it is awaited here
            stage.may_end.clear()

    stage.drive(stage.deaf, story)
    assert [job.state for job in stage.leader.jobs.values()] == [JobState.CANCELLED] * 3


def test_a_driver_that_has_given_up_all_its_threads_ends(stage: Stage) -> None:
    async def story(stage: Stage) -> None:
        stage.leader.ask(1, 2)
        await asyncio.gather(stage.cancelled(1), stage.cancelled(2))
        await soon(lambda: stage.leader.left)

    with pytest.raises(driver.Stuck, match="no thread is left"):
        stage.drive(stage.deaf, story)


def test_a_driver_that_is_told_to_stop_does_not_wait_for_an_answer_to_its_entering(stage: Stage) -> None:
    """Its cluster was gone: that took ten seconds."""
    entering = asyncio.Event()

    async def enter(_request: EnterRequest) -> DriverRecord:
        entering.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody answers")

    async def story(stage: Stage) -> None:
        await entering.wait()

    stage.leader.enter = enter  # type: ignore[method-assign]
    stage.drive(stage.deaf, story)
    assert not stage.leader.left and not stage.story
