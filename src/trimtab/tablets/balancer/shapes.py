"""A plan as scripts get it: the JSON of `plan`. Fields may be added, not renamed."""

from __future__ import annotations

from typing import Any

from trimtab.tablets.balancer.model import Cluster, Plan


def plan_shape(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """`from` is null when nothing leaves, `to` when nothing comes. `bytes` are those that are copied.

    `weighed_bytes`, `lower_bound_bytes` and `ratio_bytes` are of bytes as they count: `Cluster.weights`.
    """
    names = [node.id for node in cluster.nodes]
    table, tablet, size = cluster.table.tolist(), cluster.tablet.tolist(), cluster.bytes.tolist()
    return {
        "moves": [
            {
                "keyspace": cluster.tables[table[move.row]].keyspace,
                "table": cluster.tables[table[move.row]].shown,
                "tablet": tablet[move.row],
                "from": None if move.source is None else names[move.source],
                "to": None if move.target is None else names[move.target],
                "bytes": 0 if move.target is None else size[move.row],
                "why": move.why,
                "cause": move.cause.value,
            }
            for move in plan.moves
        ],
        "moved_bytes": plan.moved_bytes,
        "weighed_bytes": plan.weighed_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "lower_bound_moves": plan.lower_bound_moves,
        "ratio": plan.ratio,
        "ratio_bytes": plan.ratio_bytes,
        "spread_before": plan.spread_before,
        "spread_after": plan.spread_after,
        "problems": [*plan.problems, *plan.shortages],
        "seconds": plan.seconds,
    }
