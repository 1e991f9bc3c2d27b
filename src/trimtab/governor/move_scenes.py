"""What the leader knows of each tablet under way, and what `tablets.stages` decides about it.

A record that can't be read here (perhaps a newer release wrote it), or that is about a table nobody knows, is left
alone: nothing is decided about its tablet. The same goes for a tablet whose stable set can't be read, and for a table
whose rebalance record can't be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from trimtab.governor.state import ClusterState
from trimtab.governor.wording import names
from trimtab.jobs.records import JobRecord, JobState
from trimtab.tablets.departures import going
from trimtab.tablets.records import CHUNK_TABLETS, chunk_key
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.stages import MAX_TRIES, Decision, JobPart, JobSeen, Scene, decide
from trimtab.tablets.transitions import Cause, TabletTransition, rebalance_key, transition_key
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind, job_key

# What an instance says about a copy that it can't use: it has to be made again.
SPOILT = frozenset(("no_copy", "stale_copy", "damaged"))
# And what no other copy mends: it has no room, and others may have; or it lost what it had taken while it arrived, and
# has to arrive anew, because a copy may be of a time before that.
LOST = "lost"
HOPELESS = frozenset(("disk_full", LOST))
COPIES = " copies it"  # how a job is told that does what it should
_LOOK_AGAIN_MS = 500  # some decisions wait for a while
_MEMORY = "decided"
_DOWN = (Grade.OFFLINE, Grade.EXPELLED)
_READY = (Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE)


class Decided(NamedTuple):
    """One tablet under way, and what is to be done about it."""

    table: int
    tablet: int
    stable: Replicas
    current: TabletTransition
    decision: Decision
    scene: Scene

    @property
    def attempt(self) -> tuple[int, int, str]:
        return self.table, self.tablet, self.current.session


def decided(state: ClusterState) -> tuple[Decided, ...]:
    """All tablets under way that can be decided on; looked at once while nothing has changed that matters for them."""
    if not state.tables.transitions:
        return ()
    memory = state.moves.memory if state.revision else state.__dict__
    alive = frozenset(raft_id for raft_id in state.view.instances if state.alive(raft_id))
    seen = (state.revision, state.moves.serial, alive, state.now_ms // _LOOK_AGAIN_MS)
    known: tuple[object, tuple[Decided, ...]] | None = memory.get(_MEMORY)
    if known is None or known[0] != seen:
        known = memory[_MEMORY] = (seen, tuple(_decided(state)))
    return known[1]


def _decided(state: ClusterState) -> Iterator[Decided]:
    down, up, leaving = down_now(state), up_now(state), going(state.view)
    for table, under_way in sorted(state.tables.transitions.items()):
        if not known(state, table):
            continue
        for tablet, current in sorted(under_way.items()):
            if tablet >= state.tables.maps[table].count or not readable(state, table, tablet):
                continue
            stable = state.tables.maps[table].replicas(tablet)
            scene = _scene(state, table, tablet, stable, current, down, up, leaving)
            yield Decided(table, tablet, stable, current, decide(scene), scene)


def known(state: ClusterState, table: int) -> bool:
    """Whether all is known of a table that a move of its tablets needs."""
    found = state.tables.catalog.tables.get(table)
    return (
        found is not None
        and state.tables.map(table).count == found.tablets
        and rebalance_key(table) not in state.tables.unreadable
    )


def readable(state: ClusterState, table: int, tablet: int) -> bool:
    """Whether what is known of a tablet is what is written."""
    unreadable = state.tables.unreadable
    return not unreadable or (
        transition_key(table, tablet) not in unreadable and chunk_key(table, tablet // CHUNK_TABLETS) not in unreadable
    )


def down_now(state: ClusterState) -> frozenset[int]:
    """Who certainly serves nothing: marked so, or gone."""
    return frozenset(
        raft_id
        for raft_id, record in state.view.instances.items()
        if record.left or record.grades.current.grade in _DOWN
    )


def gone_for_good(state: ClusterState, replicas: Replicas) -> frozenset[int]:
    """Those of a set that left the cluster: replaced, or lost with the majority of the voters."""
    instances = state.view.instances
    return frozenset(raft_id for raft_id in replicas if raft_id in instances and instances[raft_id].left)


def up_now(state: ClusterState) -> frozenset[int]:
    """From whom a copy can be had: it has caught up, and was heard from lately."""
    return frozenset(
        raft_id
        for raft_id, record in state.view.instances.items()
        if not record.left and record.grades.current.grade in _READY and state.alive(raft_id)
    )


def _scene(
    state: ClusterState,
    table: int,
    tablet: int,
    stable: Replicas,
    current: TabletTransition,
    down: frozenset[int],
    up: frozenset[int],
    leaving: Mapping[int, RequestKind],
) -> Scene:
    facts, attempt = state.moves, (table, tablet, current.session)
    nobody: frozenset[int] = frozenset()
    # Who has no row is nobody's guess: it was never there, or its row can't be read; it is not down for certain.
    return Scene(
        tablet=tablet,
        stable=stable,
        current=current,
        dc_of=state.dc_of,
        down=down,
        gone=gone_for_good(state, stable),
        up=up,
        prepared=facts.prepared.get(attempt, nobody),
        adopted=facts.adopted.get(attempt, nobody),
        cleaned=facts.cleaned.get(attempt, nobody),
        job=job_seen(state, tablet, current.job),
        without_copy=_without_copy(state, attempt, current.job),
        unable=_unable(state, attempt, current.arriving(stable), down, leaving),
        spoilt=_trouble(state, attempt, current.job, SPOILT),
        hopeless=_trouble(state, attempt, current.job, HOPELESS),
        failing=_failing(state, attempt, current.job),
        unwanted=_unwanted(state, stable, current, leaving),
        now_ms=state.now_ms,
        names=lambda raft_ids: names(state.view, raft_ids),
    )


def _unwanted(state: ClusterState, stable: Replicas, current: TabletTransition, leaving: Collection[int]) -> str:
    """Why a drain is not wanted any more: nobody of those who lose their replica is to leave now."""
    if current.cause is not Cause.DRAIN:
        return ""
    # In the first of two moves nobody loses its replica yet.
    goers = [raft_id for raft_id in stable if raft_id not in (current.planned or current.pending)]
    for raft_id in goers:
        record = state.view.instances.get(raft_id)
        if raft_id in leaving or record is None or record.left:
            return ""
    return f"{names(state.view, goers)} is to stay after all" if goers else ""


def _trouble(state: ClusterState, attempt: tuple[int, int, str], job: int, codes: Collection[str]) -> str:
    for trouble in state.moves.troubles.get(attempt, ()):
        if trouble.code in codes and trouble.job == job:
            return f"{names(state.view, [trouble.raft_id])}: {trouble.text}"
    return ""


def _failing(state: ClusterState, attempt: tuple[int, int, str], job: int) -> str:
    for trouble in state.moves.troubles.get(attempt, ()):
        if trouble.times >= MAX_TRIES and trouble.job == job:
            return f"{names(state.view, [trouble.raft_id])}: {trouble.text} (tried {trouble.times} times)"
    return ""


def _without_copy(state: ClusterState, attempt: tuple[int, int, str], job: int) -> frozenset[int]:
    troubles = state.moves.troubles.get(attempt, ())
    return frozenset(each.raft_id for each in troubles if each.code in SPOILT and each.job == job)


def _unable(
    state: ClusterState,
    attempt: tuple[int, int, str],
    arriving: Replicas,
    down: frozenset[int],
    leaving: Mapping[int, RequestKind],
) -> frozenset[int]:
    """Who arrives, and will never have a copy by this session: nobody waits for it, or it lost what it had taken."""
    removed = {each for each in arriving if each in down and leaving.get(each) is RequestKind.REMOVE}
    lost = {each.raft_id for each in state.moves.troubles.get(attempt, ()) if each.code == LOST}
    return gone_for_good(state, arriving) | removed | lost


def job_seen(state: ClusterState, tablet: int, number: int) -> JobSeen:
    """How the job of a tablet stands to it."""
    if not number:
        return JobSeen()
    job = state.jobs.jobs.get(number)
    if job_key(number) in state.jobs.unreadable:
        return JobSeen(JobPart.UNDER_WAY, f"job {number} can't be read here")
    if job is None:
        return JobSeen()
    match job.state:
        case JobState.SUCCEEDED:
            failed = _not_copied(job, tablet)
            return JobSeen(JobPart.NOT_COPIED if failed else JobPart.COPIED, failed, job.ended_ms)
        case JobState.FAILED:
            return JobSeen(JobPart.FAILED, f"job {number} failed: {job.error}", job.ended_ms)
        case JobState.CANCELLED:
            return JobSeen(JobPart.CANCELLED, f"job {number} was cancelled: {job.error}", job.ended_ms)
        case JobState.PAUSED:
            return JobSeen(JobPart.UNDER_WAY, f"job {number}, which copies it, is paused (trimtab tasks resume)")
        case _:
            return JobSeen(JobPart.UNDER_WAY, f"job {number}{COPIES}")


def _not_copied(job: JobRecord, tablet: int) -> str:
    """Why a job that ended well has not done this tablet; empty: it has."""
    failed = job.result.get("failed")
    for entry in failed if isinstance(failed, list) else ():
        if isinstance(entry, list) and entry and entry[0] == tablet:
            return str(entry[-1]) if len(entry) > 1 else "no reason is given"
    return ""
