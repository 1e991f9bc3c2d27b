"""What crosses the wire comes back as it was, and old readers understand newer writers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.raft.messages import (
    LEAVE_JOINT,
    LOCAL_APPEND,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    Message,
    MessageType,
    Snapshot,
    SnapshotMetadata,
    decode_conf_change,
    decode_message,
    encode_conf_change,
    encode_message,
)

NUMBERS = st.integers(0, 2**64 - 1)
ENTRIES = st.builds(Entry, NUMBERS, NUMBERS, st.sampled_from(EntryType), st.binary(max_size=20))
IDS = st.lists(NUMBERS, max_size=4).map(tuple)
SNAPSHOTS = st.builds(
    Snapshot,
    st.builds(SnapshotMetadata, st.builds(ConfState, IDS, IDS, IDS, IDS, st.booleans()), NUMBERS, NUMBERS),
    st.binary(max_size=20),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(MessageType),
    to=NUMBERS,
    from_=NUMBERS,
    term=NUMBERS,
    entries=st.lists(ENTRIES, max_size=3),
    snapshot=st.none() | SNAPSHOTS,
    reject=st.booleans(),
    context=st.binary(max_size=20),
    responses=st.just([]),
)
SINGLES = st.builds(ConfChangeSingle, st.sampled_from(ConfChangeType), NUMBERS)
CHANGES = st.one_of(
    st.builds(ConfChange, st.sampled_from(ConfChangeType), NUMBERS, st.binary(max_size=9)),
    st.builds(
        ConfChangeV2,
        st.sampled_from(ConfChangeTransition),
        st.lists(SINGLES, max_size=3).map(tuple),
        st.binary(max_size=9),
    ),
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(CHANGES)
def test_a_membership_change_comes_back_as_it_was(change: ConfChange | ConfChangeV2) -> None:
    kind, data = encode_conf_change(change)
    assert decode_conf_change(Entry(1, 1, kind, data)) == change


def test_leaving_a_joint_configuration_weighs_nothing() -> None:
    assert encode_conf_change(LEAVE_JOINT) == (EntryType.CONF_CHANGE_V2, b"")


def test_a_normal_entry_is_not_a_membership_change() -> None:
    with pytest.raises(ValueError, match="not a configuration change"):
        decode_conf_change(Entry(1, 1))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01", msgspec.msgpack.encode([99]), msgspec.msgpack.encode("x")])
def test_what_is_not_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(data)


def test_fields_of_a_newer_version_are_ignored_and_missing_ones_have_their_defaults() -> None:
    fields = msgspec.msgpack.decode(encode_message(Message(MessageType.APP, 1, 2, 3)))
    assert decode_message(msgspec.msgpack.encode([*fields, "newer"])) == Message(
        MessageType.APP, 1, 2, 3, entries=[], responses=[]
    )
    assert decode_message(msgspec.msgpack.encode(fields[:4])) == Message(MessageType.APP, 1, 2, 3)


def test_ids_of_the_local_storage_survive_the_encoding() -> None:
    assert decode_message(encode_message(Message(MessageType.PROP, LOCAL_APPEND))).to == LOCAL_APPEND


@pytest.mark.parametrize(
    ("change", "enters", "leaves", "auto"),
    [
        (LEAVE_JOINT, False, True, True),
        (ConfChangeV2(changes=(ConfChangeSingle(),)), False, False, True),
        (ConfChangeV2(changes=(ConfChangeSingle(), ConfChangeSingle())), True, False, True),
        (ConfChangeV2(ConfChangeTransition.JOINT_IMPLICIT, (ConfChangeSingle(),)), True, False, True),
        (ConfChangeV2(ConfChangeTransition.JOINT_EXPLICIT, (ConfChangeSingle(),)), True, False, False),
    ],
)
def test_how_a_change_is_carried_out(change: ConfChangeV2, enters: bool, leaves: bool, auto: bool) -> None:
    assert (change.enters_joint, change.leaves_joint, change.auto_leave) == (enters, leaves, auto)
