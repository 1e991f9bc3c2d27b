"""The state machine as it should be: every committed entry applied once, in order, on a store that never fails.

It is the production metastore on a dictionary. A member whose state differs from it at the same index has applied
something twice, not at all, or out of order, or has found something on its disk that its log does not explain.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from trimtab.metastore.machine import Metastore
from trimtab.raft.messages import Entry, EntryType
from trimtab.sim.checks import State

FOUNDING_INDEX = 1
FOUNDING_TERM = 1


class _Batch:
    def __init__(self) -> None:
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        self.changes.append((key, None))


class DictionaryStore:
    """An ordered store in memory."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start = bisect.bisect_left(self._keys, low)
        end = len(self._keys) if high is None else bisect.bisect_left(self._keys, high)
        pairs = [(key, self._values[key]) for key in self._keys[start:end]]
        return reversed(pairs) if reverse else iter(pairs)

    def batch(self) -> _Batch:
        return _Batch()

    def write(self, batch: _Batch) -> None:
        for key, value in batch.changes:
            if value is None:
                if self._values.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]
            else:
                if key not in self._values:
                    bisect.insort(self._keys, key)
                self._values[key] = value


class ReferenceMachine:
    """Applies committed entries one at a time."""

    def __init__(self) -> None:
        self._metastore = Metastore(DictionaryStore())
        # A cluster's log begins after the founders' agreement, which is entry 1 by definition.
        self._metastore.bootstrap(FOUNDING_INDEX, FOUNDING_TERM, b"founders")

    @property
    def state(self) -> State:
        return self._metastore.revision, self._metastore.checksum

    def apply(self, entry: Entry) -> State:
        metastore = self._metastore
        if entry.type == EntryType.NORMAL:
            metastore.apply([(entry.index, entry.term, entry.data)])
        else:
            metastore.apply_conf_state(entry.index, entry.term, b"")
        return self.state
