"""An instance that can't make replicas: its tablets go elsewhere, everybody knows why, and nobody else waits for it."""

from __future__ import annotations

import pytest

from tests.sim.moving_world import MovingCluster, Place, moving
from trimtab.sim.machines import Machine
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.transitions import Cause
from trimtab.topology.records import RequestKind, RequestState

WHY = "could not be made: "


def block(world: MovingCluster, machine: Machine, *places: Place) -> list[str]:
    """Where replicas of these would be, or of all that it has not, there are plain files; their names."""
    wanted = places or [place for place, tablet in world.tablets.items() if machine.raft_id not in tablet.stable]
    names = [f"tablets/{table}/{tablet}.1" for table, tablet in wanted]
    for name in names:
        machine.disk.model.write_file(name, b"somebody put this here")
    return names


def mend(machine: Machine, names: list[str]) -> None:
    for name in names:
        if machine.disk.model.exists(name):
            machine.disk.model.remove(name)


def told(world: MovingCluster) -> str:
    """What operators are told is wrong with moves (`trimtab status`, `trimtab rebalance status`)."""
    instance = world.leader().instance
    assert instance is not None and instance.control is not None
    return "; ".join(instance.control.moves.shown().problems)


def pair(world: MovingCluster) -> tuple[Place, int, Machine]:
    """A tablet, who is to give it up, and who was to get it; none of them leads."""
    leader = world.leader().raft_id
    for place, tablet in sorted(world.tablets.items()):
        source = next((raft_id for raft_id in tablet.stable if raft_id != leader), 0)
        if source and (to := world.somebody_else(place, leader)):
            return place, source, world.of(to)
    raise AssertionError("somebody has no replica, and does not lead")


def test_a_target_that_can_not_make_a_replica_has_its_move_undone_and_everybody_knows_why() -> None:
    """It stayed in its first stage for ever, took a slot, and only the target's log knew why."""
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(enabled=False, moving=1))
        world.work()
        place, source, to = pair(world)
        names = block(world, to, place)
        world.move(place, source, to.raft_id)
        errors: list[str] = []

        def over() -> bool:
            now = world.tablets[place].now
            if now is not None and now.error:
                errors.append(now.error)
                assert WHY in told(world) or now.stage.value in ("cleanup_target", "revert_migration")
            return now is None

        world.until(over, "the move is undone")
        assert errors and all(WHY in error for error in errors)
        assert to.raft_id not in world.tablets[place].stable
        assert WHY in world.rebalance(place[0]).reason
        mend(to, names)
        world.move(place, source, to.raft_id)
        world.until(lambda: to.raft_id in world.tablets[place].stable, "an operator may try again at once")
        world.ends()


@pytest.mark.parametrize("moving_at_once", [1, 256])
def test_a_decommission_goes_around_an_instance_that_can_not_make_replicas(moving_at_once: int) -> None:
    with moving(5, 3, tablets=4) as world:
        world.balancing(RebalanceSettings(moving=moving_at_once))
        world.work()
        leaver, bad = [machine for machine in world.cluster.running() if not machine.leads][:2]
        before = {place for place, tablet in world.tablets.items() if bad.raft_id in tablet.stable}
        names = block(world, bad)
        number = world.ask(RequestKind.LEAVE, leaver.settings.instance_id)
        assert world.ended(number, 120.0).state is RequestState.DONE
        after = {place for place, tablet in world.tablets.items() if bad.raft_id in tablet.stable}
        assert after <= before
        mend(bad, names)
        world.ends()


def test_where_nobody_else_can_take_them_it_is_tried_again_until_it_can_and_the_reason_is_told() -> None:
    with moving(4, 3, tablets=2) as world:
        world.work()
        leaver, bad = [machine for machine in world.cluster.running() if not machine.leads][:2]
        names = block(world, bad)
        assert names
        number = world.ask(RequestKind.LEAVE, leaver.settings.instance_id)
        world.until(lambda: world.run.watch.counted.undone, "a move was undone")
        world.until(lambda: "its last move was undone" in told(world) and WHY in told(world), "it is told why")
        assert world.request(number).state is RequestState.RUNNING
        mend(bad, names)
        assert world.ended(number, 200.0).state is RequestState.DONE
        world.ends()


def test_what_balancing_wants_and_an_operator_undoes_is_not_begun_again_at_once() -> None:
    with moving(3, 2, tablets=4) as world:
        world.work()
        world.hold_copies()
        world.join()
        place = world.until(
            lambda: next((each for each, tablet in world.moving.items() if tablet.stage == "streaming"), None),
            "balancing moves something",
        )
        now = world.tablets[place].now
        assert now is not None and now.cause is Cause.BALANCE
        world.move(place, 0, 0)
        undone_s = world.world.now
        world.until(lambda: place not in world.moving, "it is undone")
        instance = world.leader().instance
        assert instance is not None and instance.control is not None
        spared_s = instance.settings.timing.spared_ms / 1000
        while world.world.now < undone_s + spared_s - 0.1:
            world.pass_time(0.05)
            assert place not in world.moving
        world.release_copies()
        world.ends()
