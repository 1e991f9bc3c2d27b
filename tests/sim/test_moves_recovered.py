"""What is lost for good while tablets move, and what goes on from what is left.

The majority may be: an operator goes on from the survivor, and so do the tablets. Or the only replica may be, when its
copy is there and has yet to be taken over, or when one of those who were to get one has it, and the others have not.
"""

from __future__ import annotations

import pytest

from tests.sim.moving_world import STORY, MovingCluster, Place, moving
from trimtab.node import failpoints, recovery
from trimtab.sim.machines import Machine
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade

ROWS = range(20)


def recover(world: MovingCluster, survivor: Machine) -> None:
    """`trimtab recover`, on the machine of the survivor; all machines are off."""
    # The invariants of a cluster that decides by majority end here: an operator overrules it.
    run, cluster = world.run, world.cluster
    cluster._watched = False
    for watch, what in (
        (cluster.topology, "identified"),
        (run.watch, "_removed"),
        (run.watch, "_taken"),
        (run.queue, "did"),
        (run.queue, "believe"),
    ):
        setattr(watch, what, lambda *_: None)
    process = survivor.process
    process.start()
    work = recovery.recover(survivor.disk.model, world.world.rng("operator"), process.wall_ms())
    try:
        world.world.run_until_done(process.spawn(work), world.world.now + 60)
    finally:
        process.kill()


def at_once(world: MovingCluster, place: Place, stage: str) -> None:
    """The moment at which a tablet comes to a stage; some last a few milliseconds."""
    for _ in range(60_000):
        if world.stage_of(place) == stage:
            return
        world.pass_time(0.001)
    raise TimeoutError(f"{place} never came to {stage}")


def tables_of(machine: Machine) -> TableView:
    assert machine.instance is not None
    return machine.instance.watching.tables


@pytest.mark.parametrize("stage", ["allow_write_both_read_old", "streaming", "write_both_read_new", "cleanup"])
def test_reset_after_a_lost_majority_ends_or_undoes_what_was_moving(stage: str) -> None:
    """Three of four are lost with the move between two of them; what the survivor has is served, and copied, again."""
    with moving(4, 3, tablets=2) as world:
        world.balancing(RebalanceSettings(enabled=False))
        for id in ROWS:
            world.put(id, f"value {id}")
        place = world.place_of(7)
        stable = world.tablets[place].stable
        survivor, source, to = world.of(stable[0]), stable[1], world.somebody_else(place)
        kept = [id for id in ROWS if survivor.raft_id in world.tablets[world.place_of(id)].stable]
        if stage in ("allow_write_both_read_old", "streaming"):
            world.hold_copies()
        world.move(place, source, to)
        at_once(world, place, stage)
        for machine in list(world.cluster.machines.values()):
            machine.crash(power=True)
        recover(world, survivor)
        survivor.start()
        if world.run.streams.hold is not None:
            world.release_copies()
        world.until(lambda: survivor.leads and survivor.instance is not None, "the survivor leads")
        world.until(lambda: not tables_of(survivor).transitions, "what was under way has ended")
        newcomers = world.join(2)
        world.until(lambda: all(machine.raft_id for machine in newcomers), "others join")
        members = {survivor.raft_id, *(machine.raft_id for machine in newcomers)}
        table = world.table.id
        world.until(
            lambda: (
                all(
                    members == set(replicas)
                    for tablet, replicas in tables_of(survivor).maps[table]
                    if (table, tablet) in {world.place_of(id) for id in kept}
                )
                and not tables_of(survivor).transitions
            ),
            "all that the survivor had is on three again",
        )
        assert [world.get(id) for id in kept] == [f"value {id}" for id in kept]


