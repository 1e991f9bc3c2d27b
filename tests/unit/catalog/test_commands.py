"""Commands over the wire: what is no command, too large or of another format is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.catalog.schemas import columns
from tests.unit.catalog.test_catalog import SINGLES

from trimtab.catalog import commands
from trimtab.catalog.commands import Bulk, CreateKeyspace, CreateTable
from trimtab.catalog.limits import MAX_BULK_COMMANDS


@settings(max_examples=60, deadline=None)
@given(SINGLES | st.lists(SINGLES, max_size=3).map(Bulk))
def test_commands_arrive_as_they_were_sent(command: commands.Command) -> None:
    assert commands.decode(commands.encode(command)) == command


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_command_are_refused_in_words(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a command|format"):
        commands.decode(encoded)


def test_a_bulk_holds_no_bulk() -> None:
    inner = {"command": "bulk", "commands": []}
    encoded = msgspec.msgpack.encode({"format": 1, "command": {"command": "bulk", "commands": [inner]}})
    with pytest.raises(ValueError, match="not a command"):
        commands.decode(encoded)


def test_wrong_types_inside_a_command_are_refused() -> None:
    for wrong in (
        {"command": "create_keyspace", "name": "a", "replication": True},
        {"command": "create_keyspace", "name": "a", "replication": {"dc1": "3"}},
        {"command": "create_keyspace", "name": 1, "replication": 1},
        {"command": "drop_everything"},
        {},
    ):
        with pytest.raises(ValueError, match="not a command"):
            commands.decode(msgspec.msgpack.encode({"format": 1, "command": wrong}))


def test_a_command_of_a_newer_format_says_whom_to_ask() -> None:
    with pytest.raises(ValueError, match="format 2; this release knows 1"):
        commands.decode(msgspec.msgpack.encode({"format": 2, "command": {}}))


def test_commands_have_a_size() -> None:
    many = [commands.ColumnSpec("x" * 100 + str(n), "int") for n in range(4_000)]
    with pytest.raises(ValueError, match="at most 393216 bytes"):
        commands.encode(CreateTable("shop", "t", many, ["x"]))
    with pytest.raises(ValueError, match="at most 393216 bytes"):
        commands.decode(b"x" * 400_000)
    with pytest.raises(ValueError, match="at most 1000 commands, not 1001"):
        commands.encode(Bulk([CreateKeyspace("a", 1)] * (MAX_BULK_COMMANDS + 1)))


def test_what_is_left_out_has_its_default() -> None:
    small = commands.encode(CreateTable("shop", "t", columns(id="int"), ["id"]))
    assert b"options" not in small
    assert commands.decode(small) == CreateTable("shop", "t", columns(id="int"), ["id"], [], {}, 0, False)
