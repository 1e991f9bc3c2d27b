"""What time promises about writes that were missed, and how ranges are cut and compared."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.tablets.missed import (
    Mark,
    Status,
    compare,
    cut_range,
    key_of_token,
    reasons_to_repair,
    refusal_of_age,
    repaired_through,
    tablet_keys,
)
from trimtab.tablets.ring import MAX_TOKEN, MIN_TOKEN, token_range

LIFE, SKEW = 10_000, 500
times = st.integers(0, 10**6)


@given(
    start_ms=times,
    written_ms=times,
    late_ms=times,
    ahead=st.integers(-SKEW // 2, SKEW // 2),
    own=st.integers(-250, 250),
)
def test_what_a_round_covers_is_refused_by_every_replica_after_it_began(
    start_ms: int, written_ms: int, late_ms: int, ahead: int, own: int
) -> None:
    """Clocks are off by up to half the skew each way; the write arrives at a replica after the round began."""
    through = repaired_through(start_ms + ahead, LIFE, SKEW)
    arrives_ms = start_ms + late_ms + own
    if written_ms < through:
        assert refusal_of_age(written_ms, arrives_ms, LIFE, SKEW) is not None


def test_a_write_is_taken_while_its_hint_may_live_and_not_from_the_future() -> None:
    assert refusal_of_age(100_000, 110_000, LIFE, SKEW) is None
    assert refusal_of_age(100_000, 110_501, LIFE, SKEW) is not None
    assert refusal_of_age(100_000, 99_500, LIFE, SKEW) is None
    assert "future" in (refusal_of_age(100_000, 99_000, LIFE, SKEW) or "")


def test_a_mark_grows_backwards_and_changes_its_number() -> None:
    assert Mark(50, 1).with_more(80) == Mark(50, 2)
    assert Mark(50, 2).with_more(20) == Mark(20, 3)


def test_hints_are_enough_only_if_everybody_has_them_all() -> None:
    names = {1: "i1", 2: "i2", 3: "i3"}
    assert reasons_to_repair({1: Status(0), 2: Status(0)}, (), (), names) == []
    reasons = reasons_to_repair({1: Status(0, 700)}, (2,), (9,), names)
    assert reasons == [
        "i1 has not kept hints of all that was missed",
        "i2 can't be asked for its hints",
        "member 9 has left, and its hints with it",
    ]


@given(
    tablet=st.integers(0, 15),
    parts=st.integers(1, 100),
)
def test_cuts_cover_a_tablet_without_gaps(tablet: int, parts: int) -> None:
    low, high = tablet_keys(*token_range(tablet, 16))
    cuts = cut_range(low, high, parts)
    assert cuts[0] == low and cuts[-1] == high and len(cuts) == parts + 1
    assert all(a < b for a, b in pairwise(cuts[:-1])) and (high == b"" or cuts[-2] < high)
    assert high == b"" if tablet == 15 else high == tablet_keys(*token_range(tablet + 1, 16))[0]


def test_a_single_token_is_not_cut_and_nothing_is_no_range() -> None:
    low = key_of_token(5)
    assert cut_range(low, key_of_token(6), 16) == [low, key_of_token(6)]
    with pytest.raises(ValueError, match="no range"):
        cut_range(low, low, 2)
    assert tablet_keys(MIN_TOKEN, MAX_TOKEN) == (bytes(7) + b"\x01", b"")


def test_only_what_differs_and_exists_over_there_is_looked_at_more_closely_or_taken() -> None:
    cuts = cut_range(key_of_token(0), key_of_token(1 << 40), 5)
    found = compare(cuts, [b"a", b"", b"c", b"d", b"e"], [b"a", b"b", b"", b"x", b"y"], [9, 2, 0, 50, 3], few_pairs=10)
    assert found.closer == [(cuts[3], cuts[4])]
    assert found.take == [(cuts[1], cuts[2]), (cuts[4], cuts[5])]
    one = [key_of_token(1), key_of_token(2)]
    assert compare(one, [b"a"], [b"b"], [10**6], 10).take == [(one[0], one[1])], "a token can't be cut"
