"""What a job's code has: when it is told to stop, what it notes, what it is called."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.pipeline.failures import Cancelled, LeaseLost, Paused
from trimtab.pipeline.leases import DriverLease, boot_s
from trimtab.pipeline.registry import JOBS, VARIABLE, Registry
from trimtab.pipeline.running import JobContext

JOB = JobRecord(
    9, Command(JobKind.COUNT), JobState.RUNNING, owner_term=3, attempts=2, checkpoint={"done": 1}, request_id="ab"
)


class NoSpark:
    """Only says what was asked of it."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def join(self, group: str, why: str) -> Any:
        return group, why

    def cancel(self, group: str) -> None:
        self.cancelled.append(group)


def context(notes: list[dict[str, Any]] | None = None, spark: NoSpark | None = None) -> JobContext:
    written = [] if notes is None else notes
    return JobContext(JOB, DriverLease(60_000, boot_s()), spark or NoSpark(), note=written.append)


def test_names_are_those_of_the_attempt_or_of_the_job_as_they_should_be() -> None:
    made = context()
    assert made.job_group == "trimtab-job-9-3.2"
    assert made.load_id() == "job-9-ab"
    assert made.load_id("part1") == "job-9-ab-part1"
    asked = msgspec.structs.replace(JOB, request_id="nightly/ 2026-01-01 ü")
    odd = JobContext(asked, DriverLease(60_000, boot_s()), NoSpark(), note=[].append)
    assert odd.load_id() == "job-9-nightly--2026-01-01--"
    assert made.session == ("trimtab-job-9-3.2", "count (job 9)")
    assert (made.number, made.kind, made.attempt, made.noted) == (9, JobKind.COUNT, 2, {"done": 1})


def test_what_was_begun_is_fenced_before_spark_cancels_and_the_job_learns_why_it_stops() -> None:
    spark = NoSpark()
    made = context(spark=spark)
    order: list[str] = []
    made.on_stop(lambda: order.append(f"fenced, {len(spark.cancelled)} cancelled"))
    made.on_stop(lambda: order.append("never"))()
    made.check()
    assert made.mark(Cancelled("an operator"))
    assert made.stopped.is_set()
    assert not made.mark(Paused("later"))
    assert made.halt() == []
    assert (order, spark.cancelled) == (["fenced, 0 cancelled"], ["trimtab-job-9-3.2"])
    with pytest.raises(Cancelled):
        made.check()
    with pytest.raises(Cancelled):
        _ = made.session


def test_a_fence_that_fails_is_told_and_does_not_keep_spark_from_being_cancelled() -> None:
    spark = NoSpark()
    made = context(spark=spark)

    def fail() -> None:
        raise OSError("unreachable")

    made.on_stop(fail)
    assert [str(error) for error in made.halt()] == ["unreachable"]
    assert spark.cancelled


def test_a_job_that_is_to_pause_notes_how_far_it_is_and_then_stops() -> None:
    notes: list[dict[str, Any]] = []
    made = context(notes)
    made.mark(Paused("an operator"))
    with pytest.raises(Paused):
        made.checkpoint({"done": 2})
    assert (notes, made.noted) == ([{"done": 2}], {"done": 2})


def test_nothing_is_noted_without_a_lease() -> None:
    notes: list[dict[str, Any]] = []
    lease = DriverLease(60_000, boot_s())
    made = JobContext(JOB, lease, NoSpark(), note=notes.append)
    lease.surrender()
    for deed in (made.check, lambda: made.checkpoint({"done": 2})):
        with pytest.raises(LeaseLost):
            deed()
    # A lost lease is stronger than an order that came before.
    made.mark(Paused("an operator"))
    assert made.mark(LeaseLost("gone"))
    assert not notes


def test_every_kind_of_job_has_code_and_a_module_may_bring_others() -> None:
    assert JOBS.keys() == set(JobKind)
    registry = Registry.from_environment({VARIABLE: "tests.cluster.fake_jobs"})
    assert registry.code(JobKind.COUNT).__name__ == "steps"
    for module in ("no.such.module", "json"):
        with pytest.raises(ValueError, match="gives no jobs"):
            Registry.from_environment({VARIABLE: module})


def test_a_kind_that_a_driver_has_no_code_for_fails_with_what_it_knows() -> None:
    from trimtab.pipeline.failures import JobFailed

    with pytest.raises(JobFailed, match="can't run jobs of the kind 'load'; it knows: count"):
        Registry({JobKind.COUNT: "x:y"}).code(JobKind.LOAD)
    with pytest.raises(JobFailed, match="not installed"):
        Registry({JobKind.COUNT: "no.such.module:y"}).code(JobKind.COUNT)
