"""A read that takes unusually long is asked of a second replica too, and the first answer counts.

A member may be held up for a moment: its processor has other work, it takes a tablet over. Reads that come later go to
others (`members`), but those that it has already would wait; of many reads they are the slowest. Asking twice is for
reads of one row: they are cheap, and take alike long, so that one can tell what is unusual.

How long that is, is found out from the reads themselves. `patience_s` follows the time in which all but one in
`1 / LATE` of them are answered: whoever is looked at when it is over is either answered, and it becomes a little
shorter, or not, and it becomes longer. It learns quickly at first and slowly later, so that a bad minute is not taken
for what is usual.

At most one read in `1 / SHARE` is asked twice, a few more in a row: when all members are slow, asking them more often
would make it worse.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from trimtab.client.asks import Ask

LATE = 0.02
SHARE = 0.05
BURST = 20.0
FIRST_S = 0.005
SHORTEST_S, LONGEST_S = 0.001, 1.0
_FASTEST, _SLOWEST, _LEARNING = 0.2, 0.01, 20.0


class Speculation:
    """Of one client, on its loop. `second` sends an ask to somebody else as well, and says whether it did."""

    def __init__(self, loop: asyncio.AbstractEventLoop, second: Callable[[Ask[Any]], bool]) -> None:
        self.patience_s = FIRST_S
        self.asked_twice = 0
        self._loop = loop
        self._second = second
        self._sent: deque[tuple[float, Ask[Any]]] = deque()  # in the order in which they were sent
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0
        self._may = BURST

    def sent(self, ask: Ask[Any], now: float) -> None:
        """A read is under way, for the first time."""
        self._sent.append((now, ask))
        if self._timer is None:
            self._timer = self._loop.call_at(now + self.patience_s, self._look)

    def close(self) -> None:
        self._sent.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """One timer for all: whatever has been under way for long enough."""
        now, sent = self._loop.time(), self._sent
        while sent and sent[0][0] + self.patience_s <= now:
            self._judge(sent.popleft()[1])
        self._timer = self._loop.call_at(sent[0][0] + self.patience_s, self._look) if sent else None

    def _judge(self, ask: Ask[Any]) -> None:
        self._looked_at += 1
        self._may = min(self._may + SHARE, BURST)
        step = max(_SLOWEST, min(_FASTEST, _LEARNING / self._looked_at))
        if ask.over:
            self.patience_s = max(self.patience_s * (1 - step * LATE), SHORTEST_S)
            return
        self.patience_s = min(self.patience_s * (1 + step * (1 - LATE)), LONGEST_S)
        if self._may >= 1 and self._second(ask):
            self._may -= 1
            self.asked_twice += 1
