"""The queue of jobs in a simulation: who asks for them, those who would run them, and the rules they all keep.

Every write of the queue is judged in its order: states follow each other as the records say, a job runs only when all
that it waits for succeeded, and what only a driver may say was said by the one of the newest term. Drivers believe in
their leases by their own clocks; at no moment do two of them. What a job does (a *deed*) it does under a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trimtab.jobs import protocol
from trimtab.jobs.protocol import (
    BeatReply,
    BeatRequest,
    CreateJob,
    EndRequest,
    EnterRequest,
    LeaveRequest,
    NoteRequest,
    SteerJob,
    TakeRequest,
)
from trimtab.jobs.records import DRIVER_KEY, Command, DriverRecord, JobKind, JobRecord, JobState
from trimtab.jobs.view import JobView
from trimtab.loads.records import LoadKind, LoadState
from trimtab.net.errors import NetError, RpcError
from trimtab.pipeline.leases import DriverLease
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_drivers import MOVED, Gone, Loaders, LoadWorker, epoch_rows
from trimtab.sim.tables_history import TablesHistory
from trimtab.sim.tables_workload import Shared, TablesClient
from trimtab.topology.records import JOBS, number_of

BEAT_S = 0.3
_ASK_S = 1.5
_MAX_DEEDS = 3
_JOB_LOADS = 500_000  # numbers of rows that loads of jobs write, so that they are nobody else's
_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.WAITING: frozenset((JobState.QUEUED, JobState.FAILED, JobState.CANCELLED)),
    JobState.QUEUED: frozenset((JobState.RUNNING, JobState.PAUSED, JobState.CANCELLED)),
    JobState.RUNNING: frozenset(JobState) - {JobState.WAITING},
    JobState.PAUSED: frozenset((JobState.QUEUED, JobState.CANCELLED)),
}


@dataclass(frozen=True)
class Deed:
    """Something that a job did to the world."""

    number: int
    attempt: int
    term: int
    at_s: float


@dataclass
class Queue:
    """The metastore's own order of jobs, and what drivers do. Raises Violation."""

    cluster: GovernedCluster
    view: JobView = field(default_factory=JobView)
    deeds: list[Deed] = field(default_factory=list)
    leases: dict[str, DriverLease] = field(default_factory=dict)
    loads: dict[int, str] = field(default_factory=dict)  # by job: the load that it says it has done
    terms: int = 0

    def commit(self, index: int, changes: Mapping[bytes, bytes | None]) -> None:
        """Judge one write, and take it over."""
        driver = self.view.driver
        before = {number_of(key, JOBS): None for key in changes if key.startswith(JOBS)}
        records = {number: self.view.jobs.get(number) for number in before}
        for key, value in changes.items():
            self.view.change(key, value, index)
        if DRIVER_KEY in changes:
            self._driver(driver, self.view.driver)
        for number, record in sorted(records.items()):
            self._changed(record, self.view.jobs.get(number), driver)

    def _driver(self, before: DriverRecord | None, now: DriverRecord | None) -> None:
        if now is None:
            raise Violation("the record of the driver was deleted")
        if before is None or (before.driver_id, before.term) == (now.driver_id, now.term):
            return
        self.terms = now.term
        if now.term != before.term + 1 or not before.gone:
            raise Violation(f"{now} took over from {before}, which is not gone")

    def _changed(self, before: JobRecord | None, now: JobRecord | None, driver: DriverRecord | None) -> None:
        if now is None:
            raise Violation(f"{before} was forgotten though there are few")
        if before is None:
            if now.state not in (JobState.WAITING, JobState.QUEUED) or now.attempts:
                raise Violation(f"a job began as {now}")
            return
        if now.state is not before.state and (before.state.final or now.state not in _NEXT[before.state]):
            raise Violation(f"job {now.number} went from {before.state.value} to {now.state.value}")
        if before.state.final and (before.result, before.error) != (now.result, now.error):
            raise Violation(f"job {now.number} was changed after its end: {before} is {now}")
        unmet = [other for other in now.waits_for if self._state(other) is not JobState.SUCCEEDED]
        if now.state in (JobState.QUEUED, JobState.RUNNING) and unmet:
            raise Violation(
                f"job {now.number} is {now.state.value}, though it waits for {unmet}, which did not succeed"
            )
        if before.state is JobState.WAITING and now.state is JobState.FAILED and not unmet:
            raise Violation(f"job {now.number} failed, though all it waits for succeeded")
        said = (now.state is JobState.RUNNING and before.state is not JobState.RUNNING) or (
            before.state is JobState.RUNNING
            and (now.state is JobState.SUCCEEDED or now.checkpoint not in ({}, before.checkpoint))
        )
        if said and (driver is None or driver.gone or driver.term != now.owner_term):
            raise Violation(f"a driver of term {now.owner_term} changed job {now.number}, but the driver is {driver}")
        if now.state is JobState.RUNNING and before.state is JobState.RUNNING and before.owner_term != now.owner_term:
            raise Violation(f"job {now.number} was taken from the driver of term {before.owner_term} while it runs")

    def _state(self, number: int) -> JobState | None:
        job = self.view.jobs.get(number)
        return job.state if job is not None else None

    # -- drivers ---------------------------------------------------------------------------------------------------

    def believe(self) -> None:
        """Look whether two drivers believe that they run the jobs."""
        believing = [name for name, lease in self.leases.items() if not lease.over]
        if len(believing) > 1:
            self.cluster.world.fail(f"{' and '.join(believing)} believe at the same time that they run the jobs")

    def did(self, job: JobRecord) -> None:
        """A job does something."""
        self.believe()
        deed = Deed(job.number, job.attempts, job.owner_term, self.cluster.world.now)
        self.deeds.append(deed)
        known = self.view.jobs.get(job.number)
        unmet = [other for other in job.waits_for if self._state(other) is not JobState.SUCCEEDED]
        if unmet:
            self.cluster.world.fail(f"job {job.number} works, though it waits for {unmet}")
        if known is not None and (known.owner_term, known.attempts) > (job.owner_term, job.attempts):
            self.cluster.world.fail(
                f"attempt {job.attempts} of job {job.number} works, while attempt {known.attempts} does"
            )

    # -- the end ---------------------------------------------------------------------------------------------------

    def unfinished(self) -> str | None:
        for number in sorted(self.view.open):
            return f"{self.view.jobs[number]} has not ended; the driver is {self.view.driver}"
        for number in sorted(self.view.undoable):
            return f"{self.view.jobs[number]} has not been undone"
        return None

    def judge(self, loads: Mapping[str, LoadState]) -> None:
        """Violation: a job that says it has loaded has not, or undo jobs are not as they should be."""
        for number, job in sorted(self.view.jobs.items()):
            if job.state is JobState.SUCCEEDED and job.command.kind is JobKind.LOAD:
                id = str(job.result.get("load", ""))
                if loads.get(id) is not LoadState.PUBLISHED:
                    raise Violation(f"job {number} says that it has loaded {id!r}, which is {loads.get(id)}")
            if job.undoes:
                undone = self.view.jobs[job.undoes]
                if number not in undone.undone_by or undone.state is JobState.SUCCEEDED:
                    raise Violation(f"{job} undoes {undone}")
            if not job.state.final:
                raise Violation(f"{job} has not ended")

    def count(self, state: JobState) -> int:
        return sum(job.state is state for job in self.view.jobs.values())


