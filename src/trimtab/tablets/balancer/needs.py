"""What has to be done whatever it costs: lost replicas are made anew, draining nodes emptied, replication as declared.

In this order of urgency, and all with the balanced state in mind: whatever must go somewhere goes where it can stay. A
node that was started to replace a dead one gets the dead one's replicas first, as far as that is its share. What can't
be met stays as it is, and is told.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab.tablets.balancer.matching import match, offered, possible
from trimtab.tablets.balancer.model import Bools, Ints, some
from trimtab.tablets.balancer.quotas import factor_of, quotas
from trimtab.tablets.balancer.site import Site
from trimtab.tablets.transitions import Cause

_STEPS = 2_000
_TOLD = 5


class _Demand(NamedTuple):
    """Empty places, and why they have to be filled."""

    cause: Cause
    rows: Ints
    slots: Ints


def meet(site: Site, living: Bools) -> list[str]:
    """Do it. `living`: rows that have a replica anywhere that can be copied from. The answer: what could not be met."""
    at = site.at
    held = site.now >= 0
    lost, going = held & at.dead[site.now], held & at.draining[site.now]
    keep = (held & (at.usable | at.down)[site.now]).sum(axis=1)
    mine = ~at.fixed & living
    need = np.maximum(at.want - keep, 0)
    problems = _hopeless(site, ~at.fixed & ~living)
    # Those that live and go are replaced first: copying them is cheapest.
    for which in (going, lost):
        rows, slots = np.nonzero(which & mine[:, None])
        rank = _rank(rows)
        extra = rank >= need[rows]
        site.put(rows[extra], slots[extra], np.full(int(extra.sum()), -1))
        which[rows[extra], slots[extra]] = False
        need -= np.minimum(need, np.bincount(rows, minlength=len(need)))
    _shrink(site, np.flatnonzero(mine & (keep > at.want)), keep)
    demands = [
        _Demand(Cause.HEAL, *np.nonzero(lost & mine[:, None])),
        _Demand(Cause.DRAIN, *np.nonzero(going & mine[:, None])),
        _Demand(Cause.REPLICATION, *_additions(site, np.where(mine, need, 0), lost)),
    ]
    for cause, rows, slots in demands:
        before = site.now[rows, slots].copy()
        # Who is drained keeps its hosts until others have theirs: it may have to stay.
        site.put(rows, slots, np.full(len(rows), -1))
        if cause is Cause.HEAL:
            _replace(site, rows, slots, before)
        waits = site.now[rows, slots] < 0
        _place(site, rows[waits], slots[waits])
        failed = site.now[rows, slots] < 0
        if failed.any():
            problems.append(_unmet(site, cause, rows[failed], before[failed]))
            # Another one of the tablet may have got the host of this one.
            back = np.isin(rows, rows[failed]) if cause is Cause.DRAIN else failed
            site.put(rows[back], slots[back], before[back])
    return problems


def _rank(rows: Ints) -> Ints:
    """The how manieth of its row each is; rows are in order."""
    if not len(rows):
        return rows
    begins = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
    return np.arange(len(rows)) - np.repeat(begins, np.diff(np.r_[begins, len(rows)]))


def _additions(site: Site, need: Ints, lost: Bools) -> tuple[Ints, Ints]:
    """Empty slots for replicas that come in addition."""
    rows, slots = np.nonzero((site.now < 0) & site.own & ~lost & (need > 0)[:, None])
    chosen = _rank(rows) < need[rows]
    return rows[chosen], slots[chosen]


# Fewer


def _shrink(site: Site, rows: Ints, keep: Ints) -> None:
    """Drop what is too much: of nodes that are down, of racks that have several, of nodes that are fullest."""
    at = site.at
    excess = keep[rows] - at.want[rows]
    while len(rows):
        quota = _quota_matrix(site, rows, -1)
        for part in np.array_split(np.arange(len(rows)), min(len(rows), _STEPS)):
            of, slots = rows[part], np.arange(site.now.shape[1])
            now = site.now[of]
            rack = np.where(now >= 0, at.rack[now], -1)
            together = (rack[:, :, None] == rack[:, None, :]).sum(axis=2)
            filled = np.minimum(site.filled()[now], 50.0)
            score = 1e6 * at.down[now] + 1e4 * together + filled
            if site.counts is not None and quota is not None:
                table = at.cluster.table[of][:, None]
                score += 1e2 * np.clip(site.counts[table, now] - quota[table, now], -40, 40)
            score[(now < 0) | ~(at.usable | at.down)[now]] = -np.inf
            site.put(of, slots[score.argmax(axis=1)], np.full(len(of), -1))
        excess = excess - 1
        rows, excess = rows[excess > 0], excess[excess > 0]


# More


def _quota_matrix(site: Site, rows: Ints, sign: int) -> Ints | None:
    """What all nodes should hold of each table of these rows, when so many have come or gone."""
    if site.counts is None:
        return None
    quota = site.counts.copy()
    tables, many = np.unique(site.at.cluster.table[rows], return_counts=True)
    factors, filled = factor_of(site), site.filled()
    mean = max(1.0, float(site.goal()[site.at.usable].mean()) if site.at.usable.any() else 1.0)
    sizes = np.bincount(site.at.cluster.table[rows], site.at.size[rows], len(factors))
    for table, number in zip(tables.tolist(), many.tolist(), strict=True):
        quota[table] = quotas(site, table, int(factors[table]), sign * number, filled)
        filled += (quota[table] - site.counts[table]) * (sizes[table] / number / mean)
    return quota


def _place(site: Site, rows: Ints, slots: Ints) -> None:
    if not len(rows):
        return
    quota = _quota_matrix(site, rows, 1)
    if quota is not None and site.counts is not None:
        # The largest first: small ones fill what is left.
        order = np.lexsort((rows, -site.at.size[rows]))
        match(site, rows[order], slots[order], offered(quota - site.counts))
    left = site.now[rows, slots] < 0
    for row, slot in zip(rows[left].tolist(), slots[left].tolist(), strict=True):
        _anywhere(site, row, slot)


def _replace(site: Site, rows: Ints, slots: Ints, was: Ints) -> None:
    """What was on a node that another replaces goes to that one, as far as that is its share."""
    nodes = site.at.cluster.nodes
    known = {node.id: number for number, node in enumerate(nodes)}
    for new, node in enumerate(nodes):
        if not node.replaces or not site.at.usable[new]:
            continue
        old = known[node.replaces]
        mine = np.flatnonzero((was == old) & (site.now[rows, slots] < 0))
        if not len(mine):
            continue
        quota = _quota_matrix(site, rows[site.now[rows, slots] < 0], 1)
        if quota is None or site.counts is None:
            continue
        accept = np.zeros_like(quota)
        accept[:, new] = quota[:, new] - site.counts[:, new]
        match(site, rows[mine], slots[mine], offered(accept))


def _anywhere(site: Site, row: int, slot: int) -> None:
    """The emptiest node that may take it, if any may."""
    nodes = np.flatnonzero(site.at.usable & (site.room >= site.at.size[row]))
    one, place = np.full(len(nodes), row), np.full(len(nodes), slot)
    nodes = nodes[site.allowed(one, place, nodes, racks=False)] if len(nodes) else nodes
    if not len(nodes):
        return
    best = nodes[possible(site, one[: len(nodes)], place[: len(nodes)], nodes)]
    nodes = best if len(best) else nodes
    after = (site.load[nodes] + site.at.size[row]) / np.maximum(site.goal()[nodes], 1.0)
    node = nodes[after.argmin() : after.argmin() + 1]
    site.put(np.array([row]), np.array([slot]), node)


# What can't be


def _hopeless(site: Site, rows: Bools) -> list[str]:
    gone = np.flatnonzero(rows & (site.at.want > 0))
    if not len(gone):
        return []
    cluster = site.at.cluster
    return [
        f"{len(gone)} tablet{'s have' if len(gone) != 1 else ' has'} no living replica, so nothing can be copied: "
        f"{some([cluster.place(row) for row in gone[:_TOLD].tolist()], len(gone))}; bring back "
        f"{', '.join(cluster.ids(int(gone[0])))}, or restore it"
    ]


def _unmet(site: Site, cause: Cause, rows: Ints, before: Ints) -> str:
    at, cluster = site.at, site.at.cluster
    what = some([cluster.place(row) for row in dict.fromkeys(rows.tolist())][:_TOLD], len(np.unique(rows)))
    hosts = len(np.unique(at.host[at.usable]))
    factor = int(at.want[rows].max())
    if hosts < factor:
        why = (
            f"data centre {at.dc} needs {factor} distinct hosts for {factor} replicas and has {hosts} that may be "
            "used; add instances on other hosts, or lower the replication"
        )
    else:
        why = f"no node of data centre {at.dc} on another host has room for it; add instances, or larger ones"
    names = sorted({cluster.nodes[node].id for node in before.tolist() if node >= 0})
    if cause is Cause.DRAIN:
        return f"{', '.join(names[:_TOLD])} can't be drained of {what}: {why}"
    if cause is Cause.HEAL:
        return f"what {', '.join(names[:_TOLD])} had can't be made anew elsewhere ({what}): {why}"
    return f"{what} can't have {factor} replicas: {why}"
