"""Who sends a file: one connection at a time, the newest first.

A sender whose connection broke comes back before this side has noticed. Then the newer connection has the file, and the
older one is cut off.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.bulk.sockets import cut


class StillSent(Exception):
    """Whoever had the file before does not let go of it."""


@dataclass
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    newest: socket.socket | None = None


class Turns:
    """Of all files that are on their way here. An older connection has `takeover_s` to let go of one."""

    def __init__(self, takeover_s: float) -> None:
        self._takeover_s = takeover_s
        self._lock = threading.Lock()
        self._turns: dict[Path, _Turn] = {}

    @contextlib.contextmanager
    def at(self, target: Path, sock: socket.socket) -> Iterator[None]:
        """This connection's turn at the file; whoever had it before is cut off. StillSent."""
        with self._lock:
            turn = self._turns.setdefault(target, _Turn())
            turn.users += 1
            before, turn.newest = turn.newest, sock
        try:
            if before is not None:
                cut(before)
            if not turn.lock.acquire(timeout=self._takeover_s):
                raise StillSent(f"{target.name} is just being sent by another; try again")
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            with self._lock:
                turn.users -= 1
                if turn.newest is sock:
                    turn.newest = None
                if turn.users == 0:
                    del self._turns[target]
