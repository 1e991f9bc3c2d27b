"""Drafts: what is read is expected, what is changed adds up."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.governor.driver import Process, World, cluster

from trimtab.governor.climbing import shard
from trimtab.governor.down import mark_down
from trimtab.governor.steps import MAX_WRITE_BYTES, Barrier, Call, Commit, StepKind, Write
from trimtab.governor.wording import listed
from trimtab.governor.writes import Draft
from trimtab.topology.founding import founder_record
from trimtab.topology.grades import Grade, Grades, Standing, set_target
from trimtab.topology.records import VERSION_KEY, decode_instance, encode, instance_key
from trimtab.topology.states import NodeState


def test_whatever_is_looked_at_is_expected_at_its_revision() -> None:
    world = cluster(3)
    draft = Draft(world.state())
    draft.instance(2)
    assert draft.write().expect == {instance_key(2): world.view.revisions[instance_key(2)]}
    assert draft.write().empty


def test_changes_of_one_record_add_up_and_the_version_is_raised_once() -> None:
    world = cluster(3)
    draft = Draft(world.state())
    draft.change_instance(2, reason="one")
    draft.expel(2, "two")
    draft.expel(3, "three")
    write = draft.write()
    row = decode_instance(write.puts[instance_key(2)])
    assert (row.reason, row.state, row.grades.current.grade) == ("two", NodeState.LEFT, Grade.EXPELLED)
    assert write.puts[VERSION_KEY] == b"%d" % (world.view.version + 1)
    assert row.since_version == world.view.version + 1


def test_no_state_follows_that_may_not() -> None:
    draft = Draft(cluster(2).state())
    with pytest.raises(AssertionError, match="does not follow"):
        draft.change_instance(2, state=NodeState.BOOTSTRAPPING)


def test_a_write_that_was_overtaken_changes_nothing() -> None:
    world = cluster(3)
    world.restart("i2")
    world.behave()
    step = world.next_step()
    assert isinstance(step, Call)
    (write,) = step.writes_for([2])
    world.restart("i2")
    world.behave()
    before = world.row("i2")
    assert not world.write(write)
    assert world.row("i2") == before


def test_every_write_of_every_step_depends_on_all_it_changes() -> None:
    world = cluster(1)
    world.join("i2")
    seen = 0
    for _ in range(100):
        world.behave()
        step = world.next_step()
        if step is None:
            break
        writes = list(step.writes.values()) if isinstance(step, Call) else [getattr(step, "write", None)]
        for write in writes:
            if write is not None:
                seen += 1
                assert set(write.puts) | set(write.deletes) <= set(write.expect), step
                assert write.events
        world.carry_out(step)
    assert seen >= 9


def test_many_names_are_cut_short() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed([f"i{n}" for n in range(1, 101)]) == "i1, i2, i3, i4, i5 and 95 more"


def large(count: int) -> World:
    """So many instances with the longest names and failure domains there may be, on their way up."""
    world = cluster(1)
    domain = {f"key{n}": "v" * 120 for n in range(16)}
    for number in range(2, count + 1):
        name = f"instance-{number}-".ljust(64, "x")
        row = msgspec.structs.replace(
            founder_record(name, f"127.0.0.1:{number}", uuid=f"u{number}", failure_domain=domain, release="0.1.0"),
            grades=Grades(Standing(Grade.REPLICATED, 1), Standing(Grade.ONLINE, 1)),
        )
        world.view.change(instance_key(number), encode(row), 1)
        world.learners.add(number)
        world.processes[f"u{number}"] = Process(f"u{number}", name, raft_id=number, announced=True)
    return world


def test_however_many_instances_there_are_every_write_fits_in_a_command() -> None:
    world = large(200)
    names = {row.instance_id for row in world.view.instances.values()}
    for step in (shard(world.state()), mark_all_down(world)):
        assert isinstance(step, Barrier | Commit)
        assert 1 < len(step.subjects) < 199
        assert step.write.size_bytes < 1.1 * MAX_WRITE_BYTES
        assert {name for told in step.write.events for name in told.instances} <= names
    call = Call(StepKind.SYNC, "", (), writes={n: begin_again(world, n) for n in range(2, 201)})
    writes = call.writes_for(range(2, 201))
    assert len(writes) > 1 and all(write.size_bytes <= MAX_WRITE_BYTES for write in writes)
    assert {key for write in writes for key in write.puts} >= {instance_key(n) for n in range(2, 201)}


def mark_all_down(world: World) -> Commit | None:
    for number in range(2, 201):
        row = world.view.instances[number]
        row = msgspec.structs.replace(row, grades=set_target(row.grades, Grade.OFFLINE), reason="silent")
        world.view.change(instance_key(number), encode(row), 2)
    return mark_down(world.state())


def begin_again(world: World, raft_id: int) -> Write:
    draft = Draft(world.state())
    draft.change_instance(raft_id, reason="again")
    draft.tell("again", (raft_id,))
    return draft.write()


def test_an_event_names_only_those_whom_its_sentence_is_about() -> None:
    world = cluster(4)
    for name in ("i2", "i3", "i4"):
        world.stop(name)
    step = mark_down(world.state())
    assert step is not None
    assert [told.instances for told in step.write.events] == [("i2",), ("i3",), ("i4",)]
