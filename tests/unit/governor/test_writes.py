"""Drafts: what is read is expected, what is changed adds up."""

from __future__ import annotations

import pytest
from tests.unit.governor.driver import cluster

from trimtab.governor.steps import Call
from trimtab.governor.wording import listed
from trimtab.governor.writes import Draft
from trimtab.topology.grades import Grade
from trimtab.topology.records import VERSION_KEY, decode_instance, instance_key
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
    write = step.write_for([2])
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
