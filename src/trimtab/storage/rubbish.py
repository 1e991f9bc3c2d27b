"""Directories that have lost their names: a thread of its own deletes them, one after the other.

To delete a file takes some disks milliseconds (those that tell their device at once which blocks are free), and nobody
need wait for that: who looks for the directory finds nothing since it was renamed. Their space comes back a moment
later. What is left when the disk is closed, or after a crash, is brought here again when it is opened.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_WAITING = 1_000  # directories; whoever brings one more deletes it


class Rubbish:
    """Of one disk. `complain` hears, in any thread, of what could not be deleted."""

    def __init__(self, name: str, complain: Callable[[str], None]) -> None:
        self._name = name
        self._complain = complain
        self._waiting: queue.Queue[Path | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False

    def add(self, directory: Path) -> None:
        """Have it deleted, soon. From any thread."""
        with self._starting:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"rubbish {self._name}", daemon=True)
                self._thread.start()
            room = self._waiting.qsize() < MAX_WAITING
            if room:
                self._waiting.put(directory)
        if not room:
            self._delete(directory)

    def await_empty(self) -> None:
        """Returns when all that was brought is deleted. Blocking."""
        self._waiting.join()

    def close(self) -> None:
        """Wait for the directory that is being deleted, and delete no other."""
        with self._starting:
            self._closed = True
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (directory := self._waiting.get()) is not None and not self._closed:
            self._delete(directory)
            self._waiting.task_done()

    def _delete(self, directory: Path) -> None:
        errors: list[BaseException] = []

        def note(_function: object, _path: str, found: Any) -> None:
            # Others are deleted all the same.
            if not isinstance(found[1], FileNotFoundError):
                errors.append(found[1])

        shutil.rmtree(directory, onerror=note)
        if errors:
            self._complain(f"{directory} could not be deleted: {errors[0]}; it is tried again at the next start")
