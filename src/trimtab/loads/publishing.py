"""From the commit of a load to its being seen: who has yet to take it over, and the write that makes it visible.

Loads of a table become visible in the order of their epochs, one at a time, so an instance that is asked to take a load
over has all before it. A load becomes visible when

- every instance that holds its files has taken them over, but for those that are down (they are not asked for rows, and
  fetch what they missed before they are again), and
- of every tablet so many replicas have it, in every data centre, as a write at EACH_QUORUM needs. When fewer are up,
  it waits for them: whoever compares itself with enough others later is then sure to meet one that has it.

Who gets a replica by a move that began after the commit has no files of the load: it gets the rows with its copy, which
is only made of replicas that have taken over everything that was committed when copying began.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.loads.situation import LoadChange, Situation
from trimtab.loads.view import LoadView

MAX_GENERATIONS = 2  # that are kept when an overwrite becomes visible: its own, and the one before


def next_load(loads: LoadView, table: int) -> LoadRecord | None:
    """The committed load whose turn it is to become visible."""
    turn = loads.visible(table) + 1
    for load in loads.open_loads.values():
        if load.table == table and load.state is LoadState.COMMITTED and load.epoch == turn:
            return load
    return None


def tables_with_committed(loads: LoadView) -> list[int]:
    """The tables of which some load is committed and not visible yet."""
    return sorted({load.table for load in loads.open_loads.values() if load.state is LoadState.COMMITTED})


def to_adopt(situation: Situation, record: LoadRecord) -> frozenset[int]:
    """The instances that are up, hold its files and have not taken them over."""
    left = set(record.sealed).difference(record.adopted)
    return frozenset(raft_id for raft_id in left if not situation.down(raft_id))


def keeps_hidden(situation: Situation, record: LoadRecord) -> str:
    """Why a load whose turn it is can't be seen yet; empty: it can."""
    if left := to_adopt(situation, record):
        return f"{situation.names(left)} {'has' if len(left) == 1 else 'have'} yet to take it over"
    return situation.short_of(record.table, record.adopted, "have it", (*record.sealed, *record.missed))


def adopted(situation: Situation, record: LoadRecord, answered: Collection[int]) -> LoadChange:
    """Those have taken the load over; where that is enough, it becomes visible in the same write."""
    now = replace(record, adopted=tuple(sorted({*record.adopted, *answered}.intersection(record.sealed))))
    change = LoadChange(situation)
    name = situation.tables.name_of(record.table)
    if keeps_hidden(situation, now):
        change.put_load(now)
        change.text = f"load {record.id} of {name} is taken over by {situation.names(now.adopted)}"
        return change
    epochs = situation.loads.epoch_record(record.table)
    assert record.state is LoadState.COMMITTED and record.epoch == epochs.visible + 1, "loads are seen in their order"
    change.put_load(replace(now, state=LoadState.PUBLISHED, published_ms=situation.now_ms, ended_ms=situation.now_ms))
    generations = epochs.generations
    if record.kind is LoadKind.OVERWRITE:
        generations = (*generations, (record.epoch, record.generation))[-MAX_GENERATIONS:]
    change.put_epochs(record.table, replace(epochs, visible=record.epoch, generations=generations))
    change.close_session(record.id)
    # They must still be down when this is written: whoever comes back later finds the epoch, and catches up with it.
    for raft_id in set(record.sealed).difference(now.adopted):
        change.depend_on_instance(raft_id)
    swapped = f", as generation {record.generation}" if record.kind is LoadKind.OVERWRITE else ""
    change.text = f"load {record.id} of {name} can be seen, from epoch {record.epoch} on{swapped}: {record.rows} rows"
    return change
