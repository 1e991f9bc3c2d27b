"""Rows that were read lately, ready to be answered: of tables without clustering columns, by their row keys.

A read through RocksDB makes an iterator, copies the row's versions, merges them and takes the wanted cells out of the
value: some 11 µs for a row of 1 KB, where finding it here takes about one. What is kept is the cells that an answer
holds, for the columns that were asked for last.

An entry is never older than what a read of the store would give, because a replica drops a row from here in the same
step in which it changes it (`Replica` says where). Rows that can change without a write, because something in them
expires, are not kept. Nothing is kept while a replica is held: its files are being exchanged, at a moment that only
RocksDB knows. A replica that is closed, or whose store was opened again, forgets everything at once, by beginning a new
life: entries of an earlier one count for nothing and go when their turn comes.

Bounded in bytes over all replicas of a node. Roughly the least recently used row goes first, and one at a time, so
nothing takes long.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence

from trimtab.rows.protocol import Cell

# What an entry takes beside its key and its cells' bytes: 350 were measured for two cells; others have more of them.
ENTRY_BYTES = 512
_MAX_PART = 16  # of the limit, for one row

Cells = tuple[Cell, ...]
# Life of the replica, what was asked for, answer, bytes. Nothing in it can be part of a cycle, so that the garbage
# collector leaves all of it alone once it has looked at it.
Entry = tuple[object, int, Cells, int]


class RowCache:
    """Of one node, shared by its replicas. `limit_bytes` 0: nothing is kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.crowded_bytes = limit_bytes * 3 // 4  # below that nothing has to go soon, and the order does not matter
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.parts: weakref.WeakSet[CachedRows] = weakref.WeakSet()

    def keep(self, at: bytes, entry: Entry) -> None:
        size = entry[3]
        if size * _MAX_PART > self.limit_bytes:
            return
        entries = self.entries
        before = entries.pop(at, None)
        entries[at] = entry
        self.bytes += size - (0 if before is None else before[3])
        while self.bytes > self.limit_bytes:
            self.bytes -= entries.popitem(last=False)[1][3]

    def sweep(self) -> None:
        """Let go of what counts for nothing any more, because the replicas that had kept it are gone."""
        alive = {id(part.life) for part in self.parts}
        for at in [at for at, entry in self.entries.items() if id(entry[0]) not in alive]:
            self.bytes -= self.entries.pop(at)[3]


class CachedRows:
    """The part of one replica."""

    def __init__(self, cache: RowCache, table: int) -> None:
        self._cache = cache
        # Row keys are unique in a table only. Its number is enough: a tablet's rows are no other tablet's.
        self._prefix = table.to_bytes(8, "big")
        self.life: object = object()
        cache.parts.add(self)
        self._shut = False

    def find(self, row_keys: Sequence[bytes], asked: int) -> list[Cells | None]:
        """What is known of these rows, in step; None: read it. `asked` stands for the columns that are wanted."""
        cache = self._cache
        prefix, life, entries = self._prefix, self.life, cache.entries
        places = [prefix + row_key for row_key in row_keys]
        found: list[Cells | None] = [
            entry[2] if entry is not None and entry[0] is life and entry[1] == asked else None
            for entry in map(entries.get, places)
        ]
        if cache.bytes > cache.crowded_bytes:
            for place, cells in zip(places, found, strict=True):
                if cells is not None:
                    entries.move_to_end(place)
        missing = found.count(None)
        cache.misses += missing
        cache.hits += len(found) - missing
        return found

    def keep(self, row_key: bytes, asked: int, cells: Cells, size_bytes: int) -> None:
        """A row as it was just read. The caller makes sure that only a write can change it."""
        if not self._shut:
            size = size_bytes + 2 * len(row_key) + ENTRY_BYTES
            self._cache.keep(self._prefix + row_key, (self.life, asked, cells, size))

    def drop(self, row_key: bytes) -> None:
        """The row is about to change."""
        cache = self._cache
        entry = cache.entries.pop(self._prefix + row_key, None)
        if entry is not None:
            cache.bytes -= entry[3]

    def drop_all(self) -> None:
        """Anything may have changed."""
        self.life = object()

    def shut(self) -> None:
        """Know nothing and keep nothing, until `open`."""
        self.life = object()
        self._shut = True

    def open(self) -> None:
        self._shut = False
