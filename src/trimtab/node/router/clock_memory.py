"""The clock that stamps writes remembers across restarts how far it had come.

A process that ends and comes back finds its machine's clock set back now and then. If it stamped by that, a write would
be acknowledged and at the same time be older than what it replaces. So the log's store holds a time that no stamp of an
earlier life exceeds, and a new life begins behind it. Where the machine's clock is further behind than clocks may
differ, stamping is refused until it has caught up (`stamping`).

The time is written down ahead, by as much as clocks may differ, so that a life that begins at once need not wait; and
again when half of that is used up, with whatever is logged anyway. While nothing is stamped nothing is written. Only
the first stamps after a pause get ahead of it, for as long as one sync takes.
"""

from __future__ import annotations

import struct

from trimtab.storage.mutation_log import Records
from trimtab.tablets.clock import HybridClock

PREFIX = b"f"
_KEY = b"clock"
_TIME = struct.Struct(">Q")


class ClockMemory:
    """Of one node. `renew_us`: a stamp from there on has to be told (`cover`)."""

    def __init__(self, clock: HybridClock, records: Records) -> None:
        self._clock = clock
        self._records = records
        self.renew_us = 0

    def start(self) -> None:
        """Take up what an earlier life wrote down."""
        value = self._records.get(_KEY)
        if value is not None and len(value) == _TIME.size:
            self._clock.last_us = max(self._clock.last_us, _TIME.unpack(value)[0])

    def cover(self, stamp_us: int) -> None:
        """Write down a time ahead of this stamp."""
        ahead_us = self._clock.max_skew_ms * 1000
        self.renew_us = stamp_us + ahead_us // 2
        self._records.put(_KEY, _TIME.pack(stamp_us + ahead_us), essential=True)
