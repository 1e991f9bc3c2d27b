"""Directories that have lost their names: a thread of its own deletes them, file by file, one after the other.

To delete a file takes some disks milliseconds (those that tell their device at once which blocks are free), and nobody
need wait for that: who looks for the directory finds nothing since it was renamed. What is left when the disk is
closed, or after a crash, is swept away when it is opened again.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

MAX_WAITING = 1_000  # directories; whoever brings one more deletes it


class Rubbish:
    """Of one disk. `complain` hears, in any thread, of what could not be deleted."""

    def __init__(self, name: str, complain: Callable[[str], None]) -> None:
        self._name = name
        self._complain = complain
        self._waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = threading.Event()

    def add(self, directory: Path) -> None:
        """Have it deleted, soon. From any thread."""
        with self._starting:
            if self._closed.is_set():
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"rubbish {self._name}", daemon=True)
                self._thread.start()
        if self._waiting.qsize() >= MAX_WAITING:
            self._delete(directory)
        else:
            self._waiting.put(directory)

    def close(self) -> None:
        """Wait for the file that is being deleted, and delete no other."""
        with self._starting:
            self._closed.set()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (directory := self._waiting.get()) is not None:
            self._delete(directory)

    def _delete(self, directory: Path) -> None:
        try:
            for folder, _, names in os.walk(directory, topdown=False, onerror=_raise):
                for name in names:
                    if self._closed.is_set():
                        return
                    Path(folder, name).unlink()
                Path(folder).rmdir()
        except OSError as error:
            self._complain(f"{directory} could not be deleted: {error}; it is tried again at the next start")


def _raise(error: OSError) -> None:
    raise error
