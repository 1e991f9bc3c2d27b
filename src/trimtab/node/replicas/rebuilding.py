"""Replicas that lost their data are filled from their peers, in the background, and then serve again.

A replica that was damaged begins again empty. It takes writes from the first moment on, so it misses nothing new, but
it may have been the one that made up a quorum with another: until it has met every write quorum again through its peers
it answers no read, and repairs nobody. That it is open is durable before it answers.

Where the others are not sure to have all of it (there are no others, or they lost their data too) it stays as it is,
and says so: what to do then is an operator's decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from trimtab.node.answering import Refused
from trimtab.node.background import telling
from trimtab.node.replicas.mending import Hopeless, Mending
from trimtab.node.replicas.repair import Subject
from trimtab.storage.port import StorageError

_LOOK_EVERY_S = 1.0
_HOPELESS_AGAIN_S = 60.0


class Lost(Subject, Protocol):
    """A replica that is being rebuilt."""

    async def finish(self) -> None:
        """It has everything again: returns when that is durable, and it answers."""
        ...


class Rebuilding:
    """Of one instance. `lost` lists the replicas to rebuild; `ready` says whether peers may be asked yet."""

    def __init__(
        self,
        mending: Mending,
        *,
        lost: Callable[[], list[Lost]],
        ready: Callable[[], bool],
        story: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._mending = mending
        self._lost = lost
        self._ready = ready
        self._story = story
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._hopeless: dict[str, tuple[str, float]] = {}  # name -> why, and when to look again
        self.current = ""  # the name of the replica that is being rebuilt
        self.rebuilt = 0

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="rebuilding")
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """A replica was quarantined, or peers came back."""
        self._news.set()

    def damaged(self) -> dict[str, str]:
        """Replicas that can't be rebuilt, and why."""
        return {name: why for name, (why, _) in self._hopeless.items()}

    async def _run(self) -> None:
        while True:
            self._news.clear()
            waiting = self._lost() if self._ready() else []
            for name in self._hopeless.keys() - {replica.name for replica in waiting}:
                del self._hopeless[name]
            for replica in waiting:
                if self._hopeless.get(replica.name, ("", 0.0))[1] <= self._loop.time():
                    await self._rebuild(replica)
            news = self._loop.create_task(self._news.wait())
            try:
                await asyncio.wait((news,), timeout=_LOOK_EVERY_S)
            finally:
                news.cancel()

    async def _rebuild(self, replica: Lost) -> None:
        self.current = replica.name
        try:
            if replica.name not in self._hopeless:
                self._story(f"{replica.name} is rebuilt from its peers")
            if not await self._mending.mend(replica, intact=False, gentle=False):
                return
            await replica.finish()
        except Hopeless as error:
            if replica.name not in self._hopeless:
                self._story(str(error))
            self._hopeless[replica.name] = (str(error), self._loop.time() + _HOPELESS_AGAIN_S)
        except (Refused, StorageError) as error:
            self._story(f"{replica.name} could not be finished and is tried again: {error}")
        else:
            self._hopeless.pop(replica.name, None)
            self.rebuilt += 1
            self._story(f"{replica.name} is rebuilt and serves again")
        finally:
            self.current = ""