class Asker:
    """Asks for jobs, and steers some of them."""

    def __init__(self, loaders: Loaders, queue: Queue) -> None:
        self.cluster = loaders.cluster
        self.queue = queue
        self.jobs = loaders.plan.jobs
        self.client = TablesClient(loaders.cluster, loaders.plan.tables, 190, TablesHistory({}), Shared())
        self.client.name = "asker"
        self.rng = loaders.cluster.world.rng("asker")
        self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.client.process.start()
        self.task = self.client.process.launch(self._work(), name=self.client.name)

    async def _work(self) -> None:
        self.client.connect()
        for number in range(self.jobs):
            if self.stopped:
                return
            await asyncio.sleep(self.rng.expovariate(1.0 / 0.5))
            await self._create(number)
            if self.rng.random() < 0.3:
                await self._steer(self.rng.choice(("pause", "cancel", "resume")))
        while not self.stopped:
            await asyncio.sleep(1.0)
            await self._steer("resume")

    async def finish(self) -> None:
        """Nothing stays paused."""
        while any(job.state is JobState.PAUSED or job.wanted == "pause" for job in self.queue.view.open_jobs()):
            await self._steer("resume")
            await asyncio.sleep(0.2)

    async def _create(self, number: int) -> None:
        rng = self.rng
        known = sorted(self.queue.view.jobs)
        waits_for = tuple(rng.sample(known, min(len(known), rng.choice((0, 1, 1, 2)))))
        kind = rng.choice((JobKind.LOAD, JobKind.LOAD, JobKind.COUNT, JobKind.VERIFY, JobKind.EXPORT))
        undo = (Command(JobKind.ANALYZE), Command(JobKind.ANALYZE)) if rng.random() < 0.5 else ()
        asked = CreateJob(Command(kind, {"number": number}), f"ask {number}", "", waits_for, undo, max_attempts=4)
        for _ in range(5):
            try:
                await self._ask(protocol.CREATE, asked)
                return
            except RpcError as error:
                if error.code in ("not_found", "invalid"):
                    return
            except NetError:
                pass
            await asyncio.sleep(0.2)

    async def _steer(self, order: str) -> None:
        jobs = [job.number for job in self.queue.view.open_jobs() if order != "resume" or _paused(job)]
        if not jobs:
            return
        try:
            await self._ask(protocol.STEER, SteerJob(self.rng.choice(jobs), order, "an operator thought again"))
        except NetError:
            return

    async def _ask(self, method: str, request: object) -> bytes:
        machine = self.rng.choice(list(self.cluster.machines.values()))
        return await self.client.ask(machine, method, protocol.encode(request), _ASK_S)