def test_the_only_replica_dies_for_good_while_its_copy_is_verified_and_nothing_is_lost() -> None:
    """RF 1: the copy is whole, so the move ends; to undo it would throw away the only copy there is."""
    with moving(4, 1, tablets=2) as world:
        world.balancing(RebalanceSettings(enabled=False))
        for id in ROWS:
            world.put(id, f"value {id}")
        leader = world.leader().raft_id
        place = next(each for each in map(world.place_of, ROWS) if world.tablets[each].stable != (leader,))
        (only,) = world.tablets[place].stable
        source, to = world.of(only), world.somebody_else(place, leader)
        tried: list[str] = []

        def not_yet(_name: str, who: str) -> None:
            tried.append(who)
            raise failpoints.FailpointError("it takes its time")

        failpoints.arm("moves.adopt.verified", not_yet)
        world.move(place, only, to)
        world.until(lambda: tried, "the copy is being verified")
        source.crash(power=True)
        rows = world.cluster.topology.committed.rows
        world.until(lambda: rows[only].grades.current.grade is Grade.OFFLINE, "it is known that it died")
        world.pass_time(2.0)
        failpoints.disarm()
        world.until(lambda: world.tablets[place].stable == (to,) and not world.moving, "the move is over")
        kept = [id for id in ROWS if only not in world.tablets[world.place_of(id)].stable]
        assert any(world.place_of(id) == place for id in kept)
        assert [world.get(id) for id in kept] == [f"value {id}" for id in kept]


def test_the_only_replica_dies_while_one_of_two_has_its_copy_and_the_other_copies_from_that_one() -> None:
    """RF 1 to 3: one copy is taken over, the other gets lost on its way, and its source never comes back."""
    with moving(4, 1, tablets=1) as world:
        world.balancing(RebalanceSettings(enabled=False))
        for id in ROWS:
            world.put(id, f"value {id}")
        leader, place = world.leader().raft_id, world.place_of(0)
        if world.tablets[place].stable == (leader,):
            world.move(place, leader, world.somebody_else(place))
            world.until(lambda: world.tablets[place].stable != (leader,) and not world.moving, "it is not the leader's")
        (only,) = world.tablets[place].stable
        source = world.of(only)
        # Of the two that are to get a copy, the first loses whatever comes.
        targets: list[int] = []

        def lost_on_its_way(_name: str, who: str) -> None:
            now = world.tablets[place].now
            if now is not None and not targets:
                targets.extend(now.arriving((only,)))
            if now is not None and world.of(targets[0]).settings.instance_id == who:
                world.of(targets[0]).disk.model.remove(f"staging/{now.session}/{place[1]}")
                raise failpoints.FailpointError("its copy is lost")

        def has_copy(raft_id: int) -> bool:
            instance = world.of(raft_id).instance
            replica = instance.holdings.shelf.find(*place, 1) if instance is not None else None
            return replica is not None and replica.readable

        failpoints.arm("moves.adopt.verified", lost_on_its_way)
        world.replication(3)
        world.until(lambda: targets and has_copy(targets[1]), "one has its copy")
        unlucky, lucky = targets
        assert not has_copy(unlucky) and world.stage_of(place) == "streaming"
        source.crash(power=True)
        rows = world.cluster.topology.committed.rows
        world.until(lambda: rows[only].grades.current.grade is Grade.OFFLINE, "it is known that it died")
        world.pass_time(2.0)
        failpoints.disarm()
        world.until(lambda: has_copy(unlucky), "the other one has a copy, too")
        copies = [
            (copy["target"], copy["sources"])
            for job in world.leader().instance.watching.jobs.jobs.values()  # type: ignore[union-attr]
            for copy in job.command.parameters.get("copies", ())
            if job.command.parameters["table"] == STORY
        ]
        assert (unlucky, [lucky]) in copies
        world.until(lambda: world.tablets[place].stable == (only, *targets), "the tablet has its replicas")
        assert [world.get(id) for id in ROWS] == [f"value {id}" for id in ROWS]
        # It had the only copy, and nobody could go on without it; now somebody takes its place.
        world.nemesis._newcomer(world.world.rng("replace"), source.settings.instance_id).start()
        world.until(lambda: rows[only].left, "it is replaced")
