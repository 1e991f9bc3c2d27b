"""Even bytes per capacity: from the fullest node to the emptiest, until they are near enough, or nothing improves.

A move improves if both nodes together are nearer to their shares afterwards; it is best if it brings the source or the
target right to its share, so that no byte moves twice. In the order of liking: a replica goes back to where it was at
first; one goes whose table stays even; two change places of which one goes back; then any; then two of one table
change places, where that costs little. The search begins only where the difference is more than noise, and goes on
until it is well below, so that small changes of sizes don't start it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.tablets.balancer.model import Bools, Floats, Ints
from trimtab.tablets.balancer.quotas import Windows
from trimtab.tablets.balancer.site import Site

BALANCED = 0.02  # (max - min) / mean
_AIM = 0.008
_TARGETS = 6  # looked at for one source
_FAR = 1.8  # of the best size; at twice of it nothing is gained
_NEAR = 0.5
_BATCH = 8
_CHEAP = 4.0
_TINY = 0.02
_MOST_OF = 0.85
_STEPS_PER_NODE = 60


@dataclass(eq=False)
class _Pool:
    """The replicas of one node."""

    rows: Ints
    slots: Ints


def gap(site: Site) -> float:
    """How far the fullest and the emptiest node are apart, in shares."""
    goal = site.goal()
    filled = site.filled()[goal > 0]
    return float(filled.max() - filled.min()) if len(filled) else 0.0


def deviation(site: Site) -> float:
    """The root of the mean square of how far nodes are from their shares."""
    goal = site.goal()
    there = goal > 0
    if not there.any():
        return 0.0
    off = site.filled()[there] - 1.0
    return float(np.sqrt((off * off * goal[there]).sum() / goal[there].sum()))


def helps(load: Floats, goal: Floats, sources: Ints, target: int, sizes: Ints) -> Bools:
    """Whether replicas of these sizes would bring their sources and the target nearer to their shares."""
    best = _best(load, goal, sources, target)
    out: Bools = (sizes < _FAR * best) & (sizes > _TINY * best)
    return out


def _best(load: Floats, goal: Floats, source: Ints | int, target: int) -> Floats:
    """The bytes that would make both equally full."""
    out: Floats = (load[source] / goal[source] - load[target] / goal[target]) / (1 / goal[source] + 1 / goal[target])
    return out


def even_bytes(site: Site, allowed: Windows | None, aim: float = _AIM) -> None:
    """Move until the gap is below `aim`, as far as moves improve."""
    goal = site.goal()
    there = np.flatnonzero((goal > 0) & site.at.usable)
    if len(there) < 2:
        return
    search = _Search(site, allowed, goal)
    sources = np.zeros(site.at.nodes, bool)
    sources[there] = True
    for _ in range(_STEPS_PER_NODE * len(there) + 1_000):
        filled = np.divide(site.load, goal, out=np.zeros(len(goal)), where=goal > 0)
        full = np.where(sources, filled, -np.inf)
        source = int(full.argmax())
        empty = there[np.argsort(filled[there], kind="stable")[:_TARGETS]].tolist()
        if not sources[source] or filled[source] - filled[empty[0]] <= aim:
            return
        far = [each for each in empty if each != source and filled[source] - filled[each] > aim]
        if not any(search.move(source, target) for target in far):
            sources[source] = False


class _Search:
    def __init__(self, site: Site, allowed: Windows | None, goal: Floats) -> None:
        self.site = site
        self.allowed = allowed
        self.goal = goal
        # What can't matter is not used to fill gaps with: that would take many moves, and heap a table up somewhere.
        stays = site.at.fixed | site.at.dust[site.at.cluster.table]
        rows, slots = np.nonzero((site.now >= 0) & ~stays[:, None])
        nodes = site.now[rows, slots]
        order = np.argsort(nodes, kind="stable")
        ends = np.searchsorted(nodes[order], np.arange(site.at.nodes + 1))
        self.pools = [
            _Pool(rows[order[first:last]], slots[order[first:last]])
            for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        ]

    def move(self, source: int, target: int) -> bool:
        """Something that brings these two nearer to their shares; False: there is nothing."""
        site, goal = self.site, self.goal
        over, under = site.load[source] - goal[source], goal[target] - site.load[target]
        best = float(_best(site.load, goal, source, target))
        most = _FAR * best
        exact = min(over, under) if min(over, under) > _TINY * best else best
        pool = self.pools[source]
        size = site.at.size[pool.rows]
        may = np.flatnonzero(size <= site.room[target])
        may = may[site.allowed(pool.rows[may], pool.slots[may], np.full(len(may), target))]
        if not len(may):
            return False
        single = may[size[may] < most]
        keeps = self._conforming(pool.rows[single], source, target)
        returns = site.home[pool.rows[single], pool.slots[single]] == target
        for group in (single[returns], single[keeps]):
            if (found := _nearest(size, group, exact)) is not None and abs(size[found] - exact) <= _NEAR * exact:
                return self._put(source, target, found)
            if self._several(source, target, group, exact):
                return True
        if (pair := self._exchange(source, target, may, exact, most, home=True)) is not None:
            return self._swap(source, target, *pair)
        if self._several(source, target, single, exact):
            return True
        for group in (single[returns], single[keeps], single):
            if (found := _nearest(size, group, exact)) is not None and size[found] > _TINY * best:
                return self._put(source, target, found)
        if (pair := self._exchange(source, target, may, exact, most, home=False)) is not None:
            return self._swap(source, target, *pair)
        return False

    def _conforming(self, rows: Ints, source: int, target: int) -> Bools:
        """Whether the table stays within its limits at both nodes."""
        counts, allowed = self.site.counts, self.allowed
        if counts is None or allowed is None:
            return np.ones(len(rows), bool)
        table = self.site.at.cluster.table[rows]
        out: Bools = (counts[table, source] > allowed.least[table, source]) & (
            counts[table, target] < allowed.most[table, target]
        )
        return out

    def _exchange(
        self, source: int, target: int, may: Ints, exact: float, most: float, *, home: bool
    ) -> tuple[int, int] | None:
        """A replica of the source and a smaller one of its table at the target that change places.

        `home`: the target's goes back to where it was at first, so that nothing moves in addition. Else it must be
        worth the bytes.
        """
        site, table = self.site, self.site.at.cluster.table
        ours, theirs = self.pools[source], self.pools[target]
        back = np.flatnonzero((site.home[theirs.rows, theirs.slots] == source) == home)
        back = back[site.at.size[theirs.rows[back]] <= site.room[source]] if not home else back
        back = back[site.allowed(theirs.rows[back], theirs.slots[back], np.full(len(back), source))]
        if not len(back):
            return None
        mine, their = ours.rows[may], theirs.rows[back]
        size = site.at.size
        pair = _paired(size[mine], table[mine], size[their], table[their], exact, most)
        if pair is None or mine[pair[0]] == their[pair[1]]:
            return None
        larger, smaller = float(size[mine[pair[0]]]), float(size[their[pair[1]]])
        if not home and larger + smaller > _CHEAP * (larger - smaller):
            return None
        near = abs(larger - smaller - exact) <= _NEAR * exact
        return (int(may[pair[0]]), int(back[pair[1]])) if near else None

    # Deeds

    def _put(self, source: int, target: int, which: int) -> bool:
        self._several_put(source, target, np.array([which]))
        return True

    def _several_put(self, source: int, target: int, which: Ints) -> None:
        pool, other = self.pools[source], self.pools[target]
        rows, slots = pool.rows[which], pool.slots[which]
        self.site.put(rows, slots, np.full(len(rows), target))
        stay = np.ones(len(pool.rows), bool)
        stay[which] = False
        self.pools[source] = _Pool(pool.rows[stay], pool.slots[stay])
        self.pools[target] = _Pool(np.r_[other.rows, rows], np.r_[other.slots, slots])

    def _swap(self, source: int, target: int, one: int, other: int) -> bool:
        # What arrives at the target is put behind the others there.
        self._several_put(source, target, np.array([one]))
        self._several_put(target, source, np.array([other]))
        return True

    def _several(self, source: int, target: int, group: Ints, exact: float) -> bool:
        """A sample of all sizes that comes near to what is missing, where that takes many."""
        site, pool = self.site, self.pools[source]
        group = group[site.at.size[pool.rows[group]] * _BATCH < exact]
        size = site.at.size[pool.rows[group]]
        if len(group) <= _BATCH:
            return False
        order = np.lexsort((pool.rows[group], size))
        share = min(1.0, _MOST_OF * exact / float(size.sum()))
        # One replica of a tablet at most.
        chosen = group[order[np.floor(np.arange(1, len(order) + 1) * share) > np.floor(np.arange(len(order)) * share)]]
        chosen = chosen[np.unique(pool.rows[chosen], return_index=True)[1]]
        counts, allowed = site.counts, self.allowed
        if counts is not None and allowed is not None and len(chosen):
            table = site.at.cluster.table[pool.rows[chosen]]
            ranks = np.argsort(table, kind="stable")
            begins = np.flatnonzero(np.r_[True, table[ranks][1:] != table[ranks][:-1]])
            rank = np.arange(len(ranks)) - np.repeat(begins, np.diff(np.r_[begins, len(ranks)]))
            of = table[ranks]
            room = np.minimum(
                counts[of, source] - allowed.least[of, source], allowed.most[of, target] - counts[of, target]
            )
            chosen = chosen[ranks[rank < np.maximum(room, 1)]]
        chosen = chosen[np.cumsum(site.at.size[pool.rows[chosen]]) <= min(exact, site.room[target])]
        if not len(chosen):
            return False
        self._several_put(source, target, chosen)
        return True


def _nearest(size: Ints, group: Ints, exact: float) -> int | None:
    """The one of the group whose size is nearest; better a little too small than too large."""
    if not len(group):
        return None
    off = exact - size[group]
    return int(group[np.where(off >= 0, off, -2 * off).argmin()])


def _paired(
    sizes: Ints, tables: Ints, their_sizes: Ints, their_tables: Ints, exact: float, most: float
) -> tuple[int, int] | None:
    """Of the same table: one of these and one of those, the first larger by about `exact`."""
    order = np.lexsort((sizes, tables))
    # One number that sorts by table, then by size.
    scale = float(max(sizes.max(), their_sizes.max() + exact) + 1) * 2
    keys = tables[order] * scale + sizes[order]
    wanted = their_tables * scale + their_sizes + exact
    at = np.searchsorted(keys, wanted)
    best: tuple[float, int, int] | None = None
    for shift in (0, -1):
        near = np.clip(at + shift, 0, len(keys) - 1)
        one = order[near]
        more = (sizes[one] - their_sizes).astype(np.float64)
        off = np.where((tables[one] == their_tables) & (more > 0) & (more < most), np.abs(more - exact), np.inf)
        found = int(off.argmin())
        if np.isfinite(off[found]) and (best is None or off[found] < best[0]):
            best = float(off[found]), int(one[found]), found
    return None if best is None else best[1:]
