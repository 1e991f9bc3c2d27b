"""What the code of a job has of the world: its parameters, Spark, how to say how far it is, and when to stop.

    def count(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
        for part in parts_after(context.noted):
            context.check()                          # raises Stopped when the job is told to stop
            ...
            context.progress(rows=done, total_rows=all_of_them)
            context.checkpoint({"part": part})       # whoever takes over goes on after it
        return {"rows": done}

A job may be begun again at any time, here or by another driver: it goes on from `noted`, and what it must not do twice
it does under a name that is the same in every attempt (`load_id`). When it is told to stop, first what was given to
`on_stop` is done (a session is aborted, so that tasks which run on can do no harm), then Spark cancels its work. Where
that finds that it is too late (`settle`), the job has succeeded, whatever it was told.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trimtab.jobs.protocol import Progress
from trimtab.jobs.records import JobKind, JobRecord
from trimtab.pipeline.failures import LeaseLost, Stopped
from trimtab.pipeline.leases import DriverLease
from trimtab.pipeline.progress import Meter

if TYPE_CHECKING:
    import ssl

    from pyspark.sql import SparkSession

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
# The code of a job: its parameters in, its (small) result out.
JobCode = Callable[["JobContext", dict[str, Any]], Mapping[str, Any] | None]


class Spark(Protocol):
    """The session that jobs share."""

    def join(self, group: str, why: str) -> SparkSession: ...

    def cancel(self, group: str) -> None: ...


class JobContext:
    """Of one attempt at a job. All of it is for the job's own thread, but for `stop` and `told`."""

    def __init__(
        self,
        job: JobRecord,
        lease: DriverLease,
        spark: Spark,
        *,
        note: Callable[[dict[str, Any]], None],
        peers: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        tls_files: tuple[str, str, str] | None = None,
    ) -> None:
        self.job = job
        self.peers = tuple(peers)
        self.tls = tls
        self.tls_files = tls_files  # authority, certificate, key: for tasks elsewhere
        self.noted: dict[str, Any] = dict(job.checkpoint)
        self._lease = lease
        self._spark = spark
        self._note = note
        self._meter = Meter(job.number)
        self._stopping: Stopped | None = None
        self._stop_lock = threading.Lock()
        self._first: list[Callable[[], None]] = []
        self.settled: dict[str, Any] | None = None  # its result, where what it did counts and can't be taken back
        self.stopped = threading.Event()  # set as soon as the job is told to stop: for waiting less clumsily

    # Who it is

    @property
    def number(self) -> int:
        return self.job.number

    @property
    def kind(self) -> JobKind:
        return self.job.command.kind

    @property
    def attempt(self) -> int:
        return self.job.attempts

    @property
    def job_group(self) -> str:
        """The name of this attempt's work in Spark."""
        return f"trimtab-job-{self.job.number}-{self.job.owner_term}.{self.job.attempts}"

    def load_id(self, part: str = "") -> str:
        """A name for a load (or whatever must happen once) that is the same in every attempt at this job."""
        # Whoever asked for the job chose the request's id, and not everything can be the name of a load.
        name = f"job-{self.job.number}-{_NO_NAME.sub('-', self.job.request_id[:32])}"
        return f"{name}-{part}" if part else name

    @property
    def session(self) -> SparkSession:
        """Spark, for the job's own thread: what it starts there belongs to the job. `check`s first."""
        self.check()
        return self._spark.join(self.job_group, self.job.why or f"{self.kind.value} (job {self.number})")

    # How far it is

    def progress(
        self,
        bytes: int | None = None,
        rows: int | None = None,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        phase: str | None = None,
    ) -> None:
        """What is done by now, of how much; what is not given stays. It costs nothing, and is told once a second."""
        self._meter.set(bytes_done=bytes, rows_done=rows, total_bytes=total_bytes, total_rows=total_rows, phase=phase)

    def advance(self, bytes: int = 0, rows: int = 0) -> None:
        """So much more is done."""
        self._meter.add(bytes, rows)

    def checkpoint(self, note: dict[str, Any]) -> None:
        """Remember this, durably, for whoever takes over; then `check`. LeaseLost: it was not written.

        A job that is to pause writes down how far it has come before it stops.
        """
        if isinstance(self._stopping, LeaseLost) or self._lease.over:
            self.check()
        self._note(note)
        self.noted = dict(note)
        self.check()

    def told(self, at_s: float) -> Progress:
        """What the driver tells of it."""
        return self._meter.now(at_s)

    # When to stop

    def check(self) -> None:
        """Raises Cancelled, Paused, PutBack or LeaseLost when the job is to stop."""
        if self._stopping is not None:
            raise self._stopping
        if self._lease.over:
            raise LeaseLost(f"the driver's lease is over; job {self.number} is not its own any more")

    @property
    def stopping(self) -> Stopped | None:
        """Why it is to stop; None: it is not."""
        return self._stopping

    def on_stop(self, first: Callable[[], None]) -> Callable[[], None]:
        """Do this first when the job is told to stop: from another thread, once. Call what it returns to forget it."""
        with self._stop_lock:
            self._first.append(first)

        def forget() -> None:
            with self._stop_lock:
                if first in self._first:
                    self._first.remove(first)

        return forget

    def settle(self, result: dict[str, Any]) -> None:
        """What it was to do is done, and no order can take it back: this is its result, though its code still runs."""
        self.settled = dict(result)

    def mark(self, why: Stopped) -> bool:
        """It is to stop from now on; whether that is news. A lost lease is stronger than an order."""
        with self._stop_lock:
            if self._stopping is not None and not isinstance(why, LeaseLost):
                return False
            news = self._stopping is None or not isinstance(self._stopping, LeaseLost)
            self._stopping = why
            self.stopped.set()
            return news

    def halt(self) -> list[Exception]:
        """Fence what it began, then cancel its work in Spark; what went wrong with the fences."""
        with self._stop_lock:
            first, self._first = self._first, []
        failures = []
        for each in first:
            try:
                each()
            except Exception as error:
                failures.append(error)
        self._spark.cancel(self.job_group)
        return failures
