"""The queue as one value: every job and the driver, kept up to date from the metastore.

A job that can't be read (a newer release wrote it) stays as it was before, `unreadable` says why, and nobody changes
it. One that was never read is not known here; what waits for it goes on waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.jobs.records import DRIVER_KEY, DriverRecord, JobRecord, JobState, decode_driver, decode_job
from trimtab.topology.records import JOBS, job_key, number_of


@dataclass
class JobView:
    """`revisions` has the modification revision of each key that was read; `unreadable` why one could not be."""

    jobs: dict[int, JobRecord] = field(default_factory=dict)
    driver: DriverRecord | None = None
    revisions: dict[bytes, int] = field(default_factory=dict)
    unreadable: dict[bytes, str] = field(default_factory=dict)
    # The numbers of those that have not ended: the others are many, and nobody decides about them.
    open: set[int] = field(default_factory=set)
    undoable: set[int] = field(default_factory=set)  # those whose undo commands are still to become jobs
    newest: int = 0  # the revision of the newest change

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value (None: it was deleted). Keys that are not about jobs are ignored."""
        if not key.startswith(JOBS) and key != DRIVER_KEY:
            return
        self.newest = max(self.newest, revision)
        self.unreadable.pop(key, None)
        if value is None:
            self.revisions.pop(key, None)
        else:
            self.revisions[key] = revision
        try:
            if key == DRIVER_KEY:
                self.driver = None if value is None else decode_driver(value)
            else:
                self._take_job(number_of(key, JOBS), value)
        except ValueError as error:
            if value is not None:
                self.unreadable[key] = str(error)

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = JobView()
        for key, value, revision in entries:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)

    def _take_job(self, number: int, value: bytes | None) -> None:
        if value is None:
            self.jobs.pop(number, None)
            self.open.discard(number)
            self.undoable.discard(number)
            return
        job = decode_job(value)
        self.jobs[number] = job
        (self.open.discard if job.state.final else self.open.add)(number)
        (self.undoable.add if job.to_undo else self.undoable.discard)(number)

    # Looking

    def readable(self, number: int) -> bool:
        """Whether what is known of the job is what is written."""
        return number in self.jobs and job_key(number) not in self.unreadable

    def open_jobs(self) -> list[JobRecord]:
        """Those that have not ended and can be read, oldest first."""
        return [self.jobs[number] for number in sorted(self.open) if self.readable(number)]

    def running(self, term: int) -> list[JobRecord]:
        """The jobs that the driver of this term runs."""
        return [job for job in self.open_jobs() if job.state is JobState.RUNNING and job.owner_term == term]

    @property
    def living_driver(self) -> DriverRecord | None:
        """The one who may run jobs, as far as it is written."""
        return self.driver if self.driver is not None and not self.driver.gone else None

    def revision(self, key: bytes) -> int:
        return self.revisions.get(key, 0)
