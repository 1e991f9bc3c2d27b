"""What stays of loads that are over: the generation before an overwrite, and records of what happened.

A *rollback* of the newest overwrite serves the generation before it again. It is an epoch of its own, without rows, so
that scans under way go on reading what they began with. Everything that was loaded or written since the overwrite goes
with it; that is said before it is done.

Before it is written, everybody who may take writes must know that it is coming (`announce`): from then on each of them
has a majority confirm what is served before it takes a write. Else instances that are cut off, and have yet to notice,
would go on acknowledging writes into what was dropped. An announcement that came to nothing is withdrawn.

The generation before is dropped KEEP_GENERATION_MS after the overwrite, or when the next one becomes visible. One that
was rolled back is dropped when no scan can be reading it any more. Records of loads stay as long as a reader may depend
on them, and of older ones the newest. The last one of each stream stays for days: a stream that is started again asks
whether its last batch counts already. An attempt that ended stays as long as a later one at the same load (`attempts`).
"""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from trimtab.loads.attempts import later_attempts
from trimtab.loads.protocol import RollbackReply, RollbackRequest
from trimtab.loads.records import (
    KEEP_GENERATION_MS,
    SCAN_LIFE_MS,
    STREAM,
    EpochRecord,
    LoadKind,
    LoadRecord,
    LoadState,
)
from trimtab.loads.situation import LoadChange, LoadRefused, Situation

KEEP_ENDED = 100  # records of loads that are over, of each table
KEEP_ENDED_MS = 2 * SCAN_LIFE_MS  # and all that ended since
KEEP_STREAM_MS = 7 * 86_400_000
KEEP_RETURNS = 4
MAX_FORGOTTEN = 200  # at once
MAX_ROLLED_BACK = 500  # records that one rollback changes
ANNOUNCED_MS = 60_000  # after so long whoever announced a rollback has given it up, or is gone


def announce(situation: Situation, request: RollbackRequest) -> LoadChange | LoadRecord:
    """Say that a rollback is coming; the load's record, where that is said already, or the rollback done."""
    record = situation.load(request.table, request.id)
    epochs = situation.loads.epoch_record(request.table)
    if record.state is LoadState.ROLLED_BACK:
        return record
    name = situation.table(request.table).full_name
    _check(situation, name, record, epochs)
    if epochs.returning_ms:
        return record
    change = LoadChange(situation)
    change.put_epochs(request.table, replace(epochs, returning_ms=max(situation.now_ms, 1)))
    change.text = f"overwrite {record.id} of {name} is about to be rolled back"
    change.quiet = True
    return change


def withdraw(situation: Situation, table: int, *, older_ms: int = 0) -> LoadChange | None:
    """Take back that a rollback is coming, if that was said so long ago; None: it was not."""
    epochs = situation.loads.epoch_record(table)
    if not epochs.returning_ms or situation.now_ms < epochs.returning_ms + older_ms:
        return None
    change = LoadChange(situation)
    change.put_epochs(table, replace(epochs, returning_ms=0))
    change.text = f"no rollback of {situation.tables.name_of(table)} is under way any more"
    change.quiet = True
    return change


def rollback(situation: Situation, request: RollbackRequest) -> tuple[LoadChange, RollbackReply]:
    """The change, and what it drops. LoadRefused: it is not the newest overwrite, or nothing is left to go back to."""
    name = situation.table(request.table).full_name
    record = situation.load(request.table, request.id)
    epochs = situation.loads.epoch_record(request.table)
    _check(situation, name, record, epochs)
    back_to = epochs.generations[-2][1]
    later = [load for load in situation.loads.of_table(request.table) if _went_with(load, record)]
    if len(later) > MAX_ROLLED_BACK:
        later = sorted(later, key=lambda load: load.published_ms)[-MAX_ROLLED_BACK:]
    change = LoadChange(situation)
    reason = f"overwrite {record.id} was rolled back"
    for load in (record, *later):
        why = "rolled back by an operator" if load is record else reason
        change.put_load(replace(load, state=LoadState.ROLLED_BACK, reason=why, ended_ms=situation.now_ms))
    epoch = epochs.committed + 1
    needed = situation.loads.needed(request.table, record.epoch - 1)
    change.put_epochs(
        request.table,
        replace(
            epochs,
            committed=epoch,
            visible=epoch,
            generations=(*epochs.generations, (epoch, back_to)),
            returns=(*epochs.returns, (epoch, needed, situation.now_ms))[-KEEP_RETURNS:],
            returning_ms=0,
        ),
    )
    also = f", {len(later)} later load{'s' if len(later) != 1 else ''}" if later else ""
    change.text = (
        f"{name} is back at generation {back_to}, from epoch {epoch} on: overwrite {record.id}{also} and all writes "
        "since are dropped"
    )
    return change, RollbackReply(record, later, record.published_ms, back_to)


