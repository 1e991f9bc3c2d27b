"""The invariants notice what must not be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.governor.driver import World, cluster

from trimtab.governor.invariants import check
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import RequestKind, RequestRecord, RequestState, TransitionRecord
from trimtab.topology.states import NodeState, TransitionState


def row(world: World, raft_id: int, **fields: object) -> None:
    world.view.instances[raft_id] = msgspec.structs.replace(world.view.instances[raft_id], **fields)


def grades(current: Grade, target: Grade, at: int = 1, to: int = 1) -> Grades:
    return Grades(Standing(current, at), Standing(target, to))


def transition(world: World, *numbers: int) -> None:
    world.view.transition = TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.JOIN, list(numbers), 1)


def join(world: World, state: RequestState, raft_id: int) -> None:
    world.view.requests[99] = RequestRecord(RequestKind.JOIN, state=state, raft_id=raft_id)


BREACHES: dict[str, Callable[[World], object]] = {
    "which is none": lambda w: row(w, 3, grades=grades(Grade.ONLINE, Grade.REPLICATED)),
    "ahead of its target's": lambda w: row(w, 3, grades=grades(Grade.ONLINE, Grade.ONLINE, 2, 1)),
    "has the weight 1.0, though": lambda w: row(w, 3, grades=grades(Grade.OFFLINE, Grade.OFFLINE)),
    "Online without weight": lambda w: row(w, 3, weight=0.0),
    "is left, but Online": lambda w: row(w, 3, state=NodeState.LEFT),
    "is Expelled, but should be Online": lambda w: row(
        w, 3, state=NodeState.LEFT, weight=0.0, grades=grades(Grade.EXPELLED, Grade.ONLINE)
    ),
    "though its state is none": lambda w: row(w, 3, state=NodeState.NONE),
    "have the same uuid": lambda w: row(w, 3, uuid="u1"),
    "are both called i1": lambda w: row(w, 3, instance_id="i1"),
    "but no request brings it in": lambda w: row(w, 3, state=NodeState.NONE),
    "ahead of the version": lambda w: setattr(w.view, "fence", 1_000),
    "is of no request": transition,
    "which is no running join": lambda w: transition(w, 1),
    "without a transition": lambda w: row(w, 3, state=NodeState.REMOVING),
    "has the raft id 0": lambda w: join(w, RequestState.RUNNING, 0),
    "has the raft id 2": lambda w: join(w, RequestState.PENDING, 2),
    "runs for an instance that is not": lambda w: join(w, RequestState.RUNNING, 77),
    "nobody votes": lambda w: w.voters.clear(),
    "are voters and learners": lambda w: w.learners.add(1),
    "votes, though it has left": lambda w: row(
        w, 3, state=NodeState.LEFT, weight=0.0, grades=grades(Grade.EXPELLED, Grade.EXPELLED)
    ),
}


def test_a_settled_cluster_is_in_order() -> None:
    assert check(cluster(3).state()) == ()


@pytest.mark.parametrize("sentence", BREACHES)
def test_a_breach_is_told(sentence: str) -> None:
    world = cluster(3)
    BREACHES[sentence](world)
    assert any(sentence in wrong for wrong in check(world.state())), check(world.state())
