"""From where replicas were to where they should be: the moves, in the order of execution, each with its why.

Urgent ones first: lost replicas (of the tablets that have fewest left), draining, replication, balance. Among those of
balance, a node that gives and takes never gets fuller than the fullest was, nor emptier than the emptiest, as far as
there is such an order. So no prefix of a plan makes an earlier objective worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.tablets.balancer.model import Bools, Cluster, Floats, Ints, Move
from trimtab.tablets.balancer.site import Site
from trimtab.tablets.transitions import Cause

CAUSES = (Cause.HEAL, Cause.DRAIN, Cause.REPLICATION, Cause.BALANCE)
HEAL, DRAIN, REPLICATION, BALANCE = range(4)


@dataclass(eq=False)
class Changes:
    """Of one data centre, as arrays. `source` and `target` are -1 where there is none; `lost` is who had it then."""

    row: Ints
    source: Ints
    target: Ints
    lost: Ints
    cause: Ints


def changes(site: Site) -> Changes:
    """What is different from home, by row: who left is paired with who came, the most urgent first."""
    at = site.at
    rows = np.flatnonzero((site.now != site.home).any(axis=1))
    home, now = site.home[rows], site.now[rows]
    left, came = (home >= 0) & ~_among(home, now), (now >= 0) & ~_among(now, home)
    # Dead before draining before others; what came into the slot of one of them belongs to it.
    kind = np.where(at.dead[home], HEAL, np.where(at.draining[home], DRAIN, BALANCE))
    kind[home < 0] = REPLICATION
    leaving = _in_order(left, kind)
    coming = _in_order(came, kind)
    width = max(int(left.sum(axis=1).max(initial=0)), int(came.sum(axis=1).max(initial=0)))
    picked: list[Changes] = []
    for at_rank in range(width):
        source = _picked(home, left, leaving, at_rank)
        target = _picked(now, came, coming, at_rank)
        there = (source >= 0) | (target >= 0)
        gone = there & (source >= 0) & at.dead[source]
        cause = np.full(len(rows), BALANCE)
        cause[(source >= 0) & at.draining[source]] = DRAIN
        cause[(source < 0) | (target < 0)] = REPLICATION
        cause[gone & (target >= 0)] = HEAL
        lost = np.where(gone & (target >= 0), source, -1)
        source = np.where(lost >= 0, -1, source)
        picked.append(Changes(rows[there], source[there], target[there], lost[there], cause[there]))
    if not picked:
        none = np.zeros(0, np.int64)
        return Changes(none, none, none, none, none)
    return Changes(*(np.concatenate([getattr(each, name) for each in picked]) for name in Changes.__annotations__))


def _among(these: Ints, those: Ints) -> Bools:
    """Which of each row's values the other row has, too."""
    found = np.zeros(these.shape, bool)
    for column in those.T:
        found |= these == column[:, None]
    return found


def _in_order(which: Bools, kind: Ints) -> Ints:
    """Slots of each row: those in question first, by kind."""
    return np.argsort(np.where(which, kind, 99), axis=1, kind="stable")


def _picked(nodes: Ints, which: Bools, order: Ints, rank: int) -> Ints:
    """The node of that rank in each row; -1 where there are fewer."""
    if rank >= order.shape[1]:
        return np.full(len(nodes), -1)
    slot = order[:, rank]
    every = np.arange(len(nodes))
    return np.where(which[every, slot], nodes[every, slot], -1).astype(np.int64)


def in_order(site: Site, found: Changes, before: Floats, living: Ints) -> Changes:
    """As they should be executed. `before`: loads when all but balance is done; `living`: replicas each row has."""
    balance = found.cause == BALANCE
    urgency = np.where(balance, 0, living[found.row])
    # One after the other to each target, so that all take part from the beginning.
    turn = _turns(found.target, site.at.nodes) if len(found.row) else found.row
    order = np.lexsort((found.row, turn, urgency, found.cause))
    found = Changes(*(getattr(found, name)[order] for name in Changes.__annotations__))
    first = int((found.cause != BALANCE).sum())
    sources, targets = found.source[first:], found.target[first:]
    if len(np.intersect1d(sources, targets)):
        # Somebody gives and takes: what it takes must not make it fuller than the fullest was.
        keep = np.r_[np.arange(first), first + _careful(site, found.row[first:], sources, targets, before)]
        found = Changes(*(getattr(found, name)[keep] for name in Changes.__annotations__))
    return found


