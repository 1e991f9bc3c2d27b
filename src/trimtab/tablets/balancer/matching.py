"""Who takes which replica: replicas that need a node on one side, nodes that have a place for one on the other.

Both sides are of tables, and only those of one table go together. Many are paired at once: sorted in some order, the
first with the first; pairs that may not be are taken apart and tried in another order. What is left after some rounds
is looked at one by one: first at any place that is left, then at an exchange with somebody who has one.
"""

from __future__ import annotations

import numpy as np

from trimtab.tablets.balancer.model import Bools, Ints
from trimtab.tablets.balancer.site import Site

_ROUNDS = 16
_ONE_BY_ONE = 2_000
_SETTLED = 2_000  # that are asked to exchange, for one
_RACK_CELLS = 20_000_000


def offered(accept: Ints) -> tuple[Ints, Ints]:
    """Places of a matrix [table, node] of how many each takes, as (table, node), so mixed that all fill up evenly."""
    tables, nodes = np.nonzero(accept > 0)
    many = accept[tables, nodes]
    table, node, of = np.repeat(tables, many), np.repeat(nodes, many), np.repeat(many, many)
    within = np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many)
    order = np.lexsort((node, (within + 0.5) / of, table))
    return table[order], node[order]


def match(site: Site, rows: Ints, slots: Ints, places: tuple[Ints, Ints]) -> Bools:
    """Put each replica (row, slot) into one of the places (table, node) of its table; which of them are put.

    Earlier replicas and places come first where there are more of either.
    """
    done = np.zeros(len(rows), bool)
    if not len(rows) or not len(places[0]):
        return done
    table = site.at.cluster.table[rows]
    place_table, place_node = places
    free = np.ones(len(place_node), bool)
    taken = np.full(len(rows), -1, np.int64)  # the place of each
    racks = int(site.at.rack.max()) + 1
    several = len(np.unique(site.at.rack[site.at.usable])) > 1
    for turn in range(_ROUNDS):
        waiting, left = np.flatnonzero(~done), np.flatnonzero(free)
        if not len(waiting) or not len(left):
            break
        mine, theirs = table[waiting], place_table[left]
        if turn < 2 and several:
            # Within a rack nothing gets worse.
            home = site.now[rows[waiting], slots[waiting]]
            mine = mine * (racks + 1) + np.where(home >= 0, site.at.rack[home], racks)
            theirs = theirs * (racks + 1) + site.at.rack[place_node[left]]
        one, other = _pairs(mine, theirs, turn)
        one, other = waiting[one], left[other]
        fine = possible(site, rows[one], slots[one], place_node[other])
        one, other = one[fine], other[fine]
        # One replica of a tablet at a time: the others are compared with where it is then.
        first = np.unique(rows[one], return_index=True)[1]
        one, other = one[first], other[first]
        fits = _fitting(site, rows[one], place_node[other])
        one, other = one[fits], other[fits]
        site.put(rows[one], slots[one], place_node[other])
        done[one] = True
        free[other] = False
        taken[one] = other
    for one in np.flatnonzero(~done)[:_ONE_BY_ONE].tolist():
        if not free.any():
            break
        done[one] = _singly(site, rows, slots, table, one, places, free, done, taken)
    return done


def possible(site: Site, rows: Ints, slots: Ints, nodes: Ints) -> Bools:
    """Whether replicas may go there by host and rack; of an empty slot, also to racks that have fewest of it."""
    fine = site.allowed(rows, slots, nodes)
    empty = site.now[rows, slots] < 0
    if empty.any():
        fine[empty & (site.home[rows, slots] < 0)] = False
        doubtful = np.flatnonzero(empty & ~fine)
        doubtful = doubtful[site.allowed(rows[doubtful], slots[doubtful], nodes[doubtful], racks=False)]
        fine[doubtful] = fewest(site, rows[doubtful], slots[doubtful], nodes[doubtful])
    return fine


