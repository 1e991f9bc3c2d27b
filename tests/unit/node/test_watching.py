"""The view of the topology keeps step with what is applied: before anybody is told, in order, and after a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from trimtab.metastore import commands
from trimtab.metastore.errors import Compacted
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.node.settings import Limits
from trimtab.node.watching import Watching
from trimtab.raft.messages import ConfState, Entry, SnapshotMetadata
from trimtab.sim.disks import MemberDisk
from trimtab.sim.world import World
from trimtab.topology.records import EVENTS, VERSION_KEY, EventRecord, InstanceRecord, encode, event_key, instance_key


class Desk:
    """A metastore that applies what a test tells it to, and the view of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = world.process("p", "10.0.0.1")
        self.loop = self.process.start()
        asyncio._set_running_loop(self.loop)
        self.machine = MetastoreMachine(MemberDisk(self.process).model, "metastore", Limits(), self.loop.call_soon)
        self.machine.recover(SnapshotMetadata(ConfState(voters=(1,)), 1, 1), 1)
        self.records: list[bytes] = []
        self.failures: list[BaseException] = []
        self.told: list[frozenset[bytes]] = []
        self.watching = Watching(
            self.machine, on_record=lambda key, _value: self.records.append(key), fatal=self.failures.append
        )
        self.watching.on_change.append(self.told.append)
        self.watching.load()

    def write(self, *commanded: commands.Command) -> None:
        first = self.machine.applied_index + 1
        self.machine.apply([Entry(1, first + n, data=commands.encode(each)) for n, each in enumerate(commanded)])

    def turn(self) -> None:
        """Let the loop run what is due."""
        asyncio._set_running_loop(None)
        self.world.run(self.world.now + 0.001)
        asyncio._set_running_loop(self.loop)


def row(number: int, **changed: Any) -> dict[bytes, bytes]:
    return {instance_key(number): encode(InstanceRecord(f"i{number}", f"10.0.0.{number}:1", **changed))}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with World(1) as world:
        try:
            yield Desk(world)
        finally:
            asyncio._set_running_loop(None)


def test_the_view_shows_a_change_as_soon_as_it_is_applied(desk: Desk) -> None:
    desk.write(commands.put_all({**row(1), VERSION_KEY: b"1"}))
    view = desk.watching.view
    assert view.instances[1].instance_id == "i1" and view.version == 1
    assert view.revisions[instance_key(1)] == desk.machine.metastore.revision == desk.watching.revision
    assert desk.records == [instance_key(1), VERSION_KEY] and desk.told == []


def test_changes_are_told_later_and_together(desk: Desk) -> None:
    desk.turn()
    desk.told.clear()
    event = {event_key(1): encode(EventRecord(1, "founded", "it began"))}
    desk.write(commands.put_all({**row(1), **event}), commands.put(VERSION_KEY, b"2"))
    desk.turn()
    assert desk.told == [frozenset((instance_key(1), event_key(1), VERSION_KEY))]


def test_what_is_not_of_the_system_is_nobody_s_business(desk: Desk) -> None:
    desk.turn()
    desk.told.clear()
    desk.write(commands.put(b"mine", b"1"), commands.put(EVENTS[:-1], b"1"))
    desk.turn()
    assert desk.told == [] and desk.records == []


def test_a_deleted_record_leaves_the_view(desk: Desk) -> None:
    desk.write(commands.put_all(row(1)))
    desk.write(commands.delete(instance_key(1)))
    assert desk.watching.view.instances == {} and instance_key(1) not in desk.watching.view.revisions


def test_it_begins_anew_in_place_and_goes_on_from_there(desk: Desk) -> None:
    view = desk.watching.view
    desk.write(commands.put_all(row(1)))
    desk.turn()
    desk.told.clear()
    desk.watching.load()
    desk.turn()
    assert desk.told == [frozenset()], "nothing less than everything may have changed"
    desk.write(commands.put_all(row(2)))
    assert desk.watching.view is view and sorted(view.instances) == [1, 2]
    assert desk.records.count(instance_key(2)) == 1, "the watch of before is gone"


def test_a_record_that_can_not_be_read_is_kept_as_it_was_and_shown(desk: Desk) -> None:
    desk.write(commands.put_all(row(1)))
    desk.write(commands.put(instance_key(1), b"nonsense"))
    view = desk.watching.view
    assert view.instances[1].instance_id == "i1" and instance_key(1) in view.unreadable
    assert desk.failures == []


def test_only_a_snapshot_may_end_the_watch(desk: Desk) -> None:
    desk.watching._ended(Compacted(1, 2, for_watch=True))
    assert desk.failures == []
    desk.watching._ended(RuntimeError("a defect"))
    assert [str(each) for each in desk.failures] == ["a defect"]


def test_nobody_is_told_after_the_end(desk: Desk) -> None:
    desk.write(commands.put_all(row(1)))
    desk.watching.close()
    desk.turn()
    desk.write(commands.put_all(row(2)))
    desk.turn()
    assert desk.told == []
