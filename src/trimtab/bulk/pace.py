"""One rate for everything a bulk child sends and takes: a token bucket that all its threads draw from.

Whoever wants to move bytes takes them first and waits until the bucket holds something. A take may leave a debt, which
the next ones wait for, so a piece larger than the bucket neither starves nor blocks for ever. A changed rate wakes all
who wait; what is left of debt and credit is cut to what the new rate allows in an instant, so the new rate holds at
once, whatever the old one was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# What may go at once after a pause, and what may be owed, in seconds of the rate.
BURST_S = 0.1
_MIN_PIECE_BYTES = 4 << 10
MAX_PIECE_BYTES = 1 << 20
_LONGEST_WAIT_S = 0.5


class Stopping(Exception):
    """The child ends; what waits for its turn gets none."""


class Pace:
    """`rate_bytes_s` 0: as fast as it goes."""

    def __init__(self, rate_bytes_s: int = 0, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._news = threading.Condition()
        self._rate = rate_bytes_s
        self._tokens = rate_bytes_s * BURST_S
        self._counted_s = clock_s()
        self._stopped = False

    @property
    def rate_bytes_s(self) -> int:
        return self._rate

    @property
    def piece_bytes(self) -> int:
        """How much to move at a time, so that a turn does not last long."""
        rate = self._rate
        if rate == 0:
            return MAX_PIECE_BYTES
        return int(min(max(rate * BURST_S / 2, _MIN_PIECE_BYTES), MAX_PIECE_BYTES))

    def set_rate(self, rate_bytes_s: int) -> None:
        with self._news:
            if rate_bytes_s == self._rate:
                return
            self._refill()
            self._rate = rate_bytes_s
            self._tokens = min(max(self._tokens, -rate_bytes_s * BURST_S), rate_bytes_s * BURST_S)
            self._news.notify_all()

    def stop(self) -> None:
        """Let nobody wait any more."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def take(self, count: int) -> None:
        """Returns when it is the turn of these bytes. Stopping: there is none any more."""
        with self._news:
            while True:
                if self._stopped:
                    raise Stopping
                self._refill()
                if self._rate == 0:
                    return
                if self._tokens > 0:
                    self._tokens -= count
                    return
                self._news.wait(min(-self._tokens / self._rate + 0.001, _LONGEST_WAIT_S))

    def _refill(self) -> None:
        now = self._clock_s()
        self._tokens = min(self._tokens + (now - self._counted_s) * self._rate, self._rate * BURST_S)
        self._counted_s = now
