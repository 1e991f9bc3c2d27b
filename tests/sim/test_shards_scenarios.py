"""The scenarios that others met when they spread shards (003 and its corrections), each as a story of ours; see
`test_moves_scenarios`.
"""

from __future__ import annotations

import pytest

from tests.sim.move_stories import begin, begin_held, crash_follower, crash_only_holder
from tests.sim.moving_world import moving
from trimtab.net.errors import RpcError
from trimtab.sim.moves_streams import CopyFailed
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.transitions import RebalanceState


def test_a_new_node_takes_replicas_over_and_the_declared_number_stays() -> None:
    with moving(3, 3) as world:
        world.work()
        world.join(2)
        most = 3
        for _ in range(100):
            world.pass_time(0.1)
            most = max(most, *(len(tablet.stable) for tablet in world.tablets.values()))
        world.ends()
        assert most == 3 and all(len(tablet.stable) == 3 for tablet in world.tablets.values())


def test_routing_changes_when_the_copy_is_verified_and_not_before() -> None:
    with moving(4, 3) as world:
        world.work()
        place, _, to = begin_held(world)
        before = world.tablets[place].reads
        world.pass_time(4.0)
        assert world.tablets[place].reads == before and to.raft_id not in before
        world.release_copies()
        world.until(lambda: to.raft_id in world.tablets[place].reads, "reads go there")
        world.ends()


def test_a_rebalance_belongs_to_a_term_and_the_next_leader_takes_it_over() -> None:
    with moving(4, 3) as world:
        world.work()
        place, _, _ = begin_held(world)
        assert world.rebalance(place[0]).state is RebalanceState.RUNNING
        first, term = world.leader(), world.rebalance(place[0]).term
        first.crash(power=True)
        world.until(lambda: world.rebalance(place[0]).term > term, "the next leader has taken it over")
        first.start()
        world.release_copies()
        world.ends()
        assert world.rebalance(place[0]).state in (RebalanceState.COMPLETED, RebalanceState.FAILED)


def test_a_copy_that_fails_for_good_drops_nothing_at_its_source() -> None:
    with moving(4, 3) as world:
        world.balancing(RebalanceSettings(enabled=False))
        world.work()
        streams = world.run.streams

        async def fails(*_args: object, **_more: object) -> None:
            raise CopyFailed("failed", "the network is gone")

        stage, streams._stage = streams._stage, fails  # type: ignore[method-assign]
        place, source, _ = begin(world)
        world.until(lambda: place not in world.moving, "the move is undone", 200.0)
        assert source.raft_id in world.tablets[place].stable and world.directories(source, place)
        streams._stage = stage  # type: ignore[method-assign]
        world.ends()


def test_a_dead_and_a_new_node_are_planned_together() -> None:
    with moving(3, 3, heal_after_ms=1_000) as world:
        world.work()
        victim = crash_follower(world)
        world.join()
        gone = victim.raft_id
        world.until(
            lambda: not world.moving and all(gone not in each.stable for each in world.tablets.values()),
            "the newcomer has taken the place of the dead one",
            90.0,
        )
        assert all(len(each.stable) == 3 for each in world.tablets.values())
        victim.start()
        world.ends()


def test_a_lost_only_copy_is_an_error_for_its_rows_never_silence() -> None:
    with moving(3, 1, heal_after_ms=1_000) as world:
        place, victim = crash_only_holder(world)
        world.pass_time(6.0)
        with pytest.raises(RpcError):
            world.get(7)
        only = (victim.raft_id,)
        assert world.tablets[place].stable == only
        elsewhere = next(id for id in range(20) if world.tablets[world.place_of(id)].stable != only)
        assert world.get(elsewhere) == f"value {elsewhere}"


def test_a_short_outage_starts_no_rebalance() -> None:
    with moving(4, 3, heal_after_ms=30_000) as world:
        world.work()
        victim = crash_follower(world)
        world.pass_time(8.0)
        victim.start()
        world.until(lambda: world.online(victim), "it is back")
        world.pass_time(3.0)
        assert world.run.watch.counted.begun == 0
        world.ends()


def test_planned_operations_fail_no_request() -> None:
    """Routing is versioned and swapped, never dropped and created."""
    with moving(4, 3) as world:
        world.work()
        world.join()
        world.pass_time(6.0)
        world.replication(2)
        world.ends()
        refused = [write for write in world.run.rows.writes if write.outcome.value != "acknowledged"]
        assert not refused, [str(write) for write in refused[:5]]
