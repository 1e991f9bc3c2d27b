"""Who speaks, and which protocol two peers share.

Each side's first frame is HELLO, with the format's name as its method and a `Greeting` as its body: the `Hello` of its
instance and the largest frame it accepts. The asking side speaks first. Both check the other's; a refusal is a
GOODBYE that names both sides' facts, so that the reason reads the same in both logs.

The protocol version (what methods mean) is negotiated apart from the format (what frames look like): a peer offers a
range, the highest version in both ranges is used, and no overlap is a refusal that names both ranges. New fields are
added to the end of Hello with a default; an older peer ignores them.
"""

from __future__ import annotations

import msgspec

from trimtab.net.errors import FrameError
from trimtab.net.frames import FORMAT, FORMAT_FAMILY, HELLO, KIND_NAMES, Frame
from trimtab.net.limits import MIN_FRAME_BYTES

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """What an instance says about itself. Tools and clients that are no instance leave the ids empty."""

    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    cluster_id: str = ""
    instance_id: str = ""
    raft_id: int = 0
    genesis: str = ""
    incarnation: int = 0
    address: str = ""  # where others reach the instance
    data_id: str = ""  # of its data directory: another one behind the same raft id has lost what that one promised

    def name(self) -> str:
        return self.instance_id or "a client"


class Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Body of a HELLO frame."""

    hello: Hello
    max_frame_bytes: int


class HelloRefused(FrameError):
    """The peer's hello can't be accepted; the reason is sent to it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Greeting).decode


def encode_greeting(hello: Hello, max_frame_bytes: int) -> bytes:
    return _encode(Greeting(hello, max_frame_bytes))


def read_greeting(frame: Frame) -> Greeting:
    """The greeting in a connection's first frame, or HelloRefused with a reason for the other side."""
    if frame.kind != HELLO:
        kind = KIND_NAMES.get(frame.kind, f"of unknown kind {frame.kind}")
        raise HelloRefused(f"the first frame must be HELLO, this one is {kind}")
    if frame.method != FORMAT:
        if frame.method.startswith(FORMAT_FAMILY):
            raise HelloRefused(f"this side speaks {FORMAT}, the other {frame.method[:32]}")
        raise HelloRefused("not a trimtab peer: HELLO does not name the format")
    try:
        greeting = _decode(frame.body)
    except (ValueError, RecursionError) as error:
        raise HelloRefused(f"malformed HELLO: {error}") from None
    if greeting.max_frame_bytes < MIN_FRAME_BYTES:
        raise HelloRefused(f"a frame limit of {greeting.max_frame_bytes} bytes is below the minimum {MIN_FRAME_BYTES}")
    return greeting


def negotiate(ours: Hello, theirs: Hello) -> int:
    """The highest protocol version both speak; HelloRefused, naming both ranges, when there is none."""
    version = min(ours.protocol_max, theirs.protocol_max)
    if version < max(ours.protocol_min, theirs.protocol_min) or theirs.protocol_min > theirs.protocol_max:
        raise HelloRefused(
            f"no common protocol version: {ours.name()} speaks {ours.protocol_min} to {ours.protocol_max}, "
            f"{theirs.name()} speaks {theirs.protocol_min} to {theirs.protocol_max}; upgrade the older one"
        )
    return version
