from __future__ import annotations

import msgspec
import pytest

from trimtab.net.frames import FORMAT, HELLO, REQUEST, Frame
from trimtab.net.hello import Hello, HelloRefused, encode_greeting, negotiate, read_greeting


@pytest.mark.parametrize(
    ("ours", "theirs", "version"), [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 2), 2), ((1, 9), (4, 4), 4)]
)
def test_the_highest_common_version_is_used(ours: tuple[int, int], theirs: tuple[int, int], version: int) -> None:
    assert negotiate(Hello(*ours), Hello(*theirs)) == version
    assert negotiate(Hello(*theirs), Hello(*ours)) == version


@pytest.mark.parametrize(("ours", "theirs"), [((1, 2), (3, 4)), ((3, 4), (1, 2)), ((1, 9), (5, 3))])
def test_no_common_version_names_both_ranges(ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    with pytest.raises(HelloRefused) as caught:
        negotiate(Hello(*ours, instance_id="i1"), Hello(*theirs, instance_id="i2"))
    assert f"i1 speaks {ours[0]} to {ours[1]}" in caught.value.reason
    assert f"i2 speaks {theirs[0]} to {theirs[1]}" in caught.value.reason


def test_a_greeting_says_who_and_how_large() -> None:
    hello = Hello(1, 2, "cluster", "i1", 7, "genesis", 3)
    greeting = read_greeting(Frame(HELLO, 0, FORMAT, 0, encode_greeting(hello, 4096)))
    assert greeting.hello == hello
    assert greeting.max_frame_bytes == 4096


def test_a_newer_hello_with_more_fields_is_understood() -> None:
    body = msgspec.msgpack.encode([[1, 2, "c", "i", 7, "g", 3, "h:1", "d", "a field of the future"], 4096, "another"])
    assert read_greeting(Frame(HELLO, 0, FORMAT, 0, body)).hello == Hello(1, 2, "c", "i", 7, "g", 3, "h:1", "d")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Frame(REQUEST, 1, "m", 0, b""), "first frame must be HELLO, this one is REQUEST"),
        (Frame(99, 1, "m", 0, b""), "unknown kind 99"),
        (Frame(HELLO, 0, "trimtab/9", 0, b""), "this side speaks trimtab/1, the other trimtab/9"),
        (Frame(HELLO, 0, "kafka", 0, b""), "not a trimtab peer"),
        (Frame(HELLO, 0, FORMAT, 0, b"\x91" * 10_000), "malformed HELLO"),
        (Frame(HELLO, 0, FORMAT, 0, b""), "malformed HELLO"),
        (Frame(HELLO, 0, FORMAT, 0, encode_greeting(Hello(), 10)), "below the minimum"),
    ],
)
def test_a_first_frame_that_is_no_hello_is_refused_with_a_reason(frame: Frame, reason: str) -> None:
    with pytest.raises(HelloRefused, match=reason):
        read_greeting(frame)
