"""How stories of moves begin, and what they wait for."""

from __future__ import annotations

from tests.sim.moving_world import MovingCluster, Place
from trimtab.sim.machines import Machine


def any_move(world: MovingCluster) -> tuple[Place, int, int]:
    """A tablet, who is to give its replica up, and who is to get it; neither of them leads."""
    leader = world.leader().raft_id
    for place, tablet in sorted(world.tablets.items()):
        source = next((raft_id for raft_id in tablet.stable if raft_id != leader), 0)
        if source and (to := world.somebody_else(place, leader)):
            return place, source, to
    raise AssertionError("somebody has no replica, and does not lead")


def begin(world: MovingCluster) -> tuple[Place, Machine, Machine]:
    """A tablet on its way; from whom, and to whom."""
    place, source, to = any_move(world)
    world.move(place, source, to)
    return place, world.of(source), world.of(to)


def begin_held(world: MovingCluster) -> tuple[Place, Machine, Machine]:
    """The same, in the middle of its copy; that stands still until copies are released."""
    world.hold_copies()
    place, source, to = begin(world)
    at(world, place, "streaming")
    return place, source, to


def crash_follower(world: MovingCluster) -> Machine:
    """Whose power fails; it does not lead."""
    victim = next(each for each in world.cluster.running() if not each.leads)
    victim.crash(power=True)
    return victim


def crash_only_holder(world: MovingCluster) -> tuple[Place, Machine]:
    """Twenty rows are put, without other replicas; then the power fails of who has row 7. Its tablet, and who it is."""
    for id in range(20):
        world.put(id, f"value {id}")
    place = world.place_of(7)
    (only,) = world.tablets[place].stable
    victim = world.of(only)
    victim.crash(power=True)
    return place, victim


def at(world: MovingCluster, place: Place, *stages: str) -> None:
    world.until(lambda: world.stage_of(place) in stages, f"{place} is in the stage {' or '.join(stages)}")


def still(world: MovingCluster) -> None:
    """Nothing moves, for a while."""
    world.until(lambda: not world.moving, "nothing moves")
    world.pass_time(1.5)
    world.until(lambda: not world.moving, "nothing moves")
