"""Instances that join at once: it converges, and each costs the metastore about as much, however many they are."""

from __future__ import annotations

import os

import pytest

from trimtab.sim.joiners import join_at_once

# Each joiner's own words: that it asks, that it took the answer, that it runs. What is done for all of them together
# (and for the first few one by one) comes on top.
WORDS = 3
MOST_WRITES_PER_JOINER = 12.0
MANY = int(os.environ.get("TRIMTAB_TEST_JOINERS", "0"))


def test_ten_and_thirty_join_at_once_and_writes_per_joiner_stay_flat() -> None:
    ten, thirty = join_at_once(10), join_at_once(30)
    print(ten.describe(), thirty.describe(), sep="\n")
    assert WORDS <= thirty.writes_per_joiner <= ten.writes_per_joiner * 1.1 <= MOST_WRITES_PER_JOINER
    assert thirty.virtual_s < 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not MANY, reason="a hundred take minutes: TRIMTAB_TEST_JOINERS=100 runs them")
def test_a_hundred_join_at_once_and_writes_per_joiner_stay_flat() -> None:
    ten, many = join_at_once(10), join_at_once(MANY)
    print(ten.describe(), many.describe(), sep="\n")
    assert WORDS <= many.writes_per_joiner <= ten.writes_per_joiner * 1.1 <= MOST_WRITES_PER_JOINER
    assert many.virtual_s < 30
