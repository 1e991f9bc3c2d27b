"""Options of writes: what is wrong is told by name."""

from __future__ import annotations

import pytest

from trimtab.client.errors import InvalidRequest
from trimtab.loads.attempts import attempt_ids
from trimtab.loads.records import MAX_ID_CHARACTERS
from trimtab.spark.write_options import Creation, primary_key, stream_options, write_options

GIVEN = {"peer": "127.0.0.1:3301", "table": "shop.users"}


@pytest.mark.parametrize(
    ("text", "partition", "clustering"),
    [
        ("id", ("id",), ()),
        ("a, b", ("a",), (("b", False),)),
        ("(a,b)", ("a", "b"), ()),
        ("(a, b), c desc, d ASC", ("a", "b"), (("c", True), ("d", False))),
        ('"Odd Name",b', ("Odd Name",), (("b", False),)),
    ],
)
def test_primary_keys_are_written_as_in_cql(
    text: str, partition: tuple[str, ...], clustering: tuple[tuple[str, bool], ...]
) -> None:
    assert primary_key(text) == (partition, clustering)


@pytest.mark.parametrize("text", ["", "a,", "(a", "a b", "a,,b", "(a),(b)", "a desc", "a,a", "(a,b),b", "a;b"])
def test_what_is_no_primary_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="primaryKey"):
        primary_key(text)


def test_all_options_at_once() -> None:
    options = write_options(
        GIVEN
        | {
            "primarykey": "(a,b),c",
            "Replication": "dc1:3, dc2:2",
            "tablets": "16",
            "static": "s",
            "onError": "REJECT",
            "rejected": "/aside",
            "timestamp": "2025-06-01T12:00:00Z",
            "ttl": "60",
            "loadId": "nightly-1",
            "lease": "10",
            "chunkRows": "1000",
        }
    )
    assert options.create == Creation(("a", "b"), (("c", False),), ("s",), {"dc1": 3, "dc2": 2}, 16)
    assert (options.on_error, options.rejected, options.load_id) == ("reject", "/aside", "nightly-1")
    assert (options.timestamp_us, options.ttl_s, options.lease_ms) == (1_748_779_200_000_000, 60, 10_000)
    assert (options.chunk_rows, options.chunk_bytes, options.direct_rows) == (1000, 0, 10_000)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"table": "users"}, "users"),
        ({"table": ""}, "no table was named"),
        ({"onError": "ignore"}, "option onError: one of fail, reject"),
        ({"onError": "reject"}, "go together"),
        ({"rejected": "/aside"}, "go together"),
        ({"tablets": "4"}, "option tablets is for a table that is made"),
        ({"primaryKey": "a", "replication": "three"}, "option replication"),
        ({"primaryKey": "a", "tablets": "0"}, "option tablets"),
        ({"ttl": "0"}, "option ttl"),
        ({"timestamp": "yesterday"}, "option timestamp"),
        ({"timestamp": "1970-01-01"}, "option timestamp: a time after 1970"),
        ({"loadId": "no good"}, "option loadId"),
        ({"loadId": "n" * 62}, "option loadId: up to 61 letters"),
        ({"lease": "0"}, "option lease"),
        ({"primary_key": "a"}, "did you mean primaryKey"),
        ({"splitsPerTablet": "4"}, "no option splitsPerTablet for writing"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        write_options(GIVEN | given)


def test_an_id_of_a_load_leaves_room_for_the_number_of_the_last_attempt() -> None:
    longest = write_options(GIVEN | {"loadId": "n" * 61}).load_id
    assert max(len(id) for id in attempt_ids(longest)) == MAX_ID_CHARACTERS


@pytest.mark.parametrize(("name", "value"), [("timestamp", "2025-06-01T12:00:00Z"), ("loadId", "nightly")])
def test_what_only_one_load_can_have_is_refused_for_a_stream(name: str, value: str) -> None:
    assert write_options(GIVEN | {name: value})
    with pytest.raises(InvalidRequest, match=f"option {name} is not for streams"):
        stream_options(GIVEN | {name: value})
