"""Stamps of one node, life after life."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab.node.answering import Refused
from trimtab.node.router.clock_memory import ClockMemory
from trimtab.node.router.stamping import Stamping
from trimtab.tablets.clock import HybridClock

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
