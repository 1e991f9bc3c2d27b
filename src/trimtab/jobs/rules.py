"""What may happen to jobs and their driver: pure decisions, each a record (or several) to be written, or a refusal.

    who             asks for                     and it happens only if
    anyone          create                       the jobs it waits for are known, limits are kept
    operator        pause, resume, cancel        the job has not ended
    driver          take, note, end              its term is the newest one and not gone; it runs the job (this attempt)
    governor        admit, release, undo, prune  see `governor.jobs`

A job runs only when *all* it waits for *succeeded*: a job that failed, was cancelled, or is forgotten never counts. The
caller writes on the condition that every record that was looked at is as it was, the driver's included; so of two
drivers only the one of the newest term can change anything, and each change is made once.

Everything is bounded: how many jobs are open, what one may wait for, how large its parts are, how often it is tried.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from trimtab.jobs.protocol import CreateJob, EndRequest, EnterRequest, NoteRequest, Progress, SteerJob
from trimtab.jobs.records import MAX_ATTEMPTS, DriverRecord, JobRecord, JobState, encode
from trimtab.jobs.view import JobView
from trimtab.topology.records import job_key

MAX_OPEN = 1_000
MAX_RUNNING = 16  # by one driver
MAX_READY = 16  # told to a driver at once
MAX_WAITS_FOR = 256
MAX_UNDO = 16
MOST_ATTEMPTS = 100
COMMAND_BYTES = 64 * 1024  # the command and its undo commands together
NOTE_BYTES = 32 * 1024  # a checkpoint, or a result
TEXT_CHARACTERS = 1_000
NAME_CHARACTERS = 128
FIRST_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 60_000
LEASES_MS = (2_000, 300_000)
KEEP_ENDED = 500

PAUSE, RESUME, CANCEL = "pause", "resume", "cancel"
ORDERS = (PAUSE, RESUME, CANCEL)

INVALID, NOT_FOUND, CONFLICT, TAKEN, STALE_TERM, FULL = (
    *("invalid", "not_found", "conflict", "taken", "stale_term", "overloaded"),
)


class JobRefused(Exception):
    """It is not done; `code` is for programs, the text says what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


# Asking


def same_job(view: JobView, request_id: str) -> JobRecord | None:
    """The job that was made of this request before."""
    return next((job for job in reversed(view.jobs.values()) if job.request_id == request_id), None)


def create(view: JobView, asked: CreateJob, number: int, now_ms: int) -> JobRecord:
    """The new job. It waits if it has something to wait for; whether that has succeeded is the governor's to find."""
    if not asked.request_id or len(asked.request_id) > NAME_CHARACTERS:
        raise JobRefused(INVALID, f"a job needs a request id of 1 to {NAME_CHARACTERS} characters, made by who asks")
    if len(view.open) >= MAX_OPEN:
        raise JobRefused(FULL, f"{MAX_OPEN} jobs are waiting or running already; wait for some, or cancel some")
    waits_for = tuple(sorted(set(asked.waits_for)))
    if len(waits_for) > MAX_WAITS_FOR:
        raise JobRefused(INVALID, f"a job waits for at most {MAX_WAITS_FOR} others, not {len(waits_for)}")
    for other in waits_for:
        if other not in view.jobs:
            raise JobRefused(
                NOT_FOUND, f"there is no task {other} to wait for; `trimtab tasks list` shows those there are"
            )
    if len(asked.undo) > MAX_UNDO:
        raise JobRefused(INVALID, f"a job has at most {MAX_UNDO} undo commands, not {len(asked.undo)}")
    if not 0 <= asked.max_attempts <= MOST_ATTEMPTS:
        raise JobRefused(INVALID, f"a job is tried 1 to {MOST_ATTEMPTS} times, not {asked.max_attempts}")
    size = len(_encoded([asked.command, *asked.undo], "the command"))
    if size > COMMAND_BYTES:
        raise JobRefused(
            "too_large",
            f"the command and its undo commands take {size} bytes, {COMMAND_BYTES} at most; name files by patterns, or "
            "ask for several jobs",
        )
    return JobRecord(
        number,
        asked.command,
        JobState.WAITING if waits_for else JobState.QUEUED,
        why=shortened(asked.why),
        waits_for=waits_for,
        undo=asked.undo,
        max_attempts=asked.max_attempts or MAX_ATTEMPTS,
        request_id=asked.request_id,
        asked_ms=now_ms,
    )


