"""Limits on what is under way."""

from __future__ import annotations

import msgspec

from trimtab.node.router.overload import Overload, Room


def test_what_exceeds_a_limit_is_refused_with_the_numbers_and_the_rest_goes_on() -> None:
    overload = Overload(Room(requests=2, bytes=1_000, connection_bytes=600))
    assert overload.enter("a", 100) is None
    assert overload.enter("b", 100) is None
    refused = overload.enter("b", 100)
    assert refused is not None and refused.code == "overloaded" and "2 requests" in refused.text
    assert msgspec.msgpack.decode(refused.details) == {"under_way": 2, "limit": 2}
    overload.leave("a", 100)
    assert overload.enter("b", 100) is None
    overload.leave("b", 100)
    overload.leave("b", 100)
    assert (overload.requests, overload.bytes, overload.refused) == (0, 0, 1)


def test_one_connection_can_not_take_all_of_it() -> None:
    overload = Overload(Room(requests=100, bytes=1_000, connection_bytes=600))
    assert overload.enter("a", 500) is None
    refused = overload.enter("a", 200)
    assert refused is not None and "this connection" in refused.text
    assert overload.enter("b", 400) is None
    refused = overload.enter("c", 200)
    assert refused is not None and "this node" in refused.text


def test_a_single_large_request_is_not_refused_for_its_connection_alone() -> None:
    overload = Overload(Room(requests=100, bytes=1_000, connection_bytes=600))
    assert overload.enter("a", 700) is None
