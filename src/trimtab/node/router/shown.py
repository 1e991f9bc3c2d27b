"""How late the stamps are that reads through this node have shown.

Every answer to a read carries it, and a client that writes afterwards says it (`after_us`): so its write wins over what
it has read, also where it goes to a member that holds no replica of the row and whose clock is a little behind.

One number for all rows is enough: it is never below the stamp of a row that was answered, because a row is looked at
here whenever it is read from a replica, before it may be kept ready for the next reader. It is not this node's clock,
which after a restart is as far ahead as clocks may differ, and would carry everybody's stamps there.

What is further ahead than the clocks of two members may be apart is nothing that a member stamped. It counts for
nothing: a client that had to write later than that could write nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.rows.keys import inverted, newest_stamp, stamp_of
from trimtab.rows.protocol import Pairs


class Shown:
    """Of one node. `newest_us` goes into answers."""

    def __init__(self, wall_ms: Callable[[], int], max_skew_ms: int) -> None:
        self._wall_ms = wall_ms
        # One clock may be so far behind the middle of all, and a stamp so far ahead of it.
        self._ahead_ms = 2 * max_skew_ms
        self.newest_us = 0
        self._newest = inverted(0)

    def version(self, key: bytes) -> None:
        """One version of a row, by its key."""
        if key[-17:-9] < self._newest:
            self._note(stamp_of(key))

    def pairs(self, pairs: Pairs) -> None:
        if pairs:
            self._note(newest_stamp(pairs))

    def _note(self, stamp_us: int) -> None:
        if self.newest_us < stamp_us <= (self._wall_ms() + self._ahead_ms) * 1000:
            self.newest_us = stamp_us
            self._newest = inverted(stamp_us)
