"""Weights become shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.topology.weights import shares


@pytest.mark.parametrize("times", [1, 10, 1_000])
def test_weights_0_and_a_half_and_1_get_shares_0_and_1_and_2(times: int) -> None:
    assert shares({1: 0.0, 2: 0.5, 3: 1.0}, 3 * times) == {1: 0, 2: times, 3: 2 * times}


def test_who_has_no_weight_gets_nothing_and_of_equals_the_lower_id_gets_what_is_left() -> None:
    assert shares({}, 5) == {}
    assert shares({1: 0.0, 2: 0.0}, 5) == {1: 0, 2: 0}
    assert shares({3: 1.0, 1: 1.0, 2: 1.0}, 4) == {1: 2, 2: 1, 3: 1}


def test_what_is_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="below zero"):
        shares({1: -0.5}, 3)
    with pytest.raises(ValueError, match="below zero"):
        shares({1: 0.5}, -3)


@given(st.dictionaries(st.integers(1, 99), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), max_size=9), st.integers(0, 99))
def test_all_parts_are_given_and_nobody_is_off_by_one(weights: dict[int, float], parts: int) -> None:
    result = shares(weights, parts)
    total = sum(weights.values())
    assert sum(result.values()) == (parts if total else 0)
    for raft_id, share in result.items():
        assert abs(share - (parts * weights[raft_id] / total if total else 0)) < 1
        assert share == 0 or weights[raft_id]
