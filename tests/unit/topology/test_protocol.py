"""The protocol: an adjacent minor version that has fewer fields, or more, still understands."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.topology.clusters import join_request

from trimtab.topology import protocol
from trimtab.topology.protocol import (
    CreateRequest,
    DiscoverReply,
    DiscoverRequest,
    Grant,
    Heartbeat,
    JoinReply,
    JoinResponse,
    UpdateRequest,
)
from trimtab.topology.records import RequestKind


@pytest.mark.parametrize(
    ("message", "decode", "needed"),
    [
        (DiscoverRequest("demo", "h:1", "h:2", ["h:1"], ["h:2"], "u"), protocol.decode_discover, 4),
        (DiscoverReply("h:1", ["h:1"], "h:2", "u"), protocol.decode_discover_reply, 2),
        (join_request(), protocol.decode_join, 2),
        (JoinReply(JoinResponse("u", "n", True)), protocol.decode_join_reply, 0),
        (JoinResponse("u", "n", False, "no", term=3, again=True), protocol.decode_join_response, 3),
        (UpdateRequest(1, "u"), protocol.decode_update, 2),
        (Heartbeat(1, "u", 5, 2, 10, 3, True, -7, 9), protocol.decode_heartbeat, 6),
        (Grant(5, 2, 3_000, 10, "why", 11, 12, 13), protocol.decode_grant, 4),
        (CreateRequest(RequestKind.LEAVE, "i1"), protocol.decode_create, 1),
    ],
)
def test_messages_with_fewer_or_more_fields_are_understood(message: object, decode: object, needed: int) -> None:
    assert callable(decode)
    whole = protocol.encode(message)
    assert decode(whole) == message
    fields = msgspec.msgpack.decode(whole)
    decode(msgspec.msgpack.encode(fields[:needed]))
    assert decode(msgspec.msgpack.encode([*fields, "something of a later version"])) == message
    if needed:
        with pytest.raises(msgspec.ValidationError):
            decode(msgspec.msgpack.encode(fields[: needed - 1]))


def test_methods_have_names_of_their_own() -> None:
    methods = [value for name, value in vars(protocol).items() if name.isupper() and isinstance(value, str)]
    assert len(methods) == len(set(methods)) >= 12
