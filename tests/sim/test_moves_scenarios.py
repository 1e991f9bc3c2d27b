"""The scenarios that others met when they moved partitions, tablets and shards, each as a story of ours.

Those of shards are in `test_shards_scenarios`, those of streams that were given up in `test_abandoned_streams`, those
of pure planning (how replicas are spread) are unit tests of the balancer; splits, merges and groups that vote for
themselves come later. Every story runs under writes, deletions and reads at QUORUM, and every invariant of the moves
scenario holds throughout: whoever reads `ends()` reads "no acknowledged write is lost, nothing deleted is back".
"""

from __future__ import annotations

import pytest

from tests.sim.move_stories import any_move, at, begin, begin_held, crash_follower, crash_only_holder, still
from tests.sim.moving_world import MovingCluster, Place, moving
from trimtab.net.errors import RpcError
from trimtab.node import failpoints
from trimtab.sim.machines import Machine
from trimtab.sim.moves_streams import CopyFailed, Copying
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import Stage
from trimtab.tablets.stages import MAX_TRIES
from trimtab.tablets.transitions import TabletTransition
from trimtab.topology.records import RequestKind, RequestState

STAGES = (
    "allow_write_both_read_old",
    "write_both_read_old",
    "streaming",
    "write_both_read_new",
    "use_new",
    "cleanup",
    "end_migration",
)


# -- assignments (000 and its corrections) -------------------------------------------------------------------------


def test_replicas_one_two_three_in_quick_succession_end_at_three() -> None:
    with moving(3, 1) as world:
        world.work()
        for number in (2, 3):
            world.replication(number)
        world.ends()
        assert all(len(tablet.stable) == 3 for tablet in world.tablets.values())


def test_replicas_two_three_two_end_at_two() -> None:
    with moving(3, 2) as world:
        world.work()
        world.replication(3)
        world.pass_time(0.4)
        world.replication(2)
        world.ends()
        assert all(len(tablet.stable) == 2 for tablet in world.tablets.values())


def test_leadership_moves_during_a_copy_and_the_new_leader_completes_it() -> None:
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(enabled=False))
        world.work()
        place, _, to = begin_held(world)
        first = world.leader()
        first.crash(power=True)
        world.until(lambda: world.cluster.leader() not in (None, first), "another one leads")
        first.start()
        world.release_copies()
        world.until(lambda: place not in world.moving, "the move is over")
        assert to.raft_id in world.tablets[place].stable and world.leader() is not first
        world.ends()


def fail_copies(world: MovingCluster, times: int, place: Place | None = None) -> list[int]:
    """So many copies (of a tablet) come to nothing. How many have."""
    streams, failed = world.run.streams, [0]
    stage = streams._stage

    async def fails(copying: Copying, *args: object, **more: object) -> None:
        if failed[0] < times and place in (None, (copying.table.id, copying.tablet)):
            failed[0] += 1
            raise CopyFailed("failed", "the network is gone")
        await stage(copying, *args, **more)  # type: ignore[arg-type]

    streams._stage = fails  # type: ignore[method-assign]
    return failed


def test_a_copy_fails_five_times_the_old_replicas_serve_meanwhile_then_it_completes() -> None:
    with moving(4, 3) as world:
        world.work()
        failed = fail_copies(world, 5)
        place, source, to = begin(world)
        session = world.tablets[place].now.session  # type: ignore[union-attr]
        at(world, place, "streaming")
        while failed[0] < 5:
            assert source.raft_id in world.tablets[place].reads and to.raft_id not in world.tablets[place].reads
            world.pass_time(0.2)
        assert world.tablets[place].now.session == session  # type: ignore[union-attr]
        world.until(lambda: to.raft_id in world.tablets[place].stable, "it has got its replica after all")
        assert failed == [5] and world.run.watch.counted.undone == 0
        world.ends()


def test_a_job_that_copies_fails_five_times_the_move_is_undone_with_the_reason_then_tried_again_and_completes() -> None:
    """Five jobs, of three tries each: the operator is told why, the old replicas serve, and nobody has to ask again."""
    with moving(4, 2) as world:
        world.work()
        place = world.place_of(7)
        stable = world.tablets[place].stable
        jobs, each = MAX_TRIES, 3
        assert jobs == 5
        failed = fail_copies(world, jobs * each, place)
        world.replication(3)

        undone: list[TabletTransition] = []

        def note(_name: str, _leader: str) -> None:
            now = world.tablets[place].now
            if now is not None and now.stage is Stage.CLEANUP_TARGET:
                undone.append(now)

        failpoints.arm("moves.cleanup_target.after", note)
        while not undone:
            assert set(world.tablets[place].reads) == set(stable) and world.world.now < 120.0
            world.pass_time(0.2)
        assert undone[0].attempts == jobs and "the network is gone" in undone[0].error, undone
        assert failed == [jobs * each]
        world.until(lambda: len(world.tablets[place].stable) == 3, "it is tried again, and completes", 90.0)
        assert len(undone) == 1
        world.ends()


