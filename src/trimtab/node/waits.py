"""Waiting until something is so, with a deadline: for an index to be applied, a version to be seen, requests to end.

Nothing is polled. Whoever changes what others may wait for calls `look`; each condition is then tried once, in the
order of waiting. A wait always has a deadline, so what is given up by its asker is forgotten here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WaitedTooLong(Exception):
    """The deadline passed, and it was still not so."""


class Waits:
    """Conditions that are not so yet, and who waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def look(self) -> None:
        """Something changed: let those go on whose condition holds now."""
        for future, so in list(self._waiting.items()):
            if not future.done() and so():
                future.set_result(None)

    async def until(self, so: Callable[[], bool], deadline: float, what: str) -> None:
        """Return when `so()`; WaitedTooLong at `deadline` (loop time), naming `what` was waited for."""
        if so():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[future] = so
        timer = self._loop.call_at(deadline, _give_up, future, what)
        try:
            await future
        finally:
            timer.cancel()
            del self._waiting[future]


def _give_up(future: asyncio.Future[None], what: str) -> None:
    if not future.done():
        future.set_exception(WaitedTooLong(f"waited in vain for {what}"))
