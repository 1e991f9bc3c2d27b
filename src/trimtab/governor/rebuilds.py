"""Rebuilds and global requests: they change no topology, so they need no transition; they wait until none is under way.

A rebuild marks its instance `rebuilding` and has every replica there compared with a read quorum of all (or of those of
one data centre), table by table, by repair jobs: a few at a time, the next when those have ended. Tablets of which
nobody else has a replica have nothing to be compared with: that is told, and where it is all of them the rebuild fails.
It ends when all jobs have succeeded and every router knows.

Global requests are a queue: one at a time, the oldest first, after everything else. A `barrier` request is done when a
barrier at the version of its turn has passed.
"""

from __future__ import annotations

from typing import Any

from trimtab.governor.crossing import barrier
from trimtab.governor.obstacles import obstacle, undecided
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Barrier, Commit, StepKind
from trimtab.governor.wording import name, names
from trimtab.governor.writes import MAX_BATCH, Draft
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.tablets.domains import domain_of
from trimtab.topology.records import GLOBAL_KINDS, RequestKind, RequestRecord, RequestState, job_key, request_key
from trimtab.topology.states import NodeState

MAX_JOBS = 8  # of one rebuild at a time
MAX_JOB_TABLETS = 2_000


def begin_rebuilds(state: ClusterState) -> Commit | None:
    """Rule: instances that are to be rebuilt, and can be, are."""
    if state.view.transition is not None:
        return None
    chosen: dict[int, int] = {}  # raft id -> request
    for number, request in state.open_requests.items():
        if request.kind is not RequestKind.REBUILD or request.state is not RequestState.PENDING or request.cancel:
            continue
        record = state.view.instances.get(request.raft_id)
        free = record is not None and record.state is NodeState.NORMAL and request.raft_id not in chosen
        free = free and request.raft_id not in state.left_alone
        if free and len(chosen) < MAX_BATCH and not undecided(state, number) and obstacle(state, number) is None:
            chosen[request.raft_id] = number
    if not chosen:
        return None
    draft = Draft(state)
    begun: dict[int, int] = {}
    for raft_id, number in chosen.items():
        if draft.full:
            break
        begun[raft_id] = number
        replicas = sum(map(len, state.tables.held_by(raft_id).values()))
        draft.change_instance(raft_id, state=NodeState.REBUILDING)
        draft.change_request(number, state=RequestState.RUNNING, started_ms=state.now_ms, tablets=replicas)
    draft.raise_version()
    why = f"{names(state.view, begun)} {'is' if len(begun) == 1 else 'are'} rebuilt"
    draft.tell(why, begun)
    return Commit(StepKind.REQUEST, why, tuple(begun.values()), write=draft.write())


def go_on_rebuilding(state: ClusterState) -> Commit | None:
    """Rule: the tables that are next get their repairs, when those before have succeeded."""
    for number, request in _running(state).items():
        if not _succeeded(state, request) or not (tables := _next_tables(state, request)):
            continue
        draft = Draft(state)
        draft.request(number)
        jobs = _repairs(state, request, tables)
        for job in jobs:
            draft.depend(request_key(job.number))
            draft.job(job)
        # What comes after a table that took all the room is next time's.
        draft.change_request(number, jobs=[job.number for job in jobs], through=tables[-1])
        shown = ", ".join(state.tables.name_of(table) for table in tables)
        why = f"{name(state.view, request.raft_id)} is rebuilt: {shown} (jobs {', '.join(str(j.number) for j in jobs)})"
        draft.tell(why, (request.raft_id,))
        return Commit(StepKind.REQUEST, why, (number,), write=draft.write())
    return None


def end_rebuilds(state: ClusterState) -> Barrier | None:
    """Rule: rebuilt instances are normal again, once everybody knew that they were not."""
    view = state.view
    running = {
        number: request.raft_id
        for number, request in _running(state).items()
        if _succeeded(state, request) and not _next_tables(state, request)
    }
    if not running:
        return None
    draft = Draft(state)
    done: dict[int, int] = {}
    told: dict[str, list[int]] = {}
    for number, raft_id in running.items():
        if draft.full:
            break
        done[number] = raft_id
        if draft.instance(raft_id).state is NodeState.REBUILDING:
            draft.change_instance(raft_id, state=NodeState.NORMAL)
        outcome, why_so = _outcome(state, view.requests[number])
        draft.end_request(number, outcome, why_so)
        told.setdefault("rebuilt: done" if outcome is RequestState.DONE else "not rebuilt", []).append(raft_id)
    draft.raise_version()
    why = "; ".join(f"{names(view, who)} {'is' if len(who) == 1 else 'are'} {how}" for how, who in told.items())
    return barrier(state, StepKind.REQUEST, why, done, draft, about=done.values())


def next_global(state: ClusterState) -> Barrier | None:
    """Rule: the first of the global requests."""
    view = state.view
    queue = [number for number, request in state.open_requests.items() if request.kind in GLOBAL_KINDS]
    if not queue or view.transition is not None:
        return None
    number = queue[0]
    draft = Draft(state)
    draft.change_request(number, started_ms=view.requests[number].started_ms or state.now_ms)
    draft.end_request(number, RequestState.DONE, "")
    why = f"request {number} is done: everybody routes by version {view.version}"
    return barrier(state, StepKind.REQUEST, why, (number,), draft)


