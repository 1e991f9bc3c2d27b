"""A router's surroundings in a few lines: virtual time, a topology, replicas that answer as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from trimtab.loads.view import LoadView
from trimtab.net.hello import Hello
from trimtab.node.calls import Calls
from trimtab.node.router.parcels import Answered
from trimtab.node.serving import Serving
from trimtab.node.waits import Waits
from trimtab.rows.protocol import Failed, ReplicaWrite
from trimtab.sim.world import World
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.view import TableView
from trimtab.topology.barriers import OpenRequests
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import InstanceRecord
from trimtab.topology.view import View

OWN = 1
TABLE = 7


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story on virtual time."""
    with World(1) as world:
        process = world.process("p", "10.0.0.1")
        process.start()
        task = process.spawn(story())
        world.run_until_done(task, 10_000.0)


class Topology:
    """Instances 1..n, all Online; of `dcs` (by raft id) those in other data centres than dc1."""

    def __init__(self, instances: int, replicas: tuple[int, ...], dcs: dict[int, str] | None = None) -> None:
        self.view = View(version=5, fence=3)
        self.lease_ms = 1_000
        for raft_id in range(1, instances + 1):
            self.stand(raft_id, Grade.ONLINE, (dcs or {}).get(raft_id, "dc1"))
        self.tables = TableView()
        self.tables.change(chunk_key(TABLE, 0), pack([replicas]), 1)
        self.loads = LoadView()
        self.open = OpenRequests()
        self.waits = Waits()
        self.serving = Serving(
            OWN,
            self.view,
            self.open,
            self.waits,
            Calls(Hello(raft_id=OWN), {}, {}),
            lease_left_ms=lambda: self.lease_ms,
            incarnation=lambda: 2,
            applied=lambda: 42,
            stale_reads=True,
        )

    def stand(self, raft_id: int, grade: Grade, dc: str = "dc1") -> None:
        grades = Grades(Standing(grade, 2), Standing(Grade.ONLINE, 2))
        self.view.instances[raft_id] = InstanceRecord(
            f"i{raft_id}", f"h:{raft_id}", grades=grades, failure_domain={"dc": dc}
        )


class Replicas:
    """Everybody's replicas: those in `refusing` refuse, `silent` ones say nothing, `away` ones are not connected."""

    def __init__(self) -> None:
        self.refusing: dict[int, str] = {}
        self.silent: set[int] = set()
        self.away: set[int] = set()
        self.taken: dict[int, list[ReplicaWrite]] = {}
        self.waiting: list[tuple[int, Answered]] = []

    def connected(self, raft_id: int) -> bool:
        return raft_id not in self.away

    def send(
        self,
        raft_id: int,
        write: ReplicaWrite,
        _bytes: int,
        _topology: int,
        _catalog: int,
        _deadline: float,
        answered: Answered,
    ) -> bool:
        self._take(raft_id, write, answered)
        return True

    def write(self, write: ReplicaWrite, _topology: int, _deadline: float, answered: Answered) -> None:
        self._take(OWN, write, answered)

    def _take(self, raft_id: int, write: ReplicaWrite, answered: Answered) -> None:
        if raft_id in self.silent:
            self.waiting.append((raft_id, answered))
            return
        failure = Failed(self.refusing[raft_id], "no") if raft_id in self.refusing else None
        if failure is None:
            self.taken.setdefault(raft_id, []).append(write)
        asyncio.get_running_loop().call_soon(answered, raft_id, failure)


class HintsKept:
    """Keeps hints in a list; `full`: it keeps none."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, ReplicaWrite]] = []
        self.full = False

    def add(self, target: int, write: ReplicaWrite, stored: Callable[[bool], None] | None = None) -> None:
        if not self.full:
            self.kept.append((target, write))
        if stored is not None:
            asyncio.get_running_loop().call_soon(stored, not self.full)

    @property
    def targets(self) -> list[int]:
        return sorted(target for target, _ in self.kept)