def steer(view: JobView, asked: SteerJob, now_ms: int) -> JobRecord:
    """The job after an operator's order. What runs is only marked: its driver obeys, and says so when it has."""
    if asked.order not in ORDERS:
        raise JobRefused(INVALID, f"'{asked.order[:50]}' is no order; a job can be told to {', '.join(ORDERS)}")
    job = known(view, asked.number)
    if job.state.final:
        raise JobRefused(CONFLICT, f"job {job.number} ({job.command.kind.value}) is {job.state.value} already")
    if asked.order == CANCEL:
        reason = shortened(asked.reason) or "an operator cancelled it"
        if job.state is JobState.RUNNING:
            return changed(job, wanted=CANCEL, error=reason)
        return _ended(job, JobState.CANCELLED, reason, now_ms)
    if asked.order == PAUSE:
        return _paused(job)
    if job.state is JobState.PAUSED:
        return changed(job, state=JobState.QUEUED, not_before_ms=0)
    if job.state is JobState.RUNNING and job.wanted == PAUSE:
        return changed(job, wanted="")
    if job.wanted == CANCEL:
        raise JobRefused(CONFLICT, f"job {job.number} is being cancelled")
    return job  # it goes on anyway


def _paused(job: JobRecord) -> JobRecord:
    if job.state is JobState.WAITING:
        waits_for = ", ".join(map(str, job.waits_for[:5]))
        raise JobRefused(
            CONFLICT, f"job {job.number} has not begun: it waits for {waits_for}; pause those, or cancel it"
        )
    if job.wanted == CANCEL:
        raise JobRefused(CONFLICT, f"job {job.number} is being cancelled")
    if job.state is JobState.RUNNING:
        return changed(job, wanted=PAUSE)
    return changed(job, state=JobState.PAUSED)


# The driver


def enter(view: JobView, asked: EnterRequest, now_ms: int) -> DriverRecord:
    """The driver from now on, under a term of its own. The same one asking again is the same driver."""
    if not asked.driver_id or max(map(len, (asked.driver_id, asked.address, asked.master))) > NAME_CHARACTERS:
        raise JobRefused(INVALID, f"a driver has an id; its names have at most {NAME_CHARACTERS} characters")
    low, high = LEASES_MS
    if not low <= asked.lease_ms <= high:
        raise JobRefused(INVALID, f"a driver's lease is {low} to {high} ms, not {asked.lease_ms}")
    before = view.driver
    if before is not None and before.driver_id == asked.driver_id:
        if before.gone:
            raise JobRefused(STALE_TERM, f"the driver {asked.driver_id} is gone; enter under a new id")
        return before
    if before is not None and not before.gone:
        where = f" at {before.address}" if before.address else ""
        raise JobRefused(TAKEN, f"the driver {before.driver_id}{where} runs the jobs (term {before.term})")
    term = before.term + 1 if before is not None else 1
    return DriverRecord(asked.driver_id, term, now_ms, asked.lease_ms, asked.address, asked.master)


def leave(view: JobView, driver_id: str, term: int) -> DriverRecord | None:
    """The driver's record after it has gone by itself; None: it is out already."""
    driver = view.driver
    if driver is None or (driver.driver_id, driver.term) != (driver_id, term) or driver.gone:
        return None
    return msgspec.structs.replace(driver, gone=True)


def in_office(view: JobView, term: int) -> DriverRecord:
    """The driver of this term; JobRefused if it is not the newest, or gone: whatever it says does not count."""
    driver = view.driver
    if driver is None or driver.term != term or driver.gone:
        newest = "none" if driver is None else f"term {driver.term}{', which is gone' if driver.gone else ''}"
        raise JobRefused(STALE_TERM, f"the driver of term {term} runs jobs no more; the newest is {newest}")
    return driver


def ready(view: JobView, now_ms: int, limit: int = MAX_READY) -> list[JobRecord]:
    """What may be taken now, oldest first."""
    found = (job for job in view.open_jobs() if job.state is JobState.QUEUED and job.not_before_ms <= now_ms)
    return [job for job, _ in zip(found, range(limit), strict=False)]