class JobDriver(LoadWorker):
    """Enters, beats, takes jobs and runs them; dies, stops for longer than its lease, and is then another one.

    It stops when its own lease says so. What it says late about a job it says all the same: the cluster has to know
    better.
    """

    def __init__(self, loaders: Loaders, queue: Queue, number: int) -> None:
        client = TablesClient(loaders.cluster, loaders.plan.tables, 170 + number, TablesHistory({}), Shared())
        client.name = f"j{number}"
        super().__init__(loaders, 100 + number, client)
        self.clumsy = False
        self.queue = queue
        self.stopped = False
        self.quiet = False  # no more mishaps
        self._lives = 0
        self._running: dict[int, asyncio.Task[None]] = {}
        self._orders: dict[int, str] = {}
        self._driver: DriverRecord | None = None
        self._lease: DriverLease | None = None

    def start(self) -> None:
        """A new life of the process."""
        self._lives += 1
        self._running, self._orders, self._driver, self._lease = {}, {}, None, None
        self.client._channels.clear()
        self.client.process.start()
        self.client.process.launch(self._work(), name=self.client.name)

    def kill(self) -> None:
        """Nothing of it goes on, and its lease with it."""
        self.world.tell(self.client.name, "is killed")
        self.client.process.kill()
        self._forget()

    def _forget(self) -> None:
        if self._lease is not None:
            self._lease.surrender()

    async def _work(self) -> None:
        self.client.connect()
        while True:
            await self._enter()
            await self._serve()
            for task in self._running.values():
                task.cancel()
            self._running.clear()
            self._orders.clear()
            await asyncio.sleep(0.2 + self.rng.random())

    async def _tell(self, method: str, request: object, timeout_s: float = _ASK_S) -> bytes:
        machine = self.rng.choice(list(self.cluster.machines.values()))
        return await self.client.ask(machine, method, protocol.encode(request), timeout_s)

    async def _enter(self) -> None:
        tries = 0
        while True:
            tries += 1
            sent_s = self.client.process.boot_s()
            id = f"{self.client.name}-{self._lives}-{tries}"
            request = EnterRequest(id, self.loaders.plan.driver_lease_ms)
            try:
                reply = protocol.decode_enter_reply(await self._tell(protocol.ENTER, request))
            except NetError:
                await asyncio.sleep(0.2 + 0.2 * self.rng.random())
                continue
            self._driver = reply.driver
            self._lease = DriverLease(reply.driver.lease_ms, sent_s, self.client.process.boot_s)
            self.queue.leases[id] = self._lease
            self.queue.believe()
            if not self._lease.over:
                self.world.tell(self.client.name, f"drives the jobs in term {reply.driver.term}")
                return

    async def _serve(self) -> None:
        assert self._driver is not None and self._lease is not None
        driver, lease = self._driver, self._lease
        while not lease.over:
            sent_s = self.client.process.boot_s()
            try:
                body = await self._tell(protocol.BEAT, BeatRequest(driver.driver_id, driver.term), lease.left_s())
            except NetError:
                await asyncio.sleep(0.1)
                continue
            reply: BeatReply = protocol.decode_beat_reply(body)
            if not reply.valid:
                lease.surrender()
                return
            lease.confirm(sent_s)
            self.queue.believe()
            self._orders.update(reply.wanted)
            for number in [*reply.running, *(job.number for job in reply.ready)][:4]:
                if number not in self._running:
                    task = self.client.process.launch(self._run(number, driver, lease), name=f"job {number}")
                    self._running[number] = task
                    task.add_done_callback(partial(self._ended, number))
            if not self.quiet and self.rng.random() < self.loaders.plan.mishap / 4:
                await self._leave(driver, lease)
                return
            await asyncio.sleep(BEAT_S)

    async def _leave(self, driver: DriverRecord, lease: DriverLease) -> None:
        lease.surrender()
        try:
            await self._tell(protocol.LEAVE, LeaveRequest(driver.driver_id, driver.term))
        except NetError:
            return

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _ended(self, number: int, _task: object) -> None:
        self._running.pop(number, None)

    async def _run(self, number: int, driver: DriverRecord, lease: DriverLease) -> None:
        try:
            job: JobRecord = protocol.decode_job_reply(
                await self._tell(protocol.TAKE, TakeRequest(driver.term, number))
            ).job
        except NetError:
            return
        if job.state is not JobState.RUNNING or lease.over:
            return
        self.world.tell(self.client.name, f"runs job {number} ({job.command.kind.value}), attempt {job.attempts}")
        ending = await self._work_at(job, lease)
        if ending is None:
            return
        # Also when the lease is over: then it must not count.
        for _ in range(4):
            try:
                await self._tell(protocol.END, ending)
                return
            except RpcError as error:
                if error.code in ("stale_term", "invalid", "not_found"):
                    return
            except NetError:
                pass
            await asyncio.sleep(0.1)

    async def _work_at(self, job: JobRecord, lease: DriverLease) -> EndRequest | None:
        """How it ended; None: it was taken away, and nothing is to be said."""

        def ending(state: JobState, error: str = "", **more: Any) -> EndRequest:
            return EndRequest(job.owner_term, job.number, state, error, attempt=job.attempts, **more)

        for place in range(self.rng.randrange(1, _MAX_DEEDS + 1)):
            await asyncio.sleep(self.rng.random() * 0.4)
            if lease.over:
                return None
            self.queue.did(job)
            if (order := self._orders.pop(job.number, "")) in ("cancel", "pause"):
                return ending(JobState.CANCELLED if order == "cancel" else JobState.PAUSED)
            if self.rng.random() < 0.3:
                await self._note(job, place)
        match job.command.kind:
            case JobKind.LOAD:
                return await self._load(job, lease, ending)
            case JobKind.VERIFY if self.rng.random() < 0.5:
                return ending(JobState.FAILED, "replicas differ")
            case JobKind.EXPORT if self.rng.random() < 0.5:
                return ending(JobState.FAILED, "the folder can't be written", again=True)
        return ending(JobState.SUCCEEDED, result={"rows": 1})

    async def _note(self, job: JobRecord, place: int) -> None:
        try:
            request = NoteRequest(job.owner_term, job.number, {"place": place, "by": self._lives}, attempt=job.attempts)
            await self._tell(protocol.NOTE, request)
        except NetError:
            return

    async def _load(self, job: JobRecord, lease: DriverLease, ending: object) -> EndRequest | None:
        """A load under the job's own name: whoever goes on with the job goes on with its load."""
        number = _JOB_LOADS + job.number * 10
        assert callable(ending)
        for attempt in range(5):
            id = f"job{job.number}" + (f"-{attempt}" if attempt else "")
            try:
                table = await self.table(MOVED)
                record = await self.load(table, id, LoadKind.APPEND, epoch_rows(table, number + attempt))
            except RpcError as error:
                if error.code in ("ended", "session_closed"):
                    continue  # it was aborted: the next one
                return self._failed(job, lease, ending, error.code)
            except Gone as gone:
                return self._failed(job, lease, ending, str(gone))
            if lease.over:
                return None
            if record.state is LoadState.PUBLISHED:
                self.queue.loads[job.number] = id
                result: EndRequest = ending(JobState.SUCCEEDED, result={"load": id})
                return result
        return self._failed(job, lease, ending, "aborted again and again")

    def _failed(self, job: JobRecord, lease: DriverLease, ending: object, why: str) -> EndRequest | None:
        assert callable(ending)
        if lease.over:
            return None
        result: EndRequest = ending(JobState.FAILED, f"the load came to nothing: {why}", again=True)
        return result


def _paused(job: JobRecord) -> bool:
    return job.state is JobState.PAUSED or job.wanted == "pause"
