"""The driver: enters under a lease, takes jobs from the queue, runs several at once, and beats every second.

    enter ──▶ taken: another one lives; ask again (or end, if it was started on demand)
      │
      ▼
    beat, every second ──▶ what is wanted of its jobs: pause, cancel; what is ready: take it, a thread runs it
      │   │
      │   └─ a job ends: told to the leader, under the driver's term and the job's attempt
      ▼
    told to stop: jobs go back to the queue, the driver leaves        lease lost: everything stops at once, nothing is
                                                                     written, and it enters again under a new term

A beat stays with the leader until there is news or its second is over; so a job begins as soon as it is asked for.

The loop only beats, takes and tells; jobs run in threads, and so does everything that may block on Spark. A cancelled
job that does not stop keeps its thread, but is fenced and counts as cancelled (or as done, where it was too late for
that); a driver without threads left, or whose lost jobs don't stop, ends its process, so that nothing of them goes on.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trimtab.client.errors import Error, InvalidRequest
from trimtab.client.jobs import DriverTaken, JobClient, NotTheDriver
from trimtab.jobs.protocol import BeatReply, BeatRequest, EndRequest, EnterRequest, NoteRequest
from trimtab.jobs.records import DriverRecord, JobRecord, JobState
from trimtab.jobs.rules import CANCEL, MAX_RUNNING, PAUSE
from trimtab.pipeline import failures
from trimtab.pipeline.failures import Cancelled, JobFailed, LeaseLost, Paused, PutBack, Stopped
from trimtab.pipeline.leases import Clock, DriverLease, boot_s
from trimtab.pipeline.registry import Registry
from trimtab.pipeline.running import JobContext, Spark
from trimtab.pipeline.threads import JobThreads

if TYPE_CHECKING:
    import ssl

BEAT_S = 1.0
LEASE_MS = 10_000
JOBS_AT_ONCE = 4
# How long jobs get to stop: when the driver is told to, and when it has lost its lease.
STOP_S = 4.0
# How long the code of a cancelled job gets to notice, before it is called cancelled without it.
HALT_S = 60.0
_CALL_S = 10.0
_ENTER_EVERY_S = 1.0
_AGAIN_S = 0.5
_WAIT_S = 1.5  # a beat waits at the leader for less than what a call may take
_BETWEEN_S = 0.01  # two beats, however much there is to tell

T = TypeVar("T")
Story = Callable[[str], None]


class Stuck(Exception):
    """Jobs that must stop don't: only the end of the process stops them."""


@dataclass(frozen=True)
class DriverSettings:
    """`idle_exit_s`: end when there was nothing to do for so long, or another driver lives; None: never."""

    peers: tuple[str, ...]
    master: str = ""
    lease_ms: int = LEASE_MS
    beat_s: float = BEAT_S
    jobs_at_once: int = JOBS_AT_ONCE
    idle_exit_s: float | None = None
    address: str = ""
    tls_files: tuple[str, str, str] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.jobs_at_once <= MAX_RUNNING:
            raise ValueError(f"a driver runs 1 to {MAX_RUNNING} jobs at once, not {self.jobs_at_once}")
        if self.beat_s * 3000 > self.lease_ms:
            raise ValueError(f"a lease of {self.lease_ms} ms must outlive three beats of {self.beat_s:g} s")


@dataclass
class _Office:
    """One term as the driver: its record, its lease, and what it runs."""

    driver: DriverRecord
    lease: DriverLease
    running: dict[int, JobContext] = field(default_factory=dict)
    taking: set[int] = field(default_factory=set)
    revision: int = 0  # of the queue, as it was told last
    busy_s: float = 0.0  # when there was last something to do


