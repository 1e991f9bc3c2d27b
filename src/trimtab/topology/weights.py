"""Weights as shares: how many of a number of equal parts each instance should hold.

An instance gets parts in proportion to its weight, rounded so that all parts are given and nobody is off by one or
more. One without weight (every instance that is not Online) gets none.
"""

from __future__ import annotations

from collections.abc import Mapping


def shares(weights: Mapping[int, float], parts: int) -> dict[int, int]:
    """Parts by raft id; all are 0 where nobody has a weight. Of equal claims to a last part the lower id wins."""
    if parts < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError(f"neither parts ({parts}) nor weights ({dict(weights)}) may be below zero")
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 0)
    exact = {raft_id: parts * weight / total for raft_id, weight in weights.items()}
    given = {raft_id: int(share) for raft_id, share in exact.items()}
    left = parts - sum(given.values())
    for raft_id in sorted(exact, key=lambda i: (given[i] - exact[i], i))[:left]:
        given[raft_id] += 1
    return given