def test_whoever_gives_a_replica_up_destroys_it() -> None:
    with moving(4, 3) as world:
        world.work()
        place, source, to = begin(world)
        world.until(lambda: to.raft_id in world.tablets[place].stable, "the move is over")
        still(world)
        assert not world.directories(source, place) or source.raft_id in world.tablets[place].stable
        world.ends()


def test_a_tablet_moved_away_and_back_keeps_its_rows() -> None:
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(enabled=False))
        for id in range(30):
            world.put(id, f"value {id}")
        world.work()
        place, source, to = begin(world)
        world.until(lambda: not world.moving, "it is over there")
        world.move(place, to.raft_id, source.raft_id)
        world.until(lambda: source.raft_id in world.tablets[place].stable and not world.moving, "it is back")
        assert [world.get(id) for id in range(30)] == [f"value {id}" for id in range(30)]
        world.ends()


def test_a_target_restarted_while_it_heard_of_nothing_takes_up_what_is_pending() -> None:
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(enabled=False))
        world.work()
        place, source, to_id = any_move(world)
        to = world.of(to_id)
        for other in world.cluster.machines.values():
            world.world.network.block(other.host, to.host)
        world.move(place, source, to_id)
        to.crash(power=True)
        world.pass_time(0.2)
        for other in world.cluster.machines.values():
            world.world.network.unblock(other.host, to.host)
        to.start()
        world.until(lambda: place not in world.moving, "the move ends")
        stable = world.tablets[place].stable
        assert to_id in stable and source not in stable, f"{stable}: what was pending was given up"
        assert world.run.watch.counted.undone == 0 and world.run.watch.counted.begun == 1
        world.ends()


@pytest.mark.parametrize("moment", ["while they go", "when they have gone"])
def test_replicas_that_go_and_come_back_are_made_once_more_and_no_oftener(moment: str) -> None:
    """[A,B,C] -> [A,B] -> [A,B,C]: whoever was to go stays, or comes back once; who stays keeps the replica it has."""
    with moving(3, 3) as world:
        world.work()
        before, adopted = incarnations(world), list[str]()
        failpoints.arm("moves.adopt.after", lambda _name, who: adopted.append(who))
        world.replication(2)
        world.pass_time(0.1)
        kept = dict[tuple[int, Place], int]()
        if moment == "when they have gone":
            still(world)
            kept = incarnations(world)
            assert all(len(tablet.stable) == 2 for tablet in world.tablets.values())
            assert kept.items() <= before.items() and len(kept) == 2 * len(world.tablets), "who stays has nothing to do"
        world.replication(3)
        world.ends()
        assert all(len(tablet.stable) == 3 for tablet in world.tablets.values())
        after = incarnations(world)
        made = after.items() - before.items()
        places = [place for (_, place), _ in made]
        assert len(set(places)) == len(places), f"made more than once: {sorted(made)}"
        if moment == "when they have gone":
            assert set(places) == world.tablets.keys() and kept.items() <= after.items()
        names = [world.of(raft_id).settings.instance_id for (raft_id, _), _ in made]
        assert sorted(names) == sorted(adopted), "one copy for each that is made, and no other"
        assert world.run.watch.counted.begun <= 2 * len(world.tablets)


def incarnations(world: MovingCluster) -> dict[tuple[int, Place], int]:
    """Every replica that somebody has, by whom and of what; one that is made anew is another incarnation."""
    return {
        (machine.raft_id, (replica.table, replica.tablet)): replica.incarnation
        for machine in world.cluster.running()
        for replica in machine.instance.holdings.shelf.held()  # type: ignore[union-attr]
    }


def test_the_same_nodes_in_another_order_start_nothing() -> None:
    with moving(3, 3) as world:
        world.work()
        world.replication(3)
        world.pass_time(2.0)
        assert world.run.watch.counted.begun == 0
        world.ends()


# -- stages, guards and requests (004) -----------------------------------------------------------------------------


def test_an_empty_node_that_joins_gets_its_fair_share() -> None:
    with moving(3, 2, tablets=8) as world:
        world.work()
        world.join()
        world.ends()
        counts = world.counts()
        assert max(counts.values()) - min(counts.values()) <= len(counts), counts
        assert counts["i3"] >= sum(counts.values()) // 4 - 2, counts


def test_two_nodes_that_join_get_equal_shares() -> None:
    with moving(3, 2, tablets=8) as world:
        world.work()
        world.join(2)
        world.ends()
        counts = world.counts()
        assert abs(counts["i3"] - counts["i4"]) <= 2 and counts["i3"] > 0, counts


