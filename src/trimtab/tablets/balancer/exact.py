"""The fewest moves, by a flow: for data centres that are small and whose tablets are equally large.

Searching step by step may end where only several moves together would help (hosts and racks are in the way), or may
take a move too many. A flow of least cost can't: units go from each tablet, through its racks and hosts, to nodes by
table, and then to nodes; a unit costs one where the tablet had no replica before. What nodes should hold at least is
worth more than any move, and what they should not hold costs more. Bounds are whole numbers, so the flow is as well.

Racks: a tablet that is spread as well as can be may use any rack once more than it must; another keeps its numbers.
"""

from __future__ import annotations

import numpy as np

from trimtab.tablets.balancer.model import Ints
from trimtab.tablets.balancer.quotas import Windows
from trimtab.tablets.balancer.site import EQUAL, Site

MAX_ARCS = 40_000


def fits(site: Site) -> bool:
    """Whether it is small enough, and a matter of numbers alone."""
    rows = len(site.now)
    size = site.at.size
    return (
        bool(rows)
        and rows * int(site.at.usable.sum()) * 3 <= MAX_ARCS
        and float(size.max()) <= EQUAL * float(size.min())
        and bool((site.room > 0)[site.at.usable].all())
        and bool((size.max() * rows <= np.minimum(site.at.capacity - site.load, site.at.free))[site.at.usable].all())
    )


def fewest_moves(site: Site, allowed: Windows) -> Ints | None:
    """Replicas [row, slot] with which tables and nodes are as even as can be, by the fewest moves; None: not found."""
    from ortools.graph.python import min_cost_flow

    flow = _Flow(site, allowed)
    solver = min_cost_flow.SimpleMinCostFlow()
    tail, head, capacity, cost = (np.array(each, np.int64) for each in zip(*flow.arcs, strict=True))
    numbers = solver.add_arcs_with_capacity_and_unit_cost(tail, head, capacity, cost)
    supply = np.zeros(flow.nodes, np.int64)
    for node, amount in flow.supplies.items():
        supply[node] = amount
    solver.set_nodes_supplies(np.arange(flow.nodes), supply)
    if solver.solve_max_flow_with_min_cost() != solver.OPTIMAL or solver.maximum_flow() != flow.amount:
        return None
    used = solver.flows(numbers)
    return _placed(site, [flow.choices[arc] for arc in np.flatnonzero(used > 0).tolist() if arc in flow.choices])


class _Flow:
    def __init__(self, site: Site, allowed: Windows) -> None:
        self.site = site
        self.nodes = 2  # 0 is the sink; 1 is not used
        self.arcs: list[tuple[int, int, int, int]] = []
        self.supplies: dict[int, int] = {0: 0}
        self.choices: dict[int, tuple[int, int]] = {}  # arc: row and node
        self.amount = 0
        at = site.at
        assert site.counts is not None
        self._worth = 4 * len(site.now) * max(1, site.now.shape[1]) + 4
        usable = np.flatnonzero(at.usable).tolist()
        ends = {node: self._end(node) for node in usable}
        cells: dict[tuple[int, int], int] = {}
        tables = np.unique(at.cluster.table).tolist()
        for table in tables:
            for node in usable:
                least, most = int(allowed.least[table, node]), int(allowed.most[table, node])
                cells[table, node] = self._cell(least, most, ends[node])
        for row in range(len(site.now)):
            self._row(row, cells, usable)
        self.supplies[0] = -self.amount

    def _node(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def _arc(self, tail: int, head: int, capacity: int, cost: int) -> int:
        self.arcs.append((tail, head, capacity, cost))
        return len(self.arcs) - 1

    def _end(self, node: int) -> int:
        """A node, which should hold its share of all tablets, rounded down or up."""
        total = float(self.site.goal()[node]) / float(self.site.at.size.mean())
        made = self._node()
        least, most = int(np.floor(total + 1e-6)), int(np.ceil(total - 1e-6))
        self._bounded(made, 0, least, most, self._worth)
        return made

    def _cell(self, least: int, most: int, end: int) -> int:
        made = self._node()
        self._bounded(made, end, least, most, 2 * self._worth)
        return made

    def _bounded(self, tail: int, head: int, least: int, most: int, worth: int) -> None:
        if least > 0:
            self._arc(tail, head, least, -worth)
        if most > least:
            self._arc(tail, head, most - least, 0)
        self._arc(tail, head, len(self.site.now), worth)

    def _row(self, row: int, cells: dict[tuple[int, int], int], usable: list[int]) -> None:
        site, at = self.site, self.site.at
        now, home = site.now[row], set(site.home[row].tolist())
        held = now[now >= 0]
        stays = held if at.fixed[row] else held[~at.usable[held]]
        moving = [node for node in held.tolist() if node not in set(stays.tolist())]
        table = int(at.cluster.table[row])
        for node in stays.tolist():
            if at.usable[node]:
                self.supplies[cells[table, node]] = self.supplies.get(cells[table, node], 0) + 1
                self.amount += 1
        if not moving:
            return
        start = self._node()
        self.supplies[start] = len(moving)
        self.amount += len(moving)
        taken = set(at.host[stays].tolist())
        racks = np.bincount(at.rack[held], minlength=int(at.rack.max()) + 1)
        racks_there = np.unique(at.rack[usable])
        even = int(racks[racks_there].max()) - int(racks[racks_there].min()) <= 1
        top = int(racks.max())
        of_stays = np.bincount(at.rack[stays], minlength=len(racks))
        for rack in racks_there.tolist():
            room = (top if even else int(racks[rack])) - int(of_stays[rack])
            if room <= 0:
                continue
            by_rack = self._node()
            self._arc(start, by_rack, room, 0)
            hosts: dict[int, list[int]] = {}
            for node in usable:
                if at.rack[node] == rack and int(at.host[node]) not in taken:
                    hosts.setdefault(int(at.host[node]), []).append(node)
            for nodes in hosts.values():
                by_host = by_rack
                if len(nodes) > 1:
                    by_host = self._node()
                    self._arc(by_rack, by_host, 1, 0)
                for node in nodes:
                    cost = 0 if node in home else 1
                    self.choices[self._arc(by_host, cells[table, node], 1, cost)] = row, node


def _placed(site: Site, chosen: list[tuple[int, int]]) -> Ints:
    """The chosen nodes of each row, in the slots they were in or that others leave."""
    now = site.now.copy()
    of_row: dict[int, list[int]] = {}
    for row, node in chosen:
        of_row.setdefault(row, []).append(node)
    for row, nodes in of_row.items():
        wanted = set(nodes)
        free = []
        for slot, node in enumerate(now[row].tolist()):
            if node in wanted:
                wanted.remove(node)
            elif node >= 0 and site.at.usable[node]:
                free.append(slot)
        for slot, node in zip(free, sorted(wanted), strict=True):
            now[row, slot] = node
    return now
