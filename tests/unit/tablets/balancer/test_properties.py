"""Whatever the cluster looks like: constraints are kept, no bound is beaten, and planning the result gives no move."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.tablets.balancer.building import NEW, after, checked

from trimtab.tablets.balancer.model import Cluster, Node, NodeState, Table
from trimtab.tablets.balancer.planning import plan

STATES = [*[NodeState.NORMAL] * 8, NodeState.NEW, NodeState.DRAINING, NodeState.DEAD, NodeState.DOWN]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Anything: nodes that share hosts, two data centres, wrong numbers of replicas, tablets under way."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    dcs, racks = draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 3))
    number, together = draw(st.integers(2, 11)), draw(st.sampled_from([1, 1, 2]))
    capacities = draw(st.sampled_from([(1,), (1, 2, 4, 8)]))
    those = []
    for at in range(number):
        host = at // together
        domain = f"dc{host % dcs}", f"r{host // dcs % racks}", f"h{host}"
        those.append(
            Node(f"n{at}", *domain, int(rng.choice(capacities)) * 10**13, STATES[int(rng.integers(len(STATES)))])
        )
    tables = tuple(
        Table(f"t{at}", "ks", {f"dc{dc}": draw(st.integers(0 if dc else 1, 3)) for dc in range(dcs)})
        for at in range(draw(st.integers(1, 3)))
    )
    rows: list[tuple[int, int, list[int]]] = []
    for at, table in enumerate(tables):
        for tablet in range(draw(st.sampled_from([1, 2, 8, 32]))):
            replicas: list[int] = []
            hosts: set[str] = set()
            for dc, wanted in table.replication.items():
                left = max(0, wanted + int(rng.integers(-1, 2)) * int(rng.random() < 0.1))
                for node in rng.permutation(number).tolist():
                    known = those[node]
                    if known.dc == dc and known.state is not NEW and known.host not in hosts and left:
                        hosts.add(known.host)
                        replicas.append(node)
                        left -= 1
            if replicas:
                rows.append((at, tablet, replicas))
    width = max((len(row[2]) for row in rows), default=1)
    zipfian = draw(st.booleans())
    return Cluster(
        tuple(those),
        tables,
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        (1e9 / rng.integers(1, 100, len(rows))).astype(np.int64) if zipfian else np.full(len(rows), 1_000),
        np.array([row[2] + [-1] * (width - len(row[2])) for row in rows], np.int64).reshape(len(rows), width),
        rng.random(len(rows)) < 0.05,
        draw(st.sampled_from([0, 0, 1 << 25])),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(clusters())
def test_every_plan_keeps_what_must_hold(cluster: Cluster) -> None:
    checked(cluster)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(clusters(), st.integers(1, 1 << 32))
def test_plans_that_are_carried_out_in_part_come_to_an_end(cluster: Cluster, seed: int) -> None:
    """Moves end in any order, the planner plans again meanwhile, and sizes tremble."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        found = plan(cluster)
        if not found.moves:
            return
        whole = after(cluster, found).replicas
        held = np.full(whole.shape, -1, np.int64)
        held[:, : cluster.replicas.shape[1]] = cluster.replicas
        ended = rng.random(cluster.count) < 0.6
        ended[found.moves[0].row] = True
        held[ended] = whole[ended]
        cluster = Cluster(
            cluster.nodes,
            cluster.tables,
            cluster.table,
            cluster.tablet,
            (cluster.bytes * rng.uniform(0.999, 1.001, cluster.count)).astype(np.int64),
            held,
            cluster.busy,
            cluster.floor_bytes,
        )
    raise AssertionError(f"still moving: {[move.why for move in plan(cluster).moves][:5]}")
