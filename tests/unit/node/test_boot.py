"""Founding a cluster: a crash anywhere leaves something that the next start finishes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.node.starting import Machine

from trimtab.node import boot, failpoints
from trimtab.node.identity import FORMAT, Identity, Phase
from trimtab.node.instance import Instance
from trimtab.sim.world import World
from trimtab.topology.grades import Grade
from trimtab.topology.states import NodeState


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def founded(world: World, machine: Machine) -> Identity:
    """Start it again as its supervisor does, until it is a member."""
    for _ in range(5):
        machine.start()
        world.run(world.now + 2)
        outcome = machine.outcome
        if isinstance(outcome, Identity):
            return outcome
        machine.drop()
    raise AssertionError(machine.story())


def test_a_founder_is_member_one_of_a_cluster_with_a_uuid_of_its_own(world: World) -> None:
    member = founded(world, Machine(world, 1, (1,)))
    assert (member.phase, member.raft_id, member.founders) == (Phase.MEMBER, 1, {1: "10.0.0.1:3301"})
    assert member.settled and len(member.genesis) == 32
    assert founded(world, Machine(world, 2, (2,))).genesis != member.genesis


@pytest.mark.parametrize("place", ["boot.persisted", "boot.logged", "boot.member"])
@pytest.mark.parametrize("power", [True, False])
def test_a_crash_in_the_middle_of_founding_is_finished_by_the_next_start(world: World, place: str, power: bool) -> None:
    machine = Machine(world, 1, (1,))
    reached = []

    def stop(name: str, who: str) -> None:
        reached.append((name, who))
        raise failpoints.FailpointError(name)

    failpoints.arm(place, stop)
    for _ in range(3):
        machine.start()
        world.run(world.now + 2)
        if reached:
            break
        machine.drop()
    assert reached == [(place, "i1")]
    stored = machine.stored
    assert stored is not None and stored.phase is (Phase.MEMBER if place == "boot.member" else Phase.BOOT)
    failpoints.disarm()
    machine.kill(power=power)
    machine.start()
    world.run(world.now + 2)
    assert isinstance(machine.outcome, Identity)
    assert (machine.outcome.raft_id, machine.outcome.genesis) == (1, stored.genesis)


def test_the_first_write_is_applied_like_any_other(world: World) -> None:
    machine = Machine(world, 1, (1,), failure_domain={"Rack": "r1"})
    identity = founded(world, machine)
    machine.kill(power=False)
    machine.process.start()
    instance = Instance(
        machine.settings,
        identity,
        disk=machine.disk,
        rng=world.rng("instance"),
        wall_ms=machine.process.wall_ms,
        boot_s=machine.process.boot_s,
        governed=False,
    )
    machine.process.spawn(instance.start())
    world.run(world.now + 1)
    view = instance.watching.view
    record = view.instances[1]
    assert (record.instance_id, record.uuid, record.state) == ("i1", identity.uuid, NodeState.NORMAL)
    assert record.grades.target.grade is Grade.OFFLINE and record.failure_domain == {"rack": "r1"}
    assert (view.version, view.fence, list(view.events)) == (1, 0, [1])
    assert instance.cluster.raw.raft.lead == 1, "one voter elects itself at once"


def test_who_has_had_its_place_does_not_begin_again_by_itself(world: World) -> None:
    machine = Machine(world, 1, (1,))
    settled = Identity(FORMAT, "c", "i1", "u", Phase.MEMBER, raft_id=2, settled=True)
    with pytest.raises(ValueError, match="does not join anew"):
        boot.begin_again(settled, disk=machine.disk, rng=world.rng("again"))
