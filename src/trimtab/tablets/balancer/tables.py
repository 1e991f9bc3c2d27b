"""Even numbers of tablets of each table: what is too much somewhere goes to where it is too little.

Tables that are even stay as they are. Of those that are not, every node gets its quota. Which of its tablets a node
gives away is a sample of all sizes, so that bytes stay even as well; of a tablet that has several replicas at such
nodes, one is moved and not several, as far as there are others.
"""

from __future__ import annotations

import numpy as np

from trimtab.tablets.balancer.matching import match, offered
from trimtab.tablets.balancer.model import Bools, Ints
from trimtab.tablets.balancer.quotas import Windows, factor_of, quotas, uneven
from trimtab.tablets.balancer.site import Site

_ROUNDS = 12
_GIVING_ROUNDS = 4
_FEW = 8


def even_tables(site: Site, allowed: Windows, tables: Bools | None = None) -> None:
    """Bring every table (or of these) that is not even as near to its quotas as it can be."""
    wrong = uneven(site, allowed) if tables is None else uneven(site, allowed) & tables
    if not wrong.any() or site.counts is None:
        return
    quota = _quotas(site, np.flatnonzero(wrong))
    tried = np.zeros(len(site.now), bool)
    for _ in range(_GIVING_ROUNDS):
        # What found no place stays, and others of the same node are tried instead.
        give = np.maximum(site.counts - quota, 0)
        if not give[:, site.at.usable].any():
            return
        take = np.where(site.at.usable, np.maximum(quota - site.counts, 0), 0)
        rows, slots = _given(site, give, take, tried)
        if not len(rows):
            return
        done = match(site, rows, slots, offered(take))
        tried[rows[~done]] = True
        if not done.any():
            return


def _quotas(site: Site, tables: Ints) -> Ints:
    """Of all tables; of those that are not named, what they have."""
    assert site.counts is not None
    quota = site.counts.copy()
    factors, filled = factor_of(site), site.filled()
    mean = max(1.0, float(site.goal()[site.at.usable].mean()))
    every = site.at.cluster.table
    sizes = np.bincount(every, site.at.size, len(factors)) / np.maximum(np.bincount(every, minlength=len(factors)), 1)
    for table in tables.tolist():
        quota[table] = quotas(site, table, int(factors[table]), 0, filled)
        filled += (quota[table] - site.counts[table]) * (sizes[table] / mean)
    return quota


def _given(site: Site, give: Ints, take: Ints, tried: Bools) -> tuple[Ints, Ints]:
    """Replicas that leave: of each table and node as many as `give` says, the largest first."""
    at = site.at
    tables = np.asarray(give.any(axis=1))
    candidates = ~at.fixed & ~tried & tables[at.cluster.table]
    rows, slots = np.nonzero((site.now >= 0) & candidates[:, None])
    nodes = site.now[rows, slots]
    cells = at.cluster.table[rows] * at.nodes + nodes
    wanted = give.ravel()[cells] * at.usable[nodes]
    inside = wanted > 0
    rows, slots, cells = rows[inside], slots[inside], cells[inside]
    movable = _movable(site, rows, slots, take)
    rows, slots, cells = rows[movable], slots[movable], cells[movable]
    # Neither by row nor by chance: nodes that hold the same rows should not all give away the same.
    mixed = (rows * 0x9E3779B1 + slots * 0x85EBCA77 + cells * 0xC2B2AE3D) & 0xFFFF
    order = np.lexsort((mixed, at.size[rows], cells))
    rows, slots, cells = rows[order], slots[order], cells[order]
    left = give.ravel().copy()
    chosen = np.zeros(len(rows), bool)
    moves = np.zeros(len(site.now), bool)
    for turn in range(_ROUNDS):
        once = turn < _ROUNDS - 1
        open_ = np.flatnonzero(~chosen & (left[cells] > 0) & ~(moves[rows] & once))
        if not len(open_):
            if once:
                continue
            break
        picked = open_[_sampled(cells[open_], left)]
        if once:
            picked = picked[np.unique(rows[picked], return_index=True)[1]]
        chosen[picked] = True
        moves[rows[picked]] = True
        np.subtract.at(left, cells[picked], 1)
    found = np.flatnonzero(chosen)
    found = found[np.argsort(-at.size[rows[found]], kind="stable")]
    return rows[found], slots[found]


def _movable(site: Site, rows: Ints, slots: Ints, take: Ints) -> Bools:
    """Whether somebody who takes may have it. Where many take, somebody will; that is not looked at."""
    table = site.at.cluster.table
    few = np.flatnonzero(((take > 0).sum(axis=1) <= _FEW) & (take > 0).any(axis=1))
    fine = np.ones(len(rows), bool)
    at = np.flatnonzero(np.isin(table[rows], few))
    if not len(at):
        return fine
    fine[at] = False
    takers = np.argsort(-take, axis=1, kind="stable")[:, :_FEW]
    for rank in range(takers.shape[1]):
        left = at[~fine[at]]
        node = takers[table[rows[left]], rank]
        takes = take[table[rows[left]], node] > 0
        left, node = left[takes], node[takes]
        fine[left] = site.allowed(rows[left], slots[left], node)
    return fine


def _sampled(cells: Ints, wanted: Ints) -> Bools:
    """Of each run of equal cells as many as are wanted, at equal distances."""
    begins = np.flatnonzero(np.r_[True, cells[1:] != cells[:-1]])
    many = np.diff(np.r_[begins, len(cells)])
    rank = np.arange(len(cells)) - np.repeat(begins, many)
    number = np.minimum(wanted[cells[begins]], many)
    each, of = np.repeat(number, many), np.repeat(many, many)
    out: Bools = (2 * (rank + 1) * each + of) // (2 * of) > (2 * rank * each + of) // (2 * of)
    return out
