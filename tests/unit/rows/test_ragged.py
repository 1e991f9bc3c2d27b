"""Many byte strings in one array: every operation beside the same one on a list."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.rows.ragged import Ragged, constant, fixed, from_arrow, from_list, join, stack

STRINGS = st.lists(st.binary(max_size=40), max_size=40) | st.integers(0, 40).flatmap(
    lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=40)
)


@settings(deadline=None)
@given(STRINGS, st.randoms(use_true_random=False))
def test_strings_come_back_sliced_taken_and_through_arrow(given: list[bytes], rng: random.Random) -> None:
    strings = from_list(given)
    assert strings.to_list() == given and len(strings) == len(given)
    assert [strings.bytes_at(at) for at in range(len(given))] == given
    assert strings.size == sum(map(len, given))
    start = rng.randint(0, len(given))
    stop = rng.randint(start, len(given))
    part = strings.slice(start, stop)
    assert part.to_list() == given[start:stop]
    assert from_arrow(part.to_arrow()).to_list() == given[start:stop]
    assert [each for some in strings.lists(7) for each in some] == given
    order = np.asarray([rng.randrange(len(given)) for _ in range(rng.randint(0, 9))] if given else [], dtype=np.int64)
    assert strings.take(order).to_list() == [given[at] for at in order]
    cut = rng.randint(start, stop)
    assert stack([strings.slice(start, cut), strings.slice(cut, stop)]).to_list() == given[start:stop]


@settings(deadline=None)
@given(STRINGS, STRINGS, st.binary(max_size=20))
def test_parts_are_joined_row_by_row(one: list[bytes], other: list[bytes], between: bytes) -> None:
    count = min(len(one), len(other))
    if count:
        joined = join([from_list(one[:count]), between, from_list(other[:count])])
        assert joined.to_list() == [a + between + b for a, b in zip(one, other, strict=False)]


@settings(deadline=None)
@given(st.lists(st.binary(min_size=6, max_size=30), min_size=1, max_size=30))
def test_the_same_bytes_of_every_string_are_a_matrix(given: list[bytes]) -> None:
    found = from_list(given).column(2, 4)
    assert [row.tobytes() for row in found] == [each[2:6] for each in given]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_parts_can_be_picked(given: list[bytes], rng: random.Random) -> None:
    strings = from_list(given)
    spans = []
    for at, each in enumerate(given):
        start = rng.randint(0, len(each))
        spans.append((at, start, rng.randint(start, len(each))))
    starts = np.asarray([strings.offsets[at] + start for at, start, _ in spans])
    lengths = np.asarray([stop - start for _, start, stop in spans])
    assert strings.pick(starts, lengths).to_list() == [given[at][start:stop] for at, start, stop in spans]


def test_zeros_at_the_end_stay() -> None:
    assert from_list([b"a\x00\x00", b"\x00\x00\x00"]).to_list() == [b"a\x00\x00", b"\x00\x00\x00"]


def test_one_string_over_and_over() -> None:
    assert constant(b"ab", 3).to_list() == [b"ab"] * 3


def test_strings_that_turn_out_equally_long_are_a_matrix() -> None:
    assert from_list([b"a", b"bc", b"de"]).slice(1, 3).width == 2


@pytest.mark.parametrize("count", [0, 3])
def test_empty_strings(count: int) -> None:
    strings: Ragged = fixed(np.empty((count, 0), np.uint8))
    assert strings.to_list() == [b""] * count
    assert strings.take(np.arange(count)).to_list() == [b""] * count
