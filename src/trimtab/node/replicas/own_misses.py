"""Writes that this instance sent to all replicas of a tablet, and that its own did not take.

Its log was busy, its disk full, or the replica was about to be opened, while the others acknowledged. A hint for itself
would need the same log and the same space. So only the tablet is noted, and when the instance has had a moment its
replica is repaired from enough others, gently.

What is noted is in memory only. A life that ends while something is noted has not ended cleanly, and whoever has not
ended cleanly is repaired as a whole (see `catching_up`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.node.background import defect_of
from trimtab.node.replicas.mending import Hopeless, Mending
from trimtab.node.replicas.repair import Subject

SETTLE_S = 2.0
_AT_MOST_S = 120.0  # for one replica, before the others have their turn
_MAX_TABLETS = 100_000


class OwnMisses:
    """Of one instance. `find` gives its replica of a tablet, None where it has none that answers.

    `waits`: the tablet is on the move, and its replica here can't be repaired before that has come further.
    """

    def __init__(
        self,
        mending: Mending,
        find: Callable[[int, int], Subject | None],
        *,
        waits: Callable[[int, int], bool] = lambda _table, _tablet: False,
        ready: Callable[[], bool],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._mending = mending
        self._find = find
        self._waits = waits
        self._ready = ready
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._tablets: dict[tuple[int, int], None] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.noted = 0
        self.mended = 0

    def __len__(self) -> int:
        """How many tablets lack something as far as is known."""
        return len(self._tablets)

    def note(self, table: int, tablet: int) -> None:
        """The own replica of a tablet did not take a write that others may have taken."""
        self.noted += 1
        if len(self._tablets) < _MAX_TABLETS:
            self._tablets[table, tablet] = None
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._run(), name="own misses")
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if (error := defect_of(task)) is not None:
            self._defect(error)

    async def _run(self) -> None:
        while self._tablets:
            await asyncio.sleep(SETTLE_S)
            if not self._ready():
                continue
            for place in list(self._tablets):
                # What is missed while it is repaired counts anew.
                del self._tablets[place]
                if not await self._mend(*place):
                    self._tablets[place] = None

    async def _mend(self, table: int, tablet: int) -> bool:
        """False: not yet."""
        if self._waits(table, tablet):
            return False
        subject = self._find(table, tablet)
        if subject is None:
            return True  # it is gone, or being rebuilt, which brings everything
        try:
            async with asyncio.timeout(_AT_MOST_S):
                self.mended += await self._mending.mend(subject, intact=True, gentle=True)
        except TimeoutError:
            return False
        except Hopeless:
            pass  # there is nobody else, so nobody has taken it either
        return True
