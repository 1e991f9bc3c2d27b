"""How long the event loop was kept from running: everything else on this node waited for as long.

A timer that should fire every few milliseconds is late by as long as the loop was busy with something else, or the
process did not run at all. What it waited for a processor is told apart, where the system tells it: that is the
machine's doing, and no fault of what runs here. Short delays are only counted; one that operators would notice is told.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator

from trimtab.node.figures import Distribution, Sample

EVERY_S = 0.01
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
TELL_FROM_S = 0.2
WINDOW_S = 60.0
_SLICES = 6


class LoopWatch:
    """Measures from `start` to `stop`. `buckets` counts delays up to BUCKETS_S, then longer ones.

    `waited_s`: how much of a delay that has just ended this thread could have run, and had no processor.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        waited_s: Callable[[float], float] = lambda _: 0.0,
    ) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.count = 0
        self.seconds = 0.0
        self.longest_s = 0.0
        self.starved_s = 0.0
        self._waited_s = waited_s
        self._tell = tell
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._slices: deque[tuple[float, float]] = deque(maxlen=_SLICES)  # (when it began, longest delay)

    def start(self) -> None:
        self._waited_s(0.0)
        self._due = self._loop.time() + self._every_s
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def longest_lately_s(self) -> float:
        """The longest delay of the last minute or so."""
        since = self._loop.time() - WINDOW_S
        return max((longest for began, longest in self._slices if began >= since - WINDOW_S / _SLICES), default=0.0)

    def figures(self) -> Iterator[Sample | Distribution]:
        yield Distribution(
            "loop_blocked_seconds",
            "How long the event loop was kept from running what was due.",
            BUCKETS_S,
            tuple(self.buckets),
            self.seconds,
        )
        yield Sample(
            "loop_blocked_max_seconds", "The longest of these in the last minute.", round(self.longest_lately_s, 6)
        )
        yield Sample(
            "loop_starved_seconds", "How long it waited for a processor.", round(self.starved_s, 6), counter=True
        )

    def _look(self) -> None:
        now = self._loop.time()
        delay = max(0.0, now - self._due)
        starved = self._waited_s(delay)
        self.starved_s += starved
        late = delay - starved
        self.count += 1
        self.seconds += late
        self.buckets[bisect_left(BUCKETS_S, late)] += 1
        self.longest_s = max(self.longest_s, late)
        if not self._slices or now - self._slices[-1][0] >= WINDOW_S / _SLICES:
            self._slices.append((now, late))
        elif late > self._slices[-1][1]:
            self._slices[-1] = (self._slices[-1][0], late)
        if late >= TELL_FROM_S:
            self._tell(
                f"nothing could run here for {late * 1000:.0f} ms: the process was stopped, or something took long"
            )
        elif starved >= TELL_FROM_S:
            self._tell(f"this instance waited {starved * 1000:.0f} ms for a processor: the machine is overloaded")
        self._due = now + self._every_s
        self._timer = self._loop.call_at(self._due, self._look)