def fewest(site: Site, rows: Ints, slots: Ints, nodes: Ints) -> Bools:
    """Whether no other rack with a free host has fewer replicas of the tablet than the node's rack."""
    at = site.at
    racks = int(at.rack.max()) + 1
    rack_of_host = np.full(int(at.host.max()) + 1, -1, np.int64)
    rack_of_host[at.host[at.usable]] = at.rack[at.usable]
    hosts = np.bincount(rack_of_host[rack_of_host >= 0], minlength=racks)
    out = np.zeros(len(rows), bool)
    step = max(1, _RACK_CELLS // racks)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        count = rack_counts(site, rows[part], slots[part], racks)
        least = np.where(count < hosts[None, :], count, np.iinfo(np.int32).max).min(axis=1)
        out[part] = count[np.arange(len(count)), at.rack[nodes[part]]] <= least
    return out


def rack_counts(site: Site, rows: Ints, slots: Ints, racks: int) -> Ints:
    """[row, rack]: how many replicas of each row are in each rack, without that of its slot."""
    held = site.now[rows]
    held[np.arange(len(rows)), slots] = -1
    count = np.zeros((len(rows), racks), np.int32)
    for column in held.T:
        there = np.flatnonzero(column >= 0)
        count[there, site.at.rack[column[there]]] += 1
    return count


def _pairs(mine: Ints, theirs: Ints, turn: int) -> tuple[Ints, Ints]:
    """Indexes of both sides that go together: the same group, and the same rank in it, moved on by the turn."""
    one, other = np.argsort(mine, kind="stable"), np.argsort(theirs, kind="stable")
    groups, begin, number = np.unique(theirs[other], return_index=True, return_counts=True)
    group = np.searchsorted(groups, mine[one])
    inside = group < len(groups)
    inside[inside] = groups[group[inside]] == mine[one][inside]
    one, group = one[inside], group[inside]
    if not len(one):
        return one, one
    sorted_mine = mine[one]
    begins = np.flatnonzero(np.r_[True, sorted_mine[1:] != sorted_mine[:-1]])
    many = np.diff(np.r_[begins, len(sorted_mine)])
    rank = np.arange(len(one)) - np.repeat(begins, many)
    shift = turn // 2 * (1 + turn % 2 * 6)
    rank = (rank + shift) % np.repeat(many, many) if turn % 3 == 2 else rank
    fits = rank < number[group]
    one, group, rank = one[fits], group[fits], rank[fits]
    return one, other[begin[group] + (rank + shift) % number[group]]


def _fitting(site: Site, rows: Ints, nodes: Ints) -> Bools:
    """Which of them there is room for, the first come first."""
    size = site.at.size[rows].astype(np.float64)
    fits = np.ones(len(rows), bool)
    coming = np.bincount(nodes, size, site.at.nodes)
    for node in np.flatnonzero(coming > site.room).tolist():
        of_node = np.flatnonzero(nodes == node)
        fits[of_node] = np.cumsum(size[of_node]) <= site.room[node]
    return fits


def _singly(
    site: Site,
    rows: Ints,
    slots: Ints,
    table: Ints,
    one: int,
    places: tuple[Ints, Ints],
    free: Bools,
    done: Bools,
    taken: Ints,
) -> bool:
    """Find a place for one replica: a free one, or that of another replica which takes a free one instead."""
    place_table, place_node = places
    row, slot = int(rows[one]), int(slots[one])
    left = np.flatnonzero(free & (place_table == table[one]))
    if not len(left):
        return False
    left = left[np.unique(place_node[left], return_index=True)[1]]
    size = site.at.size[row]
    fine = possible(site, np.full(len(left), row), np.full(len(left), slot), place_node[left])
    fine &= site.room[place_node[left]] >= size
    if fine.any():
        place = int(left[fine.argmax()])
        site.put(rows[one : one + 1], slots[one : one + 1], place_node[place : place + 1])
        free[place] = False
        taken[one] = place
        return True
    settled = np.flatnonzero(done & (table == table[one]) & (rows != row) & (taken >= 0))
    if not len(settled):
        return False
    settled = settled[:: -(-len(settled) // _SETTLED)]
    theirs = place_node[taken[settled]]
    settled = settled[possible(site, np.full(len(settled), row), np.full(len(settled), slot), theirs)]
    for place in left.tolist():
        node = np.full(len(settled), place_node[place])
        fine = site.allowed(rows[settled], slots[settled], node) & (site.room[node] >= site.at.size[rows[settled]])
        fine &= site.room[place_node[taken[settled]]] + site.at.size[rows[settled]] >= size
        if fine.any():
            other = int(settled[fine.argmax()])
            freed = int(taken[other])
            site.put(rows[other : other + 1], slots[other : other + 1], place_node[place : place + 1])
            site.put(rows[one : one + 1], slots[one : one + 1], place_node[freed : freed + 1])
            free[place] = False
            taken[other], taken[one] = place, freed
            return True
    return False
