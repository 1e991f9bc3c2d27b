"""What nobody can do with less: a lower bound, in moves and in bytes, for reaching a state as even as a plan's.

What has to be copied anyway is counted as it is. For the rest, both sides of every move are looked at: nodes that are
above the highest level that is as even must give, nodes that are below the lowest must take, and what is dropped or
copied anyway may do some of it. Where the lowest level lies nobody knows, so it is put where the bound is least. Where
tables end evenly, their numbers must change by themselves: Σ max(0, have − want), the remainder left where it is.
Racks and hosts are in the shares: where they bind, shares are what they allow. Bytes are those that tablets count
(`Cluster.weights`), as everywhere in planning: of real bytes no more could be said than moves × the smallest tablet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trimtab.tablets.balancer.model import Bools, Floats, Ints
from trimtab.tablets.balancer.moves import BALANCE, Changes
from trimtab.tablets.balancer.quotas import Windows, wanted
from trimtab.tablets.balancer.site import Site

_STEPS = 30
_NEARLY = 1e-9
_ROUNDING = 1e-6


class Bound(NamedTuple):
    moves: int
    bytes: int  # as they count


def bound(site: Site, found: Changes, allowed: Windows | None) -> Bound:
    """Of one data centre whose plan is `found`; the site is at its end."""
    at = site.at
    anyway = found.cause != BALANCE
    copied = anyway & (found.target >= 0)
    needed = int(at.size[found.row[copied]].sum())
    if anyway.all():
        return Bound(int(anyway.sum()), needed)
    kept = site.home.copy()
    kept[(kept >= 0) & ~(at.usable | at.down)[kept]] = -1
    drops = anyway & (found.target < 0) & (found.source >= 0)
    drops[drops] = at.usable[found.source[drops]]
    rows, slots = np.nonzero(kept >= 0)
    nodes = kept[rows, slots]
    load = np.bincount(nodes, at.size[rows], at.nodes)[at.usable]
    goal, levels = site.goal()[at.usable], _levels(site)
    room = levels[1] - levels[0]
    dropped, copied_size = float(at.size[found.row[drops]].sum()), float(at.size[found.row[copied]].sum())
    least_bytes = _least(
        lambda low: float(np.maximum(load - (low + room) * goal, 0).sum()) - dropped,
        lambda low: float(np.maximum(low * goal - load, 0).sum()) - copied_size,
        room,
    )
    sums = _sums(site, rows, nodes, load > (1 - room) * goal)
    largest = float(at.size.max())
    moves = _least(
        lambda low: _leaving(sums, load - (low + room) * goal * (1 + _NEARLY)) - int(drops.sum()),
        lambda low: int(np.ceil(np.maximum(low * goal - load, 0) / largest - 1e-6).sum()) - int(copied.sum()),
        room,
    )
    if allowed is not None and site.counts is not None:
        moves = max(moves, _by_table(site, found.row[drops], found.row[copied], rows, nodes, allowed))
    moves = int(np.ceil(moves - _NEARLY))
    smallest = int(at.size.min()) * moves
    return Bound(int(anyway.sum()) + moves, needed + max(int(least_bytes), smallest))


def _levels(site: Site) -> tuple[float, float]:
    """The range that the plan ends in."""
    filled = site.filled()[site.goal() > 0]
    return float(filled.min()), float(filled.max())


def _least(giving: Callable[[float], float], taking: Callable[[float], float], room: float) -> float:
    """The smallest of the greater of both, over all places of the lowest level."""
    low, high = 1.0 - room, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if giving(middle) > taking(middle):
            low = middle
        else:
            high = middle
    between = max(giving(high), taking(low))
    return max(0.0, min(giving(low), taking(high), between))


def _sums(site: Site, rows: Ints, nodes: Ints, which: Bools) -> list[Ints | None]:
    """Of each usable node in question: the sizes of its largest replicas, added up."""
    order = np.lexsort((-site.at.size[rows], nodes))
    ends = np.searchsorted(nodes[order], np.arange(site.at.nodes + 1))
    found: list[Ints | None] = []
    for node, asked in zip(np.flatnonzero(site.at.usable).tolist(), which.tolist(), strict=True):
        found.append(np.cumsum(site.at.size[rows[order[ends[node] : ends[node + 1]]]]) if asked else None)
    return found


def _leaving(sums: list[Ints | None], over: Floats) -> int:
    """At least so many replicas have to leave nodes that are above: the largest of each, until it is not."""
    total = 0
    for node in np.flatnonzero(over > 1e-6).tolist():
        of_node = sums[node]
        if of_node is not None and len(of_node):
            total += int(np.searchsorted(of_node, over[node] * (1 - 1e-6))) + 1
    return total


def _by_table(site: Site, dropped: Ints, copied: Ints, rows: Ints, nodes: Ints, allowed: Windows) -> int:
    """Σ over tables of what is too much, or too little, whichever is more.

    As even as a table ends: no node further above its share than the furthest, nor below. Where it ends within the
    whole numbers next to the shares, only so many may have one more than the least.
    """
    at = site.at
    assert site.counts is not None
    tables, usable = len(at.cluster.tables), at.usable
    have = np.bincount(at.cluster.table[rows] * at.nodes + nodes, minlength=tables * at.nodes).reshape(tables, at.nodes)
    total = 0
    drops, comes = (np.bincount(at.cluster.table[which], minlength=tables) for which in (dropped, copied))
    for block, share in wanted(site):
        ends, had, want = site.counts[block][:, usable], have[block][:, usable], share[:, usable]
        off = ends - want
        most = want + off.max(axis=1, initial=0)[:, None]
        least = want + off.min(axis=1, initial=0)[:, None]
        over = np.maximum(had - np.floor(most + _ROUNDING), 0).sum(axis=1)
        under = np.maximum(np.ceil(least - _ROUNDING) - had, 0).sum(axis=1)
        top, bottom = allowed.most[block][:, usable], allowed.least[block][:, usable]
        whole = at.equal[block] & ((ends <= top) & (ends >= bottom)).all(axis=1)
        ups = ((top > bottom) & (had >= top)).sum(axis=1)
        places = ends.sum(axis=1) - bottom.sum(axis=1)
        exact_over = np.maximum(had - top, 0).sum(axis=1) + np.maximum(ups - places, 0)
        exact_under = np.maximum(bottom - had, 0).sum(axis=1) + np.maximum(places - ups, 0)
        over = np.where(whole, np.maximum(over, exact_over), over) - drops[block]
        under = np.where(whole, np.maximum(under, exact_under), under) - comes[block]
        total += int(np.maximum(np.maximum(over, under), 0).sum())
    return total
