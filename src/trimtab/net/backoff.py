"""When to try again: quickly once, then ever more slowly, never in step with others.

Each wait is twice the one before, capped, times a random factor of 0.6 to 1.4: when a peer restarts, all who lost it
must not come back in the same millisecond. The randomness is the caller's, so that a simulation replays.
"""

from __future__ import annotations

import random

_MAX_DOUBLINGS = 30  # past this the cap has long been reached; keeps the exponent bounded


class Backoff:
    __slots__ = ("_failures", "_first_s", "_max_s", "_rng")

    def __init__(self, rng: random.Random, first_s: float, max_s: float) -> None:
        self._rng = rng
        self._first_s = first_s
        self._max_s = max_s
        self._failures = 0

    def next_s(self) -> float:
        """Seconds to wait before the next attempt; counts a failure."""
        wait_s = min(self._max_s, self._first_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, _MAX_DOUBLINGS)
        return min(self._max_s, wait_s * (0.6 + 0.8 * self._rng.random()))

    def reset(self) -> None:
        self._failures = 0
