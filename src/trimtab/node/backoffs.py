"""Leaving alone for a while what has just failed: 100 ms, doubling to 10 s, each key by itself.

Pure: time comes in as an argument. A success forgets the failures before it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Backoffs(Generic[K]):
    """What failed lately, and when it may be tried again."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._failures: dict[K, tuple[int, float]] = {}  # how often in a row, and not before when

    def failed(self, key: K, now: float) -> float:
        """It failed: how long to leave it alone, in seconds."""
        count = self._failures.get(key, (0, 0.0))[0]
        wait_s = min(self._first_s * (1 << min(count, 32)), self._max_s)
        self._failures[key] = (count + 1, now + wait_s)
        return wait_s

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    def waiting(self, now: float) -> frozenset[K]:
        """What must not be tried yet. What has rested ten times as long as it must is forgotten."""
        for key, (_, until) in list(self._failures.items()):
            if now > until + 10 * self._max_s:
                del self._failures[key]
        return frozenset(key for key, (_, until) in self._failures.items() if now < until)

    def clear(self) -> None:
        self._failures.clear()
