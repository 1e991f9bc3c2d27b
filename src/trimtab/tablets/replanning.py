"""One turn of planning: from the cluster as it is seen to proposals, and to what keeps the planner from more.

Everything is taken from copies (`Outline`), because a turn is long where there are many tablets and runs beside the
loop, while the views go on changing. So what comes out may be outdated when it comes; each proposal says what it was
computed on.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.tablets.departures import Problem
from trimtab.tablets.shortfalls import regrets, shortfalls
from trimtab.tablets.sizes import SizeLedger
from trimtab.tablets.transitions import Proposal
from trimtab.tablets.view import TableView
from trimtab.topology.view import View

if TYPE_CHECKING:
    from trimtab.tablets.balancer.model import Cluster


@dataclass(frozen=True)
class Outline:
    """What a plan is made of. `trigger` is the metastore's revision that all of it was seen at.

    `avoided`: who could not take tablets lately. It gets none, unless some have no other place.
    """

    view: View
    tables: TableView
    sizes: SizeLedger
    lost: frozenset[int]
    draining: frozenset[int]
    trigger: int
    avoided: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Planned:
    """In the order of urgency."""

    proposals: tuple[Proposal, ...] = ()
    problems: tuple[Problem, ...] = ()


# Proposals, and why there are not more.
Planner = Callable[[Outline], tuple[tuple[Proposal, ...], tuple[str, ...]]]


def outline(
    view: View,
    tables: TableView,
    sizes: SizeLedger,
    *,
    lost: frozenset[int],
    draining: frozenset[int],
    trigger: int,
    avoided: frozenset[int] = frozenset(),
) -> Outline:
    """A copy of what may change meanwhile; records themselves don't."""
    seen, known = copy(view), copy(tables)
    seen.instances, seen.requests = dict(view.instances), dict(view.requests)
    known.maps = {table: tablets.copy() for table, tablets in tables.maps.items()}
    known.transitions = {table: dict(under_way) for table, under_way in tables.transitions.items()}
    return Outline(seen, known, sizes.copy(), lost, draining, trigger, avoided)


def planned(seen: Outline, planner: Planner) -> Planned:
    """What should be done now, and what can't be."""
    proposals, said = planner(seen)
    given_up = regrets(seen.view, seen.tables, proposals, seen.trigger, lost=seen.lost, draining=seen.draining)
    problems = shortfalls(seen.view, seen.tables, proposals, said, lost=seen.lost, draining=seen.draining)
    told = {problem.text for problem in problems}
    rest = () if problems else tuple(Problem(text) for text in said if text not in told)
    return Planned((*given_up, *proposals), problems + rest)


def by_balancer(seen: Outline) -> tuple[tuple[Proposal, ...], tuple[str, ...]]:
    """The planner of the product."""
    from trimtab.tablets.balancer.live import cluster_of, proposals
    from trimtab.tablets.balancer.planning import plan

    cluster = cluster_of(seen.view, seen.tables, seen.sizes, lost=seen.lost, draining=seen.draining)
    made = plan(_without_room(cluster, seen.avoided))
    if seen.avoided and made.problems:
        # Better to try whoever failed once more than to leave a tablet where it can't stay. What nobody can help is no
        # reason to.
        whole = plan(cluster)
        made = whole if len(whole.problems) < len(made.problems) else made
    return proposals(made, cluster, seen.tables, seen.trigger), made.problems


def _without_room(cluster: Cluster, avoided: frozenset[int]) -> Cluster:
    """As if those had no room: they may give, their share is what it was, and they get nothing."""
    nodes = (node._replace(free_bytes=0) if node.raft_id in avoided else node for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes)) if avoided else cluster
