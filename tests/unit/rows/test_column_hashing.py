"""Murmur3 by the column, beside the driver's own."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cassandra.cmurmur3 import murmur3

from trimtab.rows.column_hashing import hashes, tokens
from trimtab.rows.hashing import MAX_TOKEN, content_hash, token_of_bytes
from trimtab.rows.ragged import fixed, from_list


@pytest.mark.parametrize("count", [0, 1, 400])
@pytest.mark.parametrize("width", [*range(50), 399, 400])
def test_strings_of_one_length_hash_as_the_driver_hashes_each(width: int, count: int) -> None:
    strings = fixed(np.random.default_rng(width).integers(0, 256, (count, width), dtype=np.uint8))
    assert hashes(strings).tolist() == [murmur3(each) for each in strings.to_list()]


@pytest.mark.parametrize(("count", "width"), [(10, 16), (3, 100_000), (500, 64), (5000, 500)])
def test_few_strings_and_long_ones_are_not_hashed_in_rounds_of_sixteen_bytes(
    monkeypatch: pytest.MonkeyPatch, count: int, width: int
) -> None:
    monkeypatch.setattr("trimtab.rows.column_hashing._of_matrix", None)
    strings = np.random.default_rng(width).integers(0, 256, (count, width), dtype=np.uint8)
    expected = [murmur3(each.tobytes()) for each in strings]
    assert hashes(fixed(strings)).tolist() == expected
    assert hashes(from_list([b"", *(each.tobytes() for each in strings)])).tolist() == [0, *expected]


def test_more_strings_than_fit_a_block_hash_alike() -> None:
    strings = fixed(np.random.default_rng(1).integers(0, 256, (10_000, 19), dtype=np.uint8))
    assert hashes(strings).tolist() == [murmur3(each) for each in strings.to_list()]


def test_strings_of_many_lengths_hash_as_the_driver_hashes_each() -> None:
    rng = random.Random(0)
    given = [rng.randbytes(rng.choice([0, 3, 8, 8, 8, 16, 17, rng.randrange(200)])) for _ in range(2000)]
    assert hashes(from_list(given)).tolist() == [murmur3(each) for each in given]


def test_of_many_strings_some_are_hashed_side_by_side_and_the_rest_one_by_one() -> None:
    rng = random.Random(1)
    given = [rng.randbytes(rng.choice([24, 24, 24, 24, rng.randrange(600)])) for _ in range(3000)]
    assert hashes(from_list(given)).tolist() == [murmur3(each) for each in given]


def test_no_strings_have_no_hashes() -> None:
    assert hashes(from_list([])).tolist() == []
    assert hashes(from_list([b"a", b"bc"]).take(np.empty(0, np.int64))).tolist() == []


def test_the_token_that_means_before_all_others_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    least = np.full(3, -(2**63), dtype=np.int64)
    monkeypatch.setattr("trimtab.rows.column_hashing.hashes", lambda _: least)
    assert tokens(from_list([b"a", b"b", b"c"])).tolist() == [MAX_TOKEN] * 3


def test_single_rows_hash_alike() -> None:
    assert token_of_bytes(b"x") == murmur3(b"x")
    assert int.from_bytes(content_hash(b"value"), "big", signed=True) == murmur3(b"value")
