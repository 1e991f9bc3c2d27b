"""Stamps of one node, life after life."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.client.refusals import NOT_THERE
from trimtab.node.answering import Refused
from trimtab.node.clock_watch import ClockWatch
from trimtab.node.router.clock_memory import ClockMemory
from trimtab.node.router.stamping import Stamping
from trimtab.tablets.clock import HybridClock, SkewRefused
from trimtab.topology.protocol import Grant

NOW_MS = 1_700_000_000_000


class Stored:
    """Records that count how often they are written."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.puts = 0

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def put(self, key: bytes, value: bytes, done: Any = None, *, essential: bool = False) -> None:
        assert essential
        self.values[key] = value
        self.puts += 1


class Node:
    def __init__(self, stored: Stored, now_ms: int) -> None:
        self.now_ms = now_ms
        clock = HybridClock(500)
        memory = ClockMemory(clock, stored)  # type: ignore[arg-type]
        memory.start()
        self.stamping = Stamping(clock, lambda: self.now_ms, memory)

    def stamp(self) -> int:
        return self.stamping.stamp(0, 0)[0]


def test_a_life_stamps_above_all_that_an_earlier_one_stamped_wherever_the_clock_is() -> None:
    stored = Stored()
    first = Node(stored, NOW_MS)
    latest = 0
    for _ in range(3_000):
        first.now_ms += 1
        latest = first.stamp()
    assert 8 <= stored.puts <= 20
    second = Node(stored, first.now_ms - 60_000)
    with pytest.raises(Refused, match="the clock of this instance was set back") as refused:
        second.stamp()
    assert refused.value.code == "not_ready"
    assert second.stamping.stamp(7, 0)[0] == 7  # the client's own
    second.now_ms = first.now_ms + 500
    assert second.stamp() > latest
    third = Node(stored, first.now_ms + 500 + 10_000)
    assert third.stamp() == third.now_ms * 1000


def test_a_clock_that_is_set_back_while_it_runs_is_followed_as_far_as_clocks_may_differ() -> None:
    node = Node(Stored(), NOW_MS)
    first = node.stamp()
    node.now_ms -= 400
    assert node.stamp() == first + 1
    node.now_ms -= 5_000
    with pytest.raises(Refused):
        node.stamp()
    node.now_ms += 6_000
    assert node.stamp() > first + 1


def test_a_clock_that_is_far_from_the_clusters_stamps_nothing_and_that_is_told_once() -> None:
    told: list[str] = []
    now, steady_s = [NOW_MS], [100.0]
    watch = ClockWatch(500, lambda: now[0], lambda: steady_s[0], told.append)
    clock = HybridClock(500)
    stamping = Stamping(clock, lambda: now[0], None, watch)
    watch.granted(Grant(1, 1, 3_000, 1, "", 7, NOW_MS, NOW_MS), 100_000)
    first, _ = stamping.stamp(0, 0)
    for wrong_ms, words in ((60_000, "60.0 s ahead of"), (-60_000, "60.0 s behind")):
        now[0] = NOW_MS + wrong_ms
        for given_us in (0, 0, 5):
            with pytest.raises(Refused, match=words) as refused:
                stamping.stamp(given_us, 0)
            assert refused.value.code == "skew" and "NTP" in refused.value.text
        assert clock.last_us == first
        now[0] = NOW_MS
        assert stamping.stamp(0, 0)[0] > first
        first = clock.last_us
    assert ["takes no" in line or "refused" in line for line in told] == [True, False, True, False]


def test_what_others_stamped_is_judged_by_the_clusters_time_where_the_own_clock_is_ahead() -> None:
    watch = ClockWatch(500, lambda: NOW_MS + 450, lambda: 100.0)
    watch.granted(Grant(1, 1, 3_000, 1, "", 7, NOW_MS, NOW_MS), 100_000)
    stamping = Stamping(HybridClock(500), lambda: NOW_MS + 450, None, watch)
    with pytest.raises(SkewRefused):
        stamping.stamp((NOW_MS + 600) * 1000, 0)
    with pytest.raises(Refused):
        stamping.stamp(0, (NOW_MS + 900) * 1000)
    assert stamping.stamp((NOW_MS + 240) * 1000, 0)[0] == (NOW_MS + 240) * 1000
    assert stamping.stamp(0, (NOW_MS + 480) * 1000)[0] > (NOW_MS + 480) * 1000


def test_a_clients_own_stamp_carries_nobody_elses_to_where_replicas_would_refuse_them() -> None:
    """A stamp 499 ms ahead was taken once, and for half a second replicas with slower clocks refused all others."""
    node = Node(Stored(), NOW_MS)
    with pytest.raises(SkewRefused, match="300 ms ahead of this instance's clock, and at most 250 ms are allowed"):
        node.stamping.stamp((NOW_MS + 300) * 1000, 0)
    assert node.stamp() == NOW_MS * 1000
    assert node.stamping.stamp((NOW_MS + 250) * 1000, 0)[0] == (NOW_MS + 250) * 1000
    slower = HybridClock(500)
    slower.check(node.stamp(), (NOW_MS - 240) * 1000)


def test_who_has_seen_what_is_from_the_future_here_is_sent_to_another_member() -> None:
    node = Node(Stored(), NOW_MS)
    with pytest.raises(Refused, match=r"what this client has seen is from the future here: .* 600 ms ahead") as refused:
        node.stamping.stamp(0, (NOW_MS + 600) * 1000)
    assert refused.value.code in NOT_THERE
    assert node.stamp() == NOW_MS * 1000
    assert node.stamping.stamp(0, (NOW_MS + 400) * 1000)[0] == (NOW_MS + 400) * 1000 + 1
