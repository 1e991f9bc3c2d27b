"""Node states: the document's diagram."""

from __future__ import annotations

from trimtab.topology.states import FOLLOWING, NodeState


def reachable(state: NodeState) -> set[NodeState]:
    found, todo = {state}, [state]
    while todo:
        new = FOLLOWING[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(FOLLOWING) == set(NodeState) == reachable(NodeState.NONE)


def test_left_is_the_end_and_everybody_can_get_there() -> None:
    assert FOLLOWING[NodeState.LEFT] == frozenset()
    assert all(NodeState.LEFT in reachable(state) for state in NodeState)


def test_nobody_becomes_new_again() -> None:
    for state, following in FOLLOWING.items():
        assert NodeState.NONE not in following
        if state is not NodeState.NONE:
            assert not following & {NodeState.BOOTSTRAPPING, NodeState.REPLACING}


def test_the_arrows_of_the_document() -> None:
    new = {NodeState.BOOTSTRAPPING, NodeState.REPLACING}
    assert new <= FOLLOWING[NodeState.NONE]
    for state in new:
        assert NodeState.NORMAL in FOLLOWING[state]
    assert NodeState.REBUILDING in FOLLOWING[NodeState.NORMAL]
    assert NodeState.NORMAL in FOLLOWING[NodeState.REBUILDING]
    for state in (NodeState.DECOMMISSIONING, NodeState.REMOVING):
        assert state in FOLLOWING[NodeState.NORMAL]
        assert NodeState.LEFT in FOLLOWING[state]
