"""A read that takes unusually long is asked of a second replica too, and the first answer counts.

A member may be held up for a moment: its processor has other work, it takes a tablet over. Reads that come later go to
others (`members`), but those that it has already would wait; of many reads they are the slowest. Asking twice is for
reads of one row as it is now: they are cheap, and those of one table and level take alike long, so that one can tell
what is unusual. Whoever answers second has worked in vain; nobody tells it.

How long is unusual is found out from the reads themselves. The *patience* of a table and level follows the time in
which all but one in `1 / LATE` are answered: when it is over, a read is either answered, and it becomes a little
shorter, or not, and it becomes longer. It learns quickly at first. Later, late reads count up to twice their usual
share, and some more at once: a bad moment is not taken for what is usual.

At most one read in `1 / SHARE` is asked twice, and `BURST` more in a row, as many as a member may have when it is held
up: when all members are slow, asking them more often would make it worse.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from trimtab.client.asks import Ask

LATE = 0.02
SHARE = 0.05
BURST = 64.0
FIRST_S = 0.005
SHORTEST_S, LONGEST_S = 0.001, 1.0
GROWTH_AT_ONCE = 0.2
MAX_SENT = 4_096  # of one table and level; more than that are not looked at
_MAX_KINDS = 256
_LEARNED = 200  # reads
_FASTEST, _SLOWEST, _LEARNING = 0.2, 0.01, 20.0
# A loop may have a clock of whole milliseconds, and would turn idly for what is left of one.
_SPACING_S = 0.001


class Speculation:
    """Of one client, on its loop. `second` sends an ask to somebody else as well, and says whether it did."""

    def __init__(self, loop: asyncio.AbstractEventLoop, second: Callable[[Ask[Any]], bool]) -> None:
        self.asked_twice = 0
        self._loop = loop
        self._second = second
        self._patience: dict[object, Patience] = {}
        self._may = BURST

    def patience(self, kind: object) -> Patience:
        """Of reads of this kind: those that take alike long."""
        found = self._patience.get(kind)
        if found is None:
            if len(self._patience) >= _MAX_KINDS:
                self.close()
            found = self._patience[kind] = Patience(self._loop, self)
        return found

    def close(self) -> None:
        for each in self._patience.values():
            each.close()
        self._patience.clear()

    def looked_at(self) -> None:
        self._may = min(self._may + SHARE, BURST)

    def late(self, ask: Ask[Any]) -> None:
        if self._may >= 1 and self._second(ask):
            self._may -= 1
            self.asked_twice += 1


class Patience:
    """With reads of one kind: what is usual for them, and those that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, speculation: Speculation) -> None:
        self.seconds = FIRST_S
        self._loop = loop
        self._speculation = speculation
        self._sent: deque[tuple[float, Ask[Any]]] = deque()  # in the order in which they were sent
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0
        self._may_grow = GROWTH_AT_ONCE

    def sent(self, ask: Ask[Any], now: float) -> None:
        """A read is under way, for the first time."""
        if len(self._sent) >= MAX_SENT:
            return
        self._sent.append((now, ask))
        if self._timer is None:
            self._arm(now)

    def close(self) -> None:
        self._sent.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float) -> None:
        """One timer for all, for the first of them."""
        self._timer = self._loop.call_at(max(self._sent[0][0] + self.seconds, now + _SPACING_S), self._look)

    def _look(self) -> None:
        now, sent = self._loop.time(), self._sent
        self._timer = None
        while sent and sent[0][0] + self.seconds <= now:
            self._judge(sent.popleft()[1])
        if sent:
            self._arm(now)

    def _judge(self, ask: Ask[Any]) -> None:
        self._looked_at += 1
        self._speculation.looked_at()
        step = max(_SLOWEST, min(_FASTEST, _LEARNING / self._looked_at))
        self._may_grow = min(self._may_grow + 2 * LATE * step, GROWTH_AT_ONCE)
        if ask.over:
            self.seconds = max(self.seconds * (1 - step * LATE), SHORTEST_S)
            return
        growth = step * (1 - LATE)
        if self._looked_at > _LEARNED:
            growth = min(growth, self._may_grow)
            self._may_grow -= growth
        self.seconds = min(self.seconds * (1 + growth), LONGEST_S)
        if ask.under_way and not ask.sink.gone:
            self._speculation.late(ask)
