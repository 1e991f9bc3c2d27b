"""Raft in words."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft.describe import describe_entry, describe_message, describe_ready, quote
from trimtab.raft.messages import LOCAL_APPEND, LOCAL_APPLY, Entry, EntryType, Message, MessageType
from trimtab.raft.node import Ready
from trimtab.raft.reads import ReadState


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", '""'),
        (b'a "b"\\\n', '"a \\"b\\"\\\\\\n"'),
        (b"\x00\xff", '"\\x00\\xff"'),
        ("süß".encode(), '"süß"'),
        ("\u200b".encode(), '"\\u200b"'),
        ("\U000e0001".encode(), '"\\U000e0001"'),
    ],
)
def test_data_is_quoted(data: bytes, text: str) -> None:
    assert quote(data) == text


def test_several_entries_and_responses_are_indented() -> None:
    message = Message(
        MessageType.STORAGE_APPEND,
        LOCAL_APPEND,
        10,
        entries=[Entry(1, 2, data=b"a"), Entry(1, 3)],
        responses=[Message(MessageType.APP_RESP, 1, 10, index=3)],
    )
    assert describe_message(message) == (
        "a->AppendThread MsgStorageAppend Term:0 Log:0/0 Entries:[\n"
        '  1/2 EntryNormal "a"\n'
        '  1/3 EntryNormal ""\n'
        "] Responses:[\n"
        "  a->1 MsgAppResp Term:0 Log:0/3\n"
        "]"
    )


def test_a_change_that_can_not_be_read_is_described_all_the_same() -> None:
    assert describe_entry(Entry(1, 2, EntryType.CONF_CHANGE, b"\xc1")).startswith("1/2 EntryConfChange ")


def test_an_empty_ready_and_read_states() -> None:
    assert describe_ready(Ready()) == "<empty Ready>"
    ready = Ready(read_states=[ReadState(7, b"ab")])
    assert describe_ready(ready) == "Ready MustSync=false:\nReadStates [{7 [97 98]}]\n"


def test_nobody_and_the_state_machine_have_names() -> None:
    text = describe_message(Message(MessageType.STORAGE_APPLY, LOCAL_APPLY))
    assert text.startswith("None->ApplyThread MsgStorageApply")


def test_a_member_tells_its_story_when_asked_to() -> None:
    lines: list[str] = []
    cluster = Cluster(3, log=lines.append)
    cluster.propose(b"a")
    cluster.isolate(1)
    cluster.tick(40)
    assert any("leads in term" in line for line in lines)
    assert {line.split(" ", 1)[0] for line in lines} <= {"DEBUG", "INFO", "WARN", "ERROR"}