def _check(situation: Situation, name: str, record: LoadRecord, epochs: EpochRecord) -> None:
    if record.kind is not LoadKind.OVERWRITE or record.state is not LoadState.PUBLISHED:
        raise LoadRefused(
            "conflict",
            f"load {record.id} of {name} is an {record.kind.value} that is {record.state.value}; only an overwrite "
            "that can be seen can be rolled back",
        )
    if epochs.generations[-1] != (record.epoch, record.generation):
        if record.generation == epochs.generation:
            raise LoadRefused(
                "conflict",
                f"{name} serves overwrite {record.id} because a later one was rolled back, which can be done once: "
                "what was before is not kept. Overwrite the table with what it should hold",
            )
        raise LoadRefused(
            "conflict",
            f"overwrite {record.id} is not what {name} serves now (generation {epochs.generation}, since epoch "
            f"{epochs.generations[-1][0]}); only the newest can be rolled back",
        )
    if len(epochs.generations) == 1:
        raise LoadRefused(
            "conflict",
            f"what {name} held before overwrite {record.id} is gone: it is kept for "
            f"{KEEP_GENERATION_MS // 3_600_000} hours",
        )
    if epochs.visible != epochs.committed:
        raise LoadRefused(
            "not_ready",
            f"{epochs.committed - epochs.visible} committed loads of {name} have yet to become visible; try again in a "
            "moment (`trimtab loads list` shows them)",
        )


def _went_with(load: LoadRecord, overwrite: LoadRecord) -> bool:
    """Whether the rows of a load are in the generation that an overwrite brought."""
    return load.id != overwrite.id and load.state is LoadState.PUBLISHED and load.generation == overwrite.generation


def trim(situation: Situation, table: int) -> LoadChange | None:
    """Drop the generations that nobody needs any more; None: there are none."""
    epochs = situation.loads.epoch_record(table)
    if len(epochs.generations) == 1 or epochs.visible != epochs.committed:
        return None
    first, generation = epochs.generations[-1]
    returned_ms = next((at_ms for epoch, _needed, at_ms in epochs.returns if epoch == first), None)
    if returned_ms is not None:
        since_ms, keep_ms = returned_ms, SCAN_LIFE_MS
    else:
        loads = situation.loads.of_table(table)
        since_ms = next((load.published_ms for load in loads if load.epoch == first), 0)
        keep_ms = KEEP_GENERATION_MS
    if situation.now_ms < since_ms + keep_ms:
        return None
    change = LoadChange(situation)
    change.put_epochs(table, replace(epochs, generations=epochs.generations[-1:]))
    gone = sorted({each for _epoch, each in epochs.generations} - {generation})
    change.text = f"{situation.tables.name_of(table)} keeps only generation {generation}; dropped: {gone}"
    return change


def forgettable(situation: Situation, table: int) -> list[LoadRecord]:
    """Records of loads that are over, and that neither a reader nor a rollback needs; the oldest first."""
    if situation.loads.count(table) <= KEEP_ENDED:
        return []
    kept = situation.loads.generations(table)
    loads = situation.loads.of_table(table)
    last = {load.who: load.id for load in sorted(loads, key=_seen) if _of_stream(load, situation.now_ms)}
    over = [
        load
        for load in loads
        if load.state.final
        and last.get(load.who) != load.id
        and situation.now_ms >= load.ended_ms + (0 if load.direct else KEEP_ENDED_MS)
        and not (load.kind is LoadKind.OVERWRITE and load.state is LoadState.PUBLISHED and load.generation in kept)
    ]
    over.sort(key=_ended)
    going = over[: max(len(over) - KEEP_ENDED, 0)]
    known = {load.id for load in loads}
    stays = known - {load.id for load in going}
    return [load for load in going if not _followed(load, known, stays)][:MAX_FORGOTTEN]


def _followed(load: LoadRecord, known: set[str], stays: set[str]) -> bool:
    """Whether a later attempt at the same load stays, which is found only by way of this one."""
    if load.state is LoadState.PUBLISHED:
        return False
    return any(id in stays for later in later_attempts(load.id) for id in takewhile(known.__contains__, later))


def _of_stream(load: LoadRecord, now_ms: int) -> bool:
    """Whether it is a micro batch that counts, of a stream that may go on."""
    lately = now_ms < load.ended_ms + KEEP_STREAM_MS
    counted = load.state in (LoadState.PUBLISHED, LoadState.ROLLED_BACK)  # what was rolled back is not run again
    return lately and counted and load.who.startswith(STREAM)


def _ended(load: LoadRecord) -> int:
    return load.ended_ms


def _seen(load: LoadRecord) -> int:
    return load.published_ms


def dropped(situation: Situation, table: int) -> bool:
    """Whether the table is certainly gone: a schema that is behind, or can't be read, says nothing."""
    tables = situation.tables
    return not tables.waits_for and table not in tables.catalog.tables and table not in tables.maps


def forget_table(situation: Situation, table: int) -> LoadChange | None:
    """Forget the loads of a table that was dropped, a while after the last has ended; None: nothing is to be done."""
    loads = situation.loads.of_table(table)
    if any(not load.state.final or situation.now_ms < load.ended_ms + KEEP_ENDED_MS for load in loads):
        return None
    change = LoadChange(situation)
    for load in loads[:MAX_FORGOTTEN]:
        change.forget_load(load)
    if len(loads) <= MAX_FORGOTTEN and table in situation.loads.epochs:
        change.forget_epochs(table)
    change.text = f"the loads of table {table}, which was dropped, are forgotten"
    return change if change.deletes else None
