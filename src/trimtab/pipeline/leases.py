"""The driver's own knowledge of its lease: until when it may run jobs.

It is counted from when a beat was *sent* that a leader has confirmed, on a clock that runs through suspension. The
leader counts from when it came, so it never calls a driver gone that still believes in its lease. Threads look at the
clock themselves: one that wakes up after its process stood still must not go on because nobody has told it yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def boot_s() -> float:
    """A clock that runs on while the machine is suspended: leases end also then."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class DriverLease:
    """Of one term. Any thread may ask; only the driver's loop confirms."""

    def __init__(self, lease_ms: int, sent_s: float, clock_s: Clock = boot_s) -> None:
        self._lease_s = lease_ms / 1000
        self._clock_s = clock_s
        self._until_s = sent_s + self._lease_s

    def confirm(self, sent_s: float) -> None:
        """The leader has answered a beat that was sent then."""
        if self._until_s > float("-inf"):
            self._until_s = max(self._until_s, sent_s + self._lease_s)

    def surrender(self) -> None:
        """It is over now, whatever the clock says; nothing brings it back."""
        self._until_s = float("-inf")

    def left_s(self) -> float:
        """What is left of it; not above 0 when it is over."""
        return max(self._until_s - self._clock_s(), 0.0)

    @property
    def over(self) -> bool:
        return self.left_s() <= 0
