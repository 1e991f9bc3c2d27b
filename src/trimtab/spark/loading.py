"""A load from its driver's side: begun, sealed on every replica, committed once, seen through until it can be read.

    begin ─▶ plan for the tasks ─▶ (tasks stage) ─▶ commit(parts): spread what is missing ─▶ seal ─▶ commit ─▶ published
                                                        ▲                                      │
                                                        └── moved, or a replica is back ◀──────┘

Only files of attempts that Spark calls successful are sealed; whatever others staged goes with the session. Until the
leader has committed, any failure ends in an abort and nothing has changed. After that nobody needs a driver any more:
it only waits, so that whoever reads next sees the rows. What can still fail is done before: rejected rows are in place
when the load is committed. Where the answer to a commit is lost and nobody can be asked, that is what is told.

Nothing here knows Spark: jobs, writers of DataFrames and streams all use it.
"""

from __future__ import annotations

import contextlib
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from trimtab.bulk import protocol as bulk
from trimtab.bulk.client import BulkError
from trimtab.catalog.schema import Table, UserType
from trimtab.client.errors import Error, Timeout, Unavailable
from trimtab.client.loads import LoadRefused
from trimtab.loads.attempts import MAX_ATTEMPTS, attempt_ids
from trimtab.loads.protocol import (
    BeginRequest,
    CommitRequest,
    SealReply,
    SealRequest,
    StagedFile,
    TicketReply,
)
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.spark import rejecting
from trimtab.spark.call_threads import CallThreads
from trimtab.spark.contact import Places
from trimtab.spark.load_plan import FAIL, HeldFile, LoadFailed, LoadPlan, NotNow, StagedPart
from trimtab.spark.options import Connection
from trimtab.spark.renewing import Renewing
from trimtab.spark.settling import drop_rejects, settle_rejects, sweep_rejects, tidy_refused
from trimtab.spark.spreading import Connect, spread

LEASE_MS = 30_000
TICKET_MS = 24 * 3_600_000  # a ticket is worth nothing once its session has ended
SETTLE_S = 120.0  # for replicas to be there, or to be known as down, since any has sealed more; then a load is given up
PUBLISH_S = 600.0
FILES_PER_SEAL = 2000
BYTES_PER_SEAL = 2 << 30  # an instance reads them all before it answers (`contact.SEAL_S`)
MAX_FILES = 200_000
_AT_ONCE = 16
_LOOK_S = 1.0  # progress is told that often
_NOT_YET = frozenset(("moved", "unavailable", "not_ready"))
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0

Progress = Callable[[str, int, int], None]  # what is being done, how much of how much
Check = Callable[[], None]  # LoadFailed: the load has ended, or its lease is lost


class LoadPending(Error):
    """The load may count: it is committed and will be seen, or nobody can say now whether it was."""


class Door(Protocol):
    """The cluster, as a load needs it (`contact.Cluster`). What a member refuses is a LoadRefused."""

    connection: Connection
    tls: ssl.SSLContext | None

    def table(self, name: str) -> tuple[Table, Mapping[str, UserType]]: ...
    def places(self, table: int) -> Places: ...
    def begin(self, request: BeginRequest) -> LoadRecord: ...
    def renew(self, table: int, id: str) -> None: ...
    def ticket(self, session: str, life_ms: int) -> TicketReply: ...
    def seal(self, raft_id: int, request: SealRequest) -> SealReply: ...
    def commit(self, request: CommitRequest) -> LoadRecord: ...
    def abort(self, table: int, id: str, reason: str) -> LoadRecord: ...
    def show(self, table: int, id: str) -> LoadRecord | None: ...
    def wait_ended(self, table: int, id: str, timeout_s: float) -> LoadRecord | None: ...


