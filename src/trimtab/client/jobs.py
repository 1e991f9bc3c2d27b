"""Clients of the queue: for operators and programs that ask for jobs, and for the driver that runs them.

A job is asked for with a request id, so that asking again after a doubt is harmless: it is the same job. Orders and the
driver's words can be repeated too; the leader knows which attempt they are about. So doubt is never the caller's to
resolve: everything is asked again until the deadline.

`JobClient` is for asyncio, `BlockingJobs` has the same names for threads.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from trimtab.client.contact import DEFAULT_TIMEOUT_S, TRY_AGAIN, Contacts, decoded
from trimtab.client.errors import Error, NotFound
from trimtab.client.loop_thread import LoopThread
from trimtab.jobs import protocol
from trimtab.jobs.protocol import (
    BeatReply,
    BeatRequest,
    CreateJob,
    EndRequest,
    EnterReply,
    EnterRequest,
    JobReply,
    JobsReply,
    LeaveRequest,
    NoteRequest,
    Progress,
    ScheduleReply,
    ScheduleRequest,
    ShowJobs,
    SteerJob,
    TakeRequest,
)
from trimtab.jobs.records import Command, DriverRecord, JobKind, JobRecord
from trimtab.net.errors import RpcError

if TYPE_CHECKING:
    from trimtab.client.database import Database

_POLL_S = 0.5
_GRACE_S = 5.0
T = TypeVar("T")
# A member that is still starting knows few methods yet; another may, and it will.
_TRY_AGAIN = TRY_AGAIN | {"unknown_method", "starting"}

Seen = Callable[[JobRecord, Progress | None], None]


class NotTheDriver(Error):
    """This driver's term is over, or the job is not its own any more: nothing counts that it says."""


class DriverTaken(Error):
    """Another driver runs the jobs."""


_ERRORS: dict[str, type[Error]] = {"stale_term": NotTheDriver, "taken": DriverTaken}


