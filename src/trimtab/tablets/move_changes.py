"""New targets of tablets as one conditional write: what an operator asks for, and what the planner proposes.

`begun_write` is the one place where a proposal becomes records. Whoever wants other replicas for tablets, one or many
at a time, gives it the proposals, and writes what comes back if every key in `expect` is at that revision:

    transitions/<table>/<tablet>    as `transitions.propose` has it; its version is the one that this write raises to
    rebalance/<table>               running, with the newest trigger: loads of the table depend on it
    sessions/<session>              deleted, where a copy is given up or begins anew
    topology/version                one more, if any routing or stage changes by it

It depends on what was looked at: the chunks with the stable sets, the transitions, the sessions that it closes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from trimtab.tablets.domains import domain_of
from trimtab.tablets.records import CHUNK_TABLETS, chunk_key
from trimtab.tablets.selectors import Replicas, Stage
from trimtab.tablets.stages import kind_of
from trimtab.tablets.transitions import (
    Outcome,
    Proposal,
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    encode,
    propose,
    rebalance_key,
    transition_key,
)
from trimtab.tablets.view import TableView
from trimtab.topology.records import SESSIONS, VERSION_KEY
from trimtab.topology.view import View

# Outcomes that are news to whoever routes: the stage, or the set that takes writes, is another.
_ROUTING = frozenset((Outcome.PENDING, Outcome.ADJUSTED, Outcome.UNDONE))
_UNWRITTEN = frozenset((Outcome.STALE, Outcome.NOTHING))


@dataclass(frozen=True)
class Proposed:
    """What became of one proposal: what is under way with its tablet after the write."""

    proposal: Proposal
    outcome: Outcome
    stable: Replicas
    transition: TabletTransition | None


@dataclass
class MovesWrite:
    """`proposed` has all proposals, also those that change nothing."""

    expect: dict[bytes, int] = field(default_factory=dict)
    puts: dict[bytes, bytes] = field(default_factory=dict)
    deletes: list[bytes] = field(default_factory=list)
    proposed: list[Proposed] = field(default_factory=list)


def begun_write(
    view: View,
    tables: TableView,
    proposals: Iterable[Proposal],
    *,
    term: int,
    now_ms: int,
    new_session: Callable[[Proposal], str],
    lost: Collection[int] = (),
) -> MovesWrite:
    """The write that makes these proposals pending, or planned. Each is of another tablet, and the tablet is there."""
    made = MovesWrite()
    version = view.version + 1
    triggers: dict[int, int] = {}
    raises = False
    dc_of = {raft_id: domain_of(record).dc for raft_id, record in view.instances.items()}
    for proposal in proposals:
        table, tablet = proposal.table, proposal.tablet
        stable, current = tables.maps[table].replicas(tablet), tables.transition(table, tablet)
        kind = kind_of(stable, proposal.target, dc_of, lost)
        outcome, after = propose(stable, current, proposal, session=new_session(proposal), kind=kind, now_ms=now_ms)
        if outcome in _ROUTING:
            assert after is not None, "a tablet whose routing changes is under way"
            after = msgspec.structs.replace(after, version=version)
            raises = True
        made.proposed.append(Proposed(proposal, outcome, stable, after))
        if outcome in _UNWRITTEN or after is None:
            continue
        key = transition_key(table, tablet)
        _depend(made, view, key, chunk_key(table, tablet // CHUNK_TABLETS))
        made.puts[key] = encode(after)
        if current is not None and current.session and _closes(outcome, after):
            session = SESSIONS + current.session.encode()
            _depend(made, view, session)
            if session in view.revisions:
                made.deletes.append(session)
        triggers[table] = max(triggers.get(table, 0), proposal.trigger)
    for table, trigger in triggers.items():
        key = rebalance_key(table)
        _depend(made, view, key)
        made.puts[key] = encode(running(tables.rebalances.get(table), term, trigger, now_ms))
    if raises:
        _depend(made, view, VERSION_KEY)
        made.puts[VERSION_KEY] = b"%d" % version
    return made


def running(before: RebalanceRecord | None, term: int, trigger: int, now_ms: int) -> RebalanceRecord:
    """The record of a table's rebalance once another target is taken up; one that runs goes on."""
    if before is None or before.state is not RebalanceState.RUNNING:
        skipped = before.skipped if before is not None and before.skipped > trigger else 0
        return RebalanceRecord(RebalanceState.RUNNING, term, trigger, skipped, began_ms=now_ms)
    return msgspec.structs.replace(before, term=term, trigger=max(trigger, before.trigger))


def _closes(outcome: Outcome, after: TabletTransition) -> bool:
    """Whether nothing may be adopted any more under the session that there was."""
    return outcome is Outcome.ADJUSTED or (outcome is Outcome.UNDONE and after.stage is Stage.CLEANUP_TARGET)


def _depend(made: MovesWrite, view: View, *keys: bytes) -> None:
    made.expect |= {key: view.revisions.get(key, 0) for key in keys}
