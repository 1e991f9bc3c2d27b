"""Who is known from the end of a survivor's log, which its metastore has not seen yet."""

from __future__ import annotations

from trimtab.metastore import commands
from trimtab.metastore.commands import Actions, Branch, Command, Put
from trimtab.metastore.conditions import Exists
from trimtab.node.recovery import _noted
from trimtab.raft.messages import Entry, EntryType
from trimtab.topology.records import InstanceRecord, encode, instance_key
from trimtab.topology.states import NodeState


def entry(body):
    data = commands.stamp(commands.encode(Command(b"", body)), 1)
    return Entry(term=1, index=1, type=EntryType.NORMAL, data=data)


def put(raft_id, address, **fields):
    return Put(instance_key(raft_id), encode(InstanceRecord(f"i{raft_id}", address, **fields)))


def test_members_are_found_in_plain_commands_and_in_those_with_conditions():
    condition = Exists(b"some")
    entries = [
        entry(Actions((put(1, "one:1"), Put(b"other", b"x")))),
        entry(Branch(condition, Actions((put(2, "two:1"),)), Actions((put(3, "three:1"),)))),
        entry(Actions((put(1, "one:2"),))),
    ]
    assert {raft_id: [each.address for each in records] for raft_id, records in _noted(entries).items()} == {
        1: ["one:1", "one:2"],
        2: ["two:1"],
        3: ["three:1"],
    }


def test_what_can_not_be_read_is_passed_over_and_who_may_have_left_is_not():
    entries = [
        entry(Actions((put(1, "one:1", state=NodeState.LEFT),))),
        Entry(term=1, index=1, type=EntryType.NORMAL, data=b"no command"),
        Entry(term=1, index=1, type=EntryType.NORMAL, data=b""),
        entry(Actions((Put(b"instances/none", b"{}"),))),
        entry(Actions((put(2, "two:1"),))),
    ]
    assert list(_noted(entries)) == [1, 2]
