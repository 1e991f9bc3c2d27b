"""Replay: what the log holds beyond the replicas' own positions is applied to them, in one pass.

Only entries of the replicas' own incarnations, and only beyond the position each found in its own store, are applied.
Everything else in the log is of others, or of incarnations that are closed. The loop is let go every few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from trimtab.node.replicas.replica import Replica
from trimtab.storage.mutation_log import MutationLog, Pairs
from trimtab.storage.port import ScanLost, StorageError

SLICE_S = 0.005
_LOOK_EVERY = 64
_SLICE_ENTRIES = 5_000
_BATCH_BYTES = 256 * 1024
_MAX_ATTEMPTS = 100


class _Waiting:
    """Entries of one replica that are about to be applied together."""

    __slots__ = ("entries", "first", "last", "replica", "size_bytes")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.entries: list[Pairs] = []
        self.size_bytes = 0
        self.first = self.last = 0

    def add(self, position: int, pairs: Pairs) -> None:
        if not self.entries:
            self.first = position
        self.entries.append(pairs)
        self.last = position
        self.size_bytes += sum(map(len, pairs))

    def apply(self) -> None:
        if self.entries and not self.replica.closed:
            # A full disk or damage has been told to the shelf, which brings the replica here again or replaces it.
            self.replica.replay(self.entries, self.first, self.last, self.size_bytes)
        self.entries = []
        self.size_bytes = 0


async def replay(log: MutationLog, replicas: Iterable[Replica], loop: asyncio.AbstractEventLoop) -> int:
    """Bring the replicas up to date; how many entries it took."""
    waiting = {each.incarnation: _Waiting(each) for each in replicas if not each.closed}
    count = 0
    for _ in range(_MAX_ATTEMPTS):
        try:
            return count + await _pass(log, waiting, loop)
        except ScanLost:
            # The log was opened again, because the disk had been full. What was applied counts; the rest is read anew.
            for one in waiting.values():
                count += len(one.entries)
                one.apply()
    raise StorageError(f"the log was opened again {_MAX_ATTEMPTS} times while it was replayed; free some space")


async def _pass(log: MutationLog, waiting: dict[int, _Waiting], loop: asyncio.AbstractEventLoop) -> int:
    positions = {incarnation: each.replica.position for incarnation, each in waiting.items()}
    count = 0
    began = loop.time()
    for seen, (position, incarnation, pairs) in enumerate(log.entries(positions), 1):
        if pairs is not None:
            one = waiting[incarnation]
            one.add(position, pairs)
            count += 1
            if one.size_bytes >= _BATCH_BYTES:
                one.apply()
        if not seen % _SLICE_ENTRIES or (not seen % _LOOK_EVERY and loop.time() - began >= SLICE_S):
            await asyncio.sleep(0)
            began = loop.time()
    for one in waiting.values():
        one.apply()
    return count
