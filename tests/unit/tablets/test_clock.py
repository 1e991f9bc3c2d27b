import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.loads.records import is_load_stamp
from trimtab.tablets.clock import HybridClock, SkewRefused

NOW_US = 1_700_000_000_000_000


def test_stamps_grow_though_the_clock_stands_or_is_set_back() -> None:
    clock = HybridClock()
    stamps = [clock.stamp(now) for now in (NOW_US, NOW_US, NOW_US - 5_000_000, NOW_US + 10)]
    assert stamps == [NOW_US, NOW_US + 1, NOW_US + 2, NOW_US + 10]
    assert clock.ahead_ms(NOW_US - 4_000_000) == 4000 and clock.ahead_ms(NOW_US + 20) == 0


def test_what_was_seen_comes_before_what_is_stamped() -> None:
    clock = HybridClock(max_skew_ms=500)
    clock.observe(NOW_US + 400_000, NOW_US)
    assert clock.stamp(NOW_US) == NOW_US + 400_001
    assert clock.stamp(NOW_US, after_us=NOW_US + 450_000) == NOW_US + 450_001
    assert clock.stamp(NOW_US + 1, after_us=3) == NOW_US + 450_002


def test_a_stamp_from_the_future_is_refused_and_moves_nothing() -> None:
    clock = HybridClock(max_skew_ms=500)
    before = clock.stamp(NOW_US)
    with pytest.raises(
        SkewRefused, match="is 3600000 ms ahead of this instance's clock, and at most 500 ms"
    ) as refused:
        clock.observe(NOW_US + 3_600_000_000, NOW_US)
    assert refused.value.ahead_ms == 3_600_000
    with pytest.raises(SkewRefused):
        clock.stamp(NOW_US, after_us=NOW_US + 3_600_000_000)
    assert clock.stamp(NOW_US) == before + 1


def test_the_allowed_skew_is_allowed_to_the_microsecond() -> None:
    clock = HybridClock(max_skew_ms=1)
    clock.check(NOW_US + 1000, NOW_US)
    with pytest.raises(SkewRefused):
        clock.check(NOW_US + 1001, NOW_US)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 3_000)), max_size=50), st.integers(0, 2_000))
def test_stamps_of_loads_are_never_given_whatever_was_seen(steps: list[tuple[int, int]], burst: int) -> None:
    clock, before = HybridClock(), 0
    for now, seen in [*steps, *([(0, 0)] * burst)]:
        if seen:
            clock.observe(NOW_US + seen, NOW_US)
        stamp = clock.stamp(NOW_US + now)
        assert stamp > max(before, NOW_US + seen if seen else 0) and not is_load_stamp(stamp)
        before = stamp
