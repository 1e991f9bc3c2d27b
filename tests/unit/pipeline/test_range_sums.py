"""Checksums of ranges: equal for equal pairs in whatever pieces, and they name the ranges that differ."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.pipeline.range_sums import MAX_RANGES, MIN_RANGES, RangeSums, differing, ranges_for, spans
from trimtab.rows.ragged import from_list
from trimtab.tablets.missed import tablet_keys
from trimtab.tablets.ring import token_range


def keys_in(rng: random.Random, tablet: int, tablets: int, count: int) -> list[bytes]:
    low, high = tablet_keys(*token_range(tablet, tablets))
    start, stop = int.from_bytes(low, "big"), int.from_bytes(high, "big") if high else 1 << 64
    return sorted({rng.randrange(start, stop).to_bytes(8, "big") + rng.randbytes(25) for _ in range(count)})


def test_a_tablet_is_cut_into_ranges_by_its_size() -> None:
    for tablet in (0, 3, 7):
        for size_bytes, parts in ((0, MIN_RANGES), (100 << 20, 100), (1 << 50, MAX_RANGES)):
            cuts = ranges_for(tablet, 8, size_bytes)
            assert len(cuts) == parts + 1
            assert (cuts[0], cuts[-1]) == tablet_keys(*token_range(tablet, 8))
            assert cuts[:-1] == sorted(set(cuts[:-1]))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), pieces=st.integers(1, 6))
def test_pieces_and_their_order_make_no_difference(seed: int, pieces: int) -> None:
    rng = random.Random(seed)
    keys = keys_in(rng, 1, 4, 200)
    cuts = ranges_for(1, 4, 0)
    whole, parts = RangeSums(cuts), RangeSums(cuts)
    whole.add(from_list(keys))
    mixed = rng.sample(keys, len(keys))
    for at in range(pieces):
        parts.add(from_list(mixed[at::pieces]))
    assert np.array_equal(whole.sums, parts.sums)
    assert whole.pairs == len(keys) and not whole.foreign
    assert differing([whole.sums, parts.sums, whole.sums]) == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), last=st.booleans())
def test_just_the_ranges_of_keys_that_are_not_everywhere_differ(seed: int, last: bool) -> None:
    rng = random.Random(seed)
    tablet = 3 if last else 0
    keys = keys_in(rng, tablet, 4, 300)
    cuts = ranges_for(tablet, 4, 0)
    lost = rng.sample(keys, 3)
    full, less = RangeSums(cuts), RangeSums(cuts)
    full.add(from_list(keys))
    less.add(from_list([key for key in keys if key not in lost]))
    found = differing([full.sums, less.sums, full.sums])
    inside = [(low, high) for low, high in spans(cuts, found)]
    assert len(found) <= 3
    for low, high in inside:
        assert any(low <= key and (not high or key < high) for key in lost)
    for key in lost:
        assert any(low <= key and (not high or key < high) for low, high in inside)


def test_keys_of_another_tablet_are_counted_apart() -> None:
    rng = random.Random(1)
    sums = RangeSums(ranges_for(1, 4, 0))
    sums.add(from_list(keys_in(rng, 0, 4, 5) + keys_in(rng, 1, 4, 7) + keys_in(rng, 3, 4, 6)))
    assert (sums.foreign, sums.pairs) == (11, 7)


def test_a_replica_alone_differs_from_nobody() -> None:
    sums = RangeSums(ranges_for(0, 1, 0))
    sums.add(from_list(keys_in(random.Random(2), 0, 1, 5)))
    assert differing([sums.sums]) == []
