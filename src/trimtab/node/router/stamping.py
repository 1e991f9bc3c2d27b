"""Stamps of writes: from this node's hybrid clock, later than what a client has seen; or the client's own, checked."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.tablets.clock import HybridClock


class Stamping:
    """Of one node. Times that are too far ahead of its clock are refused (SkewRefused)."""

    def __init__(self, clock: HybridClock, wall_ms: Callable[[], int]) -> None:
        self.clock = clock
        self._wall_ms = wall_ms

    def stamp(self, given_us: int, after_us: int) -> tuple[int, int]:
        """The stamp of a write, and the time at which it began (ms)."""
        now_ms = self._wall_ms()
        if given_us:
            return self.checked(given_us, now_ms), now_ms
        return self.clock.stamp(now_ms * 1000, after_us), now_ms

    def now_ms(self) -> int:
        return self._wall_ms()

    def checked(self, given_us: int, now_ms: int) -> int:
        """A client's own stamp. What this node stamps afterwards is later: it may have been caused by it."""
        self.clock.observe(given_us, now_ms * 1000)
        return given_us
