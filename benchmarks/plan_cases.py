"""The clusters that `bench plan` plans, and how others would place their tablets: one case in one process.

    python -m benchmarks.plan_cases KIND TABLETS NODES

prints one JSON object: seconds and memory of our plan, and the figures of all. Others are our own renderings:

rendezvous    every tablet is on the nodes with the highest hash of tablet and node, one to a rack, weighted by
              capacity; what moves is what the hash says before and after. Nothing knows of bytes.
document 003  as it is written, with its faults: with more than one replica, new nodes get a copy of *every* shard, so
              that the replication grows with each of them; what a failed node had goes to whoever has fewest shards;
              where one failed and another is new, nothing happens.
"""

from __future__ import annotations

import heapq
import json
import resource
import sys
import time

import numpy as np

from trimtab.tablets.balancer.model import Bools, Cluster, Floats, Ints, Node, NodeState, Plan, Table
from trimtab.tablets.balancer.planning import plan

KINDS = ("add", "remove", "replace", "heal", "capacities", "zipf")
FACTOR = 3
_BYTES = 1 << 30
_CAPACITY = 1 << 50
_SCORES = 200_000_000  # hashes of rendezvous; beyond, a sample of the tablets is placed
_CHUNK = 4_000_000
_CANDIDATES = 16
_LARGEST = 10  # times the mean: larger tablets would have been split