@dataclass(frozen=True)
class LoadRequest:
    """What to begin. `timestamp_us` 0: the leader stamps it."""

    table: str
    id: str
    kind: LoadKind = LoadKind.APPEND
    timestamp_us: int = 0
    ttl_s: int = 0
    who: str = ""
    lease_ms: int = LEASE_MS
    on_error: str = FAIL
    rejected: str = ""
    chunk_rows: int = 0  # 0: the default
    chunk_bytes: int = 0


@dataclass
class LoadRun:
    """One load under way; any process that has the plan can go on with it."""

    door: Door
    plan: LoadPlan
    progress: Progress | None = None
    settle_s: float = SETTLE_S
    publish_s: float = PUBLISH_S
    connect: Connect | None = None
    _listed: object = None  # what instances are to seal, and where the replicas are
    _nonce: str = ""  # what that is called: another driver of the load may seal something else
    _sealed: set[int] = field(default_factory=set)  # who has
    _confirmed: set[tuple[str, int, int]] = field(default_factory=set)  # parts of lists: nonce, raft id, number
    _commit_asked: bool = False

    @classmethod
    def begin(cls, door: Door, request: LoadRequest, *, now_ms: int | None = None) -> LoadRun:
        """Open the load. LoadRefused or LoadFailed: it could not succeed now, and nothing was begun."""
        table, types = door.table(request.table)
        if request.rejected:
            rejecting.check(request.rejected, rejecting.name_of(table.full_name, request.id))
        try:
            record = door.begin(
                BeginRequest(
                    request.id,
                    table.id,
                    table.version,
                    request.kind,
                    timestamp_us=request.timestamp_us,
                    lease_ms=request.lease_ms,
                    who=request.who,
                )
            )
        except Error:
            if request.rejected:
                tidy_refused(door, request.rejected, table, request.id)
            raise
        run = cls(door, plan_of(door, request, table, types, record, now_ms))
        if record.state is not LoadState.STAGING:
            run._settle_rejects()
            return run
        try:
            if request.rejected:
                sweep_rejects(door, request.rejected, table, request.id)
            tickets = run._first_ticket()
            run.plan = replace(run.plan, ticket=tickets.ticket, bulk=tickets.bulk)
            run.check_reachable()
        except Exception as error:
            run.abort(str(error))
            raise
        return run

    @classmethod
    def begin_again(cls, door: Door, request: LoadRequest) -> LoadRun:
        """Begin the load of this id, or go on with it. Where it was aborted, the next attempt at it: all who ask for
        the id then find the same one.
        """
        for id in attempt_ids(request.id):
            try:
                return cls.begin(door, replace(request, id=id))
            except LoadRefused as error:
                if error.code != "ended":
                    raise
        raise LoadFailed(f"load {request.id} was tried {MAX_ATTEMPTS} times; see `trimtab loads list` for the reasons")

    @property
    def id(self) -> str:
        return self.plan.id

    def renewing(self) -> Renewing:
        """Keeps the load open while it is entered as a context."""
        return Renewing(lambda: self.door.renew(self.plan.table.id, self.plan.id), self.plan.lease_ms)

    def _first_ticket(self) -> TicketReply:
        try:
            return self.door.ticket(self.plan.id, TICKET_MS)
        except LoadRefused as error:
            if error.code != bulk.NO_SESSION:
                raise
            try:
                record = self.door.show(self.plan.table.id, self.plan.id)
            except Error:
                raise error from None
            # Records of loads outlive them; not the table, though.
            why = record.reason if record is not None else f"{self.plan.table.full_name} was dropped meanwhile"
            raise NotNow(f"load {self.plan.id} ended before a row was read: {why or error}") from error

    def check_reachable(self) -> None:
        """That a quorum of every tablet has a bulk server to send to, before anybody works for nothing."""
        known = frozenset(self.plan.bulk)
        for tablet, replicas in enumerate(self.plan.replicas):
            if short := self.plan.short_of(tablet, known):
                gone = ", ".join(self.plan.name_of(each) for each in replicas if each not in known)
                raise NotNow(
                    f"{self.plan.table.full_name} can't be loaded now: tablet {tablet} is on {gone}, which can't take "
                    f"files ({short})"
                )

    def abort(self, reason: str) -> None:
        """Give the load up; what was staged goes. It says nothing of its own: whoever calls has a reason to tell, and
        where nobody answers the load's lease ends it.
        """
        with contextlib.suppress(Error):
            self.door.abort(self.plan.table.id, self.plan.id, reason)
        if self.plan.rejected:
            drop_rejects(self.door, self.plan.rejected, self.plan.table, self.plan.id)

    def _settle_rejects(self) -> None:
        if self.plan.rejected:
            settle_rejects(self.plan.rejected, self.plan.table, self.plan.id)

    # Committing

    def commit(self, parts: Sequence[StagedPart]) -> LoadRecord:
        """Make what these parts staged the load, and wait until it can be seen. LoadFailed: nothing has changed.
        LoadPending: it counts and can't be seen yet, or it is not known whether it counts.
        """
        if self.plan.done:
            return self.await_published(self.door.commit(CommitRequest(self.plan.table.id, self.plan.id)))
        with self.renewing() as renewing:
            try:
                committed = self._commit(parts, renewing.check)
            except Exception as error:
                committed = self._after_all(error)
            self._settle_rejects()
            return self.await_published(committed)

    def _after_all(self, error: Exception) -> LoadRecord:
        """An answer may have been lost on its way: the load's record, if it was committed after all; else raises."""
        self.abort(str(error))
        try:
            record = self.door.show(self.plan.table.id, self.plan.id)
        except Error as unknown:
            if not self._commit_asked:
                raise error from None
            raise LoadPending(
                f"it is not known whether load {self.id} of {self.plan.table.full_name} counts: its commit failed "
                f"({error}), and nobody can be asked now ({unknown}). Look at `trimtab loads list` when the cluster "
                "answers; if the load was not committed it ends by itself with its lease"
            ) from error
        if record is not None and record.state in (LoadState.COMMITTED, LoadState.PUBLISHED):
            return record
        if record is not None and record.state is LoadState.STAGING:
            raise LoadPending(
                f"load {self.id} could neither be committed nor aborted now, and ends by itself with its lease: {error}"
            ) from error
        raise error

    def _commit(self, parts: Sequence[StagedPart], check: Check) -> LoadRecord:
        if failed := [part.failed for part in parts if part.failed]:
            raise LoadFailed(_most_telling(failed))
        files = [file for part in parts for file in part.files]
        if len(files) > MAX_FILES:
            raise LoadFailed(
                f"the load has {len(files)} files, more than {MAX_FILES}: each task writes one for each tablet; use "
                "fewer tasks (coalesce), or bring rows of a tablet together first (repartition by the key)"
            )
        if self.plan.rejected:
            rejecting.keep(
                self.plan.rejected, rejecting.name_of(self.plan.table.full_name, self.plan.id), _rejected(parts)
            )
        request = CommitRequest(
            self.plan.table.id,
            self.plan.id,
            rows=sum(part.rows for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            rejected=sum(part.rejected for part in parts),
        )
        deadline, known = time.monotonic() + self.settle_s, 0
        pause_s, last = _FIRST_PAUSE_S, "nobody answered"
        while True:
            trouble = ""
            try:
                places = self.door.places(self.plan.table.id)
                files, trouble = self._seal_all(files, places, check)
                check()
                sealed = tuple(sorted(self._sealed))
                self._commit_asked = True
                return self.door.commit(
                    structs.replace(request, sealed=sealed, places=places.digest, nonce=self._nonce)
                )
            except LoadRefused as error:
                if error.code not in _NOT_YET:
                    raise
                last = f"{error}; {trouble}" if trouble else str(error)
            except (Timeout, Unavailable) as error:
                # Asking again is no mistake: if it was done, its record is the answer.
                last = str(error)
            if len(self._confirmed) > known:
                # Instances have much to read, and get on with it.
                deadline, known = time.monotonic() + self.settle_s, len(self._confirmed)
            if time.monotonic() > deadline:
                raise NotNow(
                    f"the load can't be committed, after {self.settle_s:g} s in which nothing more was sealed: {last}"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _seal_all(self, files: list[HeldFile], places: Places, check: Check) -> tuple[list[HeldFile], str]:
        """Let every instance that holds replicas confirm its files; those it lacks are brought to it first.

        The files with all who hold them by now, and what went wrong, if anything did.
        """
        held = {(each.file.tablet, each.file.name): each for each in files}
        by_tablet: dict[int, list[tuple[int, str]]] = {}
        for key in held:
            by_tablet.setdefault(key[0], []).append(key)
        wanted: dict[int, list[tuple[int, str]]] = {raft_id: [] for raft_id in sorted(places.holders())}
        for tablet, replicas in enumerate(places.replicas):
            for raft_id in replicas:
                wanted[raft_id] += by_tablet.get(tablet, [])
        if (places.replicas, wanted) != self._listed:
            # Under one name there is only ever one list, whichever of the requests for it arrives last.
            self._listed, self._nonce = (places.replicas, wanted), secrets.token_hex(8)
            self._sealed.clear()
        asked = [each for each in wanted if each not in self._sealed]
        trouble: list[str] = []
        done = len(wanted) - len(asked)
        with CallThreads(_AT_ONCE, "trimtab-seal") as calls:
            answers = [
                calls.submit(self._seal, raft_id, [held[key] for key in wanted[raft_id]], check) for raft_id in asked
            ]
            for raft_id, answer in zip(asked, answers, strict=True):
                sealed, now_held, why = answer.result()
                for each in now_held:
                    key = each.file.tablet, each.file.name
                    held[key] = replace(held[key], holders=tuple(sorted({*held[key].holders, *each.holders})))
                if sealed:
                    self._sealed.add(raft_id)
                    done += 1
                else:
                    trouble.append(f"{places.names.get(raft_id, raft_id)}: {why}")
                self._tell("seal", done, len(wanted))
        return list(held.values()), "; ".join(trouble)

    def _seal(self, raft_id: int, files: Sequence[HeldFile], check: Check) -> tuple[bool, list[HeldFile], str]:
        """Whether an instance has confirmed these files; those that were brought to it; why not."""
        brought: list[HeldFile] = []
        absent = [each for each in files if raft_id not in each.holders]
        try:
            if absent:
                brought = self._bring(raft_id, absent)
            missing = self._ask_to_seal(raft_id, [each.file for each in files], check)
            if missing:
                # It said it had them, and has not: its disk was replaced, or they are damaged there.
                lost = [each for each in files if (each.file.tablet, each.file.name) in missing]
                others = [replace(each, holders=tuple(h for h in each.holders if h != raft_id)) for each in lost]
                brought += self._bring(raft_id, others, replace=True)
                missing = self._ask_to_seal(raft_id, [each.file for each in files], check)
        except (LoadFailed, LoadRefused):
            raise
        except (Error, BulkError) as error:
            return False, brought, str(error)
        return not missing, brought, f"{len(missing)} files are not there" if missing else ""

    def _ask_to_seal(self, raft_id: int, files: list[StagedFile], check: Check) -> set[tuple[int, str]]:
        missing: set[tuple[int, str]] = set()
        session, table = self.plan.id, self.plan.table.id
        lists = _in_parts(files)
        for part, some in enumerate(lists):
            # Where something is missing the list is not whole yet; what else is missing is asked all the same.
            last = part + 1 == len(lists) and not missing
            check()
            reply = self.door.seal(raft_id, SealRequest(session, table, some, part=part, last=last, nonce=self._nonce))
            missing |= {(tablet, name) for tablet, name in reply.missing}
            if not reply.missing:
                self._confirmed.add((self._nonce, raft_id, part))
        return missing

    def _bring(self, raft_id: int, files: Sequence[HeldFile], *, replace: bool = False) -> list[HeldFile]:
        if not files:
            return []
        tickets = self.door.ticket(self.plan.id, TICKET_MS)
        if raft_id not in tickets.bulk:
            raise BulkError("its bulk server is not known: it is not Online")
        return spread(
            self.plan.id,
            files,
            raft_id,
            tickets.bulk,
            tickets.ticket,
            tls=self.door.tls,
            connect=self.connect,
            replace=replace,
        )

    # Afterwards

    def await_published(self, record: LoadRecord) -> LoadRecord:
        """Wait until everybody can read the load's rows. LoadPending: it takes longer, and goes on by itself."""
        deadline = time.monotonic() + self.publish_s
        while record.state is LoadState.COMMITTED:
            self._tell("adopt", len(record.adopted), len(record.sealed))
            if time.monotonic() > deadline:
                waiting = [self.plan.name_of(each) for each in record.sealed if each not in record.adopted]
                raise LoadPending(
                    f"load {record.id} is committed, and is seen as soon as {', '.join(waiting)} has taken it over; "
                    f"that took longer than {self.publish_s:g} s, look at `trimtab loads list`"
                )
            record = self._look_again(record)
        if record.state is LoadState.ABORTED:
            raise NotNow(f"load {record.id} was aborted: {record.reason}")
        self._tell("adopt", len(record.sealed), len(record.sealed))
        return record

    def _look_again(self, record: LoadRecord) -> LoadRecord:
        try:
            found = self.door.wait_ended(self.plan.table.id, self.plan.id, _LOOK_S)
        except (Timeout, Unavailable):
            return record  # nobody leads just now; the load is safe, and whoever does next goes on with it
        if found is None:
            raise LoadFailed(f"load {record.id} is gone: {self.plan.table.full_name} was dropped meanwhile")
        return found

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)


def plan_of(
    door: Door,
    request: LoadRequest,
    table: Table,
    types: Mapping[str, UserType],
    record: LoadRecord,
    now_ms: int | None = None,
) -> LoadPlan:
    """What tasks of a load that was begun have to know; the ticket and where to send is still missing."""
    places = door.places(table.id)
    chunk = {
        name: value
        for name, value in (("chunk_rows", request.chunk_rows), ("chunk_bytes", request.chunk_bytes))
        if value
    }
    return LoadPlan(
        connection=door.connection,
        id=record.id,
        table=table,
        types=types,
        stamp_us=record.stamp_us,
        now_ms=now_ms if now_ms is not None else record.begun_ms,
        ttl_s=request.ttl_s,
        replicas=places.replicas,
        bulk={},
        dcs=places.dcs,
        names=places.names,
        ticket=b"",
        lease_ms=request.lease_ms,
        on_error=request.on_error,
        rejected=request.rejected,
        done=record.state is not LoadState.STAGING,
        **chunk,
    )


def _in_parts(files: Sequence[StagedFile]) -> list[list[StagedFile]]:
    """Cut so that each part can be looked at in the time of one answer. There is one, though there are no files."""
    parts: list[list[StagedFile]] = [[]]
    size_bytes = 0
    for file in files:
        if parts[-1] and (len(parts[-1]) == FILES_PER_SEAL or size_bytes + file.size_bytes > BYTES_PER_SEAL):
            parts.append([])
            size_bytes = 0
        parts[-1].append(file)
        size_bytes += file.size_bytes
    return parts


def _rejected(parts: Sequence[StagedPart]) -> list[str]:
    return [name for part in parts for name in part.rejected_files]


def _most_telling(reasons: Sequence[str]) -> str:
    """The first that is not only the echo of another: when one task ends a load, all others find it ended."""
    return next((each for each in reasons if "is not open any more" not in each), reasons[0])
