"""Who may load what, and when a load counts: the decisions that its driver asks the leader for.

    begin     the table is there and as the driver knows it, enough replicas of every tablet live, not too many loads
              are open, and no other load of the table has the stamp
    commit    one write that is the point of no return. Every replica that is not down holds all files of its tablets,
              durably; and of every tablet so many do that whatever quorum is asked later meets one. The condition has
              the places of all replicas, so that none can have come to the table meanwhile.
    abort     anything before that

Asking again is no mistake: the record of the same load is the answer, as it is by then. A *direct* load is one whose
rows are written as ordinary writes with its stamp. It has no files and no epoch, and the same id can be begun again
after an abort with the same stamp: whatever was written the first time is then written again, to no effect.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from trimtab.loads.protocol import BeginRequest, CommitRequest
from trimtab.loads.records import (
    MAX_ID_CHARACTERS,
    LoadKind,
    LoadRecord,
    LoadState,
    SessionKind,
    SessionRecord,
    epoch_key,
    is_load_stamp,
    load_stamp,
    session_key,
)
from trimtab.loads.situation import LoadChange, LoadRefused, Situation
from trimtab.tablets.records import chunk_key

MAX_OPEN_OF_TABLE = 16
MAX_OPEN = 128
MIN_LEASE_MS = 1_000
MAX_LEASE_MS = 3_600_000
MAX_WHO_CHARACTERS = 200
MAX_REASON_CHARACTERS = 500
MAX_NONCE_CHARACTERS = 64
MAX_COUNT = (1 << 63) - 1
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_ID_CHARACTERS - 1}}}")
_ENDED = {
    LoadState.ABORTED: "was aborted",
    LoadState.ROLLED_BACK: "was rolled back",
}


def begin(situation: Situation, request: BeginRequest, stamp_us: int) -> LoadChange | LoadRecord:
    """A new load, or the one of that id. `stamp_us`: the time it is stamped with, if it is new (see `stamp_for`)."""
    _check(request)
    known = situation.loads.loads.get((request.table, request.id))
    if known is not None:
        return _begun_before(situation, request, situation.load(request.table, request.id))
    table = situation.table(request.table)
    name = table.full_name
    if request.version and request.version != table.version:
        raise LoadRefused(
            "version_mismatch",
            f"{name} is at version {table.version} of its definition, and the load was prepared for version "
            f"{request.version}; look at the schema again",
        )
    _check_open(situation, request.table, name)
    _check_session(situation, request)
    _check_alive(situation, request.table)
    _check_stamp(situation, request.table, stamp_us)
    epochs = situation.loads.epoch_record(request.table)
    change = LoadChange(situation)
    if request.kind is LoadKind.OVERWRITE:
        generation = epochs.next_generation
        change.put_epochs(request.table, replace(epochs, next_generation=generation + 1))
    else:
        generation = epochs.generation
    record = LoadRecord(
        request.id,
        request.table,
        request.kind,
        LoadState.STAGING,
        stamp_us,
        generation=generation,
        direct=request.direct,
        who=request.who[:MAX_WHO_CHARACTERS],
        begun_ms=situation.now_ms,
    )
    _open(change, record, request.lease_ms)
    by = f", by {record.who}" if record.who else ""
    change.text = f"load {request.id} of {name} begins: {request.kind.value} with stamp {stamp_us}{by}"
    change.quiet = request.direct
    return change


def stamp_for(situation: Situation, table: int, now_us: int) -> int:
    """The stamp of a load that begins now: later than those of all loads of the table that are remembered."""
    newest = max((load.stamp_us for load in situation.loads.of_table(table)), default=0)
    return load_stamp(max(now_us, newest + 1))


def commit(situation: Situation, request: CommitRequest) -> LoadChange | LoadRecord:
    """The load counts from now on; its record, where it does already. LoadRefused `moved`: stage more, then again."""
    record = _open_load(situation, request.table, request.id, "committed")
    if record.state is not LoadState.STAGING:
        return record
    for count in (request.rows, request.size_bytes, request.rejected):
        if not 0 <= count <= MAX_COUNT:
            raise LoadRefused("invalid", f"{count} is no number of rows or bytes")
    if not is_nonce(request.nonce):
        raise LoadRefused("invalid", f"{request.nonce[:80]!r} is no nonce; use letters and digits")
    told = {"rows": request.rows, "size_bytes": request.size_bytes, "rejected": request.rejected}
    if record.direct:
        return _commit_direct(situation, record, told)
    name = situation.table(request.table).full_name
    holders = situation.holders(request.table)
    sealed = holders.intersection(request.sealed)
    missed = {raft_id for raft_id in holders - sealed if situation.down(raft_id)}
    if missing := holders - sealed - missed:
        raise LoadRefused(
            "moved",
            f"load {request.id} of {name} is not complete: it is not sealed on {situation.names(missing)}; stage "
            "what is missing there, and commit again",
            missing,
        )
    if request.places and request.places != situation.tables.held(request.table).digest():
        # Who has sealed what it held then may hold another tablet by now, without any of its files.
        raise LoadRefused(
            "moved",
            f"replicas of {name} have changed places since load {request.id} was sealed; look where they are, stage "
            "what is missing there, and commit again",
        )
    if short := situation.short_of(request.table, sealed, "sealed"):
        raise LoadRefused("unavailable", f"load {request.id} can't be committed now. {short}; bring instances back")
    epochs = situation.loads.epoch_record(request.table)
    generation = record.generation if record.kind is LoadKind.OVERWRITE else _newest_generation(situation, record)
    committed = replace(
        record,
        state=LoadState.COMMITTED,
        epoch=epochs.committed + 1,
        generation=generation,
        sealed=tuple(sorted(sealed)),
        missed=tuple(sorted(missed)),
        committed_ms=situation.now_ms,
        nonce=request.nonce,
        **told,
    )
    change = LoadChange(situation)
    change.put_load(committed)
    change.put_epochs(request.table, replace(epochs, committed=committed.epoch))
    change.depend(session_key(request.id))
    change.depend_on_tablets(request.table)
    # They must still be down when this is written: whoever comes back later knows of the load and fetches it.
    for raft_id in missed:
        change.depend_on_instance(raft_id)
    change.text = f"load {request.id} of {name} is committed as epoch {committed.epoch}: {request.rows} rows" + (
        f"; {situation.names(missed)} will get them when back" if missed else ""
    )
    return change


def abort(situation: Situation, table: int, id: str, reason: str) -> LoadChange | LoadRecord:
    """The load never counts, and what was staged for it goes. LoadRefused: it counts already."""
    record = situation.load(table, id)
    if record.state is LoadState.ABORTED:
        return record
    if record.state is not LoadState.STAGING:
        raise LoadRefused(
            "conflict", f"load {id} of {situation.tables.name_of(table)} is {record.state.value}; it is too late"
        )
    return ended(situation, [record], reason or "its driver gave it up")


def ended(situation: Situation, records: list[LoadRecord], reason: str) -> LoadChange:
    """Those loads are aborted, and their sessions closed."""
    change = LoadChange(situation)
    reason = reason[:MAX_REASON_CHARACTERS]
    for record in records:
        change.put_load(replace(record, state=LoadState.ABORTED, reason=reason, ended_ms=situation.now_ms))
        change.close_session(record.id)
    named = ", ".join(f"{record.id} of {situation.tables.name_of(record.table)}" for record in records[:5])
    more = f" and {len(records) - 5} more" if len(records) > 5 else ""
    change.text = f"load{'s' if len(records) > 1 else ''} {named}{more} aborted: {reason}"
    return change


def is_nonce(text: str) -> bool:
    """Whether a sealed list may be called so; it becomes part of a file's name."""
    return len(text) <= MAX_NONCE_CHARACTERS and (not text or (text.isascii() and text.isalnum()))


