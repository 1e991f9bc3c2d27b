"""Every operation with somebody killed at every stage of its moves: the leader, a source, a target.

The next leader finishes or rolls back; in the end all is where it should be, and no request is left behind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.governor.elastic import Elastic, elastic
from tests.unit.governor.holdings import HEAL_AFTER_MS

from trimtab.tablets.selectors import Stage
from trimtab.topology.records import RequestKind

STAGES = [stage for stage in Stage if stage not in (Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION)]


def joins(world: Elastic) -> None:
    world.join("i9", domain={"host": "h9"})


def leaves(world: Elastic) -> None:
    world.ask(RequestKind.LEAVE, "i5")


def is_removed(world: Elastic) -> None:
    world.kill("i5")
    world.pass_time(7_000)
    world.ask(RequestKind.REMOVE, "i5")


def is_replaced(world: Elastic) -> None:
    world.kill("i5")
    world.pass_time(7_000)
    world.join("i9", replaces="i5", domain={"host": "h9"})


def grows(world: Elastic) -> None:
    world.replicate(4)


def shrinks(world: Elastic) -> None:
    world.replicate(1)


OPERATIONS = (joins, leaves, is_removed, is_replaced, grows, shrinks)


def reached(world: Elastic, stage: Stage) -> bool:
    return any(current.stage is stage for current in world.tables.transitions.get(1, {}).values())


def source_of(world: Elastic) -> int:
    """Somebody who has a replica of a tablet under way, and is up."""
    for tablet in sorted(world.tables.transitions[1]):
        for raft_id in world.tables.maps[1].replicas(tablet):
            if world.up(raft_id):
                return raft_id
    raise AssertionError("nobody has anything")


def target_of(world: Elastic) -> int:
    """Somebody who gets one; where nobody does, who keeps it."""
    for tablet, current in sorted(world.tables.transitions[1].items()):
        found = (*current.arriving(world.tables.maps[1].replicas(tablet)), *current.pending)
        for raft_id in found:
            if world.up(raft_id):
                return raft_id
    raise AssertionError("nobody gets anything")


def interrupted(operation: Callable[[Elastic], None], stage: Stage) -> Elastic:
    world = elastic(5, replication=3, tablets=4)
    operation(world)
    world.run(until=lambda: reached(world, stage))
    return world


def ends_well(world: Elastic) -> None:
    for row in list(world.view.members().values()):
        process = world.process(row.instance_id)
        if not process.up and process.uuid == row.uuid:
            world.start(row.instance_id)
    world.pass_time(125_000)  # whoever was to join and can't is given up by then
    wanted = sum(world.tables.catalog.keyspaces["shop"].replication.values())
    assert world.factors() == {wanted}
    assert not world.state().open_requests
    members = set(world.view.members())
    assert {i for _, replicas in world.tables.maps[1] for i in replicas} <= members
    world.assert_even()
    world.assert_still()


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_a_leader_killed_at_any_stage_is_followed_by_one_that_finishes(
    operation: Callable[[Elastic], None], stage: Stage
) -> None:
    world = interrupted(operation, stage)
    world.kill(world.view.instances[world.leader].instance_id)
    world.pass_time(20_000)
    ends_well(world)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("who", [source_of, target_of], ids=["source", "target"])
def test_whoever_dies_at_any_stage_everything_ends_well(
    who: Callable[[Elastic], int], operation: Callable[[Elastic], None], stage: Stage
) -> None:
    world = interrupted(operation, stage)
    world.kill(world.view.instances[who(world)].instance_id)
    world.pass_time(HEAL_AFTER_MS + 10_000)
    ends_well(world)