def test_a_decommission_that_can_not_be_met_is_refused_at_the_door() -> None:
    with moving(3, 3) as world:
        world.work()
        with pytest.raises(RpcError, match="replica"):
            world.ask(RequestKind.LEAVE, "i2")
        assert world.counts()["i2"] == len(world.tablets)
        world.ends()


def followers(world: MovingCluster) -> list[Machine]:
    """All who don't lead."""
    return [machine for machine in world.cluster.running() if not machine.leads]


def test_a_decommission_that_can_not_be_met_any_more_fails_loudly() -> None:
    """It was taken; then one of those who were to have its tablets dies, and nobody waits for it."""
    with moving(4, 3, heal_after_ms=1_000) as world:
        world.work()
        world.hold_copies()
        leaver, victim, *_ = followers(world)
        held = world.counts()[leaver.settings.instance_id]
        number = world.ask(RequestKind.LEAVE, leaver.settings.instance_id)
        world.until(lambda: world.request(number).state is RequestState.RUNNING and world.moving, "it is being drained")
        victim.crash(power=True)
        ended = world.ended(number, 90.0)
        assert ended.state is RequestState.CANCELLED and "can't hold what is declared" in ended.reason, ended
        world.release_copies()
        assert world.online(leaver) and world.counts()[leaver.settings.instance_id] == held
        victim.start()
        world.ends()


def test_removing_the_last_replica_is_refused() -> None:
    with moving(3, 1, heal_after_ms=1_000) as world:
        place, victim = crash_only_holder(world)
        world.pass_time(5.0)
        try:
            number = world.ask(RequestKind.REMOVE, victim.settings.instance_id)
        except RpcError as refused:
            assert refused.text
        else:
            world.pass_time(5.0)
            ended = world.ended(number, 90.0)
            assert ended.state is not RequestState.DONE and ended.reason
        assert world.tablets[place].stable == (victim.raft_id,)
        victim.start()
        world.until(lambda: world.online(victim), "it is back")
        assert world.get(7) == "value 7"


@pytest.mark.parametrize("role", ["source", "target"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_node_killed_at_each_stage_loses_no_row(stage: str, role: str) -> None:
    """Some stages last a few milliseconds: the victim falls at the very write that enters its stage."""
    with moving(4, 3, seed=2) as world:
        world.work()
        if stage == "streaming":
            world.hold_copies()
        place, source, to = any_move(world)
        victim = world.of(source if role == "source" else to)
        fallen: list[str] = []

        def falls(_name: str, _leader: str) -> None:
            if not fallen and world.stage_of(place) == stage:
                fallen.append(world.stage_of(place))
                victim.crash(power=True)

        failpoints.arm(f"moves.{stage}.after", falls)
        world.move(place, source, to)
        if stage == STAGES[0]:
            # Its write is the answer to the operator.
            falls("", "")
        world.until(lambda: fallen, f"somebody falls while {place} is in {stage}")
        assert fallen == [stage] and not victim.alive
        world.pass_time(0.5)
        if stage == "streaming":
            world.release_copies()
        world.pass_time(5.0)
        victim.start()
        world.ends()


def test_back_and_forth_moves_under_writes_lose_no_row() -> None:
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(enabled=False))
        world.work()
        place, source, to = begin(world)
        for one, other in ((to, source), (source, to), (to, source)):
            world.until(lambda: place not in world.moving, "the move is over")
            world.move(place, one.raft_id, other.raft_id)
        world.ends()


def test_a_join_during_a_blocked_migration_both_finish() -> None:
    with moving(4, 3) as world:
        world.work()
        place, _, _ = begin_held(world)
        (newcomer,) = world.join()
        world.until(lambda: world.online(newcomer), "the newcomer is Online while the copy stands still")
        assert world.stage_of(place) == "streaming"
        world.release_copies()
        world.ends()
        assert world.counts()[newcomer.settings.instance_id] > 0


def test_cleanup_that_fails_once_is_tried_again_and_the_source_keeps_no_files() -> None:
    with moving(4, 3) as world:
        world.work()
        failed: list[str] = []

        def fail(name: str, who: str) -> None:
            if not failed:
                failed.append(who)
                raise failpoints.FailpointError("it can't be removed now")

        failpoints.arm("moves.clean.before", fail)
        place, source, to = begin(world)
        world.until(lambda: to.raft_id in world.tablets[place].stable and place not in world.moving, "it is over")
        assert failed
        still(world)
        assert source.raft_id in world.tablets[place].stable or not world.directories(source, place)
        world.ends()


def test_two_decommissions_at_once_interleave() -> None:
    with moving(5, 2) as world:
        world.balancing(RebalanceSettings(moving=2))
        world.work()
        numbers = [world.ask(RequestKind.LEAVE, name) for name in ("i3", "i4")]
        both = world.until(
            lambda: {name for tablet in world.moving.values() for name in _leaving(world, tablet)} >= {"i3", "i4"},
            "replicas of both are on their way at the same time",
        )
        assert both
        assert all(world.ended(number, 90.0).state is RequestState.DONE for number in numbers)
        world.ends()


def _leaving(world: MovingCluster, tablet: object) -> list[str]:
    stable, now = tablet.stable, tablet.now  # type: ignore[attr-defined]
    return [world.of(raft_id).settings.instance_id for raft_id in stable if raft_id not in now.pending]


def test_a_decommission_cancelled_half_way_leaves_the_node_with_its_tablets() -> None:
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(moving=1))
        world.work()
        number = world.ask(RequestKind.LEAVE, "i3")
        world.until(lambda: world.run.watch.counted.ended, "one tablet has gone")
        world.cluster.do(world.cluster.cancel(world.leader(), number))
        assert world.ended(number).state is RequestState.CANCELLED
        world.pass_time(1.0)
        assert world.counts()["i3"] > 0
        assert world.online(world.named("i3"))
        world.ends()