# Beginning


def _check(request: BeginRequest) -> None:
    if _ID.fullmatch(request.id) is None:
        raise LoadRefused(
            "invalid",
            f"{request.id[:80]!r} is no id of a load; use 1 to {MAX_ID_CHARACTERS} letters, digits, - and _, with a "
            "letter or digit first",
        )
    if not MIN_LEASE_MS <= request.lease_ms <= MAX_LEASE_MS:
        raise LoadRefused(
            "invalid", f"a lease of {request.lease_ms} ms is not from {MIN_LEASE_MS} to {MAX_LEASE_MS} ms"
        )
    if request.timestamp_us < 0:
        raise LoadRefused(
            "invalid", f"the timestamp {request.timestamp_us} lies before 1970; give a later one, or none"
        )
    if request.direct and request.kind is not LoadKind.APPEND:
        raise LoadRefused("invalid", "a direct load can only append; overwrite with files")


def _begun_before(situation: Situation, request: BeginRequest, record: LoadRecord) -> LoadChange | LoadRecord:
    name = situation.tables.name_of(request.table)
    if (record.kind, record.direct) != (request.kind, request.direct):
        raise LoadRefused("conflict", f"load {request.id} of {name} is of another kind; take another id")
    if not record.direct:
        if record.state in _ENDED:
            raise LoadRefused("ended", _how_ended(situation, record))
        return record
    generation = situation.loads.generation(request.table)
    if record.state is LoadState.ABORTED or (record.state is LoadState.STAGING and record.generation != generation):
        situation.table(request.table)
        _check_session(situation, request)
        change = LoadChange(situation)
        again = replace(record, state=LoadState.STAGING, generation=generation, reason="", ended_ms=0)
        _open(change, again, request.lease_ms)
        change.text = f"direct load {request.id} of {name} begins again, with the same stamp"
        return change
    return record