class JobClient:
    """On connections that it may share with others; `connect` makes some of its own."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts

    @classmethod
    def connect(
        cls,
        addresses: Sequence[str],
        *,
        rng: random.Random | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JobClient:
        """A client of the cluster that any of these addresses belongs to; it connects when it is first used."""
        return cls(
            Contacts(
                addresses,
                rng=rng or random.Random(random.SystemRandom().getrandbits(64)),
                tls=tls,
                timeout_s=timeout_s,
                follow_leader=True,
                try_again=_TRY_AGAIN,
            )
        )

    @classmethod
    def on(cls, database: Database) -> JobClient:
        """On the connections of a client of tables, which closes them."""
        return cls(database._session.contacts)

    async def close(self) -> None:
        self._contacts.close()

    def new_request_id(self) -> str:
        return f"{self._contacts.rng.getrandbits(128):032x}"

    # Asking for jobs

    async def create(
        self,
        kind: JobKind,
        parameters: Mapping[str, Any] | None = None,
        *,
        why: str = "",
        waits_for: Sequence[int] = (),
        undo: Sequence[Command] = (),
        max_attempts: int = 0,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> JobRecord:
        """Ask for a job that runs when all in `waits_for` have succeeded; the same `request_id` is the same job."""
        request = CreateJob(
            Command(kind, dict(parameters or {})),
            request_id or self.new_request_id(),
            why,
            tuple(waits_for),
            tuple(undo),
            max_attempts,
        )
        return await self._job(protocol.CREATE, request, timeout_s)

    async def show(
        self,
        numbers: Sequence[int] = (),
        *,
        limit: int = 100,
        local: bool = False,
        timeout_s: float | None = None,
    ) -> JobsReply:
        """These jobs, or the newest `limit`; how far those are that run, and the driver.

        `local`: as the member knows them that is asked, also where there is no leader.
        """
        request = ShowJobs(tuple(numbers), limit, local=local)
        reply: JobsReply = decoded(protocol.decode_jobs_reply, await self._ask(protocol.SHOW, request, timeout_s))
        return reply

    async def get(self, number: int, *, timeout_s: float | None = None) -> tuple[JobRecord, Progress | None]:
        """One job, and how far it is if it runs. NotFound: there is none."""
        reply = await self.show([number], timeout_s=timeout_s)
        if not reply.jobs:
            raise NotFound(f"there is no task {number}; `trimtab tasks list` shows those there are")
        return reply.jobs[0], next(iter(reply.progress), None)

    async def steer(self, number: int, order: str, reason: str = "", *, timeout_s: float | None = None) -> JobRecord:
        """Tell a job to pause, resume or cancel; the job as it is then. One that runs obeys a moment later."""
        return await self._job(protocol.STEER, SteerJob(number, order, reason), timeout_s)

    async def schedule_repairs(self, interval_s: int = -1, *, timeout_s: float | None = None) -> ScheduleReply:
        """How often tables are repaired by themselves; changed where `interval_s` is given (0: never)."""
        answer = await self._ask(protocol.SCHEDULE, ScheduleRequest(interval_s), timeout_s)
        reply: ScheduleReply = decoded(protocol.decode_schedule_reply, answer)
        return reply

    async def wait(self, number: int, seen: Seen | None = None) -> JobRecord:
        """Wait for a job's end, however long it takes; `seen` is told how far it is. Leaving does not touch it."""
        while True:
            job, progress = await self.get(number)
            if seen is not None:
                seen(job, progress)
            if job.state.final:
                return job
            await asyncio.sleep(_POLL_S)

    # The driver

    async def enter(self, request: EnterRequest, *, timeout_s: float | None = None) -> DriverRecord:
        """Become the driver. DriverTaken: another one is."""
        reply: EnterReply = decoded(protocol.decode_enter_reply, await self._ask(protocol.ENTER, request, timeout_s))
        return reply.driver

    async def beat(self, request: BeatRequest, *, timeout_s: float | None = None) -> BeatReply:
        reply: BeatReply = decoded(protocol.decode_beat_reply, await self._ask(protocol.BEAT, request, timeout_s))
        return reply

    async def take(self, term: int, number: int, *, timeout_s: float | None = None) -> JobRecord:
        return await self._job(protocol.TAKE, TakeRequest(term, number), timeout_s)

    async def note(self, request: NoteRequest, *, timeout_s: float | None = None) -> JobRecord:
        return await self._job(protocol.NOTE, request, timeout_s)

    async def end(self, request: EndRequest, *, timeout_s: float | None = None) -> JobRecord:
        return await self._job(protocol.END, request, timeout_s)

    async def leave(self, driver_id: str, term: int, *, timeout_s: float | None = None) -> None:
        await self._ask(protocol.LEAVE, LeaveRequest(driver_id, term), timeout_s)

    async def _job(self, method: str, request: Any, timeout_s: float | None) -> JobRecord:
        reply: JobReply = decoded(protocol.decode_job_reply, await self._ask(method, request, timeout_s))
        return reply.job

    async def _ask(self, method: str, request: Any, timeout_s: float | None) -> bytes:
        try:
            return await self._contacts.ask(method, protocol.encode(request), timeout_s)
        except Error as error:
            refused = error.__cause__
            if isinstance(refused, RpcError) and (kind := _ERRORS.get(refused.code)) is not None:
                raise kind(refused.text) from refused
            raise


class BlockingJobs:
    """The same for programs without a loop; any thread may use it. Close it, or use it in a `with`."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._thread = LoopThread()

        async def connect() -> JobClient:
            return JobClient.connect(addresses, tls=tls, timeout_s=timeout_s)

        try:
            self._client = self._thread.call(connect)
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> BlockingJobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.alive:
            self._thread.call(self._client.close, _GRACE_S)
        self._thread.close()

    def create(self, kind: JobKind, parameters: Mapping[str, Any] | None = None, **options: Any) -> JobRecord:
        """As JobClient.create."""
        return self._call(lambda: self._client.create(kind, parameters, **options))

    def show(self, numbers: Sequence[int] = (), *, limit: int = 100) -> JobsReply:
        return self._call(lambda: self._client.show(numbers, limit=limit))

    def get(self, number: int) -> tuple[JobRecord, Progress | None]:
        return self._call(lambda: self._client.get(number))

    def steer(self, number: int, order: str, reason: str = "") -> JobRecord:
        return self._call(lambda: self._client.steer(number, order, reason))

    def wait(self, number: int, seen: Seen | None = None, *, timeout_s: float | None = None) -> JobRecord:
        """As JobClient.wait; Timeout when it has not ended by then."""
        return self._thread.call(lambda: self._client.wait(number, seen), timeout_s)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._thread.call(work, self._timeout_s + _GRACE_S)
