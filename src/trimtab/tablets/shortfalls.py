"""What a plan leaves undone, in sentences for operators; and what it has thought better of.

A plan says what to move. What it can't do is as important: tablets whose only copy is lost, replicas that nobody can
make anew, instances that can't be drained. Each is told with the numbers, and named by the table and instance that it
is about, because a drain without hope is cancelled for it.

A copy that nobody wants any more is given up (`regrets`): whoever was to get it is lost or goes itself, the instance it
was to relieve stays after all, or the keyspace has as many replicas as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from trimtab.tablets.departures import Problem, keepers, left_for_good, too_few
from trimtab.tablets.domains import domain_of
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.transitions import ADJUSTABLE, Cause, Proposal, TabletTransition, same
from trimtab.tablets.view import Place, TableView
from trimtab.tablets.wording import count, names
from trimtab.topology.view import View

_MAX_SHOWN = 3


def shortfalls(
    view: View,
    tables: TableView,
    proposals: Iterable[Proposal],
    said: Sequence[str] = (),
    *,
    lost: Collection[int],
    draining: Collection[int],
) -> tuple[Problem, ...]:
    """What is lost or has to go, and neither moves nor is about to. `said`: what the planner gave as its reasons."""
    about_to = {(proposal.table, proposal.tablet) for proposal in proposals}
    gone, leaving = set(lost), set(draining) - set(lost)
    found: list[Problem] = []
    for table, tablets in sorted(tables.maps.items()):
        if table not in tables.catalog.tables or not (gone | leaving) & tablets.loads().keys():
            continue
        under_way = tables.transitions.get(table, {})
        only: Counter[Replicas] = Counter()
        unhealed: Counter[int] = Counter()
        kept: Counter[int] = Counter()
        lacking = 0
        for tablet, replicas in tablets:
            if gone.issuperset(replicas):
                only[tuple(sorted(replicas))] += 1
            elif tablet not in under_way and (table, tablet) not in about_to:
                lacking += not gone.isdisjoint(replicas)
                unhealed.update(gone.intersection(replicas))
                kept.update(leaving.intersection(replicas))
        why = _why(view, tables, table, said, {*gone, *leaving})
        found += [
            Problem(_only_text(view, tables, table, number, who), table, unserved=True)
            for who, number in sorted(only.items())
        ]
        if unhealed:
            lack = "lacks" if lacking == 1 else "lack"
            text = f"{count(lacking)} of {tables.name_of(table)} {lack} replicas that {names(view, unhealed)} had{why}"
            found.append(Problem(text, table))
        for raft_id, number in sorted(kept.items()):
            text = f"{names(view, [raft_id])} can't be drained of {count(number)} of {tables.name_of(table)}{why}"
            found.append(Problem(text, table, raft_id))
    return tuple(found)


def regrets(
    view: View,
    tables: TableView,
    proposals: Iterable[Proposal],
    trigger: int,
    *,
    lost: Collection[int],
    draining: Collection[int],
) -> tuple[Proposal, ...]:
    """Copies to give up: nobody wants what is under way with these tablets, nor anything else; all stays as it is."""
    again = {(proposal.table, proposal.tablet) for proposal in proposals}
    unwanted = {*lost, *draining}
    dcs = {raft_id: domain_of(record).dc for raft_id, record in view.instances.items()}
    found = []
    for table, under_way in sorted(tables.transitions.items()):
        known = tables.catalog.tables.get(table)
        keyspace = tables.catalog.keyspaces.get(known.keyspace) if known is not None else None
        if keyspace is None or table not in tables.maps:
            continue
        for tablet, current in sorted(under_way.items()):
            if not _may_end(tables, (table, tablet), current) or (table, tablet) in again:
                continue
            stable = tables.maps[table].replicas(tablet)
            if left_for_good(view, stable):
                continue  # there is nothing to go back to, and whoever arrives may have the only copy
            right = Counter(dcs.get(each, "") for each in stable) == keyspace.replication and not unwanted & set(stable)
            cause = current.cause
            if goers := unwanted.intersection(current.arriving(stable)):
                cause = Cause.DRAIN if goers.isdisjoint(lost) else Cause.HEAL
                why = f"{names(view, goers)} gets nothing any more"
            elif right and current.cause is Cause.DRAIN:
                spared = set(stable).difference(current.planned or current.pending)
                why = f"{names(view, spared)} is not to go any more"
            elif right and current.cause is Cause.REPLICATION and not same(current.pending, stable):
                why = f"{keyspace.name} has the replication that it had"
            else:
                continue
            found.append(Proposal(table, tablet, stable, cause, why, trigger, current.size_bytes, stable))
    return tuple(found)


def _may_end(tables: TableView, place: Place, current: TabletTransition) -> bool:
    there = place[1] < tables.maps[place[0]].count
    return there and not current.locked and current.stage in ADJUSTABLE


def _why(view: View, tables: TableView, table: int, said: Sequence[str], without: Collection[int]) -> str:
    why = too_few(tables, keepers(view, without), [tables.catalog.tables[table].keyspace])
    shown = why or "; ".join(said[:_MAX_SHOWN])
    return f": {shown}" if shown else ""


def _only_text(view: View, tables: TableView, table: int, number: int, who: Replicas) -> str:
    had = "had the only copy" if len(who) == 1 else "had all copies"
    return (
        f"{count(number)} of {tables.name_of(table)} can't be read or written: {names(view, who)} {had}; start "
        f"{'it' if len(who) == 1 else 'one of them'} again"
    )