def _open(change: LoadChange, record: LoadRecord, lease_ms: int) -> None:
    change.put_load(record)
    change.open_session(
        record.id, SessionRecord(SessionKind.LOAD, record.table, change.situation.now_ms, lease_ms, why=record.who)
    )
    # Not if the table is dropped meanwhile.
    first = chunk_key(record.table, 0)
    change.expect[first] = change.situation.tables.revisions.get(first, 0)


def _check_session(situation: Situation, request: BeginRequest) -> None:
    session = situation.loads.sessions.get(request.id)
    known = (request.table, request.id) in situation.loads.open_loads
    if session is not None and (session.table != request.table or not known):
        raise LoadRefused("conflict", f"a session {request.id} is open for something else; take another id")


def _check_open(situation: Situation, table: int, name: str) -> None:
    open_now = list(situation.loads.open_loads.values())
    of_table = sum(load.table == table for load in open_now)
    if of_table >= MAX_OPEN_OF_TABLE or len(open_now) >= MAX_OPEN:
        where = f"{of_table} loads of {name}" if of_table >= MAX_OPEN_OF_TABLE else f"{len(open_now)} loads"
        limit = MAX_OPEN_OF_TABLE if of_table >= MAX_OPEN_OF_TABLE else MAX_OPEN
        raise LoadRefused(
            "too_many_loads",
            f"{where} are open, and at most {limit} may be; wait for some to end (`trimtab loads list`)",
        )


def _check_alive(situation: Situation, table: int) -> None:
    living = [
        raft_id for raft_id in situation.holders(table) if not situation.down(raft_id) and situation.alive(raft_id)
    ]
    if short := situation.short_of(table, living, "alive"):
        raise LoadRefused("unavailable", f"a load could not be committed now. {short}; bring instances back")


def _check_stamp(situation: Situation, table: int, stamp_us: int) -> None:
    assert is_load_stamp(stamp_us), f"{stamp_us} is no stamp of a load"
    for load in situation.loads.of_table(table):
        if load.stamp_us == stamp_us and (load.direct or load.state is not LoadState.ABORTED):
            raise LoadRefused(
                "conflict",
                f"load {load.id} of {situation.tables.name_of(table)} has the timestamp {stamp_us} already, and rows "
                "of two loads must differ; give another timestamp, a millisecond apart",
            )


# Committing


def _open_load(situation: Situation, table: int, id: str, what: str) -> LoadRecord:
    record = situation.load(table, id)
    if record.state in _ENDED:
        raise LoadRefused("ended", _how_ended(situation, record))
    if record.state is LoadState.STAGING and id not in situation.loads.sessions:
        raise LoadRefused("ended", f"the session of load {id} is closed, so it can't be {what}; begin a new load")
    return record


def _how_ended(situation: Situation, record: LoadRecord) -> str:
    why = f": {record.reason}" if record.reason else ""
    return f"load {record.id} of {situation.tables.name_of(record.table)} {_ENDED[record.state]}{why}"


def _commit_direct(situation: Situation, record: LoadRecord, told: dict[str, int]) -> LoadChange:
    name = situation.table(record.table).full_name
    if record.generation != situation.loads.generation(record.table):
        # Some of its rows may be in the generation that is not served any more.
        raise LoadRefused(
            "swapped",
            f"{name} was overwritten or rolled back while load {record.id} wrote to it; begin the load again with the "
            "same id, and write its rows again",
        )
    change = LoadChange(situation)
    change.put_load(
        replace(
            record,
            state=LoadState.PUBLISHED,
            committed_ms=situation.now_ms,
            published_ms=situation.now_ms,
            ended_ms=situation.now_ms,
            **told,
        )
    )
    change.depend(epoch_key(record.table))
    change.close_session(record.id)
    change.text = f"direct load {record.id} of {name} is done: {told['rows']} rows"
    change.quiet = True
    return change


def _newest_generation(situation: Situation, record: LoadRecord) -> int:
    """That of the newest overwrite that is committed: what is appended after it belongs to what it brings."""
    coming = [
        load
        for load in situation.loads.of_table(record.table)
        if load.state is LoadState.COMMITTED and load.kind is LoadKind.OVERWRITE
    ]
    newest = max(coming, key=lambda load: load.epoch, default=None)
    return newest.generation if newest is not None else situation.loads.generation(record.table)
