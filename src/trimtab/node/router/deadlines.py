"""When something that is under way has had its time: one timer for all of it, not one each.

Times are rounded to slots: a callback comes up to a slot before or after its time, so whoever needs a margin takes more
than that. While nothing is under way there is no timer at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SLOT_S = 0.02

Ticket = tuple[int, int]


class Deadlines:
    """Callbacks by the time they are due; each is called once, unless it was taken back before."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots: dict[int, dict[int, Callable[[], None]]] = {}
        self._last = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())

    def add(self, at: float, callback: Callable[[], None]) -> Ticket:
        """Call back at `at` (loop time)."""
        number = self._last = self._last + 1
        slot = int(at / SLOT_S)
        found = self._slots.get(slot)
        if found is None:
            self._slots[slot] = {number: callback}
            if self._timer is None and not self._closed:
                self._timer = self._loop.call_later(SLOT_S, self._look)
        else:
            found[number] = callback
        return slot, number

    def cancel(self, ticket: Ticket) -> None:
        """It has ended by itself. Taking back what was called already does nothing."""
        slot, number = ticket
        found = self._slots.get(slot)
        if found is not None and found.pop(number, None) is not None and not found:
            del self._slots[slot]

    def close(self) -> None:
        """Call nobody any more."""
        self._closed = True
        self._slots.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = int(self._loop.time() / SLOT_S)
        for slot in sorted(slot for slot in self._slots if slot <= now):
            for callback in list(self._slots.pop(slot, {}).values()):
                callback()
        if self._slots and self._timer is None and not self._closed:
            self._timer = self._loop.call_later(SLOT_S, self._look)
