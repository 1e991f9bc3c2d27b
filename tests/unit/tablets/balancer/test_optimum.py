"""Equal sizes: tiny clusters are compared with the best of everything that is possible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.unit.tablets.balancer.building import checked, counts

from trimtab.tablets.balancer.model import Cluster, Node, Table


def made_up(seed: int) -> Cluster:
    """Up to five nodes, some of them empty or on one host, and up to six tablets in any place."""
    rng = np.random.default_rng(seed)
    together = 2 if rng.random() < 0.3 else 1
    number = int(rng.integers(2, 6))
    those = [Node(f"n{at}", "dc1", "r", f"h{at // together}", 10**9) for at in range(number)]
    factor = min(int(rng.integers(1, 4)), len({node.host for node in those}))
    empty = int(rng.integers(0, number - factor + 1)) if together == 1 else 0
    rows = []
    for _ in range(int(rng.integers(1, 7))):
        hosts: dict[str, int] = {}
        for node in (empty + rng.permutation(number - empty)).tolist():
            if len(hosts) < factor:
                hosts.setdefault(those[node].host, node)
        rows.append(list(hosts.values()))
    tablets = len(rows)
    return Cluster(
        tuple(those),
        (Table("t", "ks", {"dc1": factor}),),
        np.zeros(tablets, np.int64),
        np.arange(tablets),
        np.full(tablets, 100),
        np.array(rows),
    )


def best(cluster: Cluster) -> tuple[int, int]:
    """The least difference between two nodes that can be, and the fewest moves to it."""
    factor = cluster.replicas.shape[1]
    nodes = range(len(cluster.nodes))
    hosts = [node.host for node in cluster.nodes]
    sets = [each for each in itertools.combinations(nodes, factor) if len({hosts[node] for node in each}) == factor]
    reached = {(0,) * len(nodes): 0}
    for row in cluster.replicas.tolist():
        following: dict[tuple[int, ...], int] = {}
        for held, moved in reached.items():
            for each in sets:
                now = tuple(number + (node in each) for node, number in enumerate(held))
                cost = moved + len(set(each) - set(row))
                following[now] = min(cost, following.get(now, cost))
        reached = following
    least = min(max(held) - min(held) for held in reached)
    return least, min(moved for held, moved in reached.items() if max(held) - min(held) == least)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_nothing_is_more_even_and_nothing_as_even_takes_fewer_moves(first: int) -> None:
    for seed in range(first, first + 20):
        cluster = made_up(seed)
        found = checked(cluster)
        held = counts(cluster, found)
        assert (max(held) - min(held), len(found.moves)) == best(cluster), f"seed {seed}"
