import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.tablets.ring import (
    MAX_TOKEN,
    MIN_TOKEN,
    choose_count,
    last_token,
    tablet_of,
    tablets_between,
    token_range,
    wrong_count,
)

counts = st.integers(0, 14).map(lambda exponent: 1 << exponent)
tokens = st.integers(MIN_TOKEN + 1, MAX_TOKEN)


@given(tokens, counts)
def test_every_token_is_in_the_range_of_its_tablet_and_in_no_other(token: int, count: int) -> None:
    tablet = tablet_of(token, count)
    assert 0 <= tablet < count
    assert token_range(tablet, count).covers(token)
    for other in {tablet - 1, tablet + 1} & set(range(count)):
        assert not token_range(other, count).covers(token)


@given(tokens, counts)
def test_twice_as_many_tablets_cut_each_in_two(token: int, count: int) -> None:
    assert tablet_of(token, 2 * count) // 2 == tablet_of(token, count)


def test_the_ring_has_no_gap_and_ends_where_it_should() -> None:
    for count in (1, 2, 8, 4096):
        ranges = [token_range(tablet, count) for tablet in range(count)]
        assert ranges[0].first == MIN_TOKEN and ranges[-1].last == MAX_TOKEN
        assert all(before.last == after.first for before, after in itertools.pairwise(ranges))
        assert len({each.last - each.first for each in ranges[1:]}) <= 1
        assert last_token(count - 1, count) == MAX_TOKEN


def test_a_token_on_the_edge_belongs_to_the_tablet_that_ends_there() -> None:
    edge = last_token(2, 8)
    assert (tablet_of(edge, 8), tablet_of(edge + 1, 8)) == (2, 3)


@given(tokens, tokens, counts)
def test_a_range_of_tokens_names_the_tablets_that_hold_some_of_them(one: int, other: int, count: int) -> None:
    first, last = min(one, other), max(one, other)
    found = tablets_between(first, last, count)
    if first == last:
        assert not found
    else:
        assert found[0] == tablet_of(first + 1, count) and found[-1] == tablet_of(last, count)
    assert tablets_between(None, None, count) == range(count)


def test_a_scan_that_begins_at_the_end_of_a_tablet_leaves_it_out() -> None:
    assert tablets_between(last_token(2, 8), last_token(3, 8), 8) == range(3, 4)
    assert tablets_between(MAX_TOKEN, None, 8) == range(0)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "from 1 to 16384 tablets, not 0"), (-4, "not -4"), (1 << 15, "not 32768"), (12, "take 8 or 16")],
)
def test_a_wrong_number_of_tablets_is_explained(count: int, text: str) -> None:
    assert text in (wrong_count(count) or "")


def test_powers_of_two_are_right() -> None:
    assert all(wrong_count(1 << exponent) is None for exponent in range(15))


@pytest.mark.parametrize(
    ("instances", "count"), [(0, 8), (1, 8), (2, 8), (3, 16), (4, 16), (5, 32), (100, 512), (10_000, 4096)]
)
def test_a_table_gets_four_tablets_an_instance_or_more(instances: int, count: int) -> None:
    assert choose_count(instances) == count
