"""The doors of the queue: jobs are asked for, shown and steered; the driver enters, beats, takes jobs and ends them.

Any member may be asked; the leader decides (`jobs.rules`) and writes on the condition that every record it looked at is
as it was. What a driver changes is conditional on the driver's own record too: once that says that it is gone, or that
another has a newer term, nothing counts that it says.

A beat is no write. Before it is answered a majority confirms this leader, so a lease is never granted by one whom
another has replaced; the leader remembers when it heard the driver, and how far its jobs are. Both are soft: they are
lost with the leader, and a new one grants the driver one full lease (`governor.jobs`). A driver that was silent for
longer is not heard any more: that it is gone may be on its way to being written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trimtab.governor.jobs import told
from trimtab.governor.steps import Write
from trimtab.jobs import protocol, rules
from trimtab.jobs.protocol import (
    BeatReply,
    BeatRequest,
    EnterReply,
    JobReply,
    JobsReply,
    Progress,
)
from trimtab.jobs.records import DRIVER_KEY, DriverRecord, JobRecord, JobState, encode
from trimtab.jobs.rules import JobRefused
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.figures import Distribution, Sample
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.node.office import Office
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.tablets.moves_shown import JobShown
from trimtab.tablets.transitions import Cause
from trimtab.topology.records import job_key

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

# What an answer about jobs may take: it has to fit into a frame with room for the envelope.
MAX_REPLY_BYTES = 3 * 1024 * 1024
MAX_SHOWN = 2_000
MAX_WAIT_MS = 5_000  # of a beat
_EVENTS = "job"
T = TypeVar("T")


class JobService:
    """Answers job.* and driver.* for one instance; while it leads, it knows how long the driver has been silent."""

    def __init__(
        self,
        instance: Instance,
        door: LeaderDoor,
        office: Office,
        *,
        barrier: Callable[[float], Awaitable[None]],
        waits: Waits | None = None,
        spare: Callable[[Sequence[tuple[int, int]]], None] = lambda _places: None,
    ) -> None:
        self._spare = spare
        self._tables = instance.watching.tables
        self._view = instance.watching.view
        self._jobs = instance.watching.jobs
        self._name = instance.settings.instance_id
        self._wall_ms = instance.wall_ms
        self._clock_s = instance.boot_s
        self._door = door
        self._office = office
        self._barrier = barrier
        self._waits = waits
        # As the leader: the driver's term, and when it was last heard; what it said of its jobs.
        self._heard: tuple[int, float] = (0, 0.0)
        self._progress: dict[int, Progress] = {}
        self._soft_term = 0  # the term of office that the above belongs to

    def methods(self) -> dict[str, Method]:
        return {
            protocol.CREATE: self.create,
            protocol.SHOW: self.show,
            protocol.STEER: self.steer,
            protocol.ENTER: self.enter,
            protocol.BEAT: self.beat,
            protocol.TAKE: self.take,
            protocol.NOTE: self.note,
            protocol.END: self.end,
            protocol.LEAVE: self.leave,
        }

    # What only the leader knows

    def driver_silent_ms(self) -> int:
        """For how long the driver has not been heard from, as far as this leader can know."""
        driver = self._jobs.driver
        if driver is None:
            return 0
        self._begin_office()
        if self._heard[0] != driver.term:
            # It has just entered, or this leader has just come: its time begins now.
            self._hear(driver.term)
        return min(int((self._clock_s() - self._heard[1]) * 1000), self._office.in_office_ms)

    def _too_late(self, driver: DriverRecord) -> bool:
        """Whether it may have been decided already that the driver is gone; it gets no other lease, then."""
        return driver.gone or self.driver_silent_ms() > driver.lease_ms

    def _hear(self, term: int) -> None:
        self._begin_office()
        self._heard = (term, self._clock_s())

    def _begin_office(self) -> None:
        """What an earlier term of office heard does not count in this one."""
        if self._soft_term != self._office.term:
            self._soft_term = self._office.term
            self._heard = (0, 0.0)
            self._progress.clear()

    def idle(self) -> bool:
        """Whether there is nothing for a driver to do, or there is one: nobody need be started."""
        return self._jobs.living_driver is not None or not rules.ready(self._jobs, self._wall_ms(), 1)

    def shown(self, number: int) -> JobShown | None:
        """How far a job is, as far as it is known here; None: there is none."""
        job = self._jobs.jobs.get(number)
        if job is None:
            return None
        self._begin_office()
        told = self._progress.get(number) if job.state is JobState.RUNNING else None
        pausing = job.state is JobState.RUNNING and job.wanted == rules.PAUSE
        if told is None:
            return JobShown(job.state.value, pausing, job.progress_bytes, job.total_bytes)
        return JobShown(job.state.value, pausing, told.progress_bytes, told.total_bytes, told.rate_bytes_s, told.eta_s)

    def figures(self) -> Iterable[Sample | Distribution]:
        """How many jobs are in each state, and whether somebody runs them."""
        counts = dict.fromkeys(JobState, 0)
        for job in self._jobs.jobs.values():
            counts[job.state] += 1
        for state, count in counts.items():
            yield Sample(
                "jobs", "Jobs by state; those that ended long ago are forgotten.", count, (("state", state.value),)
            )
        living = self._jobs.living_driver is not None
        yield Sample("pipeline_driver", "Whether a driver of jobs has entered and is not gone.", float(living))

    # Asking for jobs

    async def create(self, asked: Asked) -> bytes:
        """A new job, or the one that was made of the same request before."""
        request = protocol.decode_create(asked.body)
        if (answer := await self._pass_on(protocol.CREATE, request, asked)) is not None:
            return answer
        number = 0

        def look() -> Decision:
            nonlocal number
            if (same := rules.same_job(self._jobs, request.request_id)) is not None:
                number = same.number
                return None
            number = self._view.next_request()
            job = _refusing(lambda: rules.create(self._jobs, request, number, self._wall_ms()))
            expect = self._view.unused(number)
            # Final states stay, so what it waits for need only be there when it is written.
            expect |= {job_key(other): self._jobs.revision(job_key(other)) for other in job.waits_for}
            what = f"asked for: {job.command.kind.value} (job {number})" + (f": {job.why}" if job.why else "")
            return Write(expect, {job_key(number): encode(job)}), (what,)

        failpoints.hit("job.create", self._name)
        await self._door.decide(look, _EVENTS, [])
        return self._reply(number)

    async def steer(self, asked: Asked) -> bytes:
        """Pause, resume or cancel."""
        request = protocol.decode_steer(asked.body)
        if (answer := await self._pass_on(protocol.STEER, request, asked)) is not None:
            return answer

        def decide() -> JobRecord:
            return rules.steer(self._jobs, request, self._wall_ms())

        def text(job: JobRecord) -> str:
            wanted = f"job {job.number} ({job.command.kind.value}) is to be {_PAST.get(job.wanted, '')}"
            return wanted if job.wanted else told(job)

        copied = self._balanced_by(request.number) if request.order == rules.CANCEL else []
        await self._change(request.number, decide, text)
        self._spare(copied)
        return self._reply(request.number)

    def _balanced_by(self, number: int) -> list[tuple[int, int]]:
        """The tablets that a job copies for balance: what an operator cancels is not begun again at once."""
        return [
            (table, tablet)
            for table, under_way in self._tables.transitions.items()
            for tablet, current in under_way.items()
            if current.job == number and current.cause is Cause.BALANCE
        ]

    async def show(self, asked: Asked) -> bytes:
        """Jobs, newest last, as many as fit; with their progress where the leader can be asked."""
        request = protocol.decode_show(asked.body)
        if not request.local:
            if (answer := await self._pass_on(protocol.SHOW, request, asked)) is not None:
                return answer
            await self._barrier(self._door.left_s(asked.deadline))
        self._begin_office()
        wanted = sorted(set(request.numbers) if request.numbers else self._jobs.jobs, reverse=True)
        limit = min(max(request.limit, 1), MAX_SHOWN)
        chosen: list[JobRecord] = []
        room = MAX_REPLY_BYTES
        for number in wanted[: len(wanted) if request.numbers else limit]:
            job = self._jobs.jobs.get(number)
            if job is None:
                continue
            room -= len(encode(job))
            if room < 0:
                break
            chosen.append(job)
        left_out = sum(number in self._jobs.jobs for number in wanted) - len(chosen)
        progress = [self._progress[job.number] for job in chosen if job.number in self._progress]
        return _encoded(JobsReply(chosen[::-1], progress, self._jobs.driver, left_out))

    # The driver

    async def enter(self, asked: Asked) -> bytes:
        """A driver wants to run the jobs; it does if nobody else does."""
        request = protocol.decode_enter(asked.body)
        if (answer := await self._pass_on(protocol.ENTER, request, asked)) is not None:
            return answer

        def look() -> Decision:
            driver = _refusing(lambda: rules.enter(self._jobs, request, self._wall_ms()))
            if driver == self._jobs.driver:
                return None
            where = f", on {driver.master}" if driver.master else f" at {driver.address}" if driver.address else ""
            text = f"the driver {driver.driver_id} runs the jobs{where} (term {driver.term})"
            return Write({DRIVER_KEY: self._jobs.revision(DRIVER_KEY)}, {DRIVER_KEY: encode(driver)}), (text,)

        await self._door.decide(look, _EVENTS, [])
        # One that is known already is told so without a write; that this leader still leads has to be certain too.
        await self._barrier(self._door.left_s(asked.deadline))
        driver = self._jobs.driver
        if driver is None or driver.driver_id != request.driver_id:
            raise Refused(rules.TAKEN, "another driver has entered meanwhile")
        if self._too_late(driver):
            raise Refused(rules.STALE_TERM, f"the driver {driver.driver_id} is gone; enter under a new id")
        self._hear(driver.term)
        return _encoded(EnterReply(driver))

    async def beat(self, asked: Asked) -> bytes:
        """The driver lives: how far its jobs are, what is wanted of them, and what else there is to do."""
        request = protocol.decode_beat(asked.body)
        if (answer := await self._pass_on(protocol.BEAT, request, asked)) is not None:
            return answer
        # The lease counts from when the driver sent this, and a majority confirms this leader after that.
        await self._barrier(self._door.left_s(asked.deadline))
        driver = self._jobs.driver
        if driver is None or (driver.driver_id, driver.term) != (request.driver_id, request.term):
            return _encoded(BeatReply(False))
        if self._too_late(driver):
            return _encoded(BeatReply(False))
        self._hear(driver.term)
        self._take_progress(request, {job.number for job in self._jobs.running(driver.term)})
        if request.wait_ms and not await self._news(request, asked.deadline):
            return _encoded(BeatReply(False))
        running = self._jobs.running(driver.term)
        ready, room = [], MAX_REPLY_BYTES
        for job in rules.ready(self._jobs, self._wall_ms()):
            room -= len(encode(job))
            if room < 0:
                break
            ready.append(job)
        wanted = [(job.number, job.wanted) for job in running if job.wanted]
        return _encoded(BeatReply(True, ready, wanted, [job.number for job in running], self._jobs.newest))

    async def _news(self, request: BeatRequest, deadline: float) -> bool:
        """Wait for another queue than the driver knows; whether it drives still. Its lease is as old as its beat."""
        if self._waits is not None:
            wait_s = min(request.wait_ms, MAX_WAIT_MS) / 1000
            until = asyncio.get_running_loop().time() + min(wait_s, self._door.left_s(deadline))
            with contextlib.suppress(WaitedTooLong):
                await self._waits.until(lambda: self._jobs.newest != request.since, until, "news of the queue")
        driver = self._jobs.driver
        known = driver is not None and (driver.driver_id, driver.term) == (request.driver_id, request.term)
        return driver is not None and known and not driver.gone

    def _take_progress(self, request: BeatRequest, running: set[int]) -> None:
        for told_of in request.progress[: rules.MAX_RUNNING]:
            if told_of.number in running:
                self._progress[told_of.number] = told_of
        for number in [number for number in self._progress if number not in running]:
            del self._progress[number]

    async def take(self, asked: Asked) -> bytes:
        """A job becomes the driver's own."""
        request = protocol.decode_take(asked.body)
        if (answer := await self._pass_on(protocol.TAKE, request, asked)) is not None:
            return answer
        await self._change(
            request.number,
            lambda: rules.take(self._jobs, request.number, request.term, self._wall_ms()),
            lambda job: f"job {job.number} ({job.command.kind.value}) runs (attempt {job.attempts})",
            by_driver=True,
        )
        return self._reply(request.number)

    async def note(self, asked: Asked) -> bytes:
        """A checkpoint of a running job. It is no event: there may be many."""
        request = protocol.decode_note(asked.body)
        if (answer := await self._pass_on(protocol.NOTE, request, asked)) is not None:
            return answer
        failpoints.hit("job.note", self._name)
        await self._change(request.number, lambda: rules.note(self._jobs, request), None, by_driver=True)
        return self._reply(request.number)

    async def end(self, asked: Asked) -> bytes:
        """A job ends, however it does."""
        request = protocol.decode_end(asked.body)
        if (answer := await self._pass_on(protocol.END, request, asked)) is not None:
            return answer
        failpoints.hit("job.end", self._name)
        await self._change(
            request.number, lambda: rules.end(self._jobs, request, self._wall_ms()), told, by_driver=True
        )
        return self._reply(request.number)

    async def leave(self, asked: Asked) -> bytes:
        """The driver ends; jobs that it has not put back are queued again by the governor."""
        request = protocol.decode_leave(asked.body)
        if (answer := await self._pass_on(protocol.LEAVE, request, asked)) is not None:
            return answer

        def look() -> Decision:
            driver = rules.leave(self._jobs, request.driver_id, request.term)
            if driver is None:
                return None
            text = f"the driver {driver.driver_id} (term {driver.term}) has left"
            return Write({DRIVER_KEY: self._jobs.revision(DRIVER_KEY)}, {DRIVER_KEY: encode(driver)}), (text,)

        await self._door.decide(look, _EVENTS, [])
        return b""

    # Parts

    async def _pass_on(self, method: str, request: Any, asked: Asked) -> bytes | None:
        onward: bytes = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        return await self._door.pass_on(method, onward, asked.deadline, forwarded=request.forwarded)

    async def _change(
        self,
        number: int,
        decide: Callable[[], JobRecord],
        text: Callable[[JobRecord], str] | None,
        *,
        by_driver: bool = False,
    ) -> None:
        """Write what is decided about one job, unless it is so already. A driver's word is bound to its record."""

        def look() -> Decision:
            job = _refusing(decide)
            if job == self._jobs.jobs[number]:
                return None
            key = job_key(number)
            expect = {key: self._jobs.revision(key)}
            if by_driver:
                expect[DRIVER_KEY] = self._jobs.revision(DRIVER_KEY)
            return Write(expect, {key: encode(job)}), (text(job),) if text is not None else ()

        await self._door.decide(look, _EVENTS, [])

    def _reply(self, number: int) -> bytes:
        job = self._jobs.jobs.get(number)
        if job is None:
            raise Refused(rules.NOT_FOUND, f"job {number} is forgotten already")
        return _encoded(JobReply(job))


_PAST = {rules.PAUSE: "paused", rules.CANCEL: "cancelled"}


def _encoded(reply: Any) -> bytes:
    body: bytes = protocol.encode(reply)
    return body


def _refusing(judge: Callable[[], T]) -> T:
    try:
        return judge()
    except JobRefused as error:
        raise Refused(error.code, str(error)) from error
