"""What is sent to a bulk server: a file of the disk, or one that only ever was in memory."""

from __future__ import annotations

import os
import socket
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from trimtab.storage.file_sums import FileSum, Octets, sum_of_file


class Source(Protocol):
    """A file as it is sent. It does not change meanwhile."""

    @property
    def size_bytes(self) -> int: ...

    def checksum(self) -> int: ...

    def send(self, sock: socket.socket, offset: int, most: int) -> int:
        """Send some of it, from an offset on; how much. 0: it has become shorter."""
        ...


class Pieces:
    """A file in memory, as the pieces that were written to it. They belong to it from then on; none is copied."""

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._starts: list[int] = []
        self.size_bytes = 0

    def write(self, data: Octets) -> int:
        piece = memoryview(data).cast("B")
        if len(piece):
            self._pieces.append(piece)
            self._starts.append(self.size_bytes)
            self.size_bytes += len(piece)
        return len(piece)

    def close(self) -> None:
        """It can be sent as before."""

    def checksum(self) -> int:
        found = FileSum()
        for piece in self._pieces:
            found.add(piece)
        return found.value

    def send(self, sock: socket.socket, offset: int, most: int) -> int:
        place = bisect_right(self._starts, offset) - 1
        begin = offset - self._starts[place]
        return sock.send(self._pieces[place][begin : begin + most])

    def to_bytes(self) -> bytes:
        return b"".join(self._pieces)


class _OnDisk:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = os.fstat(file.fileno()).st_size

    def checksum(self) -> int:
        return sum_of_file(self._file)

    def send(self, sock: socket.socket, offset: int, most: int) -> int:
        # Under TLS the bytes are read from where the file stands, where the offset is 0.
        self._file.seek(offset)
        return sock.sendfile(self._file, offset, most)


@contextmanager
def opened(source: Path | Pieces) -> Iterator[Source]:
    if isinstance(source, Pieces):
        yield source
        return
    with source.open("rb", buffering=0) as file:
        yield _OnDisk(file)
