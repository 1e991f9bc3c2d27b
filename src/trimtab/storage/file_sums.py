"""The checksum of a file, as it is told when the file is sent, staged and taken over: XXH3, 63 bits of it.

Every byte of a load or a move is summed where it leaves, where it arrives and before it is taken over, so the speed of
this is in the time of all of them: it is about ten times that of crc32, and other threads run meanwhile.
"""

from __future__ import annotations

from typing import BinaryIO, TypeAlias

from xxhash import xxh3_64

Octets: TypeAlias = bytes | bytearray | memoryview

MOST = (1 << 63) - 1
_READ_BYTES = 1 << 20


class FileSum:
    """Of what comes piece by piece."""

    def __init__(self) -> None:
        self._hash = xxh3_64()

    def add(self, piece: Octets) -> None:
        self._hash.update(piece)

    @property
    def value(self) -> int:
        return int(self._hash.intdigest()) >> 1


def sum_of(data: Octets) -> int:
    found = FileSum()
    found.add(data)
    return found.value


def sum_of_file(file: BinaryIO) -> int:
    """Of all of it; it is read from its beginning to its end."""
    found = FileSum()
    file.seek(0)
    while piece := file.read(_READ_BYTES):
        found.add(piece)
    return found.value
