"""Writes about tablets under way: many changes of stages as one conditional write, with few events.

Each tablet that a write touches is bound to the record, and to the stable set, that were looked at. What follows from a
stage goes into the same write: the session that is opened or closed, the job that copies, the new stable set, the
table's rebalance record (whose revision loads of the table depend on), and the topology version that tells routers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import MAX_WRITE_BYTES, CommitMoves, StepKind, Told, Write
from trimtab.governor.wording import listed, name
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.jobs.records import encode as encode_job
from trimtab.loads.records import SessionKind, SessionRecord, session_key
from trimtab.loads.records import encode as encode_session
from trimtab.tablets.move_changes import running
from trimtab.tablets.records import CHUNK_TABLETS, chunk_key, pack
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.transitions import (
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    TransitionKind,
    encode,
    rebalance_key,
    transition_key,
)
from trimtab.topology.records import FENCE_KEY, VERSION_KEY, job_key

MAX_TABLETS = 256  # that one write touches: each is a few operations, and a command has 1,024 at most
MAX_COPIES = 1_000  # of one job
DONE = "done"
MOVES_OF_JOB = "moves-"
_MAX_WHYS = 3


@dataclass
class _Group:
    """Tablets of one table of which the same is told."""

    tablets: list[int] = field(default_factory=list)
    whys: dict[str, None] = field(default_factory=dict)
    about: dict[int, None] = field(default_factory=dict)


class MoveDraft:
    """A write that grows. `commit` gives the step."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._view = state.view
        self._expect: dict[bytes, int] = {}
        self._puts: dict[bytes, bytes] = {}
        self._deletes: dict[bytes, None] = {}
        self._stable: dict[tuple[int, int], Replicas] = {}
        self._placed: set[bytes] = set()
        self._rebalances: dict[int, RebalanceRecord] = {}
        self._copies: dict[tuple[int, JobKind], dict[int, list[dict[str, Any]]]] = {}
        self._records: dict[tuple[int, int], TabletTransition] = {}
        self._groups: dict[tuple[int, str], _Group] = {}
        self._events: list[Told] = []
        self._entered: dict[str, None] = {}
        self._number = 0
        self._bytes = 0
        self.tablets = 0

    @property
    def full(self) -> bool:
        """Whether nothing more should go into this write."""
        return self.tablets >= MAX_TABLETS or self._bytes >= MAX_WRITE_BYTES // 2

    @property
    def empty(self) -> bool:
        return not (self._puts or self._deletes or self._records or self._rebalances)

    # Records

    def depend(self, key: bytes) -> None:
        """The write only counts while this key is as it was read."""
        self._expect[key] = self._view.revisions.get(key, 0)

    def change(self, table: int, tablet: int, record: TabletTransition, *, announced: bool = True) -> None:
        """The tablet's record from now on. `announced`: routers have to know, so it gets a new version."""
        self._touch(table, tablet)
        if announced:
            record = msgspec.structs.replace(record, version=self._raise_version(), stage_ms=self._state.now_ms)
            self._entered[record.stage.value] = None
        self._records[table, tablet] = record
        self._bytes += 300

    def end(self, table: int, tablet: int, after: TabletTransition | None) -> None:
        """The move is over; `after` is what begins in its place."""
        self._touch(table, tablet)
        self._raise_version()
        self._entered[DONE] = None
        if after is None:
            self._deletes[transition_key(table, tablet)] = None
        else:
            self.change(table, tablet, after)

    def _touch(self, table: int, tablet: int) -> None:
        key = transition_key(table, tablet)
        if key not in self._expect:
            self.tablets += 1
            self._bytes += 100
        self.depend(key)
        self.depend(chunk_key(table, tablet // CHUNK_TABLETS))

    def forget(self, key: bytes) -> None:
        """A record that means nothing any more."""
        self.depend(key)
        self._deletes[key] = None
        self.tablets += 1

    def place(self, table: int, tablet: int, replicas: Replicas) -> None:
        """The stable set from now on."""
        key = chunk_key(table, tablet // CHUNK_TABLETS)
        if key not in self._placed:
            self._placed.add(key)
            self._bytes += 8 * CHUNK_TABLETS
        self.depend(key)
        self._stable[table, tablet] = replicas

    def open_session(self, session: str, table: int, why: str) -> None:
        key = session_key(session)
        self.depend(key)
        self._deletes.pop(key, None)
        self._puts[key] = encode_session(SessionRecord(SessionKind.STREAM, table, self._state.now_ms, why=why))
        self._bytes += 200

    def close_session(self, session: str) -> None:
        """Nothing may be adopted under it any more."""
        key = session_key(session)
        self.depend(key)
        if self._view.revisions.get(key):
            self._deletes[key] = None

    # The rebalance of a table

    def rebalance(
        self,
        table: int,
        *,
        trigger: int = 0,
        moves: int = 0,
        moved_bytes: int = 0,
        failed: int = 0,
        reason: str = "",
    ) -> None:
        """What is new of a table's rebalance; it runs, and is this leader's."""
        before = self._rebalances.get(table) or self._state.tables.rebalances.get(table)
        now = running(before, self._state.term, trigger, self._state.now_ms)
        self.set_rebalance(
            table,
            msgspec.structs.replace(
                now,
                moves=now.moves + moves,
                moved_bytes=now.moved_bytes + moved_bytes,
                failed=now.failed + failed,
                reason=reason or now.reason,
            ),
        )

    def set_rebalance(self, table: int, record: RebalanceRecord) -> None:
        if table not in self._rebalances:
            self._bytes += 300
        self.depend(rebalance_key(table))
        self._rebalances[table] = record

    def end_rebalance(self, table: int, record: RebalanceRecord) -> None:
        """Nothing is left to do for the table."""
        failed = record.failed and not record.moves
        ended = RebalanceState.FAILED if failed else RebalanceState.COMPLETED
        self.set_rebalance(
            table,
            msgspec.structs.replace(record, state=ended, term=self._state.term, ended_ms=self._state.now_ms),
        )

    # Jobs

    def copy(self, table: int, tablet: int, current: TabletTransition, copies: Iterable[tuple[int, Replicas]]) -> None:
        """One job for all tablets of the table that this write has to copy, and one for all that it has to repair."""
        made = [
            {"tablet": tablet, "target": target, "sources": list(sources), "session": current.session}
            for target, sources in copies
        ]
        kind = JobKind.REPAIR if current.kind is TransitionKind.REPAIR else JobKind.STREAM
        assert bool(made) == (kind is JobKind.STREAM), f"{len(made)} copies are made by a {current.kind.value}"
        self._copies.setdefault((table, kind), {})[tablet] = made
        self._bytes += 150 * len(made) + 10

    def put_job(self, job: JobRecord) -> None:
        key = job_key(job.number)
        self.depend(key)
        self._puts[key] = encode_job(job)
        self._bytes += len(self._puts[key])
        self.tablets += 1

    def _make_jobs(self) -> None:
        for (table, kind), by_tablet in sorted(self._copies.items(), key=lambda each: (each[0][0], each[0][1].value)):
            tablets: list[int] = []
            copies: list[dict[str, Any]] = []
            for tablet, made in sorted(by_tablet.items()):
                if tablets and len(copies) + len(made) > MAX_COPIES:
                    self._make_job(table, kind, tablets, copies)
                    tablets, copies = [], []
                tablets.append(tablet)
                copies += made
            self._make_job(table, kind, tablets, copies)

    def _make_job(self, table: int, kind: JobKind, tablets: list[int], copies: list[dict[str, Any]]) -> None:
        state = self._state
        number = self._number = max(self._number + 1, self._view.next_request())
        full_name = state.tables.name_of(table)
        parameters: dict[str, Any] = {"table": full_name}
        if kind is JobKind.STREAM:
            parameters |= {"copies": copies}
        else:
            # Those who stay have to have everything; one that leaves may be down, or gone.
            stay = [list(self._records[table, tablet].pending) for tablet in tablets]
            parameters |= {"tablets": tablets, "targets": stay}
        whys = dict.fromkeys(self._records[table, tablet].why for tablet in tablets)
        what = "copy" if kind is JobKind.STREAM else "repair"
        why = f"tablets move: {what} {_tablets(tablets)} of {full_name} ({_shown(whys)})"
        job = JobRecord(
            number,
            Command(kind, parameters),
            JobState.QUEUED,
            why=why[:1_000],
            request_id=f"{MOVES_OF_JOB}{state.term}-{number}",
            asked_ms=state.now_ms,
        )
        self._expect |= self._view.unused(number)
        self._puts[job_key(number)] = encode_job(job)
        for tablet in tablets:
            record = self._records[table, tablet]
            self._records[table, tablet] = msgspec.structs.replace(record, job=number, attempts=record.attempts + 1)

    # Versions

    def _raise_version(self) -> int:
        version = self._view.version + 1
        if VERSION_KEY not in self._puts:
            self.depend(VERSION_KEY)
            self._puts[VERSION_KEY] = b"%d" % version
        return version

    def _raise_fence(self, version: int) -> None:
        if self._view.fence < version:
            self.depend(FENCE_KEY)
            self._puts[FENCE_KEY] = b"%d" % version

    # Telling

    def tell(self, table: int, what: str, tablet: int, why: str = "", about: Collection[int] = ()) -> None:
        """What happens to a tablet; those to which the same does are told of together."""
        group = self._groups.setdefault((table, what), _Group())
        group.tablets.append(tablet)
        if why:
            group.whys[why] = None
        group.about.update(dict.fromkeys(about))

    def say(self, text: str, about: Collection[int] = ()) -> None:
        """A sentence of its own."""
        self._events.append(Told(text, self._names(about)))

    def _names(self, raft_ids: Iterable[int]) -> tuple[str, ...]:
        return tuple(name(self._view, raft_id) for raft_id in sorted(raft_ids))[:20]

    def _told(self) -> tuple[Told, ...]:
        told = []
        for (table, what), group in self._groups.items():
            why = f" ({_shown(group.whys)})" if group.whys else ""
            text = f"{_tablets(group.tablets)} of {self._state.tables.name_of(table)}: {what}{why}"
            told.append(Told(text, self._names(group.about)))
        return (*told, *self._events)

    # The end

    def commit(self, kind: StepKind, *, crossed: int = 0) -> CommitMoves | None:
        """The step that writes it; None: there is nothing. `crossed`: the version of the barrier that it follows."""
        if self.empty:
            return None
        self._make_jobs()
        if crossed:
            self._raise_fence(crossed)
        puts = dict(self._puts)
        puts |= {transition_key(*place): encode(record) for place, record in self._records.items()}
        puts |= {rebalance_key(table): encode(record) for table, record in self._rebalances.items()}
        puts |= self._chunks()
        deletes = tuple(key for key in self._deletes if key not in puts)
        told = self._told() or (Told("records of moves are put in order"),)
        why = "; ".join(each.text for each in told[:3])
        write = Write(dict(self._expect), puts, deletes, told)
        return CommitMoves(kind, why, (0,), write=write, entered=tuple(self._entered))

    def _chunks(self) -> dict[bytes, bytes]:
        by_chunk: dict[tuple[int, int], dict[int, Replicas]] = {}
        for (table, tablet), replicas in self._stable.items():
            by_chunk.setdefault((table, tablet // CHUNK_TABLETS), {})[tablet] = replicas
        found = {}
        for (table, chunk), changed in by_chunk.items():
            tablets = self._state.tables.maps[table]
            first = chunk * CHUNK_TABLETS
            numbers = range(first, min(first + CHUNK_TABLETS, tablets.count))
            found[chunk_key(table, chunk)] = pack([changed.get(each) or tablets.replicas(each) for each in numbers])
        return found


def _tablets(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"tablet {numbers[0]}"
    return f"{len(numbers)} tablets ({', '.join(map(str, sorted(numbers)[:5]))}{', …' if len(numbers) > 5 else ''})"


def _shown(whys: Iterable[str]) -> str:
    found = [why for why in whys if why]
    return listed(found) if len(found) <= _MAX_WHYS else f"{'; '.join(found[:_MAX_WHYS])} and other reasons"
