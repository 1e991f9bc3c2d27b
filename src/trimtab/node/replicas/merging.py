"""When the files that loads brought are merged into fewer: in the background, and not while others load.

A load leaves several sorted files in every replica. To merge them takes about as long as to make them, on the same
processors, and what it makes of a generation that the next load replaces is of no use to anybody. So a replica that
takes files of a load over, or is made for them, is not merged any more until no load has been open for a moment, or its
turn has come all the same: after `longest_s`, or because it has too many files (which the store itself decides). Until
then it is read from as many files as it has.

Of a generation that is not served nothing is merged. It is kept to be gone back to, and noted here until it is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from trimtab.node.background import defect_of
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.waiting import off_loop
from trimtab.storage.port import Disk, StorageError


@dataclass(frozen=True)
class MergePace:
    """`again_s`: after a failure."""

    look_every_s: float = 0.5
    quiet_s: float = 1.0
    longest_s: float = 60.0
    again_s: float = 10.0


class Merging:
    """Of one node. `served`: the replicas that are read. `loading`: whether any load is open."""

    def __init__(
        self,
        disk: Disk,
        served: Callable[[], Collection[Replica]],
        loading: Callable[[], bool],
        *,
        pace: MergePace | None = None,
        complain: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        self._served = served
        self._loading = loading
        self._pace = pace or MergePace()
        self._complain = complain
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._since: dict[Replica, float] = {}
        self._not_before: dict[Replica, float] = {}
        self._quiet_since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def put_off(self) -> int:
        """How many replicas wait."""
        return len(self._since)

    def wait(self, replica: Replica) -> None:
        """It is held, and about to take files over that are not to be merged now."""
        self._since.setdefault(replica, self._loop.time())
        self._begin()

    def _begin(self) -> None:
        if self._since and self._task is None and not self._stopped:
            self._task = self._loop.create_task(self._run(), name="merging")
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if (error := defect_of(task)) is not None:
            self._defect(error)
        else:
            # Somebody may have come after it had looked for the last time, and found it still there.
            self._begin()

    async def _run(self) -> None:
        self._quiet_since = None
        while self._since:
            await asyncio.sleep(self._pace.look_every_s)
            while (replica := self._next()) is not None:
                await self._merge(replica)

    def _next(self) -> Replica | None:
        """The one to merge now, if any. One that is held is just taking files over, and waits for itself."""
        now, pace = self._loop.time(), self._pace
        if self._loading():
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        quiet = self._quiet_since is not None and now - self._quiet_since >= pace.quiet_s
        for replica in [each for each in self._since if each.closed]:
            self._forget(replica)
        served = set(self._served())
        for replica, since in self._since.items():
            due = (quiet or now - since >= pace.longest_s) and now >= self._not_before.get(replica, 0.0)
            if due and replica in served and not (replica.held or replica.swapping):
                return replica
        return None

    async def _merge(self, replica: Replica) -> None:
        self._forget(replica)
        try:
            await off_loop(self._disk, replica.store.merge)
        except StorageError as error:
            if not replica.closed:
                self._complain(f"the files of {replica.title} are not merged: {error}; it is tried again")
                now = self._loop.time()
                self._since.setdefault(replica, now)
                self._not_before[replica] = now + self._pace.again_s

    def _forget(self, replica: Replica) -> None:
        self._since.pop(replica, None)
        self._not_before.pop(replica, None)
