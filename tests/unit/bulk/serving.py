"""A bulk server on loopback, in threads of the test, with a key and sessions of the test's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import free_ports

from trimtab.bulk import tickets
from trimtab.bulk.client import BulkClient, Patience
from trimtab.bulk.pace import Pace
from trimtab.bulk.server import BulkServer, Limits
from trimtab.bulk.state import Told
from trimtab.bulk.tickets import Claims, Right
from trimtab.loads.protocol import BulkState

KEY = bytes(range(32))
NOW_MS = 1_000_000
# On a busy machine any thread may stand still for seconds. No test waits for these times to pass: those that are about
# such a limit have a server with a short one.
QUICK = Patience(attempts=4, first_pause_s=0.01, longest_pause_s=0.05, connect_s=20.0, still_s=20.0, room_s=0.2)
HASTY = Limits(connections=8, header_s=20.0, first_s=20.0, idle_s=20.0, still_s=20.0, takeover_s=20.0)


class Answering(Told):
    """Of a node that answers whenever it is asked: on a busy machine a test takes longer than one answer is good for.

    Where a test has a clock of its own, time passes as it says.
    """

    def now(self) -> BulkState:
        if self.clock_s is time.monotonic and self._state is not None:
            self._at_s = self.clock_s()
        return super().now()


class Served:
    """A running server and what it goes by."""

    def __init__(self, directory: Path, **options: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.told = Answering()
        self.pace = Pace()
        self.free_bytes = 1 << 40
        self.complaints: list[str] = []
        self.told.ask = lambda: self.tell(self._sessions)
        self.tell(["s1"])
        options.setdefault("limits", HASTY)
        self.server = BulkServer(
            directory,
            self.told,
            self.pace,
            free_bytes=lambda: self.free_bytes,
            wall_ms=lambda: NOW_MS,
            complain=self.complaints.append,
            **options,
        )
        # None of those that outgoing connections get: a server that was stopped may come back there.
        self.port = self.server.start("127.0.0.1", free_ports(1)[0])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def tell(self, sessions: Sequence[str], key: bytes = KEY) -> None:
        self._sessions = sessions
        self.told.take(BulkState("i1", key, 0, list(sessions), 1 << 40, NOW_MS))

    def client(self, **options: Any) -> BulkClient:
        options.setdefault("patience", QUICK)
        return BulkClient(options.pop("address", self.address), **options)

    def snapshot_file(self, name: str, data: bytes, snapshot: str = "r1") -> str:
        path = f"snapshots/{snapshot}/7/3.1/{name}"
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return path

    def staged(self, name: str, session: str = "s1", tablet: int = 3) -> Path:
        return self.directory / "staging" / session / str(tablet) / name


@contextmanager
def serving(directory: Path, **options: Any) -> Iterator[Served]:
    served = Served(directory, **options)
    try:
        yield served
    finally:
        served.server.stop()


def fetch_ticket(snapshot: str = "r1", *, life_ms: int = 60_000, key: bytes = KEY, instance_id: str = "i1") -> bytes:
    return tickets.sign(key, Claims(Right.FETCH, snapshot, NOW_MS + life_ms, instance_id))


def stage_ticket(session: str = "s1", *, life_ms: int = 60_000, key: bytes = KEY) -> bytes:
    return tickets.sign(key, Claims(Right.STAGE, session, NOW_MS + life_ms))
