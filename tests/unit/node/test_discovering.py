"""Instances that start and look for each other: the calls and the memory around the decision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.unit.node.starting import Machine, address

from trimtab.node import discovering, supervision
from trimtab.node.discovering import Memory, remembered
from trimtab.node.identity import Phase
from trimtab.node.settings import SettingsError
from trimtab.node.supervision import Rebootstrap
from trimtab.sim.world import World
from trimtab.storage.port import DiskFull

BOOT, JOIN = Rebootstrap(supervision.Phase.BOOT), Rebootstrap(supervision.Phase.JOIN)


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def test_an_instance_that_lists_only_itself_founds_at_once(world: World) -> None:
    alone = Machine(world, 1, (1,))
    alone.start()
    world.run(1)
    assert alone.outcome == BOOT
    assert alone.stored is not None and alone.stored.phase is Phase.BOOT and alone.stored.genesis


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_of_three_with_partial_lists_that_start_in_any_order_exactly_one_founds(
    world: World, order: tuple[int, ...]
) -> None:
    machines = {number: Machine(world, number, peers) for number, peers in {1: (1, 2), 2: (2,), 3: (2, 3)}.items()}
    for number in order:
        machines[number].start()
        world.run(world.now + 1)
    world.run(world.now + 3)
    founders = [number for number, machine in machines.items() if machine.outcome == BOOT]
    assert len(founders) == 1, [machine.outcome for machine in machines.values()]
    followers = [machine for number, machine in machines.items() if number not in founders]
    # Whoever founded is gone from its port before the others could ask it again; they wait for it.
    for machine in followers:
        assert machine.outcome in (None, JOIN)


def test_whoever_asks_an_instance_on_its_way_in_is_told_of_the_leader(world: World) -> None:
    on_its_way, asking = Machine(world, 5, (5,)), Machine(world, 6, (5,))
    first = Machine(world, 4, (4,))
    first.start()
    world.run(1)
    on_its_way.start()
    world.run(2)
    assert on_its_way.outcome == BOOT
    # As if it had been told of a leader instead.
    on_its_way.drop()
    on_its_way.disk.remove("instance.json")
    discovering.remember(on_its_way.disk, Memory(leader=address(4)))
    on_its_way.disk.write_file(
        "instance.json",
        b'{"format":2,"cluster_id":"c","instance_id":"i5","uuid":"u","phase":"join","nonce":"n"}',
    )
    on_its_way.start()
    asking.start()
    world.run(4)
    assert asking.outcome == JOIN
    assert remembered(asking.disk).leader == address(4)
    assert asking.stored is not None and asking.stored.phase is Phase.JOIN and asking.stored.nonce


def test_what_was_acknowledged_survives_a_restart(world: World) -> None:
    hub, caller = Machine(world, 2, (2, 9)), Machine(world, 3, (2,))
    hub.start()
    caller.start()
    world.run(1)
    assert address(3) in remembered(hub.disk).peers
    hub.kill()
    caller.kill()
    hub.start()
    late = Machine(world, 1, (2,))
    late.start()
    world.run(world.now + 2)
    assert address(3) in remembered(late.disk).peers


def test_a_peer_that_never_answers_is_told_to_the_operator_and_told_again(world: World) -> None:
    waiting = Machine(world, 1, (1, 9))
    waiting.start()
    world.run(4)
    assert "waiting for an answer" not in waiting.story()
    world.run(10)
    assert waiting.story().count(f"waiting for an answer from {address(9)}") == 1
    assert "take it out of the --peer list of EVERY instance (any two must still share a peer)" in waiting.story()
    world.run(45)
    assert waiting.story().count(f"waiting for an answer from {address(9)}") == 2
    assert waiting.outcome is None


def test_an_instance_of_another_cluster_is_refused_with_the_reason(world: World) -> None:
    ours, theirs = Machine(world, 1, (1, 2)), Machine(world, 2, (1, 2), cluster_id="other")
    ours.start()
    theirs.start()
    world.run(3)
    for machine in (ours, theirs):
        assert isinstance(machine.outcome, SettingsError)
        assert "correct --cluster-id or --peer" in str(machine.outcome)
        assert machine.stored is not None and machine.stored.phase is Phase.NEW


def test_a_founder_whose_disk_is_full_claims_nothing(world: World) -> None:
    full, other = Machine(world, 1, (1, 2)), Machine(world, 2, (1, 2))
    full.start()
    world.run(1)
    full.disk.full = True
    other.start()
    world.run(4)
    assert isinstance(full.outcome, DiskFull)
    assert other.outcome is None
    full.kill()
    full.disk.full = False
    full.start()
    world.run(8)
    assert full.outcome == BOOT


def test_a_discovery_file_that_can_not_be_read_is_not_guessed(world: World) -> None:
    machine = Machine(world, 1, (1,))
    machine.disk.write_file("discovery.json", b"nonsense")
    machine.start()
    world.run(1)
    assert "discovery.json" in str(machine.outcome)
