"""What Raft members say to one another, to their disks, and write into their logs.

Everything here crosses a wire or a log, so it is data only: msgspec structs encoded as msgpack arrays. Fields are only
ever added at the end, with a default, so that two adjacent versions understand one another. Structs hold no cycles,
which is why the garbage collector need not look at them (`gc=False`).

Message types keep etcd's numbers. Ids are positive; `NONE` (0) stands for nobody.
"""

import enum
from collections.abc import Sequence

import msgspec

NONE = 0
# The disk and the state machine of the member itself, as addressees of storage messages in asynchronous mode.
LOCAL_APPEND = 2**64 - 1
LOCAL_APPLY = 2**64 - 2


class EntryType(enum.IntEnum):
    NORMAL = 0
    CONF_CHANGE = 1
    CONF_CHANGE_V2 = 2


class MessageType(enum.IntEnum):
    HUP = 0
    BEAT = 1
    PROP = 2
    APP = 3
    APP_RESP = 4
    VOTE = 5
    VOTE_RESP = 6
    SNAP = 7
    HEARTBEAT = 8
    HEARTBEAT_RESP = 9
    UNREACHABLE = 10
    SNAP_STATUS = 11
    CHECK_QUORUM = 12
    TRANSFER_LEADER = 13
    TIMEOUT_NOW = 14
    READ_INDEX = 15
    READ_INDEX_RESP = 16
    PRE_VOTE = 17
    PRE_VOTE_RESP = 18
    STORAGE_APPEND = 19
    STORAGE_APPEND_RESP = 20
    STORAGE_APPLY = 21
    STORAGE_APPLY_RESP = 22
    FORGET_LEADER = 23


# Said only inside one process; the same thing from the network is refused.
LOCAL_TYPES = frozenset(
    {
        MessageType.HUP,
        MessageType.BEAT,
        MessageType.UNREACHABLE,
        MessageType.SNAP_STATUS,
        MessageType.CHECK_QUORUM,
        MessageType.STORAGE_APPEND,
        MessageType.STORAGE_APPEND_RESP,
        MessageType.STORAGE_APPLY,
        MessageType.STORAGE_APPLY_RESP,
    }
)

# Answers: they mean nothing from a peer that is not in the configuration.
RESPONSE_TYPES = frozenset(
    {
        MessageType.APP_RESP,
        MessageType.VOTE_RESP,
        MessageType.HEARTBEAT_RESP,
        MessageType.UNREACHABLE,
        MessageType.READ_INDEX_RESP,
        MessageType.PRE_VOTE_RESP,
        MessageType.STORAGE_APPEND_RESP,
        MessageType.STORAGE_APPLY_RESP,
    }
)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One position of the log. In a proposal term and index are still 0."""

    term: int = 0
    index: int = 0
    type: EntryType = EntryType.NORMAL
    data: bytes = b""


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What must be on disk before anything that depends on it leaves the member."""

    term: int = 0
    vote: int = NONE
    commit: int = 0


class ConfState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A whole membership. `voters_outgoing` is not empty exactly while the configuration is joint."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False


class SnapshotMetadata(msgspec.Struct, frozen=True, array_like=True, gc=False):
    conf_state: ConfState = ConfState()
    index: int = 0
    term: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state at `metadata.index`. `data` is the host's: the state itself, or a note of where to fetch it."""

    metadata: SnapshotMetadata = SnapshotMetadata()
    data: bytes = b""


class Message(msgspec.Struct, array_like=True, gc=False):
    """One message. Which fields mean something depends on the type; the others stay at their defaults."""

    type: MessageType
    to: int = NONE
    from_: int = NONE
    term: int = 0
    log_term: int = 0
    index: int = 0
    entries: Sequence[Entry] = ()
    commit: int = 0
    vote: int = NONE
    snapshot: Snapshot | None = None
    reject: bool = False
    reject_hint: int = 0
    context: bytes = b""
    responses: Sequence["Message"] = ()


class ConfChangeType(enum.IntEnum):
    ADD_NODE = 0
    REMOVE_NODE = 1
    UPDATE_NODE = 2
    ADD_LEARNER_NODE = 3


class ConfChangeTransition(enum.IntEnum):
    """How to get from one membership to the next.

    AUTO takes the simple way for a single change and joint consensus, left automatically, for more. JOINT_IMPLICIT
    always takes joint consensus, left automatically. JOINT_EXPLICIT stays joint until an empty change is proposed.
    """

    AUTO = 0
    JOINT_IMPLICIT = 1
    JOINT_EXPLICIT = 2


class ConfChangeSingle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    type: ConfChangeType = ConfChangeType.ADD_NODE
    node_id: int = NONE


class ConfChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Version 1: exactly one change, never joint."""

    type: ConfChangeType = ConfChangeType.ADD_NODE
    node_id: int = NONE
    context: bytes = b""

    def as_v2(self) -> "ConfChangeV2":
        return ConfChangeV2(changes=(ConfChangeSingle(self.type, self.node_id),), context=self.context)


class ConfChangeV2(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Version 2: any number of changes. None at all, with AUTO, means: leave the joint configuration."""

    transition: ConfChangeTransition = ConfChangeTransition.AUTO
    changes: tuple[ConfChangeSingle, ...] = ()
    context: bytes = b""

    def as_v2(self) -> "ConfChangeV2":
        return self

    @property
    def leaves_joint(self) -> bool:
        return self.transition == ConfChangeTransition.AUTO and not self.changes

    @property
    def enters_joint(self) -> bool:
        return self.transition != ConfChangeTransition.AUTO or len(self.changes) > 1

    @property
    def auto_leave(self) -> bool:
        """Whether the joint configuration this change enters is left without being asked."""
        return self.transition != ConfChangeTransition.JOINT_EXPLICIT


AnyConfChange = ConfChange | ConfChangeV2

LEAVE_JOINT = ConfChangeV2()

_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(Message)
_v1_decoder = msgspec.msgpack.Decoder(ConfChange)
_v2_decoder = msgspec.msgpack.Decoder(ConfChangeV2)


def encode_message(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_message(data: bytes | memoryview) -> Message:
    """Raises msgspec.DecodeError (ValidationError included) on anything that is not a message."""
    return _message_decoder.decode(data)


def encode_conf_change(change: AnyConfChange) -> tuple[EntryType, bytes]:
    """The entry type and data of a change. Leaving joint is empty data: it can't be refused for its size."""
    if isinstance(change, ConfChange):
        return EntryType.CONF_CHANGE, _encoder.encode(change)
    if change == LEAVE_JOINT:
        return EntryType.CONF_CHANGE_V2, b""
    return EntryType.CONF_CHANGE_V2, _encoder.encode(change)


def decode_conf_change(entry: Entry) -> AnyConfChange:
    """The change a committed entry carries. Raises msgspec.DecodeError when its data is malformed."""
    if entry.type == EntryType.CONF_CHANGE:
        return _v1_decoder.decode(entry.data)
    if entry.type != EntryType.CONF_CHANGE_V2:
        raise ValueError(f"entry {entry.term}/{entry.index} is not a configuration change, it is {entry.type.name}")
    if not entry.data:
        return LEAVE_JOINT
    return _v2_decoder.decode(entry.data)
