"""Where a table's replicas are, as the metastore keeps it: many tablets to a key.

    tablets/<table id>/<chunk>    the replicas of up to CHUNK_TABLETS tablets, from tablet <chunk> * CHUNK_TABLETS on

Numbers in keys are zero-padded: keys sort like numbers. A value is packed, because there may be a million tablets:

    format (1 byte) · bytes of an id (1) · slots (1) · tablets (2) · for each tablet: raft ids in all its slots

Raft ids begin at 1. A tablet that has fewer replicas than others of its chunk has zeros in its last slots. Tablets lie
at equal distances, so that one is looked up without unpacking the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from trimtab.tablets.ring import MAX_TABLETS
from trimtab.topology.records import TABLETS

FORMAT = 1
CHUNK_TABLETS = 1024
MAX_REPLICAS = 64  # of one tablet
HEADER = struct.Struct(">BBBH")
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_MAX_TABLE = (1 << 63) - 1

Replicas = tuple[int, ...]


class Chunk:
    """The replicas of the tablets of one key, still packed; ValueError for bytes that are none."""

    __slots__ = ("_full", "_stride", "_tablet", "count", "data")

    def __init__(self, data: bytes) -> None:
        if len(data) < HEADER.size:
            raise ValueError(f"{len(data)} bytes are too short for a list of replicas")
        written, width, slots, count = HEADER.unpack_from(data)
        if written != FORMAT:
            raise ValueError(f"replicas in format {written} are unknown here, only format {FORMAT} is known")
        if width not in _CODES or not 0 < slots <= MAX_REPLICAS or not 0 < count <= CHUNK_TABLETS:
            raise ValueError(f"no list of replicas has {count} tablets of {slots} ids of {width} bytes")
        self._tablet = struct.Struct(f">{slots}{_CODES[width]}")
        self._stride = self._tablet.size
        if len(data) != HEADER.size + count * self._stride:
            raise ValueError(f"{len(data)} bytes can't be {count} tablets of {slots} ids of {width} bytes")
        self.data = data
        self.count: int = count
        # Few sets of replicas are different, so looking at those is enough.
        different = {data[at : at + self._stride] for at in range(HEADER.size, len(data), self._stride)}
        self._full = True
        for packed in different:
            ids = self._tablet.unpack(packed)
            replicas = tuple(filter(None, ids))
            self._full = self._full and len(replicas) == slots
            if not replicas or replicas != ids[: len(replicas)] or len(set(replicas)) != len(replicas):
                raise ValueError(f"{ids} are not the replicas of a tablet")

    def replicas(self, tablet: int) -> Replicas:
        """Those of one tablet, by its number within the chunk."""
        ids = self._tablet.unpack_from(self.data, HEADER.size + tablet * self._stride)
        return ids if self._full else tuple(filter(None, ids))

    def __iter__(self) -> Iterator[Replicas]:
        rows = self._tablet.iter_unpack(memoryview(self.data)[HEADER.size :])
        return rows if self._full else (tuple(filter(None, ids)) for ids in rows)


def pack(tablets: Sequence[Replicas]) -> bytes:
    """The value of one key."""
    assert 0 < len(tablets) <= CHUNK_TABLETS, f"{len(tablets)} tablets don't go into one key"
    slots = max(map(len, tablets))
    assert 0 < slots <= MAX_REPLICAS, f"a tablet can't have {slots} replicas"
    greatest = max(max(replicas, default=0) for replicas in tablets)
    width = next(width for width in _CODES if greatest < 1 << 8 * width)
    one = struct.Struct(f">{slots}{_CODES[width]}")
    zeros = (0,) * slots
    return HEADER.pack(FORMAT, width, slots, len(tablets)) + b"".join(
        one.pack(*(replicas + zeros)[:slots]) for replicas in tablets
    )


def entries(table: int, tablets: Sequence[Replicas]) -> dict[bytes, bytes]:
    """Keys and values of all tablets of a table."""
    return {
        chunk_key(table, first // CHUNK_TABLETS): pack(tablets[first : first + CHUNK_TABLETS])
        for first in range(0, len(tablets), CHUNK_TABLETS)
    }


def chunk_keys(table: int, count: int) -> list[bytes]:
    """All keys of a table with so many tablets."""
    return [chunk_key(table, chunk) for chunk in range(-(-count // CHUNK_TABLETS))]


def chunk_key(table: int, chunk: int) -> bytes:
    return TABLETS + b"%020d/%06d" % (table, chunk)


def chunk_of(key: bytes) -> tuple[int, int]:
    """Table and number of the chunk under this key; ValueError where it names none."""
    table, slash, chunk = key.removeprefix(TABLETS).partition(b"/")
    if slash and table.isdigit() and chunk.isdigit():
        numbers = int(table), int(chunk)
        if 0 < numbers[0] <= _MAX_TABLE and numbers[1] < MAX_TABLETS // CHUNK_TABLETS and key == chunk_key(*numbers):
            return numbers
    raise ValueError(f"the metastore key {key!r} names no tablets of a table")
