"""Replicas whose stores ran out of space: they take nothing until there is some, and then what they missed.

A store that could not write refuses everything until it is opened again, and has lost what was in its memory. The log
has that, and what was synced for the replica since. So it is opened, and the log replayed, as soon as the disk has more
than its reserve; what is synced meanwhile waits, and nothing is shown twice or out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.node.replicas.replaying import replay
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.replica_meta import read_position
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.port import Corrupt, Disk, DiskFull, StorageError


class Replaying(StorageError):
    """A replica lost what was in its memory and is replaying the log."""


class OutOfSpace:
    """Of one node. True while there is any such replica."""

    def __init__(
        self,
        disk: Disk,
        log: MutationLog,
        *,
        damaged: Callable[[Replica, Corrupt], None],
        story: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._log = log
        self._damaged = damaged
        self._story = story
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._full: list[Replica] = []

    def __bool__(self) -> bool:
        return bool(self._full)

    def add(self, replica: Replica) -> None:
        if replica not in self._full:
            self._full.append(replica)
            self._complain(f"the replica of {replica.title} takes no writes: {replica.stalled}")

    async def recover(self) -> None:
        """Bring back those for which there is space now."""
        for replica in list(self._full):
            if replica.closed:
                self._full.remove(replica)
                continue
            if self._disk.free_bytes() <= max(1, self._disk.reserve_bytes):
                return
            try:
                replica.store.reopen()
                replica.recovered(read_position(replica.store, replica.name))
            except DiskFull:
                return
            except Corrupt as error:
                self._full.remove(replica)
                self._damaged(replica, error)
                continue
            replica.stalled = Replaying(f"the replica of {replica.title} is being brought up to date with the log")
            # What was synced while it was stalled lies in the log too; what is synced from now on waits.
            replica.hold()
            await replay(self._log, [replica], self._loop)
            if isinstance(replica.stalled, Replaying):
                self._full.remove(replica)
                replica.stalled = None
                self._story(f"the replica of {replica.title} takes writes again")
            replica.release()