def _turns(target: Ints, nodes: int) -> Ints:
    order = np.argsort(target, kind="stable")
    begins = np.searchsorted(target[order], np.arange(-1, nodes))
    turn = np.empty(len(target), np.int64)
    turn[order] = np.arange(len(target)) - begins[target[order] + 1]
    return turn


def _careful(site: Site, rows: Ints, sources: Ints, targets: Ints, before: Floats) -> Ints:
    """An order in which no node gets fuller or emptier than the extremes before and after, as far as there is one."""
    goal = np.maximum(site.goal(), 1.0)
    there = site.at.usable & (site.goal() > 0)
    load = before.astype(np.float64).copy()
    ends = site.load / goal
    highest = max(float((load / goal)[there].max(initial=0)), float(ends[there].max(initial=0))) + 1e-9
    lowest = min(float((load / goal)[there].min(initial=9e9)), float(ends[there].min(initial=9e9))) - 1e-9
    size = site.at.size[rows].tolist()
    source, target = sources.tolist(), targets.tolist()
    order: list[int] = []
    waiting = list(range(len(size)))
    levels, goals = load.tolist(), goal.tolist()
    while waiting:
        later = []
        for number in waiting:
            one, other, amount = source[number], target[number], size[number]
            fits = (levels[other] + amount) / goals[other] <= highest and (levels[one] - amount) / goals[one] >= lowest
            if not fits:
                later.append(number)
                continue
            levels[one] -= amount
            levels[other] += amount
            order.append(number)
        if len(later) == len(waiting):
            # Nothing fits: the one that is least in the way.
            number = min(later, key=lambda each: (levels[target[each]] + size[each]) / goals[target[each]])
            levels[source[number]] -= size[number]
            levels[target[number]] += size[number]
            order.append(number)
            later.remove(number)
        waiting = later
    return np.array(order, np.int64)


# Why


def told(site: Site, found: Changes, before: Floats, living: Ints) -> list[Move]:
    """The moves as people read them."""
    at, cluster = site.at, site.at.cluster
    names = [node.id for node in cluster.nodes]
    goal = site.goal()
    filled = np.divide(before, goal, out=np.ones(len(goal)), where=goal > 0)
    levels = [level_in_words(each) for each in filled.tolist()]
    moves = []
    lives = living[found.row].tolist()
    wants = at.want[found.row].tolist()
    had = (site.home >= 0).sum(axis=1)[found.row].tolist()
    columns = (found.row, found.source, found.target, found.lost, found.cause)
    every = zip(*(column.tolist() for column in columns), lives, wants, had, strict=True)
    for row, source, target, lost, cause, lives_on, want, there in every:
        if cause == HEAL:
            why = f"{names[lost]} is lost: {lives_on} of {want} replicas are left in {at.dc}"
        elif cause == DRAIN:
            why = f"{names[source]} is being drained"
        elif cause == REPLICATION:
            why = f"{want} replicas are declared in {at.dc}, there are {there}"
        else:
            why = f"{names[source]} is {levels[source]}, {names[target]} is {levels[target]}"
            level = levels[source] == levels[target] or filled[source] <= filled[target]
            if level or at.dust[cluster.table[row]]:
                why = _by_table(cluster, row, names[source], names[target])
        moves.append(Move(row, None if source < 0 else source, None if target < 0 else target, CAUSES[cause], why))
    return moves


def level_in_words(filled: float) -> str:
    """How full a node is, 1.0 being its share."""
    off = 100 * (filled - 1)
    return f"{abs(off):.1f} % {'above' if off >= 0 else 'below'} its share"


def _by_table(cluster: Cluster, row: int, source: str, target: str) -> str:
    return f"{cluster.tables[cluster.table[row]].id} is more even with one less on {source} and one more on {target}"
