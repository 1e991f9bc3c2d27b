"""Clusters in one line, and what must hold of every plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from trimtab.tablets.balancer.model import USABLE, Cluster, Node, NodeState, Plan, Table
from trimtab.tablets.balancer.planning import plan
from trimtab.tablets.placement import Node as Member
from trimtab.tablets.placement import place

CAPACITY = 10**15
NORMAL, NEW, DRAINING, DEAD, DOWN = NodeState.NORMAL, NodeState.NEW, NodeState.DRAINING, NodeState.DEAD, NodeState.DOWN


def nodes(normal: int, new: int = 0, *, racks: int = 1, capacity: int = CAPACITY) -> list[Node]:
    """n0, n1, …, each on a host of its own, racks in turn."""
    return [
        Node(f"n{number}", "dc1", f"r{number % racks}", f"h{number}", capacity, NORMAL if number < normal else NEW)
        for number in range(normal + new)
    ]


def state(those: list[Node], number: int, wanted: NodeState) -> list[Node]:
    """The same nodes, one of them in another state."""
    return [node._replace(state=wanted) if at == number else node for at, node in enumerate(those)]


def placed(
    those: Sequence[Node],
    tablets: int,
    factor: int,
    *,
    tables: int = 1,
    size: Callable[[int], int] = lambda _tablet: 1_000_000,
    declared: int = 0,
) -> Cluster:
    """Tables as they were made: by `place`, on all nodes that are not new. `declared`: the replication now."""
    there = [number for number, node in enumerate(those) if node.state is not NEW]
    loads: Counter[int] = Counter()
    rows: list[tuple[int, int, list[int]]] = []
    for table in range(tables):
        members = [
            Member(number + 1, those[number].dc, those[number].rack, those[number].host, loads[number])
            for number in there
        ]
        for tablet, replicas in enumerate(place(tablets, {"dc1": factor}, members)):
            rows.append((table, tablet, [raft_id - 1 for raft_id in replicas]))
            loads.update(raft_id - 1 for raft_id in replicas)
    return Cluster(
        tuple(those),
        tuple(Table(f"t{number}", "ks", {"dc1": declared or factor}) for number in range(tables)),
        np.array([row[0] for row in rows]),
        np.array([row[1] for row in rows]),
        np.array([size(row[1]) for row in rows]),
        np.array([row[2] for row in rows]),
    )


def counts(cluster: Cluster, found: Plan) -> list[int]:
    """Replicas of each node afterwards."""
    held = found.replicas[found.replicas >= 0]
    return np.bincount(held, minlength=len(cluster.nodes)).tolist()


def after(cluster: Cluster, found: Plan) -> Cluster:
    """The cluster when the plan is carried out."""
    return Cluster(
        cluster.nodes,
        cluster.tables,
        cluster.table,
        cluster.tablet,
        cluster.bytes,
        found.replicas,
        cluster.busy,
        cluster.floor_bytes,
    )


def checked(cluster: Cluster) -> Plan:
    """A plan that keeps all constraints, beats no bound, and leaves nothing to plan."""
    found = plan(cluster)
    wrong = faults(cluster, found)
    assert not wrong, wrong[:5]
    again = plan(after(cluster, found))
    assert found.problems or not again.moves, f"planned again, {len(again.moves)} moves: {again.moves[:3]}"
    return found


def faults(cluster: Cluster, found: Plan) -> list[str]:
    """What must not be."""
    wrong: list[str] = []
    usable = {number for number, node in enumerate(cluster.nodes) if node.state in USABLE}
    held = [{int(node) for node in row if node >= 0} for row in cluster.replicas]
    for move in found.moves:
        replicas = held[move.row]
        if not move.why:
            wrong.append(f"no why: {move}")
        if move.source is not None and move.source not in replicas:
            wrong.append(f"leaves where it is not: {move}")
        if move.source is not None and cluster.nodes[move.source].state is DEAD and move.target is not None:
            wrong.append(f"moves from a dead node: {move}")
        if move.target is not None and (move.target in replicas or move.target not in usable):
            wrong.append(f"comes where it may not: {move}")
        replicas -= {move.source}
        replicas |= {move.target} - {None}
    for row, replicas in enumerate(held):
        before = {int(node) for node in cluster.replicas[row] if node >= 0}
        ends = {int(node) for node in found.replicas[row] if node >= 0}
        where = cluster.place(row)
        if cluster.busy[row] and ends != before:
            wrong.append(f"{where} is busy and was touched")
        gone = {node for node in replicas - ends if cluster.nodes[node].state is DEAD}
        if replicas - gone != ends:
            wrong.append(f"{where}: the moves end in {replicas}, the plan says {ends}")
        # A dead one that nobody can replace is still named, and shares its host with nobody.
        lived, lives = ({node for node in each if cluster.nodes[node].state is not DEAD} for each in (before, ends))
        if lived and not lives:
            wrong.append(f"{where}: no copy is left")
        if _crowded(cluster, lives, "host") > _crowded(cluster, lived, "host"):
            wrong.append(f"{where}: two replicas on one host")
        if not found.problems and not cluster.busy[row]:
            wrong += _undone(cluster, row, ends)
            if _racks_worse(cluster, before, ends):
                wrong.append(f"{where}: racks are worse, {before} -> {ends}")
    wrong += _too_full(cluster, found)
    if len(found.moves) < found.lower_bound_moves or found.weighed_bytes < found.lower_bound_bytes:
        wrong.append("a bound was beaten")
    return wrong


def _crowded(cluster: Cluster, replicas: set[int], what: str) -> int:
    places = [(cluster.nodes[node].dc, getattr(cluster.nodes[node], what)) for node in replicas]
    return len(places) - len(set(places))


def _racks_worse(cluster: Cluster, before: set[int], ends: set[int]) -> bool:
    """Only where as many replicas are there as before, in each data centre, and nobody had to go."""
    many, now = (Counter(cluster.nodes[node].dc for node in each) for each in (before, ends))
    if many != now or any(cluster.nodes[node].state in (DEAD, DRAINING) for node in before):
        return False
    spread = [
        sorted(Counter((cluster.nodes[node].dc, cluster.nodes[node].rack) for node in which).values(), reverse=True)
        for which in (before, ends)
    ]
    return spread[1] > spread[0]


def _undone(cluster: Cluster, row: int, ends: set[int]) -> list[str]:
    table = cluster.tables[cluster.table[row]]
    there = Counter(cluster.nodes[node].dc for node in ends)
    wrong = [
        f"{cluster.place(row)} has {there[dc]} of {number} replicas in {dc}"
        for dc, number in table.replication.items()
        if there[dc] != number
    ]
    stays = [node for node in ends if cluster.nodes[node].state in (DEAD, DRAINING)]
    return wrong + [f"{cluster.place(row)} stays on {cluster.nodes[node].id}" for node in stays]


def _too_full(cluster: Cluster, found: Plan) -> list[str]:
    """What comes must fit before anything has gone."""
    need: Counter[int] = Counter()
    for row, replicas in enumerate(cluster.replicas.tolist()):
        for node in replicas:
            if node >= 0:
                need[node] += int(cluster.bytes[row])
    already = dict(need)
    for move in found.moves:
        if move.target is not None:
            need[move.target] += int(cluster.bytes[move.row])
    return [
        f"{cluster.nodes[node].id} would need {size} bytes"
        for node, size in need.items()
        if size > max(cluster.nodes[node].capacity_bytes, already.get(node, 0))
    ]