class Driver:
    """From `run` to its end. `stop` may be called from a signal's handler on the loop."""

    def __init__(
        self,
        settings: DriverSettings,
        registry: Registry,
        spark: Spark,
        *,
        story: Story,
        tls: ssl.SSLContext | None = None,
        clock_s: Clock = boot_s,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._spark = spark
        self._story = story
        self._tls = tls
        self._clock_s = clock_s
        self._rng = rng or random.Random(random.SystemRandom().getrandbits(64))
        self._threads = JobThreads(settings.jobs_at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = ""
        self._at_work: set[JobContext] = set()  # whose code has a thread, in office.running or given up

    async def run(self) -> None:
        """Drive until told to stop, or idle for long enough. Stuck: end the process at once."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._told = asyncio.Event()
        self._client = JobClient.connect(self._settings.peers, tls=self._tls, timeout_s=_CALL_S, rng=self._rng)
        try:
            while (office := await self._enter()) is not None:
                if not await self._serve(office):
                    break
                self._story(f"lost the lease of term {office.driver.term}; entering again")
        finally:
            self._threads.close()
            for task in list(self._tasks):
                task.cancel()
            await self._client.close()

    def stop(self) -> None:
        """End: what runs goes back to the queue."""
        if hasattr(self, "_told"):
            self._told.set()
            self._news.set()

    # Entering

    async def _enter(self) -> _Office | None:
        """A term of office; None: told to stop, or not needed."""
        driver_id = f"driver-{self._rng.getrandbits(64):016x}"
        while not self._told.is_set():
            settings, sent_s = self._settings, self._clock_s()
            request = EnterRequest(driver_id, settings.lease_ms, settings.address, settings.master)
            try:
                # If it is told to stop meanwhile, and did enter, its lease ends by itself.
                driver = await self._until_told(self._client.enter(request))
            except DriverTaken as error:
                if settings.idle_exit_s is not None:
                    self._story(f"not needed: {error}")
                    return None
                self._say(f"standing by: {error}")
            except NotTheDriver:
                # It entered, nobody heard of it for long, and it was called gone: another one, then.
                driver_id = f"driver-{self._rng.getrandbits(64):016x}"
            except InvalidRequest:
                raise
            except Error as error:
                self._say(f"the cluster can't be reached: {error}")
            else:
                if driver is None:
                    return None
                lease = DriverLease(driver.lease_ms, sent_s, self._clock_s)
                if not lease.over:
                    self._story(f"driving the jobs as {driver_id}, term {driver.term}")
                    return _Office(driver, lease, busy_s=self._clock_s())
            await self._pause(_ENTER_EVERY_S)
        return None

    def _say(self, text: str) -> None:
        """Once, however often it happens in a row."""
        if text != self._said:
            self._said = text
            self._story(text)

    async def _pause(self, for_s: float) -> None:
        """Until there is news, or for so long."""
        try:
            await asyncio.wait_for(self._news.wait(), for_s)
        except TimeoutError:
            return
        self._news.clear()

    # Serving

    async def _serve(self, office: _Office) -> bool:
        """Beat until the end of the office; whether it was lost, and another may be taken."""
        while True:
            if self._told.is_set():
                await self._leave(office)
                return False
            sent_s = self._clock_s()
            reply = await self._until_told(self._beat(office))
            if self._told.is_set():
                continue
            if reply is not None and reply.valid:
                office.lease.confirm(sent_s)
                office.revision = reply.revision
            if (reply is not None and not reply.valid) or office.lease.over:
                await self._lose(office)
                return True
            if reply is not None:
                self._obey(office, reply)
                self._take_more(office, reply)
            given_up = [each for each in self._at_work if office.running.get(each.number) is not each]
            if len(given_up) >= self._settings.jobs_at_once:
                await self._leave(office)
                raise Stuck("the code of cancelled jobs does not stop, and no thread is left")
            if self._idle(office):
                self._story("nothing to do: ending")
                await self._leave(office)
                return False
            # Where the leader does not wait for news, the driver does.
            pause_s = _BETWEEN_S if reply is not None and reply.revision else self._settings.beat_s
            await self._pause(min(pause_s, office.lease.left_s()))

    async def _until_told(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of this; None, and it is given up, when the driver is told to stop meanwhile."""
        doing, told = self._loop.create_task(work), self._loop.create_task(self._told.wait())
        try:
            await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            for task in (doing, told):
                task.cancel()

    async def _beat(self, office: _Office) -> BeatReply | None:
        """The leader's answer; None: there was none in time."""
        now_s = self._clock_s()
        progress = [context.told(now_s) for context in office.running.values()]
        wait_ms = int(min(self._settings.beat_s, _WAIT_S, office.lease.left_s() / 2) * 1000)
        request = BeatRequest(
            office.driver.driver_id, office.driver.term, progress, wait_ms=wait_ms, since=office.revision
        )
        try:
            # Not longer than the lease: whatever happens, its end is noticed.
            return await self._client.beat(request, timeout_s=max(min(office.lease.left_s(), _CALL_S), 0.01))
        except Error as error:
            self._say(f"a beat was not answered: {error}")
            return None

    def _idle(self, office: _Office) -> bool:
        now_s = self._clock_s()
        if office.running or office.taking:
            office.busy_s = now_s
        limit_s = self._settings.idle_exit_s
        return limit_s is not None and now_s - office.busy_s >= limit_s

    def _obey(self, office: _Office, reply: BeatReply) -> None:
        for number, order in reply.wanted:
            context = office.running.get(number)
            if context is None or context.stopping is not None:
                continue
            if order == CANCEL:
                self._halt(context, Cancelled(f"job {number} was cancelled"))
                self._loop.call_later(HALT_S, self._give_up, office, context)
            elif order == PAUSE:
                self._halt(context, Paused(f"job {number} was paused"))

    def _halt(self, context: JobContext, why: Stopped) -> None:
        """Tell a job to stop. Fencing and Spark may take their time, so they have a thread of their own."""
        if not context.mark(why):
            return

        def halt() -> None:
            for error in context.halt():
                text = f"job {context.number} is stopping, but could not fence what it began: {error}"
                self._loop.call_soon_threadsafe(self._story, text)

        threading.Thread(target=halt, name=f"halt-{context.number}", daemon=True).start()

    def _give_up(self, office: _Office, context: JobContext) -> None:
        """A cancelled job that has not stopped: it can do no harm any more, and nobody should wait for it."""
        # One whose code has ended is being told as what it was: that may take a while, and stays.
        if office.running.get(context.number) is not context or context not in self._at_work or office.lease.over:
            return
        job, state, result = context.job, JobState.CANCELLED, context.settled or {}
        if context.settled is None:
            self._story(f"job {job.number} was cancelled, but its code does not stop; it is fenced and left alone")
        else:
            state = JobState.SUCCEEDED
            self._story(f"job {job.number} was cancelled too late: what it did counts; its code is left alone")
        ending = EndRequest(office.driver.term, job.number, state, attempt=job.attempts, result=result)
        self._do(self._tell_end(office, context, ending))

    # Jobs

    def _take_more(self, office: _Office, reply: BeatReply) -> None:
        own = [number for number in reply.running if number not in office.running]
        for number in [*own, *(job.number for job in reply.ready)]:
            if self._threads.free - len(office.taking) <= 0:
                return
            if number not in office.taking and number not in office.running:
                office.taking.add(number)
                self._do(self._take(office, number))

    async def _take(self, office: _Office, number: int) -> None:
        try:
            job = await self._client.take(office.driver.term, number)
        except Error as error:
            # Somebody cancelled it, or it is not known whether it was taken: the next beat tells.
            self._say(f"job {number} was not taken: {error}")
            return
        finally:
            office.taking.discard(number)
            self._news.set()
        if job.state is JobState.RUNNING and number not in office.running and not office.lease.over:
            self._begin(office, job)

    def _begin(self, office: _Office, job: JobRecord) -> None:
        context = JobContext(
            job,
            office.lease,
            self._spark,
            note=lambda note: self._note(office, job, note),
            peers=self._settings.peers,
            tls=self._tls,
            tls_files=self._settings.tls_files,
        )
        office.running[job.number] = context
        self._at_work.add(context)
        self._story(f"job {job.number} ({job.command.kind.value}) begins, attempt {job.attempts}")

        def work() -> None:
            ending = self._run_job(office, context)
            self._loop.call_soon_threadsafe(self._ended, office, context, ending)

        self._threads.begin(work)

    def _run_job(self, office: _Office, context: JobContext) -> EndRequest | None:
        """In a thread: the job, and how it ended; None: nothing that is said about it counts any more."""
        job, term = context.job, office.driver.term

        def ending(state: JobState, error: str = "", **fields: Any) -> EndRequest:
            return EndRequest(term, job.number, state, error, attempt=job.attempts, **fields)

        try:
            result = self._registry.code(job.command.kind)(context, dict(job.command.parameters))
        except BaseException as error:
            stopping = error if isinstance(error, Stopped) else context.stopping
            # What Spark raises because its work was cancelled is no failure of the job.
            match stopping:
                case LeaseLost():
                    return None
                case Stopped() if context.settled is not None:
                    return ending(JobState.SUCCEEDED, result=context.settled)
                case Cancelled():
                    return ending(JobState.CANCELLED, str(stopping))
                case Paused():
                    return ending(JobState.PAUSED)
                case Stopped():
                    return ending(JobState.QUEUED)
            return ending(JobState.FAILED, failures.reason_of(error), again=failures.again(error))
        if not isinstance(result or {}, dict):
            return ending(JobState.FAILED, f"the job's code gave {type(result).__name__} as its result, not a map")
        return ending(JobState.SUCCEEDED, result=dict(result or {}))

    def _note(self, office: _Office, job: JobRecord, note: dict[str, Any]) -> None:
        """From the job's thread: write a checkpoint down, or raise why that can't be."""
        request = NoteRequest(office.driver.term, job.number, note, attempt=job.attempts)
        left_s = max(office.lease.left_s(), 0.01)
        future = asyncio.run_coroutine_threadsafe(self._client.note(request, timeout_s=left_s), self._loop)
        try:
            future.result(left_s + 1.0)
        except NotTheDriver as error:
            raise LeaseLost(str(error)) from error
        except InvalidRequest as error:
            raise JobFailed(str(error)) from error
        except TimeoutError as error:
            future.cancel()
            raise LeaseLost("the cluster did not answer for as long as the driver's lease") from error

    def _ended(self, office: _Office, context: JobContext, ending: EndRequest | None) -> None:
        self._threads.ended()
        self._at_work.discard(context)
        self._do(self._tell_end(office, context, ending))

    async def _tell_end(self, office: _Office, context: JobContext, ending: EndRequest | None) -> None:
        if ending is not None:
            progress = context.told(self._clock_s())
            await self._tell(office, msgspec.structs.replace(ending, progress=progress))
        if office.running.get(context.number) is context:
            del office.running[context.number]
        office.busy_s = self._clock_s()
        self._news.set()

    async def _tell(self, office: _Office, ending: EndRequest) -> None:
        """Again and again, as long as the lease lasts: then another driver may have the job."""
        while not office.lease.over:
            try:
                job = await self._client.end(ending, timeout_s=max(min(office.lease.left_s(), _CALL_S), 0.01))
            except NotTheDriver as error:
                self._story(f"job {ending.number} ended, but is not this driver's any more: {error}")
                return
            except InvalidRequest as error:
                if ending.state is JobState.FAILED:
                    self._story(f"the end of job {ending.number} was refused: {error}")
                    return
                # A result that can't be kept, say; that is a failure which another attempt would repeat.
                ending = EndRequest(
                    ending.term, ending.number, JobState.FAILED, f"its end was refused: {error}", attempt=ending.attempt
                )
            except Error as error:
                self._say(f"the end of job {ending.number} could not be told yet: {error}")
                await asyncio.sleep(_AGAIN_S)
            else:
                why = f": {job.error}" if job.error else ""
                self._story(f"job {job.number} ({job.command.kind.value}) is {job.state.value}{why}")
                return

    # Ending

    async def _leave(self, office: _Office) -> None:
        """Put everything back, and let the cluster know that nobody drives."""
        for context in office.running.values():
            self._halt(context, PutBack("the driver ends"))
        await self._all_ended(office)
        try:
            await self._client.leave(office.driver.driver_id, office.driver.term, timeout_s=2.0)
        except Error as error:
            self._story(f"ended without telling the cluster: {error}")
        office.lease.surrender()
        if office.running:
            raise Stuck(f"{len(office.running)} jobs did not stop within {STOP_S:g} s")

    async def _lose(self, office: _Office) -> None:
        """Stop everything at once. Nothing is told: nobody would believe it."""
        office.lease.surrender()
        for context in office.running.values():
            self._halt(context, LeaseLost("the driver has lost its lease"))
        await self._all_ended(office)
        if office.running:
            raise Stuck(f"{len(office.running)} jobs of a lost lease did not stop within {STOP_S:g} s")

    async def _all_ended(self, office: _Office) -> None:
        until_s = self._loop.time() + STOP_S
        while office.running and (left_s := until_s - self._loop.time()) > 0:
            self._news.clear()
            await self._pause(left_s)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._story(f"a defect of the driver: {error!r}")


def addresses(peers: Sequence[str]) -> tuple[str, ...]:
    """Peers as they are given, several in one perhaps."""
    return tuple(each.strip() for peer in peers for each in peer.split(",") if each.strip())