def build(kind: str, tablets: int, nodes: int) -> tuple[Cluster, Cluster]:
    """The cluster before anything happened, even; and when it has."""
    racks = 4 if nodes < 100 else nodes // 20
    several = max(2, nodes // 10) if kind in ("add", "capacities", "zipf") else max(1, nodes // 100)
    base = nodes - several if kind in ("add", "capacities", "zipf", "replace") else nodes
    base -= base % racks
    rng = np.random.default_rng(7)
    capacities = rng.choice([1, 2, 4, 8], nodes) if kind == "capacities" else np.ones(nodes, int)
    those = [
        Node(f"n{number}", "dc1", f"r{number % racks}", f"h{number}", int(capacities[number]) * _CAPACITY)
        for number in range(nodes)
    ]
    tables = max(1, tablets // 10_000)
    size = np.full(tablets, _BYTES, np.int64)
    if kind == "zipf":
        falling = 1.0 / np.arange(1, tablets + 1)
        falling = np.minimum(falling, _LARGEST * falling.mean())
        size = np.maximum(rng.permutation(falling) * (_BYTES / falling.mean()), 1).astype(np.int64)
    row = np.arange(tablets)
    before = Cluster(
        tuple(those[:base]),
        tuple(Table(f"t{number}", "ks", {"dc1": FACTOR}) for number in range(tables)),
        row * tables // tablets,
        row - (row * tables // tablets * tablets + tables - 1) // tables,
        size,
        _placed(tablets, base, racks, rng),
    )
    if kind in ("capacities", "zipf"):
        before = _with(before, before.nodes, plan(before).replicas)
    # All of one rack: no tablet has two replicas there.
    for number, old in zip(range(several), range(0, base, racks), strict=False):
        if kind == "remove":
            those[old] = those[old]._replace(state=NodeState.DRAINING)
        elif kind in ("heal", "replace"):
            those[old] = those[old]._replace(state=NodeState.DEAD)
        if kind == "replace":
            new = base + number
            those[new] = those[old]._replace(id=f"n{new}", host=f"h{new}", replaces=those[old].id)
    comes = several if base < nodes and kind not in ("remove", "heal") else 0
    kept = those[:base] + [node._replace(state=NodeState.NEW) for node in those[base : base + comes]]
    return before, _with(before, tuple(kept), before.replicas)


def _with(cluster: Cluster, nodes: tuple[Node, ...], replicas: Ints) -> Cluster:
    return Cluster(nodes, cluster.tables, cluster.table, cluster.tablet, cluster.bytes, replicas)


def _placed(tablets: int, nodes: int, racks: int, rng: np.random.Generator) -> Ints:
    """Replicas in different racks, everybody in its turn; the order of turns changes with every round."""
    rounds = -(-tablets * FACTOR // nodes)
    within = rng.random((rounds, racks, nodes // racks)).argsort(axis=2)
    order = within * racks + np.arange(racks)[None, :, None]
    turns = order.transpose(0, 2, 1).reshape(-1)[: tablets * FACTOR]
    # A tablet at the seam of two rounds could meet a node twice: then both rounds have the same order.
    found: Ints = turns.reshape(tablets, FACTOR)
    twice = (np.sort(found, axis=1)[:, 1:] == np.sort(found, axis=1)[:, :-1]).any(axis=1)
    found[twice] = (found[twice][:, :1] + np.arange(FACTOR)) % nodes
    return found


# Others


def spread(cluster: Cluster, load: Floats, usable: Bools) -> float:
    per = (load / np.array([node.capacity_bytes for node in cluster.nodes], float))[usable]
    return float((per.max() - per.min()) / per.mean())


def usable_of(cluster: Cluster) -> Bools:
    return np.array([node.state in (NodeState.NORMAL, NodeState.NEW) for node in cluster.nodes], bool)


def rendezvous(before: Cluster, after: Cluster, needed: int) -> dict[str, float | None]:
    """Moves that the hash asks for, and how even it is."""
    sample = min(after.count, max(1, _SCORES // len(after.nodes)))
    rows = np.arange(sample)
    old = _hashed(before, rows, np.ones(len(before.nodes), bool))
    new = _hashed(after, rows, usable_of(after))
    came = ~(new[:, :, None] == old[:, None, :]).any(axis=2)
    load = np.bincount(new.ravel(), np.repeat(after.bytes[:sample], FACTOR), len(after.nodes))
    moves = float(came.sum()) * after.count / sample
    return {"ratio": moves / needed if needed else None, "spread": spread(after, load, usable_of(after))}


def _hashed(cluster: Cluster, rows: Ints, usable: Bools) -> Ints:
    names = np.flatnonzero(usable).astype(np.uint64)
    rack = np.array([int(node.rack[1:]) for node in cluster.nodes])
    weight = np.array([cluster.nodes[int(name)].capacity_bytes for name in names], float)
    out = np.empty((len(rows), FACTOR), np.int64)
    step = max(1, _CHUNK // len(names))
    width = min(_CANDIDATES, len(names))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        mixed = _mixed(part.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + names[None, :])
        # Weighted rendezvous: the smallest -log(u) / weight.
        score = -np.log((mixed >> np.uint64(11)).astype(float) / (1 << 53) + 1e-300) / weight
        best = np.argpartition(score, width - 1, axis=1)[:, :width]
        best = np.take_along_axis(best, np.take_along_axis(score, best, 1).argsort(axis=1), 1)
        nodes = names[best].astype(np.int64)
        out[first : first + len(part)] = _of_different_racks(nodes, rack[nodes])
    return out


def _of_different_racks(nodes: Ints, racks: Ints) -> Ints:
    """The first ones of each row that are in different racks; where there are too few, just the first ones."""
    chosen = np.full((len(nodes), FACTOR), -1, np.int64)
    taken = np.full((len(nodes), FACTOR), -1, np.int64)
    number = np.zeros(len(nodes), int)
    for column in range(nodes.shape[1]):
        fresh = ~(taken == racks[:, column : column + 1]).any(axis=1) & (number < FACTOR)
        at = np.flatnonzero(fresh)
        chosen[at, number[at]] = nodes[at, column]
        taken[at, number[at]] = racks[at, column]
        number[at] += 1
    return np.where(chosen < 0, nodes[:, :FACTOR], chosen)


def _mixed(numbers: Ints) -> Ints:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: Ints = numbers ^ (numbers >> np.uint64(31))
    return out


def document_003(after: Cluster, needed: int) -> dict[str, float | None]:
    """Moves by the document's text, and how even it is."""
    states = [node.state for node in after.nodes]
    gone = np.array([state in (NodeState.DEAD, NodeState.DRAINING) for state in states], bool)
    new = np.array([state is NodeState.NEW for state in states], bool)
    size, replicas = after.bytes, after.replicas
    load = np.bincount(replicas.ravel(), np.repeat(size, FACTOR), len(states)).astype(float)
    moves = 0
    if gone.any() and not new.any():
        load[gone] = 0
        moves = _orphans(replicas, size, gone, load)
    elif not gone.any():
        # "For RF>=2, add all shards to new nodes."
        load[new] += float(size.sum())
        moves = after.count * int(new.sum())
    return {"ratio": moves / needed if needed else None, "spread": spread(after, load, ~gone)}


def _orphans(replicas: Ints, size: Ints, gone: Bools, load: Floats) -> int:
    """Each goes to whoever has fewest shards and not this one."""
    held = np.bincount(replicas.ravel(), minlength=len(gone))
    heap = [(int(held[node]), node) for node in np.flatnonzero(~gone).tolist()]
    heapq.heapify(heap)
    moves = 0
    for row in np.flatnonzero(gone[replicas].any(axis=1)).tolist():
        there = set(replicas[row].tolist())
        for _ in range(int(gone[replicas[row]].sum())):
            aside = []
            while heap and heap[0][1] in there:
                aside.append(heapq.heappop(heap))
            number, node = heapq.heappop(heap)
            for each in [*aside, (number + 1, node)]:
                heapq.heappush(heap, each)
            there.add(node)
            load[node] += size[row]
            moves += 1
    return moves


def measured(kind: str, tablets: int, nodes: int) -> dict[str, object]:
    before, after = build(kind, tablets, nodes)
    began_s = time.process_time()
    found: Plan = plan(after, time.perf_counter)
    cpu_s = time.process_time() - began_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    again = plan(_with(after, after.nodes, found.replicas))
    needed = found.lower_bound_moves
    return {
        "seconds": found.seconds,
        "cpu_seconds": cpu_s,
        "peak_mb": peak_mb,
        "moves": len(found.moves),
        "ratio": found.ratio,
        "ratio_bytes": found.ratio_bytes,
        "spread": found.spread_after,
        "again": len(again.moves),
        "problems": list(found.problems),
        "rendezvous": rendezvous(before, after, needed),
        "document 003": document_003(after, needed),
    }


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
