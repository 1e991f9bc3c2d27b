"""The order of a client's own writes: each is stamped later than all it has seen before, written or read.

Whoever coordinates a write stamps it. Members' clocks differ a little, so a client tells each the greatest stamp that
came with any answer, and the next one is later than that, whichever member it goes to.
"""

from __future__ import annotations

import threading


class Stamps:
    """Told and read in any thread."""

    __slots__ = ("_changing", "latest_us")

    def __init__(self) -> None:
        self.latest_us = 0
        self._changing = threading.Lock()

    def saw(self, stamp_us: int) -> None:
        if stamp_us > self.latest_us:
            # Between the look and the change another thread may have seen a later one.
            with self._changing:
                self.latest_us = max(self.latest_us, stamp_us)