# The jobs of a rebuild


def failed_rebuild(state: ClusterState, request: RequestRecord) -> str | None:
    """Why a rebuild that is under way can't succeed; None: it still can."""
    if request.kind is not RequestKind.REBUILD or request.state is not RequestState.RUNNING:
        return None
    if request.raft_id in state.lost:
        return f"{name(state.view, request.raft_id)} is dead, so it can't be rebuilt"
    for number in request.jobs:
        job = state.jobs.jobs.get(number)
        if job is None or job.state in (JobState.FAILED, JobState.CANCELLED):
            return f"job {number} {f'{job.state.value}: {job.error}' if job is not None else 'is forgotten'}"
        if left := _left_out(job):
            why = left[0][-1] if isinstance(left[0], list) and left[0] else "no reason is given"
            return f"job {number} has not done {len(left)} tablet{'s' if len(left) > 1 else ''}: {why}"
    return None


def _left_out(job: JobRecord) -> list[Any]:
    """What a job that ended well could not do."""
    failed = job.result.get("failed")
    return failed if isinstance(failed, list) else []


def open_jobs(state: ClusterState, request: RequestRecord) -> list[JobRecord]:
    """The jobs of a request that have not ended."""
    return [state.jobs.jobs[number] for number in request.jobs if number in state.jobs.open]


def _running(state: ClusterState) -> dict[int, RequestRecord]:
    return {
        number: request
        for number, request in state.open_requests.items()
        if request.kind is RequestKind.REBUILD and request.state is RequestState.RUNNING
        if request.raft_id not in state.left_alone
    }


def _succeeded(state: ClusterState, request: RequestRecord) -> bool:
    jobs = state.jobs.jobs
    found = [jobs.get(number) for number in request.jobs]
    return all(job is not None and job.state is JobState.SUCCEEDED and not _left_out(job) for job in found)


def _outcome(state: ClusterState, request: RequestRecord) -> tuple[RequestState, str]:
    """How a rebuild ends whose jobs have all succeeded, and what it could not look at."""
    known = state.tables.catalog.tables
    held = {table: tablets.of(request.raft_id) for table, tablets in state.tables.maps.items() if table in known}
    alone = {table: len(tablets) - len(_shared(state, request, table)) for table, tablets in held.items()}
    count = sum(alone.values())
    if not count:
        return RequestState.DONE, ""
    shown = ", ".join(state.tables.name_of(table) for table, some in sorted(alone.items()) if some)
    where = f" in data centre {request.source}" if request.source else ""
    text = f"{count} of its tablets ({shown}) have no other replica{where} to be compared with"
    if request.through or count < sum(map(len, held.values())):
        return RequestState.DONE, f"{text}; they are as they were"
    return RequestState.FAILED, f"{text}; nothing was done"


def _next_tables(state: ClusterState, request: RequestRecord) -> list[int]:
    """Those of which the instance has replicas that others have too, after those that have had their turn."""
    found: list[int] = []
    for table in sorted(state.tables.maps):
        if table <= request.through or table not in state.tables.catalog.tables:
            continue
        if _shared(state, request, table):
            found.append(table)
            if len(found) == MAX_JOBS:
                break
    return found


def _shared(state: ClusterState, request: RequestRecord, table: int) -> list[int]:
    tablets = state.tables.maps[table]
    if not tablets.loads().get(request.raft_id):
        return []
    sources = _sources(state, request)
    return [
        tablet
        for tablet, replicas in tablets
        if request.raft_id in replicas
        and any(other != request.raft_id and (not sources or other in sources) for other in replicas)
    ]


def _sources(state: ClusterState, request: RequestRecord) -> list[int]:
    """Whom to compare with; empty: everybody."""
    if not request.source:
        return []
    return sorted(i for i, record in state.view.members().items() if domain_of(record).dc == request.source)


def _repairs(state: ClusterState, request: RequestRecord, tables: list[int]) -> list[JobRecord]:
    first = state.view.next_request()
    sources = _sources(state, request)
    who = name(state.view, request.raft_id)
    jobs: list[JobRecord] = []
    for table in tables:
        shared = _shared(state, request, table)
        for at in range(0, len(shared), MAX_JOB_TABLETS):
            tablets = shared[at : at + MAX_JOB_TABLETS]
            parameters: dict[str, object] = {
                "table": state.tables.name_of(table),
                "tablets": tablets,
                "targets": [[request.raft_id]] * len(tablets),
            }
            if sources:
                parameters["sources"] = sources
            number = first + len(jobs)
            why = f"rebuild of {who}: {state.tables.name_of(table)}"
            jobs.append(
                JobRecord(
                    number,
                    Command(JobKind.REPAIR, parameters),
                    JobState.QUEUED,
                    why=why,
                    request_id=f"rebuild-{job_key(number).decode()}-{state.now_ms}",
                    asked_ms=state.now_ms,
                )
            )
    return jobs
