from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.net.errors import FrameError
from trimtab.net.frames import (
    ERROR,
    KIND_NAMES,
    REQUEST,
    Frame,
    FrameReader,
    decode_failure,
    decode_reason,
    encode_failure,
    encode_frame,
    encode_reason,
)

MAX = 4096

frames = st.builds(
    Frame,
    kind=st.integers(0, 255),
    id=st.integers(0, 2**63),
    method=st.text(max_size=20),
    deadline_ms=st.integers(0, 2**32),
    body=st.binary(max_size=300),
)


def wire(frame: Frame) -> bytes:
    return encode_frame(frame.kind, frame.id, frame.method, frame.deadline_ms, frame.body)


def read_all(reader: FrameReader) -> list[Frame]:
    found = []
    while (frame := reader.next()) is not None:
        found.append(frame)
    return found


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[low:high] for low, high in itertools.pairwise(at)]


@settings(max_examples=100, deadline=None)
@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_survive_any_split_of_the_stream(sent: list[Frame], cuts: list[int]) -> None:
    reader = FrameReader(MAX)
    received: list[Frame] = []
    for piece in pieces(b"".join(map(wire, sent)), cuts):
        reader.feed(piece)
        received += read_all(reader)
    assert received == sent
    assert reader.buffered_bytes == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(frames, min_size=1, max_size=8), st.lists(st.integers(0, 10_000), max_size=12), st.randoms())
def test_a_reader_that_is_asked_for_few_frames_at_a_time_loses_none(
    sent: list[Frame], cuts: list[int], rng: random.Random
) -> None:
    reader = FrameReader(MAX)
    received: list[Frame] = []
    for piece in pieces(b"".join(map(wire, sent)), cuts):
        reader.feed(piece)
        for _ in range(rng.randrange(3)):
            if (frame := reader.next()) is not None:
                received.append(frame)
    received += read_all(reader)
    assert received == sent


@settings(max_examples=200, deadline=None)
@given(st.lists(frames, max_size=3), st.binary(min_size=1, max_size=200), st.lists(st.integers(0, 1000), max_size=6))
def test_garbage_raises_frame_errors_and_nothing_else(good: list[Frame], garbage: bytes, cuts: list[int]) -> None:
    reader = FrameReader(MAX)
    received: list[Frame] = []
    try:
        for piece in pieces(b"".join(map(wire, good)) + garbage, cuts):
            reader.feed(piece)
            received += iter(reader.next, None)
    except FrameError as error:
        assert error.reason
        with pytest.raises(FrameError):
            reader.feed(wire(Frame(REQUEST, 1, "m", 0, b"")))
            reader.next()


@settings(max_examples=200, deadline=None)
@given(frames, st.integers(4, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_another_frame_or_a_frame_error(frame: Frame, position: int, flip: int) -> None:
    data = bytearray(wire(frame))
    position = 4 + (position % (len(data) - 4))
    data[position] ^= flip
    reader = FrameReader(MAX)
    reader.feed(bytes(data))
    try:
        assert reader.next() is not None
    except FrameError as error:
        assert "malformed" in error.reason


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x93\x01\x02\x03", "at least length 5"),
        (b"\x96\x02\x01\xa1m\x00\xc4\x00\xc0", "at most length 5"),
        (msgspec.msgpack.encode({"kind": 1}), "Expected `array`"),
        (msgspec.msgpack.encode(17), "Expected `array`"),
        (msgspec.msgpack.encode([2, -1, "m", 0, b""]), ">= 0"),
        (msgspec.msgpack.encode([2, 1, "m", -5, b""]), ">= 0"),
        (msgspec.msgpack.encode([2, 1.5, "m", 0, b""]), "Expected `int`"),
        (msgspec.msgpack.encode([2, 1, "m", 0, "text"]), "Expected `bytes`"),
        (msgspec.msgpack.encode([2, 1, "m" * 129, 0, b""]), "length <= 128"),
        (msgspec.msgpack.encode([2, 1, "m", 0, [[[]]]]), "Expected `bytes`"),
        (b"\x91" * 3000, "at least length 5"),
        (b"\x95\x02\x01\xa1m\x00" + b"\x91" * 3000, "Expected `bytes`"),
        (b"\x95\x02\x01\xa1\xff\x00\xc4\x00", "utf-8"),
        (b"\xc1", "malformed"),
        (msgspec.msgpack.encode([2, 1, "m", 0, b""]) + b"more", "trailing"),
    ],
)
def test_what_is_not_exactly_a_frame_is_refused_with_a_reason(payload: bytes, reason: str) -> None:
    reader = FrameReader(MAX)
    reader.feed(framed(payload))
    with pytest.raises(FrameError, match=f"malformed frame of {len(payload)} bytes.*") as caught:
        reader.next()
    assert reason in caught.value.reason


