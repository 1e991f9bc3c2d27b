"""Three real instances with bulk servers, for tests that break them; jobs have no driver there but the tests' own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trimtab
from tests.cluster.instances import Instances, loopback
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.client.jobs import BlockingJobs
from trimtab.client.loads import BlockingLoads

WAIT_S = 240.0  # Spark takes its time to start on a machine that has a lot to do
STOP_S = 200.0  # and to end: Java may write its archive of classes first, for which a session waits 120 s
NO_PIPELINE = ("--no-pipeline",)
_TIMEOUT_S = 90.0
_PAUSE_S = 0.05


def until(happened: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(_PAUSE_S)


@dataclass
class Trio:
    """The instances, and clients of them."""

    instances: Instances
    processes: Processes
    folder: Path
    db: trimtab.Database
    loads: BlockingLoads
    jobs: BlockingJobs

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[Self]:
        """All are Online inside of the block, and gone after it."""
        processes = Processes()
        addresses = loopback(6)
        listen = addresses[:3]
        instances = Instances(processes, folder, listen, bulk=addresses[3:])
        try:
            instances.start(1, 2, 3, options=NO_PIPELINE)
            run(instances.online())
            with (
                trimtab.connect(listen, timeout=_TIMEOUT_S) as db,
                BlockingLoads(listen, timeout_s=_TIMEOUT_S) as loads,
                BlockingJobs(listen, timeout_s=_TIMEOUT_S) as jobs,
            ):
                yield cls(instances, processes, folder, db, loads, jobs)
        finally:
            processes.end_all()

    @property
    def peers(self) -> list[str]:
        return list(self.instances.listen.values())

    @property
    def peer(self) -> str:
        return ",".join(self.peers)

    def limit(self, rate_bytes_s: int) -> None:
        """So much may all bulk transfers together send a second after this; 0: anything."""

        async def ask() -> None:
            async with self.instances.client() as client:
                await client.limit(rate_bytes_s)

        run(ask())
        if rate_bytes_s:
            # As is promised; nobody tells when a bulk child has heard.
            time.sleep(1)
