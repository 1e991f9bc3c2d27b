"""What carries copies: connections to bulk servers, and what to do when one breaks.

Connections are used again and again, by one thread at a time, and all are cut when the task is to stop. Whoever is just
restarting is waited for; what a server refuses for good is raised at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trimtab.bulk import protocol as bulk
from trimtab.bulk.client import BulkCancelled, BulkClient, BulkError, BulkRefused, SmallFile
from trimtab.pipeline.copies import Source
from trimtab.pipeline.hearing import Done

if TYPE_CHECKING:
    import ssl

AGAIN_S = 30.0  # for whoever is just restarting
_PAUSE_S = 0.3
Sent = TypeVar("Sent")


class NotCopied(Exception):
    """Why there is no copy."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Links:
    """Connections to bulk servers: used again and again, by one thread at a time, and all cut when the task stops."""

    def __init__(self, tls_files: tuple[str, str, str] | None, done: Done) -> None:
        self._tls: ssl.SSLContext | None = None
        if tls_files is not None:
            from trimtab.net.tls import client_context

            self._tls = client_context(*tls_files)
        self._lock = threading.Lock()
        self._idle: dict[str, list[BulkClient]] = {}
        self._all: list[BulkClient] = []
        self._stopped = False
        done.on_stop(self.stop)

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._all:
            client.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for client in self._all:
                client.cancel()

    @contextlib.contextmanager
    def to(self, address: str) -> Iterator[BulkClient]:
        with self._lock:
            if self._stopped:
                raise BulkCancelled("the task was told to stop")
            idle = self._idle.setdefault(address, [])
            if idle:
                client = idle.pop()
            else:
                client = BulkClient(address, self._tls)
                self._all.append(client)
        try:
            yield client
        finally:
            with self._lock:
                idle.append(client)


def near(source: Source) -> bool:
    """Whether the files of a snapshot are those that can be read here, by this user."""
    if not source.proof:
        return False
    directory = Path(source.directory)
    try:
        if (directory / "snapshots" / source.snapshot / "proof").read_text() != source.proof:
            return False
        return all(os.access(directory / source.path / name, os.R_OK) for name, _ in source.files)
    except (OSError, ValueError):
        return False


def again(work: Callable[[], Sent], done: Done) -> Sent:
    """What the work gives; what may come back is waited for."""
    until_s, before = time.monotonic() + AGAIN_S, done.bytes
    while True:
        try:
            return work()
        except (BulkCancelled, BulkRefused, FileNotFoundError):
            raise
        except (BulkError, OSError):
            if done.bytes > before:
                until_s, before = time.monotonic() + AGAIN_S, done.bytes
            if time.monotonic() >= until_s or done.stopping:
                raise
        time.sleep(_PAUSE_S)


def in_packs(files: Sequence[SmallFile]) -> Iterator[list[SmallFile]]:
    """In this order, as many at a time as fit into a pack."""
    some: list[SmallFile] = []
    size_bytes = 0
    for file in files:
        if some and (len(some) == bulk.PACK_FILES or size_bytes + len(file.data) > bulk.PACK_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append(file)
        size_bytes += len(file.data)
    if some:
        yield some