def test_a_frame_of_zero_length_is_refused() -> None:
    reader = FrameReader(MAX)
    reader.feed(b"\0\0\0\0")
    with pytest.raises(FrameError, match="zero length"):
        reader.next()


def test_an_oversized_frame_is_refused_by_its_length_alone_naming_both_sizes() -> None:
    reader = FrameReader(MAX)
    reader.feed((MAX + 1).to_bytes(4, "big"))
    with pytest.raises(FrameError, match=f"{MAX + 1} bytes exceeds the limit of {MAX}"):
        reader.next()


def test_a_frame_of_exactly_the_limit_is_accepted() -> None:
    frame = Frame(REQUEST, 1, "m", 0, b"x" * (MAX - 9))
    data = wire(frame)
    assert len(data) - 4 <= MAX
    reader = FrameReader(len(data) - 4)
    reader.feed(data)
    assert reader.next() == frame


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
        (b"POST /x", "HTTP request"),
        (b"\x16\x03\x01\x02\x00", "uses TLS"),
        (b"SSH-2.0-x", "SSH"),
    ],
)
def test_common_strangers_are_named(start: bytes, what: str) -> None:
    reader = FrameReader(MAX)
    reader.feed(start)
    with pytest.raises(FrameError, match=what):
        reader.next()


def test_frames_before_a_bad_one_are_still_delivered() -> None:
    good = Frame(REQUEST, 1, "m", 0, b"")
    reader = FrameReader(MAX)
    reader.feed(wire(good) + framed(b"\xc1"))
    assert reader.next() == good
    with pytest.raises(FrameError):
        reader.next()


def test_a_promised_length_allocates_nothing() -> None:
    reader = FrameReader(2**32 - 1)
    reader.feed((2**31).to_bytes(4, "big") + b"x")
    assert reader.next() is None
    assert reader.buffered_bytes == 5


def test_a_large_frame_in_many_small_chunks_is_read_once_it_is_whole() -> None:
    frame = Frame(REQUEST, 1, "m", 0, bytes(range(256)) * 4096)
    data = wire(frame)
    reader = FrameReader(2 * 1024 * 1024)
    for at in range(0, len(data), 1000):
        assert reader.next() is None
        reader.feed(data[at : at + 1000])
    assert reader.next() == frame


def test_failures_and_reasons_round_trip_and_bad_ones_are_refused() -> None:
    failure = decode_failure(encode_failure("code", "text", b"\0\1"))
    assert (failure.code, failure.text, failure.details) == ("code", "text", b"\0\1")
    with pytest.raises(FrameError, match=KIND_NAMES[ERROR]):
        decode_failure(b"\x91" * 100_000)
    assert decode_reason(encode_reason("because é")) == "because é"
    assert decode_reason(b"a\nb\x1b[31m\xff") == "a b [31m\ufffd"
    assert len(decode_reason(b"x" * 100_000)) == 500
    assert decode_reason(b"") == "no reason given"
