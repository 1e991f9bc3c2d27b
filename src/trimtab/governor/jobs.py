"""Rules of the queue: what the leader does about jobs by itself, whoever runs them.

    find_driver_gone   the driver was silent for longer than its lease: from now on nothing counts that it says
    release_jobs       running jobs of a driver that is gone, or not the newest: queued again after a rest, or failed
    admit_jobs         waiting jobs: queued when all they wait for succeeded, failed when one of those did not
    undo_jobs          undo commands of what failed or was cancelled half way become jobs
    prune_jobs         of what ended long ago only the newest are kept

A new leader has not heard the driver yet, and grants it one full lease. The driver stops everything when its own clock
says that its last confirmed beat was *sent* a lease ago; the leader counts from when it came, so it is never earlier.
That a dependency has ended stays true, so only the job itself is a condition of a write.
"""

from __future__ import annotations

import msgspec

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import MAX_WRITE_BYTES, Commit, StepKind, Told, Write
from trimtab.governor.wording import seconds
from trimtab.jobs import rules
from trimtab.jobs.records import DRIVER_KEY, JobRecord, JobState, encode
from trimtab.topology.records import job_key

MAX_BATCH = 100
_PRUNED_AT_ONCE = 100
# The driver is no job; no job has this number.
DRIVER_SUBJECT = 0


def find_driver_gone(state: ClusterState) -> Commit | None:
    """Rule: a driver that was silent for longer than its lease is gone."""
    driver = state.jobs.living_driver
    if driver is None or state.driver_silent_ms <= driver.lease_ms or DRIVER_KEY in state.jobs.unreadable:
        return None
    why = f"the driver {driver.driver_id} (term {driver.term}) was not heard from for {seconds(state.driver_silent_ms)}"
    gone = encode(msgspec.structs.replace(driver, gone=True))
    expect = {DRIVER_KEY: state.jobs.revision(DRIVER_KEY)}
    write = Write(expect, {DRIVER_KEY: gone}, events=(Told(f"{why}: it is gone"),))
    return Commit(StepKind.JOB, why, (DRIVER_SUBJECT,), write=write)


def release_jobs(state: ClusterState) -> Commit | None:
    """Rule: jobs that a driver ran which is gone are queued again, or have failed when they were tried too often."""
    living = state.jobs.living_driver
    term = living.term if living is not None else -1
    if DRIVER_KEY in state.jobs.unreadable:
        return None
    lost = [job for job in state.jobs.open_jobs() if job.state is JobState.RUNNING and job.owner_term != term]
    # The condition on the driver: one that takes over meanwhile must not find a job of its own taken away.
    return _change(state, [rules.release(job, state.now_ms) for job in lost], depends=(DRIVER_KEY,))


def admit_jobs(state: ClusterState) -> Commit | None:
    """Rule: who waits goes on when all it waits for succeeded, and has failed when one of them did not."""
    waiting = [job for job in state.jobs.open_jobs() if job.state is JobState.WAITING]
    after = (rules.admit(state.jobs, job, state.now_ms) for job in waiting)
    return _change(state, [job for job in after if job is not None])


def undo_jobs(state: ClusterState) -> Commit | None:
    """Rule: what a job left behind that did not succeed is taken back by its undo commands, as jobs of their own."""
    view = state.jobs
    for number in sorted(view.undoable):
        job = view.jobs[number]
        if not view.readable(number) or number in state.busy(StepKind.JOB):
            continue
        first = state.view.next_request()
        made = rules.undo(job, first, state.now_ms)
        expect = {job_key(number): view.revision(job_key(number))}
        for each in made[:-1]:
            expect |= state.view.unused(each.number)
        numbers = ", ".join(str(each.number) for each in made[:-1])
        why = f"job {number} ({job.command.kind.value}) {job.state.value}: it is undone by {numbers}"
        write = Write(expect, {job_key(each.number): encode(each) for each in made}, events=(Told(why),))
        return Commit(StepKind.JOB, why, (number,), write=write)
    return None


def prune_jobs(state: ClusterState) -> Commit | None:
    """Rule: of the jobs that ended long ago only the newest are kept."""
    if len(state.jobs.jobs) < rules.KEEP_ENDED + _PRUNED_AT_ONCE:
        return None
    old = rules.prunable(state.jobs)[:_PRUNED_AT_ONCE]
    if len(old) < _PRUNED_AT_ONCE:
        return None
    expect = {job_key(number): state.jobs.revision(job_key(number)) for number in old}
    why = f"{len(old)} jobs that ended long ago, up to {old[-1]}, are forgotten"
    write = Write(expect, deletes=tuple(expect), events=(Told(why),))
    return Commit(StepKind.JOB, why, tuple(old), write=write)


def told(job: JobRecord) -> str:
    """A job's end, or its new state, as an event."""
    what = f"job {job.number} ({job.command.kind.value})"
    match job.state:
        case JobState.QUEUED if job.error:
            return f"{what} is to be tried again: {job.error}"
        case JobState.SUCCEEDED:
            return f"{what} succeeded"
        case JobState.FAILED | JobState.CANCELLED:
            return f"{what} {job.state.value}: {job.error}"
        case _:
            return f"{what} is {job.state.value}"


def _change(state: ClusterState, jobs: list[JobRecord], depends: tuple[bytes, ...] = ()) -> Commit | None:
    """One write of as many of them as fit, and are not in one that is on its way."""
    busy = state.busy(StepKind.JOB)
    expect = {key: state.jobs.revision(key) for key in depends}
    puts: dict[bytes, bytes] = {}
    events: list[Told] = []
    numbers: list[int] = []
    room = MAX_WRITE_BYTES
    for job in jobs:
        if job.number in busy or len(numbers) == MAX_BATCH:
            continue
        key, value = job_key(job.number), encode(job)
        if numbers and len(value) > room:
            break
        room -= len(value)
        expect[key] = state.jobs.revision(key)
        puts[key] = value
        numbers.append(job.number)
        events.append(Told(told(job)))
    if not numbers:
        return None
    why = "; ".join(each.text for each in events[:3])
    return Commit(StepKind.JOB, why, tuple(numbers), write=Write(expect, puts, events=tuple(events)))
