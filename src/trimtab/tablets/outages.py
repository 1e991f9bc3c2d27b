"""Tablets that can't be read or written because replicas are down: told from the moment that they are.

Nothing waits for `heal-after` here: whether replicas are made anew is the planner's business (`shortfalls`), but rows
that can't be had are told at once, with whom to start again. Who has no record is not taken to be down.

A table is one line, however many of its tablets are concerned: those of which nobody answers a read, and those where
fewer are up than a quorum of all; what a level of one data centre lacks is not looked at. While a tablet moves, its
sets are those of its stage.
"""

from __future__ import annotations

from typing import NamedTuple

from trimtab.tablets.consistency import quorum_of
from trimtab.tablets.selectors import Replicas, ReplicaSets, replica_sets
from trimtab.tablets.view import TableView
from trimtab.tablets.wording import count, names
from trimtab.topology.grades import Grade
from trimtab.topology.view import View

# Who has caught up answers reads, and counts for writes (`node.serving`).
_SERVES = (Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE)


class Outage(NamedTuple):
    """What can't be had of one table. `unread`: tablets that nobody answers for; `short`: those without a quorum."""

    table: int
    unread: int
    short: int
    text: str


def not_serving(view: View) -> frozenset[int]:
    """Whose replicas answer nothing now: it left, is down, or has not caught up since."""
    return frozenset(
        raft_id
        for raft_id, record in view.instances.items()
        if record.left or record.grades.current.grade not in _SERVES
    )


def outages(view: View, tables: TableView) -> tuple[Outage, ...]:
    """What can't be read or written now, table by table; nothing while everybody is up."""
    down = not_serving(view)
    if not down:
        return ()
    found = []
    for table, tablets in sorted(tables.maps.items()):
        under_way = tables.transitions.get(table, {})
        if table not in tables.catalog.tables or not (under_way or down & tablets.loads().keys()):
            continue
        unread: list[Replicas] = []
        short: list[tuple[Replicas, int]] = []
        for tablet, replicas in tablets:
            if tablet in under_way:
                sets = tables.sets(table, tablet)
            elif down.isdisjoint(replicas):
                continue
            else:
                sets = replica_sets(None, replicas)
            if down.issuperset(sets.reads):
                unread.append(tuple(sorted(sets.reads)))
            elif lacks := _lacks(sets, down):
                short.append(lacks)
        if unread or short:
            found.append(Outage(table, len(unread), len(short), _text(view, tables.name_of(table), unread, short)))
    return tuple(found)


def _lacks(sets: ReplicaSets, down: frozenset[int]) -> tuple[Replicas, int] | None:
    """Of the set that is furthest from a quorum: who is down, and how many of them it needs; None: it has one."""
    found: tuple[Replicas, int] | None = None
    for replicas in {sets.reads, *sets.writes}:
        away = tuple(sorted(down.intersection(replicas)))
        missing = quorum_of(len(replicas)) - (len(replicas) - len(away))
        if missing > 0 and (found is None or missing > found[1]):
            found = away, missing
    return found


def _text(view: View, name: str, unread: list[Replicas], short: list[tuple[Replicas, int]]) -> str:
    sets = {*((each, 1) for each in unread), *short}
    who = sorted({raft_id for replicas, _ in sets for raft_id in replicas})
    if unread and not short:
        why = f"{names(view, who)} had {'the only copy' if len(who) == 1 else 'all copies'}"
        what = f"{count(len(unread))} of {name} can't be read or written"
    else:
        why = f"{names(view, who)} {'is' if len(who) == 1 else 'are'} down"
        what = f"{count(len(unread))} of {name} can't be read or written, {len(short)} more not at QUORUM"
        what = what if unread else f"{count(len(short))} of {name} can't be read or written at QUORUM"
    left = {raft_id for raft_id in who if view.instances[raft_id].left}
    if left.issuperset(who):
        gone = f"{'it has' if len(who) == 1 else 'they have'} left the cluster"
        return f"{what}: {why}; {gone}{', and what nobody else has is lost' if unread else ''}"
    return f"{what}: {why}; {_start(view, who, left, any_of_them=len(sets) == 1 and max(sets)[1] == 1)}"


def _start(view: View, who: list[int], left: set[int], *, any_of_them: bool) -> str:
    back = [raft_id for raft_id in who if view.instances[raft_id].grades.target.grade is Grade.ONLINE]
    to_start = [raft_id for raft_id in who if raft_id not in left and raft_id not in back]
    if not to_start:
        return f"{'it is' if len(who) == 1 else f'{names(view, back)} {_be(back)}'} on the way back"
    if len(to_start) < len(who):
        return f"start {names(view, to_start)} again"
    return f"start {'it' if len(who) == 1 else 'one of them' if any_of_them else 'them'} again"


def _be(raft_ids: list[int]) -> str:
    return "is" if len(raft_ids) == 1 else "are"
