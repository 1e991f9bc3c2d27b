"""A file of another host's snapshot, held while it passes: from its bulk server to whoever takes it next.

The receiving end wants the checksum of a file before its first byte. So a file is held while it passes: in memory, or
in a file that has no name where it is large. SST files are some tens of megabytes, so memory it is, as a rule; how much
of that all transfers of a task have at once is bounded (`Budget`). Where source and task see the same disk there is
nothing to hold, and the file is sent as it lies.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.bulk.client import BulkClient, BulkError
from trimtab.storage.file_sums import FileSum

PIECE_BYTES = 4 << 20
MEMORY_BYTES = 256 << 20  # of one file; a larger one lies on the task's disk while it passes


class Budget:
    """So many bytes at once; what is larger than all of it goes alone."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._taken = 0
        self._news = threading.Condition()

    @contextmanager
    def taking(self, size_bytes: int) -> Iterator[None]:
        wanted = min(size_bytes, self._size_bytes)
        with self._news:
            self._news.wait_for(lambda: self._taken + wanted <= self._size_bytes)
            self._taken += wanted
        try:
            yield
        finally:
            with self._news:
                self._taken -= wanted
                self._news.notify_all()


@contextmanager
def fetched(source: BulkClient, path: str, size_bytes: int, ticket: bytes) -> Iterator[tuple[Path, int]]:
    """A file of a snapshot, where it can be read inside of the block, and its checksum. BulkError: it can't be had."""
    with _nameless(size_bytes) as descriptor:
        passed, offset = FileSum(), 0
        while offset < size_bytes:
            piece = source.fetch(path, ticket, offset=offset, length=min(PIECE_BYTES, size_bytes - offset))
            if not piece:
                raise BulkError(f"{path} has become shorter at {source.address}: {offset} of {size_bytes} bytes")
            _write_all(descriptor, piece)
            passed.add(piece)
            offset += len(piece)
        yield Path(f"/proc/self/fd/{descriptor}"), passed.value


@contextmanager
def _nameless(size_bytes: int) -> Iterator[int]:
    if size_bytes <= MEMORY_BYTES:
        descriptor = os.memfd_create("trimtab-relay", os.MFD_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryFile(buffering=0) as file:
            yield file.fileno()


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