def take(view: JobView, number: int, term: int, now_ms: int) -> JobRecord:
    """The job as the driver's own. One that it runs already is the answer to asking again.

    Why the attempt before failed stays to be seen.
    """
    in_office(view, term)
    job = known(view, number)
    if job.state is JobState.RUNNING and job.owner_term == term:
        return job
    if job.state is not JobState.QUEUED or job.not_before_ms > now_ms:
        raise JobRefused(CONFLICT, f"job {number} can't be taken: it is {job.state.value}")
    if unmet := [other for other in job.waits_for if not succeeded(view, other)]:
        raise JobRefused(CONFLICT, f"job {number} can't be taken: it waits for {unmet[0]}, which has not succeeded")
    if len(view.running(term)) >= MAX_RUNNING:
        raise JobRefused(CONFLICT, f"a driver runs at most {MAX_RUNNING} jobs at once")
    return changed(
        job,
        state=JobState.RUNNING,
        owner_term=term,
        attempts=job.attempts + 1,
        not_before_ms=0,
        wanted="",
        started_ms=job.started_ms or now_ms,
    )


def note(view: JobView, asked: NoteRequest) -> JobRecord:
    """The job with what its driver wants remembered for whoever takes over."""
    job = _running(view, asked.number, asked.term, asked.attempt)
    return changed(job, checkpoint=_noted(asked.checkpoint, "checkpoint"))


def end(view: JobView, asked: EndRequest, now_ms: int) -> JobRecord:
    """The job after its driver ended it, in whatever way. What was said before about the same attempt stays."""
    in_office(view, asked.term)
    before = known(view, asked.number)
    late = before.owner_term == asked.term and asked.attempt in (0, before.attempts)
    if before.state is not JobState.RUNNING and late:
        return before
    job = _running(view, asked.number, asked.term, asked.attempt)
    if asked.checkpoint:
        job = changed(job, checkpoint=_noted(asked.checkpoint, "checkpoint"))
    if asked.progress is not None:
        job = _progressed(job, asked.progress)
    error = shortened(asked.error)
    match asked.state:
        case JobState.SUCCEEDED:
            # Also where it was to be cancelled: it was too late for that, and what it did is there.
            return changed(_ended(job, JobState.SUCCEEDED, "", now_ms), result=_noted(asked.result, "result"))
        case JobState.FAILED:
            return _failed(job, error or "it failed without a reason", now_ms, again=asked.again)
        case JobState.PAUSED | JobState.CANCELLED | JobState.QUEUED:
            return _put_back(job, error, now_ms)
        case _:
            raise JobRefused(INVALID, f"a job does not end as {asked.state.value}")


def _put_back(job: JobRecord, error: str, now_ms: int) -> JobRecord:
    """It stopped because it was told to: by an operator, whose last word counts, or because its driver ends."""
    if job.wanted == CANCEL:
        return _ended(job, JobState.CANCELLED, job.error or error or "it was cancelled", now_ms)
    state = JobState.PAUSED if job.wanted == PAUSE else JobState.QUEUED
    return changed(job, state=state, wanted="", excused=job.excused + 1, error="", not_before_ms=0)


def _failed(job: JobRecord, error: str, now_ms: int, *, again: bool) -> JobRecord:
    if job.wanted == CANCEL:
        return _ended(job, JobState.CANCELLED, job.error or error, now_ms)
    if not again or job.spent:
        tries = f" (tried {job.attempts} times)" if job.attempts > 1 else ""
        return _ended(job, JobState.FAILED, f"{error}{tries}", now_ms)
    if job.wanted == PAUSE:
        return changed(job, state=JobState.PAUSED, wanted="", error=error)
    return changed(job, state=JobState.QUEUED, wanted="", error=error, not_before_ms=now_ms + backoff_ms(job))


# The governor


def release(job: JobRecord, now_ms: int) -> JobRecord:
    """A running job whose driver is gone."""
    assert job.state is JobState.RUNNING, "only what runs has a driver"
    return _failed(job, f"its driver (term {job.owner_term}) is gone", now_ms, again=True)


def admit(view: JobView, job: JobRecord, now_ms: int) -> JobRecord | None:
    """A waiting job that need not wait any longer; None: it goes on waiting."""
    assert job.state is JobState.WAITING, "only what waits is admitted"
    for other in job.waits_for:
        found = view.jobs.get(other)
        if found is None and job_key(other) not in view.unreadable:
            return _ended(job, JobState.FAILED, f"job {other}, which it waits for, is not known any more", now_ms)
        if found is not None and found.state.final and found.state is not JobState.SUCCEEDED:
            how = f"{_DID[found.state]}: {found.error or 'no reason is given'}"
            return _ended(job, JobState.FAILED, f"job {other}, which it waits for, {how}", now_ms)
    if all(succeeded(view, other) for other in job.waits_for):
        return changed(job, state=JobState.QUEUED)
    return None


