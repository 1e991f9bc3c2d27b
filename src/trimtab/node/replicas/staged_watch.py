"""Copies are taken over as soon as they lie here whole, while others of the same job are still on their way.

The leader orders it when the job has ended, and finds done what is done by then. Nothing else changes: whether a copy
may be taken is asked in the same places, of this instance's own view (see `arrivals`). Bulk servers are processes of
their own and tell nobody what they have written, so the directories of copies that are waited for are looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from trimtab.node.replicas.staged_copies import staged_names
from trimtab.node.replicas.waiting import off_loop
from trimtab.storage.port import Disk, StorageError
from trimtab.tablets.move_protocol import MovingTablet

EVERY_S = 0.1


class StagedWatch:
    """Of one instance. `awaited`: whose copies are to come, now; `take` begins to take one over."""

    def __init__(
        self,
        disk: Disk,
        awaited: Callable[[], Collection[MovingTablet]],
        take: Callable[[MovingTablet], object],
        *,
        defect: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._awaited = awaited
        self._take = take
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Copies may be on their way here."""
        if self._task is None and self._awaited():
            self._task = self._loop.create_task(self._watch(), name="watch for staged copies")
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._defect(error)
        else:
            self.look()

    async def _watch(self) -> None:
        tried: dict[MovingTablet, frozenset[str]] = {}
        while awaited := self._awaited():
            try:
                found = await off_loop(self._disk, partial(self._found, awaited))
            except StorageError:
                found = {}  # whoever is ordered to take them over meets the same, and tells
            for moving, names in found.items():
                # One that could not be taken is the leader's to judge; another one is worth a try.
                if names and names != tried.get(moving):
                    self._take(moving)
            tried = {moving: names for moving, names in found.items() if names}
            await asyncio.sleep(EVERY_S)

    def _found(self, awaited: Collection[MovingTablet]) -> dict[MovingTablet, frozenset[str]]:
        return {moving: staged_names(self._disk, moving.session, moving.tablet) for moving in awaited}
