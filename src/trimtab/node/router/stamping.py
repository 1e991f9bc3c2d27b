"""Stamps of writes: from this node's hybrid clock, later than what a client has seen; or the client's own, checked.

A client's own stamp may be ahead of this clock by half of what clocks may differ by. What this node stamps afterwards
is later than it, for whomever, and the replicas judge that by clocks of their own: at the whole difference, those that
are a little behind would refuse the writes of clients that did nothing wrong. What a client has seen was stamped by
members; where that is further ahead than clocks may differ, this clock is behind, and another member is better off.

A node whose clock was set back would have to stamp writes ahead of its clock, or below what it has stamped before. As
far as clocks may differ it does the former. Beyond that it stamps nothing, and says why: others would refuse it. Nor
does it while its clock is certainly further than that from the cluster's (`clock_watch`), whoever gave the stamp.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.answering import Refused
from trimtab.node.clock_watch import SKEW, ClockWatch
from trimtab.node.router.clock_memory import ClockMemory
from trimtab.tablets.clock import HybridClock, SkewRefused


class Stamping:
    """Of one node. A client's own stamp that is too far ahead of its clock is refused (SkewRefused)."""

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
            try:
                clock.observe(after_us, self._judged_ms(now_ms) * 1000)
            except SkewRefused as error:
                raise Refused(SKEW, f"what this client has seen is from the future here: {error}") from None
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
        judged_us, clock = self._judged_ms(now_ms) * 1000, self.clock
        if given_us > judged_us + clock.max_skew_ms * 500:
            raise SkewRefused(given_us, judged_us, clock.max_skew_ms // 2)
        clock.observe(given_us, judged_us)
        return given_us

    def _judged_ms(self, now_ms: int) -> int:
        return now_ms if self._watch is None else self._watch.judged_ms()
