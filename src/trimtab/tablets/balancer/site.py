"""One data centre while it is planned: where replicas are now, how full nodes are, and what may go where.

Data centres don't share nodes, and each has its own number of replicas, so each is planned by itself. Rows are those of
the cluster. A replica is a place (row, slot); `home` is what was there at first. Slots are the columns of the cluster's
replicas, then some more for replicas that come in addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.tablets.balancer.model import USABLE, Bools, Cluster, Floats, Ints, NodeState
from trimtab.tablets.balancer.shares import shares

MAX_CELLS = 100_000_000  # tables x nodes that are counted; beyond, tables are not evened out by themselves
EQUAL = 1.1  # sizes of a table that differ by less count as equal
DUST = 0.005  # of the smallest share of a node: tables that are no larger, all together, can't make bytes uneven


@dataclass(frozen=True, eq=False)
class Ground:
    """What does not change while a data centre is planned. Nodes of other data centres are neither usable nor alive."""

    cluster: Cluster
    dc: str
    capacity: Floats
    free: Floats  # what disks have left
    usable: Bools
    down: Bools
    draining: Bools
    dead: Bools
    here: Bools
    host: Ints
    rack: Ints
    size: Ints  # what a replica of each row counts
    want: Ints  # replicas of each row
    fixed: Bools  # rows that nobody touches
    share: Floats  # [factor, node]: replicas of a tablet with so many
    wanted: Floats  # bytes of each node where all is even
    equal: Bools  # tables whose tablets are equally large
    slack: Floats  # the part of its share by which a node may have more or fewer tablets of each table
    dust: Bools  # tables that are too small to matter by bytes, wherever they are

    @property
    def nodes(self) -> int:
        return len(self.capacity)


def ground(cluster: Cluster, dc: str, replicas: Ints | None = None) -> Ground:
    """The data centre as it is declared, with the shares that follow from where replicas are."""
    nodes = cluster.nodes
    here = np.array([node.dc == dc for node in nodes], bool)
    states = {state: here & np.array([node.state is state for node in nodes], bool) for state in NodeState}
    usable = states[USABLE[0]] | states[USABLE[1]]
    host = _numbers([(node.dc, node.host) for node in nodes])
    # A host whose nodes name several racks is in the rack of the first.
    racks: dict[tuple[str, str], str] = {}
    rack = _numbers([(node.dc, racks.setdefault((node.dc, node.host), node.rack)) for node in nodes])
    capacity = np.array([node.capacity_bytes for node in nodes], np.float64)
    free = np.array([np.inf if node.free_bytes is None else node.free_bytes for node in nodes], np.float64)
    factors = np.array([table.replication.get(dc, 0) for table in cluster.tables], np.int64)
    want = factors[cluster.table] if cluster.count else np.zeros(0, np.int64)
    size = cluster.weights
    by_factor = np.zeros((int(factors.max(initial=0)) + 1, len(nodes)))
    # Whoever is down has its share, too: when it is back, all is as even as before.
    at = np.flatnonzero(usable | states[NodeState.DOWN])
    wanted = np.zeros(len(nodes))
    held = cluster.replicas if replicas is None else replicas
    fewest, most = _together(held, here, rack, len(np.unique(rack[at])))
    for factor in np.unique(factors[factors > 0]).tolist():
        rows = want == factor
        limits = (float(fewest[rows].mean()), float(most[rows].mean())) if rows.any() else (0.0, 1e9)
        by_factor[factor, at] = shares(factor, capacity[at], _dense(host[at]), _dense(rack[at]), *limits)
        total = float(size[rows].sum()) * factor
        spread = by_factor[factor].sum()
        wanted += by_factor[factor] * (total / spread) if spread else 0.0
    wanted[~usable] = 0.0
    equal, slack = _sizes(cluster, size)
    dust = _dust(np.bincount(cluster.table, size * want, len(cluster.tables)), wanted)
    slack[dust] = 0.0
    return Ground(
        cluster=cluster,
        dc=dc,
        capacity=capacity,
        free=free,
        usable=usable,
        down=states[NodeState.DOWN],
        draining=states[NodeState.DRAINING],
        dead=states[NodeState.DEAD],
        here=here,
        host=host,
        rack=rack,
        size=size,
        want=want,
        fixed=cluster.busy,
        share=by_factor,
        wanted=wanted,
        equal=equal,
        slack=slack,
        dust=dust,
    )


def _dust(totals: Floats, wanted: Floats) -> Bools:
    """The smallest tables, as many as are below the limit together."""
    out = np.zeros(len(totals), bool)
    if (wanted > 0).any():
        order = np.argsort(totals, kind="stable")
        out[order] = np.cumsum(totals[order]) <= DUST * float(wanted[wanted > 0].min())
    return out


def _together(replicas: Ints, here: Bools, rack: Ints, racks: int) -> tuple[Ints, Ints]:
    """The fewest and the most replicas of each row that a rack has; of the fewest, racks that have none count."""
    held = np.where(replicas >= 0, here[replicas], False)
    of = np.where(held, rack[replicas], -1)
    alike, first = np.zeros(of.shape, np.int64), np.ones(of.shape, bool)
    for slot in range(of.shape[1]):
        same = of == of[:, slot : slot + 1]
        alike[:, slot] = same.sum(axis=1)
        first[:, slot] = ~same[:, :slot].any(axis=1)
    several = (first & held).sum(axis=1)
    fewest = np.where(held, alike, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    return np.where(several < max(racks, 1), 0, fewest), np.where(held, alike, 0).max(axis=1, initial=0)


def _sizes(cluster: Cluster, size: Ints) -> tuple[Bools, Floats]:
    """Which tables have tablets of equal sizes; and how far numbers may be off where they don't.

    Bytes come first: where a few tablets are large, whoever has one of them has fewer others. Then nobody should still
    have more than twice its share of a table.
    """
    tables = len(cluster.tables)
    if not cluster.count:
        return np.zeros(tables, bool), np.zeros(tables)
    most, least = np.zeros(tables, np.int64), np.full(tables, np.iinfo(np.int64).max)
    np.maximum.at(most, cluster.table, size)
    np.minimum.at(least, cluster.table, size)
    many = np.maximum(np.bincount(cluster.table, minlength=tables), 1)
    mean = np.maximum(np.bincount(cluster.table, size, tables) / many, 1.0)
    equal = most <= least * EQUAL
    return equal, np.where(equal, 0.0, np.clip(0.5 * (most / mean - 1.0), 0.0, 1.0))


class Site:
    """The replicas of a data centre, and what follows from where they are."""

    def __init__(self, at: Ground, extra: int) -> None:
        cluster = at.cluster
        self.at = at
        known = np.where(cluster.replicas >= 0, at.here[cluster.replicas], False)
        held = np.where(known, cluster.replicas, -1).astype(np.int32)
        self.home = np.concatenate([held, np.full((len(held), extra), -1, np.int32)], axis=1)
        self.own = np.concatenate([known, np.ones((len(held), extra), bool)], axis=1)  # slots this one may use
        self.now = self.home.copy()
        self.load: Floats = np.zeros(at.nodes)
        self.room: Floats = np.zeros(at.nodes)
        self.counts: Ints | None = None
        self.recount()
        # What comes needs room before anything has gone.
        self.room = np.minimum(at.capacity - self.load, at.free)

    def recount(self) -> None:
        """Loads and counts from the places."""
        rows, slots = np.nonzero(self.now >= 0)
        nodes = self.now[rows, slots]
        self.load = np.bincount(nodes, self.at.size[rows], self.at.nodes)
        tables = len(self.at.cluster.tables)
        if tables * self.at.nodes <= MAX_CELLS:
            cells = self.at.cluster.table[rows] * self.at.nodes + nodes
            self.counts = np.bincount(cells, minlength=tables * self.at.nodes).reshape(tables, self.at.nodes)

    def state(self) -> tuple[Ints, Floats, Floats, Ints | None]:
        """To come back to with `restore`."""
        return self.now.copy(), self.load.copy(), self.room.copy(), None if self.counts is None else self.counts.copy()

    def restore(self, state: tuple[Ints, Floats, Floats, Ints | None]) -> None:
        self.now, self.load, self.room, self.counts = state

    def put(self, rows: Ints, slots: Ints, nodes: Ints) -> None:
        """Replicas go to these nodes (-1: to none). Each place is named once."""
        size, table = self.at.size[rows], self.at.cluster.table[rows]
        before = self.now[rows, slots]
        self.now[rows, slots] = nodes
        for sign, which in ((-1, before), (1, nodes)):
            real = which >= 0
            np.add.at(self.load, which[real], sign * size[real])
            if self.counts is not None:
                np.add.at(self.counts, (table[real], which[real]), sign)
        home = self.home[rows, slots]
        # What returns home needs no room: it has never left.
        came, undone = (nodes >= 0) & (nodes != home), (before >= 0) & (before != home)
        np.add.at(self.room, nodes[came], -size[came])
        np.add.at(self.room, before[undone], size[undone])

    def allowed(self, rows: Ints, slots: Ints, nodes: Ints, *, racks: bool = True) -> Bools:
        """Whether each replica may go to its node: another host than the others, and racks no worse than now.

        Of a slot that is empty, racks are compared with those when its first replica was there; without one, any do.
        """
        at = self.at
        others = self.now[rows]
        mine = others[np.arange(len(rows)), slots]
        others[np.arange(len(rows)), slots] = -1
        there = others >= 0
        conflict = (there & (at.host[others] == at.host[nodes][:, None])).any(axis=1)
        fine = at.usable[nodes] & ~conflict & (mine != nodes)
        if racks:
            rack_of = np.where(there, at.rack[others], -1)
            before = np.where(mine >= 0, mine, self.home[rows, slots])
            target, source = at.rack[nodes], np.where(before >= 0, at.rack[before], -1)
            fuller = (rack_of == target[:, None]).sum(axis=1) + 1
            emptier = (rack_of == source[:, None]).sum(axis=1) + 1
            fine &= (target == source) | (fuller <= emptier) | (source < 0)
        out: Bools = fine
        return out

    def goal(self) -> Floats:
        """The bytes of each node where what is on usable nodes now lies as evenly as it can; 0 for all others."""
        total, wanted = float(self.load[self.at.usable].sum()), self.at.wanted
        return wanted * (total / wanted.sum()) if wanted.sum() else wanted

    def filled(self) -> Floats:
        """How full each node is, 1.0 being its share; 0 where it should hold nothing."""
        goal = self.goal()
        out: Floats = np.divide(self.load, goal, out=np.zeros(len(goal)), where=goal > 0)
        return out

    def spread(self) -> float:
        """(max - min) / mean of bytes per capacity, over the nodes that may be used."""
        per = (self.load / self.at.capacity)[self.at.usable]
        mean = float(per.mean()) if len(per) else 0.0
        return float(per.max() - per.min()) / mean if mean else 0.0


def _numbers(names: list[tuple[str, str]]) -> Ints:
    known: dict[tuple[str, str], int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def _dense(numbers: Ints) -> Ints:
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)
