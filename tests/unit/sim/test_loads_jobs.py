"""The rules of the queue that a simulation keeps, told on single writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from trimtab.jobs.records import DRIVER_KEY, Command, DriverRecord, JobKind, JobRecord, JobState, encode
from trimtab.sim.checks import Violation
from trimtab.sim.loads_jobs import Queue
from trimtab.topology.records import job_key

DRIVER = DriverRecord("d", 1, 0)
FIRST = JobRecord(1, Command(JobKind.COUNT), JobState.QUEUED)
SECOND = JobRecord(2, Command(JobKind.COUNT), JobState.WAITING, waits_for=(1,))


class Told:
    """A queue, as it is written."""

    def __init__(self) -> None:
        cluster: Any = SimpleNamespace(world=SimpleNamespace(now=0.0, fail=self._fail))
        self.queue = Queue(cluster)
        self.index = 0
        self.driver(DRIVER)
        self.job(FIRST)
        self.job(SECOND)

    def _fail(self, why: str) -> None:
        raise Violation(why)

    def driver(self, record: DriverRecord) -> None:
        self._write({DRIVER_KEY: encode(record)})

    def job(self, record: JobRecord, **fields: Any) -> JobRecord:
        record = replace(record, **fields)
        self._write({job_key(record.number): encode(record)})
        return record

    def _write(self, changes: dict[bytes, bytes | None]) -> None:
        self.index += 1
        self.queue.commit(self.index, changes)


def test_a_job_runs_when_all_it_waits_for_succeeded() -> None:
    told = Told()
    with pytest.raises(Violation, match="waits for"):
        told.job(SECOND, state=JobState.QUEUED)
    told = Told()
    running = told.job(FIRST, state=JobState.RUNNING, owner_term=1, attempts=1)
    told.job(running, state=JobState.SUCCEEDED)
    queued = told.job(SECOND, state=JobState.QUEUED)
    told.job(queued, state=JobState.RUNNING, owner_term=1, attempts=1)
    assert told.queue.unfinished() is not None


def test_a_job_that_failed_satisfies_nobody() -> None:
    told = Told()
    running = told.job(FIRST, state=JobState.RUNNING, owner_term=1, attempts=1)
    told.job(running, state=JobState.FAILED, error="no")
    with pytest.raises(Violation, match="did not succeed"):
        told.job(SECOND, state=JobState.QUEUED)


def test_what_a_driver_says_counts_only_in_its_term() -> None:
    told = Told()
    running = told.job(FIRST, state=JobState.RUNNING, owner_term=1, attempts=1)
    told.driver(replace(DRIVER, gone=True))
    with pytest.raises(Violation, match="term 1 changed job 1"):
        told.job(running, state=JobState.SUCCEEDED)


def test_a_driver_takes_over_only_from_one_that_is_gone() -> None:
    told = Told()
    with pytest.raises(Violation, match="took over"):
        told.driver(DriverRecord("e", 2, 0))
    told = Told()
    told.driver(replace(DRIVER, gone=True))
    told.driver(DriverRecord("e", 2, 0))


def test_what_has_ended_stays_so() -> None:
    told = Told()
    running = told.job(FIRST, state=JobState.RUNNING, owner_term=1, attempts=1)
    ended = told.job(running, state=JobState.SUCCEEDED)
    with pytest.raises(Violation, match="from succeeded to queued"):
        told.job(ended, state=JobState.QUEUED)
