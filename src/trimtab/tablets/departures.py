"""Whose replicas have to go elsewhere, and whether those who stay can hold them.

    draining   asked to leave, or to be removed: it goes when nothing is bound to it any more
    lost       Offline for longer than the cluster waits for anybody, being removed, or gone: what it has is made anew
               elsewhere, from others that have it too

What is declared decides: a keyspace needs as many distinct hosts in each data centre as it has replicas there. Where
those who stay are too few, nobody may go. And the only copy of a tablet goes nowhere without its instance: who is dead
and has it is waited for, however long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from trimtab.tablets.domains import domain_of, may_hold
from trimtab.tablets.placement import Node, shortage
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade
from trimtab.topology.lifecycle import open_requests
from trimtab.topology.records import RequestKind
from trimtab.topology.view import View

_OUT = (RequestKind.LEAVE, RequestKind.REMOVE)
_MAX_SHOWN = 5


class Problem(NamedTuple):
    """What keeps tablets from where they should be, for operators. `raft_id`: who can't be drained because of it.

    `unserved`: nobody has them who is up; `outages` tells that, from the first moment on.
    """

    text: str
    table: int = 0
    raft_id: int = 0
    unserved: bool = False


def going(view: View) -> dict[int, RequestKind]:
    """Who is to leave or to be removed, and has not been asked to stay after all, by raft id."""
    return {
        request.raft_id: request.kind
        for request in open_requests(view).values()
        if request.kind in _OUT and not request.cancel
    }


def asked_to_go(view: View) -> dict[int, int]:
    """The numbers of their requests."""
    return {
        request.raft_id: number
        for number, request in open_requests(view).items()
        if request.kind in _OUT and not request.cancel
    }


def lost(
    view: View, now_ms: int, heal_after_ms: int, *, in_office_ms: int, alive: Callable[[int], bool]
) -> frozenset[int]:
    """Whom nobody waits for any more; also those that have left, because a tablet may still name them.

    Where it was not noted since when one is Offline, it counts from when the leader took office.
    """
    removed = {raft_id for raft_id, kind in going(view).items() if kind is RequestKind.REMOVE}
    for request in open_requests(view).values():
        removed.update(request.ignore)
    found = set()
    for raft_id, record in view.instances.items():
        if record.left:
            found.add(raft_id)
        elif record.grades.current.grade is Grade.OFFLINE and not alive(raft_id):
            since_ms = record.down_ms or now_ms - in_office_ms
            if raft_id in removed or now_ms - since_ms >= heal_after_ms:
                found.add(raft_id)
    return frozenset(found)


def left_for_good(view: View, replicas: Collection[int]) -> bool:
    """Whether all of a set left the cluster: what they had can't be had from them any more."""
    return all(raft_id in view.instances and view.instances[raft_id].left for raft_id in replicas)


# What is bound to an instance


def bound(tables: TableView, raft_id: int) -> int:
    """How many tablets name an instance: as one that has a replica, gets one, or has yet to drop what it was to get."""
    found = 0
    for table, tablets in tables.maps.items():
        under_way = tables.transitions.get(table, {})
        stable = tablets.loads().get(raft_id, 0)
        found += stable
        for tablet, current in under_way.items():
            if raft_id in current.pending or raft_id in current.leftovers or raft_id in current.planned:
                named = tablet < tablets.count and raft_id in tablets.replicas(tablet)
                found += not named
    return found


def bound_text(tables: TableView, raft_id: int) -> str:
    """The same in words; empty: none."""
    if held := tables.holdings(raft_id):
        return held
    number = bound(tables, raft_id)
    return f"{number} tablet{'s' if number != 1 else ''} on the way to it or back" if number else ""


# Whether the others can hold it


def keepers(view: View, without: Collection[int]) -> list[Node]:
    """Everybody who may hold replicas for good, but for some."""
    return [
        Node(raft_id, *domain_of(record), 0, record.instance_id)
        for raft_id, record in sorted(view.members().items())
        if may_hold(record) and raft_id not in without
    ]


def too_few(tables: TableView, nodes: list[Node], keyspaces: Iterable[str] = (), dc: str = "") -> str | None:
    """Why these can't hold what is declared, with the numbers; None: they can. Keyspaces without tables count not.

    Of all keyspaces and data centres, unless some are named.
    """
    wanted = set(keyspaces) or {table.keyspace for table in tables.catalog.tables.values()}
    short: dict[str, list[str]] = {}
    for name in sorted(wanted):
        keyspace = tables.catalog.keyspaces.get(name)
        replication = keyspace.replication if keyspace is not None else {}
        if dc:
            replication = {dc: replication[dc]} if dc in replication else {}
        if why := shortage(replication, nodes):
            short.setdefault(why, []).append(name)
    texts = [
        f"keyspace{'s' if len(names) > 1 else ''} {', '.join(names[:_MAX_SHOWN])}"
        f"{f' and {len(names) - _MAX_SHOWN} more' if len(names) > _MAX_SHOWN else ''}: {why}"
        for why, names in short.items()
    ]
    return "; ".join(texts[:_MAX_SHOWN]) if texts else None


def stays_because(
    view: View, tables: TableView, raft_id: int, kind: RequestKind, gone: Collection[int] = ()
) -> str | None:
    """Why the others can't hold what is declared without an instance, so that it has to stay; None: it may go, in time.

    `gone` are not counted among those who stay: others that go, and those nobody waits for. Only its own data centre is
    looked at: nothing changes elsewhere. A dead one is removed; it can't hand over what nobody else has.
    """
    record = view.instances.get(raft_id)
    if record is None:
        return None
    if kind is RequestKind.REMOVE and (held := only_copies(view, tables, raft_id)):
        return (
            f"{record.instance_id} has {held}, and nobody can make those anew; start it again, or drop those tables "
            "first"
        )
    why = too_few(tables, keepers(view, {raft_id, *gone}), dc=domain_of(record).dc)
    return f"those who stay can't hold what is declared: {why}" if why else None


def only_copies(view: View, tables: TableView, raft_id: int) -> str:
    """The tablets of which no other member has a replica, in words; empty: there are none.

    Only of interest where the instance is dead: one that lives hands over what it has.
    """
    members = {other for other in view.members() if other != raft_id}
    found: dict[int, int] = {}
    for table, tablets in sorted(tables.maps.items()):
        if not tablets.loads().get(raft_id):
            continue
        number = sum(raft_id in replicas and members.isdisjoint(replicas) for _, replicas in tablets)
        if number:
            found[table] = number
    if not found:
        return ""
    shown = [f"{tables.name_of(table)} ({number})" for table, number in list(found.items())[:_MAX_SHOWN]]
    if len(found) > len(shown):
        shown.append(f"{len(found) - len(shown)} more tables")
    total = sum(found.values())
    return f"the only copy of {total} tablet{'s' if total != 1 else ''} of {', '.join(shown)}"