@pytest.mark.parametrize("operation", ["move", "leave", "remove", "heal", "rebuild", "replace", "replication", "join"])
def test_the_coordinator_killed_before_streaming_the_next_one_finishes_or_rolls_back(operation: str) -> None:
    # Whoever is to be removed is not healed before somebody asks for that.
    heal_after_ms = 600_000 if operation == "remove" else 1_000
    number = 0
    with moving(4, 2, heal_after_ms=heal_after_ms, seed=3) as world:
        world.work()
        # What is rebuilt is compared where it is, by jobs: it falls when that has begun, and has no jobs yet.
        fallen = world.cluster.kill_at("governor.request.after" if operation == "rebuild" else "moves.streaming.before")
        match operation:
            case "move":
                begin(world)
            case "leave":
                number = world.ask(RequestKind.LEAVE, "i3")
            case "remove":
                victim = crash_follower(world)
                world.until(lambda: not world.online(victim), "it is known that it died")
                number = world.ask(RequestKind.REMOVE, victim.settings.instance_id)
            case "heal":
                victim, begun = crash_follower(world), world.run.watch.counted.begun
                world.until(lambda: world.run.watch.counted.begun > begun, "what it had is made anew", 90.0)
            case "rebuild":
                number = world.ask(RequestKind.REBUILD, followers(world)[0].settings.instance_id)
            case "replace":
                victim = crash_follower(world)
                world.pass_time(4.0)
                machine = world.nemesis._newcomer(world.world.rng("replace"), victim.settings.instance_id)
                machine.start()
                world.until(lambda: world.online(machine), "the other one is in its place", 90.0)
                victim.start()
            case "replication":
                world.replication(3)
            case "join":
                world.join()
        world.until(lambda: fallen, "the leader has fallen", 90.0)
        assert not number or world.ended(number, 90.0).state is RequestState.DONE
        if operation in ("remove", "heal"):
            victim.start()
        world.ends()


def test_where_no_request_can_proceed_all_are_cancelled_with_reasons() -> None:
    """Two were to leave, and could; then two others die. Without either of them three replicas have no place."""
    with moving(5, 3, heal_after_ms=1_000) as world:
        world.work()
        world.hold_copies()
        leavers, victims = followers(world)[:2], followers(world)[2:]
        numbers = [world.ask(RequestKind.LEAVE, machine.settings.instance_id) for machine in leavers]
        world.until(
            lambda: all(world.request(number).state is RequestState.RUNNING for number in numbers) and world.moving,
            "both are being drained",
        )
        for victim in victims:
            victim.crash(power=True)
        for number in numbers:
            ended = world.ended(number, 90.0)
            assert ended.state is RequestState.CANCELLED and "can't hold what is declared" in ended.reason, ended
        world.release_copies()
        assert all(world.online(machine) for machine in leavers)
        for victim in victims:
            victim.start()
        world.ends()


def test_with_balancing_off_a_newcomer_gets_nothing_and_with_it_on_its_share() -> None:
    """Also: a trigger that was skipped is not forgotten."""
    with moving(3, 2) as world:
        world.balancing(RebalanceSettings(enabled=False))
        world.work()
        (newcomer,) = world.join()
        world.until(lambda: world.online(newcomer), "it is Online")
        world.pass_time(3.0)
        assert world.run.watch.counted.begun == 0 and world.counts()["i3"] == 0
        world.balancing(RebalanceSettings())
        world.until(lambda: world.counts()["i3"] > 0, "it gets tablets")
        world.ends()