def succeeded(view: JobView, number: int) -> bool:
    """Whether somebody may go on who waits for this job."""
    return view.readable(number) and view.jobs[number].state is JobState.SUCCEEDED


def undo(job: JobRecord, first_number: int, now_ms: int) -> list[JobRecord]:
    """The jobs of its undo commands, one after the other, and then the job that says so."""
    assert job.to_undo, f"job {job.number} has nothing to undo"
    numbers = tuple(range(first_number, first_number + len(job.undo)))
    jobs = [
        JobRecord(
            number,
            command,
            JobState.WAITING if place else JobState.QUEUED,
            why=shortened(f"undoes job {job.number}, which {_DID[job.state]}"),
            waits_for=(number - 1,) if place else (),
            undoes=job.number,
            request_id=f"undo-{job.number}-{place}",
            asked_ms=now_ms,
        )
        for place, (number, command) in enumerate(zip(numbers, job.undo, strict=True))
    ]
    return [*jobs, changed(job, undone_by=numbers)]


def prunable(view: JobView, keep: int = KEEP_ENDED) -> list[int]:
    """The oldest that ended, beyond those that are kept; never one that is waited for, nor the newest number."""
    awaited = {other for job in view.open_jobs() for other in job.waits_for}
    # Of what can't be read nobody knows what it waits for.
    if any(number not in view.jobs or not view.readable(number) for number in view.open):
        return []
    ended = [number for number in sorted(view.jobs) if number not in view.open and view.readable(number)]
    newest = max(view.jobs, default=0)
    old = ended[: max(0, len(ended) - keep)]
    return [each for each in old if each != newest and each not in awaited and each not in view.undoable]


# Parts

_NOT_JSON = (bytes, bytearray, date, datetime, time, timedelta, Decimal)
_DID = {JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}


def known(view: JobView, number: int) -> JobRecord:
    """The job as it is written; JobRefused where there is none, or it can't be read."""
    job = view.jobs.get(number)
    if job is None:
        raise JobRefused(NOT_FOUND, f"there is no task {number}; `trimtab tasks list` shows those there are")
    if not view.readable(number):
        raise JobRefused(CONFLICT, f"job {number} was written by a newer release and can't be read here")
    return job


def changed(job: JobRecord, **fields: Any) -> JobRecord:
    return msgspec.structs.replace(job, **fields)


def backoff_ms(job: JobRecord) -> int:
    """How long a job rests after its attempt failed."""
    return min(FIRST_BACKOFF_MS << min(max(job.attempts - 1, 0), 30), MAX_BACKOFF_MS)


def shortened(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def _running(view: JobView, number: int, term: int, attempt: int) -> JobRecord:
    in_office(view, term)
    job = known(view, number)
    if job.state is not JobState.RUNNING or job.owner_term != term or attempt not in (0, job.attempts):
        raise JobRefused(STALE_TERM, f"job {number} is not run by term {term} (attempt {attempt}) any more")
    return job


def _ended(job: JobRecord, state: JobState, error: str, now_ms: int) -> JobRecord:
    return changed(job, state=state, wanted="", error=shortened(error), checkpoint={}, not_before_ms=0, ended_ms=now_ms)


def _progressed(job: JobRecord, progress: Progress) -> JobRecord:
    return changed(
        job,
        progress_bytes=progress.progress_bytes,
        total_bytes=progress.total_bytes,
        progress_rows=progress.progress_rows,
        total_rows=progress.total_rows,
    )


def _noted(value: dict[str, Any], what: str) -> dict[str, Any]:
    size = len(_encoded(value, f"the {what}"))
    if size > NOTE_BYTES:
        raise JobRefused(
            "too_large", f"the {what} takes {size} bytes, {NOTE_BYTES} at most; keep it in a file or a table"
        )
    return value


def _encoded(value: object, what: str) -> bytes:
    try:
        encoded: bytes = encode(value)
        plain = msgspec.to_builtins(value, builtin_types=_NOT_JSON)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JobRefused(INVALID, f"{what} is not plain JSON: {error}") from error
    if msgspec.json.decode(encoded) != plain:
        # It would come back as something else: bytes as text, not-a-number as null.
        raise JobRefused(INVALID, f"{what} is not plain JSON: it takes strings, finite numbers, lists and maps alone")
    return encoded
