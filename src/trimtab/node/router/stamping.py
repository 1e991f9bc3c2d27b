"""Stamps of writes: from this node's hybrid clock, later than what a client has seen; or the client's own, checked.

A node whose clock was set back would have to stamp writes ahead of its clock, or below what it has stamped before. As
far as clocks may differ it does the former. Beyond that it stamps nothing, and says why: others would refuse it. Nor
does it while its clock is certainly further than that from the cluster's (`clock_watch`), whoever gave the stamp.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.answering import Refused
from trimtab.node.clock_watch import ClockWatch
from trimtab.node.router.clock_memory import ClockMemory
from trimtab.tablets.clock import HybridClock


class Stamping:
    """Of one node. Times that are too far ahead of its clock are refused (SkewRefused)."""

    def __init__(
        self,
        clock: HybridClock,
        wall_ms: Callable[[], int],
        memory: ClockMemory | None = None,
        watch: ClockWatch | None = None,
    ) -> None:
        self.clock = clock
        self._watch = watch
        self._wall_ms = wall_ms
        self._memory = memory

    def stamp(self, given_us: int, after_us: int) -> tuple[int, int]:
        """The stamp of a write, and the time at which it began (ms). Refused: this node's clock is wrong."""
        now_ms = self._wall_ms()
        if self._watch is not None:
            self._watch.check(now_ms)
        if given_us:
            return self.checked(given_us, now_ms), now_ms
        clock = self.clock
        if after_us > clock.last_us:
            self.checked(after_us, now_ms)
        now_us = now_ms * 1000
        stamp_us = clock.stamp(now_us)
        if stamp_us != now_us and stamp_us - now_us > clock.max_skew_ms * 1000:
            raise Refused(
                "not_ready",
                f"the clock of this instance was set back: it is {clock.ahead_ms(now_us)} ms behind what it has "
                f"stamped before, and at most {clock.max_skew_ms} ms are allowed; ask another, or set the clock right",
            )
        if self._memory is not None and stamp_us >= self._memory.renew_us:
            self._memory.cover(stamp_us)
        return stamp_us, now_ms

    def now_ms(self) -> int:
        return self._wall_ms()

    def checked(self, given_us: int, now_ms: int) -> int:
        """A client's own stamp. What this node stamps afterwards is later: it may have been caused by it."""
        judged_ms = now_ms if self._watch is None else self._watch.judged_ms()
        self.clock.observe(given_us, judged_ms * 1000)
        return given_us
