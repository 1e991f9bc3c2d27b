"""The results of commands, by id: what makes a retried command harmless.

Invariants, all functions of the log alone:

- Every id up to the horizon is forgotten or was refused; no id up to it is stored. So "not stored and above the
  horizon" means "never executed", and that is the only case in which a command runs.
- Ids are forgotten smallest (oldest issue) first, when they are older than the expiry in replicated time or when
  there are too many; at most a few per command, so no command pays for an idle night.

Two bounded windows in memory save store reads on the hot path and never decide anything: `recent` holds every stored id
above `floor`, `oldest` holds every stored id up to `oldest_high`.

Recording and forgetting go into the batch of the command that caused them. Until `committed` is called the store does
not have them yet, so nothing that is still unwritten leaves the windows. After a failed write the ledger is thrown
away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from trimtab.metastore.layout import NO_ID, RESULT, RESULT_END
from trimtab.metastore.limits import Memory
from trimtab.metastore.store import OrderedStore, StoreBatch

_RECENT = 4096
_REFILL = 256
_OLDEST = 4096


class ResultLedger:
    __slots__ = (
        "_floor",
        "_memory",
        "_older",
        "_oldest",
        "_oldest_high",
        "_recent",
        "_store",
        "_unwritten",
        "count",
        "horizon",
    )

    def __init__(self, store: OrderedStore, memory: Memory, count: int, horizon: bytes) -> None:
        self._store = store
        self._memory = memory
        self.count = count
        self.horizon = horizon
        self._recent: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes] = {}
        self._unwritten: list[bytes] = []
        newest = next(iter(store.scan(RESULT, RESULT_END, reverse=True)), None) if count else None
        self._floor = newest[0][1:] if newest else NO_ID
        # A heap. None as its upper end: it holds every stored id.
        self._oldest: list[bytes] = []
        self._oldest_high: bytes | None = horizon if count else None

    def find(self, command_id: bytes) -> bytes | None:
        """The stored result of an id above the horizon."""
        found = self._recent.get(command_id)
        if found is None:
            found = self._older.get(command_id)
            if found is None and command_id <= self._floor:
                found = self._store.get(RESULT + command_id)
        return found

    def record(self, command_id: bytes, result: bytes, batch: StoreBatch) -> None:
        """Remember the result of an id above the horizon that is not stored."""
        assert command_id > self.horizon
        batch.put(RESULT + command_id, result)
        self.count += 1
        self._recent[command_id] = result
        self._unwritten.append(command_id)
        high = self._oldest_high
        if high is None or command_id <= high:
            heapq.heappush(self._oldest, command_id)

    def forget(self, time_ms: int, batch: StoreBatch) -> None:
        """Forget what is too old or too much, a few at a time."""
        if not self.count:
            return
        memory = self._memory
        # Everything issued at or before this time is too old. Compared as ids, without taking any apart.
        limit = (time_ms - memory.expiry_ms + 1).to_bytes(8, "big") if time_ms >= memory.expiry_ms else NO_ID
        for _ in range(memory.evicted_per_command):
            if not self._oldest and not self._refill():
                return
            oldest = self._oldest[0]
            if oldest >= limit and self.count <= memory.max_results:
                return
            heapq.heappop(self._oldest)
            batch.delete(RESULT + oldest)
            self._recent.pop(oldest, None)
            self._older.pop(oldest, None)
            self.count -= 1
            self.horizon = oldest

    def committed(self) -> None:
        """The batch with everything since the last call was written: now the windows may shrink."""
        self._unwritten.clear()
        if len(self._recent) >= _RECENT:
            if self._older:
                self._floor = max(self._floor, max(self._older))
            self._older, self._recent = self._recent, {}
        if len(self._oldest) > _OLDEST:
            self._oldest = heapq.nsmallest(_OLDEST // 4, self._oldest)
            self._oldest_high = self._oldest[-1]

    def _refill(self) -> bool:
        """Fill the empty window of oldest ids from the store and from what is not written yet."""
        if self._oldest_high is None or not self.count:
            return False
        # Ids up to the horizon may still be in the store, deleted by the batch that is not written yet.
        ids = [key[1:] for key, _ in islice(self._scan(RESULT + self.horizon + b"\x00"), _REFILL)]
        high = ids[-1] if len(ids) == _REFILL else None
        ids += [new for new in self._unwritten if new > self.horizon and (high is None or new <= high)]
        heapq.heapify(ids)
        self._oldest, self._oldest_high = ids, high
        return bool(ids)

    def _scan(self, low: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(low, RESULT_END)
