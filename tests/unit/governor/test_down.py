"""Failure detection, going down, and the fence behind whoever went."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from tests.unit.governor.driver import cluster

from trimtab.governor.crossing import unfenced
from trimtab.governor.detection import failure, find_silent
from trimtab.governor.down import fence_off, mark_down
from trimtab.governor.state import Heard
from trimtab.governor.steps import Barrier, Call, StepKey, StepKind
from trimtab.topology.grades import Grade, Standing, set_target
from trimtab.topology.records import FENCE_KEY, RequestKind


def test_a_silent_instance_is_marked_then_fenced_off() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(5_500)
    assert world.story == []
    world.pass_time(500)
    assert world.story == [
        "i3 should be Offline: not heard from for 6.0 s",
        "i3 is Offline: not heard from for 6.0 s",
        "requests from before version 7 are fenced off, because i3 went down",
    ]
    row = world.row("i3")
    assert (row.grades.current, row.weight) == (Standing(Grade.OFFLINE, 1), 0.0)
    assert row.reason == "not heard from for 6.0 s"
    assert world.view.fence == world.view.version == 7
    world.assert_settled()


def test_several_that_die_together_cost_three_writes() -> None:
    world = cluster(7)
    before = world.writes
    world.kill("i6")
    world.kill("i7")
    world.pass_time(7_000)
    assert world.writes - before == 3
    assert world.grade("i6") is world.grade("i7") is Grade.OFFLINE


def test_a_new_leader_has_heard_from_nobody_and_waits() -> None:
    world = cluster(3)
    world.kill("i3")
    world.pass_time(5_000)
    world.elect(2)
    world.pass_time(5_500)
    assert world.story == []
    world.pass_time(500)
    assert world.story[0] == "i3 should be Offline: not heard from for 6.0 s"


def test_being_slow_is_no_failure() -> None:
    world = cluster(3)
    state = world.state(commit=1_000)
    heard = state.heard | {3: Heard(100, applied=10, stalled_ms=29_000)}
    assert find_silent(replace(state, heard=heard)) is None
    heard = state.heard | {3: Heard(100, applied=10, stalled_ms=30_000)}
    reason = failure(replace(state, heard=heard), 3)
    assert reason == "it has applied nothing for 30.0 s, though it is 990 entries behind"
    heard = state.heard | {3: Heard(100, applied=1_000, stalled_ms=90_000)}
    assert find_silent(replace(state, heard=heard)) is None


def test_an_instance_that_shuts_down_is_marked_as_it_asked() -> None:
    world = cluster(5)
    world.stop("i5")
    world.run()
    assert "i5 is Offline: it shuts down" in world.story
    world.kill("i5")
    world.pass_time(10_000)
    world.assert_settled()


def test_a_marked_instance_that_is_up_comes_back_by_itself() -> None:
    world = cluster(3)
    grades = set_target(world.row("i3").grades, Grade.OFFLINE)
    world.put_row(3, grades=grades, reason="not heard from for 6.0 s")
    world.carry_out(world.next_step())  # type: ignore[arg-type]
    assert world.grade("i3") is Grade.OFFLINE
    world.run()
    assert world.grade("i3") is Grade.ONLINE
    assert world.row("i3").grades.current.incarnation == 2
    world.assert_settled()


def test_an_expelled_target_becomes_left_after_its_vote_has_gone() -> None:
    world = cluster(3)
    world.put_row(3, grades=set_target(world.row("i3").grades, Grade.EXPELLED), reason="by hand")
    assert mark_down(world.state()) is None
    world.run()
    assert world.story[:2] == [
        "i3 votes no more (leaves the cluster): i1 and i2 are to decide",
        "i3 is Expelled: by hand",
    ]
    world.assert_settled()


def test_the_fence_waits_for_everybody_who_is_not_marked_and_the_next_dead_one_does_not_wait_for_it() -> None:
    world = cluster(5)
    world.kill("i5")
    world.pass_time(4_000)
    world.kill("i4")
    world.pass_time(2_000)
    # i5 is marked; the barrier behind it waits for i4, which nobody knows to be dead.
    assert world.grade("i5") is Grade.OFFLINE
    assert world.view.fence < world.row("i5").since_version
    world.pass_time(4_000)
    assert world.grade("i4") is Grade.OFFLINE
    world.assert_settled()


def test_a_barrier_waits_for_whoever_is_at_least_synced_and_depends_on_the_others() -> None:
    world = cluster(4)
    world.kill("i4")
    world.now_ms += 6_000
    world.run(until=lambda: isinstance(world.next_step(), Barrier))
    step = world.next_step()
    assert isinstance(step, Barrier) and step.nodes == (1, 2, 3)
    passed = world.deed(step)
    assert passed is not None
    world.start("i4")
    world.behave()
    # It may come in any moment, with old requests of its own.
    assert not world.write(passed)


def test_nothing_is_lost_in_an_instance_record_by_marking_it() -> None:
    world = cluster(3)
    before = world.row("i3")
    world.kill("i3")
    world.pass_time(7_000)
    after = world.row("i3")
    changed = {name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    assert changed == {"grades", "weight", "reason", "since_version", "down_ms"}
    assert msgspec.structs.asdict(after)["uuid"] == before.uuid


def test_what_an_instance_sent_before_it_was_started_anew_is_fenced_off_though_nobody_marked_it() -> None:
    world = cluster(3)
    version = world.view.version
    world.restart("i3")
    world.behave()
    step = world.next_step()
    assert isinstance(step, Call)
    world.carry_out(step)
    assert world.grade("i3") is Grade.RAFT_SYNCED
    assert world.row("i3").since_version == version + 1 > world.view.fence
    assert unfenced(world.view) == (3,)
    fencing = fence_off(world.state())
    assert fencing is not None and fencing.version > version
    world.carry_out(fencing)
    assert world.view.fence > version and not unfenced(world.view)
    world.run()
    world.assert_settled()


def test_whoever_is_back_before_the_fence_was_raised_is_fenced_off_all_the_same() -> None:
    world = cluster(4)
    world.kill("i4")
    world.now_ms += 6_000
    world.run(until=lambda: world.grade("i4") is Grade.OFFLINE)
    gone = world.row("i4").since_version
    # The barrier waits for a long request while i4 comes back.
    world.resting[StepKey(StepKind.FENCE, (4,))] = world.now_ms + 60_000
    world.start("i4")
    world.run(until=lambda: world.grade("i4") is Grade.RAFT_SYNCED)
    assert world.view.fence < gone == world.row("i4").since_version
    fencing = fence_off(world.state())
    assert fencing is not None and fencing.subjects == (4,) and 4 in fencing.nodes
    world.resting.clear()
    world.run()
    world.assert_settled()


def test_every_barrier_ends_with_the_fence_at_its_version() -> None:
    """A request that its router gave up is nobody's: a replica that stood still might take it after the barrier."""
    world = cluster(3)
    world.join("i4")
    world.ask(RequestKind.REBUILD, "i2")
    world.ask(RequestKind.BARRIER)
    barriers = 0
    for _ in range(100):
        world.behave()
        step = world.next_step()
        if step is None:
            break
        if isinstance(step, Barrier):
            barriers += 1
            assert world.view.fence >= step.version or step.write.puts[FENCE_KEY] == b"%d" % step.version, step
        world.carry_out(step)
    assert barriers >= 5
    world.assert_settled()
