"""The replicas of all tablets of one table, packed as they are stored.

A map knows its tablets as its chunks come in; they come together, because they are written together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from trimtab.tablets.records import CHUNK_TABLETS, Chunk, Replicas, pack

_DIGEST_BYTES = 16


class TabletMap:
    """Of one table. Changed only by whoever keeps the view."""

    __slots__ = ("_chunks", "_digest", "_loads", "count")

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._loads: dict[int, int] | None = None
        self._digest = b""
        self.count = 0  # tablets that are known

    def change(self, number: int, chunk: Chunk | None) -> None:
        """Another chunk in this place; None: none any more."""
        if chunk is None:
            self._chunks.pop(number, None)
        else:
            self._chunks[number] = chunk
        self._loads = None
        self._digest = b""
        self.count = sum(each.count for each in self._chunks.values())

    def copy(self) -> TabletMap:
        """The same, for somebody who looks at it for a while; chunks don't change."""
        made = TabletMap()
        made._chunks, made.count = dict(self._chunks), self.count
        made._loads, made._digest = self._loads, self._digest
        return made

    def replicas(self, tablet: int) -> Replicas:
        """The raft ids of those that hold a tablet; KeyError where nothing is known of it."""
        chunk = self._chunks[tablet // CHUNK_TABLETS]
        within = tablet % CHUNK_TABLETS
        if within >= chunk.count:
            raise KeyError(tablet)
        return chunk.replicas(within)

    def of(self, raft_id: int) -> list[int]:
        """The tablets that an instance holds a replica of, in order."""
        if not self.loads().get(raft_id):
            return []
        return [tablet for tablet, replicas in self if raft_id in replicas]

    def loads(self) -> dict[int, int]:
        """How many replicas each instance holds; counted once for every change."""
        if self._loads is None:
            self._loads = {}
            for _, replicas in self:
                for raft_id in replicas:
                    self._loads[raft_id] = self._loads.get(raft_id, 0) + 1
        return self._loads

    def packed(self) -> list[bytes]:
        """The chunks as they are stored, in order."""
        return [self._chunks[number].data for number in sorted(self._chunks)]

    def digest(self) -> bytes:
        """The same for two who know all replicas of a table at the same places; made once for every change."""
        if not self._digest:
            found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            for data in self.packed():
                found.update(data)
            self._digest = found.digest()
        return self._digest

    def __iter__(self) -> Iterator[tuple[int, Replicas]]:
        """Tablets and their replicas, in order."""
        for number in sorted(self._chunks):
            yield from enumerate(self._chunks[number], number * CHUNK_TABLETS)

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def with_changes(self, changed: Mapping[int, Replicas]) -> TabletMap:
        """The same but for some tablets, which have these replicas."""
        found = TabletMap()
        chunks = {tablet // CHUNK_TABLETS for tablet in changed}
        for number, chunk in self._chunks.items():
            if number in chunks:
                first = number * CHUNK_TABLETS
                tablets = [changed.get(first + within, replicas) for within, replicas in enumerate(chunk)]
                chunk = Chunk(pack(tablets))
            found.change(number, chunk)
        return found

    @classmethod
    def unpacked(cls, chunks: list[bytes]) -> TabletMap:
        """From what `packed` gave; ValueError for anything else."""
        found = cls()
        for number, data in enumerate(chunks):
            found.change(number, Chunk(data))
        return found
