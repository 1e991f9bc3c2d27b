"""ALTER, then a rebalance, then compaction resumes: what moves hold on to, and that they let go of it.

The schema's versions are not compacted yet. What can be shown of it by now: while tablets move because of an ALTER, the
revision that they go by is where whoever compacts will look for it, and when they have moved nothing holds on to it.
"""

from __future__ import annotations

from tests.sim.moving_world import MovingCluster, moving
from trimtab.catalog import commands
from trimtab.catalog.commands import AlterTable, ColumnSpec
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeRequest
from trimtab.tablets.transitions import RebalanceState


def alter(world: MovingCluster, column: str) -> None:
    """The table that stories write gets another column."""
    command = AlterTable("sim", "story", add=[ColumnSpec(column, "bigint")])
    body = protocol.encode(ChangeRequest(commands.encode(command), f"alter {column}"))
    rng = world.world.rng(f"alter/{column}")
    world.cluster.do(world.cluster.ask(world.leader(), protocol.CHANGE, body, rng, 10.0))


def held_on_to(world: MovingCluster) -> list[int]:
    """The revisions that moves of the story's table go by now."""
    under_way = world.run.loads.tables.transitions.get(world.table.id, {})
    return sorted(current.trigger for current in under_way.values())


def test_alter_then_a_rebalance_holds_on_to_no_old_version() -> None:
    """Upstream an ALTER pinned compaction for ever: the minimum was read from keys that nobody wrote any more."""
    with moving(4, 2) as world:
        for id in range(20):
            world.put(id, f"value {id}")
        world.work()
        before = world.table.version
        world.hold_copies()
        altered_at = world.leader().instance.watching.revision  # type: ignore[union-attr]
        world.replication(3)
        alter(world, "b")
        world.until(lambda: "streaming" in {each.stage for each in world.moving.values()}, "copies are held")
        triggers = held_on_to(world)
        assert triggers and triggers[0] >= altered_at, (triggers, altered_at)
        record = world.rebalance(world.table.id)
        assert record.state is RebalanceState.RUNNING and record.trigger >= triggers[0]
        # Another ALTER need not wait for the moves, nor they for it.
        alter(world, "c")
        assert world.table.version > before and held_on_to(world)
        world.release_copies()
        world.ends()
        assert not held_on_to(world) and not world.run.loads.tables.transitions
        assert not world.run.loads.loads.sessions, "no session is open"
        assert not world.run.queue.view.open_jobs(), "nobody waits for a job"
        record = world.rebalance(world.table.id)
        assert record.state is RebalanceState.COMPLETED and record.trigger >= triggers[-1]
        assert all(len(tablet.stable) == 3 for tablet in world.tablets.values())
        assert [world.get(id) for id in range(20)] == [f"value {id}" for id in range(20)]


def test_an_alter_after_its_rebalance_has_been_taken_back_holds_on_to_nothing_either() -> None:
    with moving(4, 2) as world:
        world.work()
        world.hold_copies()
        world.replication(3)
        world.until(lambda: "streaming" in {each.stage for each in world.moving.values()}, "copies are held")
        world.replication(2)
        alter(world, "b")
        # Not released: what is given up does not wait for its copy.
        world.until(lambda: not world.moving, "what was under way is undone")
        world.release_copies()
        world.ends()
        assert not world.run.loads.loads.sessions and not world.run.queue.view.open_jobs()
        assert all(len(tablet.stable) == 2 for tablet in world.tablets.values())
        assert world.rebalance(world.table.id).state is not RebalanceState.RUNNING
