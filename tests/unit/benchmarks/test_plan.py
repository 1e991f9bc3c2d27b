"""The clusters that planning is measured on, and the others beside it."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.plan_cases import KINDS, build, document_003, measured, rendezvous

from trimtab.tablets.balancer.model import NodeState


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_is_planned_to_its_bound(kind: str) -> None:
    found = measured(kind, 600, 10)
    assert not found["problems"] and not found["again"]
    assert found["ratio_bytes"] == pytest.approx(1.0, abs=0.05)
    assert found["ratio"] == 1.0 or kind in ("zipf", "capacities")


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_begin_in_different_racks_and_evenly(kind: str) -> None:
    before, after = build(kind, 2_000, 100)
    racks = np.array([int(node.rack[1:]) for node in after.nodes])[after.replicas]
    assert (np.sort(racks, axis=1)[:, 1:] != np.sort(racks, axis=1)[:, :-1]).all()
    if kind not in ("zipf", "capacities"):
        assert np.ptp(np.bincount(before.replicas.ravel())) <= 2


def test_document_003_ratchets_up_and_forgets_dead_nodes_where_others_are_new() -> None:
    _, grown = build("add", 1_000, 10)
    new = sum(node.state is NodeState.NEW for node in grown.nodes)
    assert document_003(grown, 1_000)["ratio"] == new, "every shard goes to each new node"
    assert document_003(build("replace", 1_000, 10)[1], 1_000)["ratio"] == 0
    _, dead = build("heal", 1_000, 10)
    lost = int((dead.replicas == 0).sum())
    assert document_003(dead, lost)["ratio"] == 1.0


def test_rendezvous_moves_about_what_is_needed_and_is_not_even() -> None:
    before, after = build("add", 2_000, 20)
    found = rendezvous(before, after, 600)
    assert found["ratio"] == pytest.approx(1.0, abs=0.15) and found["spread"] is not None and found["spread"] > 0.05
