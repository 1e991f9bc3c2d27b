"""The order of a client's own writes: each is stamped later than all it has seen stamped before.

Whoever coordinates a write stamps it. Members' clocks differ a little, so a client tells each the greatest stamp it was
ever given, and the next one is later than that, whichever member it goes to.
"""

from __future__ import annotations


class Stamps:
    """Told on one loop only; read anywhere."""

    __slots__ = ("latest_us",)

    def __init__(self) -> None:
        self.latest_us = 0

    def saw(self, stamp_us: int) -> None:
        if stamp_us > self.latest_us:
            self.latest_us = stamp_us
