"""The leader's part in loads: from the commit to their being seen, and the end of those that nobody drives any more.

    publish_loads   every living holder takes a committed load over; when all have, it is seen. One load of a table at a
                    time, in the order of epochs, so that nobody ever sees a later one before an earlier one.
    end_loads       a load whose driver was not heard from for a whole lease, or whose table was dropped, is aborted,
                    and its session closed; what was staged under it is swept by whoever holds it
    tidy_loads      generations and records that nobody needs any more go, and what a rollback left that was not done

A driver is needed up to the commit and not beyond it: whoever leads finishes what was committed. How long ago drivers
were heard from is known to the leader alone, so a new one gives each of them a whole lease. Decisions are those of
`trimtab.loads`; here is when they are made.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Adopt, Commit, Step, StepKey, StepKind, Told, Write
from trimtab.governor.wording import seconds
from trimtab.loads.generations import ANNOUNCED_MS, dropped, forget_table, forgettable, trim, withdraw
from trimtab.loads.publishing import adopted, keeps_hidden, next_load, tables_with_committed, to_adopt
from trimtab.loads.records import LoadRecord, LoadState, SessionKind
from trimtab.loads.rules import ended
from trimtab.loads.situation import LoadChange

MAX_ENDED = 50  # loads that end in one write
_FORGET_AT_LEAST = 20  # records: fewer are not worth a write


def write_of(change: LoadChange) -> Write:
    """A decision about loads as a write of the leader's."""
    told = () if change.quiet else (Told(change.text),)
    return Write(change.expect, change.puts, tuple(change.deletes), told)


def publish_loads(state: ClusterState) -> Step | None:
    """Rule: committed loads are taken over and become visible, each table's in their order."""
    situation = state.load_situation
    busy = state.busy(StepKind.ADOPT) | state.busy(StepKind.LOAD)
    for table in tables_with_committed(state.loads):
        if table in busy or _left_alone(state, table):
            continue
        load = next_load(state.loads, table)
        if load is None:
            continue
        if not keeps_hidden(situation, load) and StepKey(StepKind.LOAD, (table,)) not in state.resting:
            change = adopted(situation, load, ())
            return Commit(StepKind.LOAD, change.text, (table,), write=write_of(change))
        # Whoever is silent is marked Offline before long, and then nobody waits for it.
        nodes = tuple(sorted(raft_id for raft_id in to_adopt(situation, load) if state.alive(raft_id)))
        if nodes and StepKey(StepKind.ADOPT, (table,)) not in state.resting:
            why = f"load {load.id} of {state.tables.name_of(table)} is taken over by {situation.names(nodes)}"
            return Adopt(StepKind.ADOPT, why, (table,), table=table, id=load.id, nodes=nodes, index=state.commit)
    return None


def end_loads(state: ClusterState) -> Commit | None:
    """Rule: loads that can't or won't be committed any more end, and sessions without a load are closed."""
    if state.busy(StepKind.LOAD_END):
        return None
    situation = state.load_situation
    gone: dict[str, list[LoadRecord]] = {}
    for load in state.loads.open_loads.values():
        if state.loads.unread(load.table):
            continue
        if dropped(situation, load.table):
            gone.setdefault("its table was dropped", []).append(load)
        elif load.state is LoadState.STAGING and (why := _driver_gone(state, load)):
            gone.setdefault(why, []).append(load)
    for reason, loads in gone.items():
        change = ended(situation, loads[:MAX_ENDED], reason)
        return _commit(change, loads[:MAX_ENDED])
    return _close_orphans(state)


def tidy_loads(state: ClusterState) -> Commit | None:
    """Rule: what is left of loads that are over goes when nobody needs it any more."""
    if state.busy(StepKind.LOAD_END):
        return None
    situation = state.load_situation
    for table in sorted(state.loads.tables):
        if state.loads.unread(table):
            continue
        if dropped(situation, table):
            if (change := forget_table(situation, table)) is not None:
                return Commit(StepKind.LOAD_END, change.text, (table,), write=write_of(change))
            continue
        change = withdraw(situation, table, older_ms=ANNOUNCED_MS) or trim(situation, table)
        if change is not None:
            return Commit(StepKind.LOAD_END, change.text, (table,), write=write_of(change))
        old = forgettable(situation, table)
        if len(old) >= _FORGET_AT_LEAST:
            change = LoadChange(situation)
            for load in old:
                change.forget_load(load)
            change.text = f"{len(old)} loads of {state.tables.name_of(table)} that ended long ago are forgotten"
            return Commit(StepKind.LOAD_END, change.text, (table,), write=write_of(change))
    return None


def _left_alone(state: ClusterState, table: int) -> bool:
    """Whether nothing becomes visible of a table: it is gone, or not all of its records can be read here."""
    return bool(state.loads.unread(table)) or dropped(state.load_situation, table)


def _driver_gone(state: ClusterState, load: LoadRecord) -> str:
    """Why the driver of a load counts as gone; empty: it does not."""
    session = state.loads.sessions.get(load.id)
    if session is None:
        return "its session is closed"
    if session.lease_ms and state.renewed_ms.get((load.table, load.id), 0) > session.lease_ms:
        return f"its driver was not heard from for {seconds(session.lease_ms)}"
    return ""


def _close_orphans(state: ClusterState) -> Commit | None:
    """Sessions of loads that are over, or that nobody knows: nothing may be staged under them."""
    change = LoadChange(state.load_situation)
    closed: list[str] = []
    for id in _orphans(state):
        if len(closed) == MAX_ENDED:
            break
        change.close_session(id)
        closed.append(id)
    if not closed:
        return None
    change.text = f"the sessions {', '.join(closed[:5])} are closed: no load is open under them"
    return Commit(StepKind.LOAD_END, change.text, (0,), write=write_of(change))


def _orphans(state: ClusterState) -> Iterator[str]:
    for id, session in sorted(state.loads.sessions.items()):
        if session.kind is SessionKind.LOAD:
            load = state.loads.loads.get((session.table, id))
            if state.loads.unread(session.table):
                continue
            if load is None or load.state.final:
                yield id


def _commit(change: LoadChange, loads: list[LoadRecord]) -> Commit:
    tables = tuple(sorted({load.table for load in loads}))
    return Commit(StepKind.LOAD_END, change.text, tables, write=write_of(change))
