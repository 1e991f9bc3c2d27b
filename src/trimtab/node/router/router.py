"""The router of one instance, put together: the doors for rows, the executor, and the ways to replicas near and far."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from trimtab.net.hello import Hello
from trimtab.net.server import Handler
from trimtab.node.answering import Method
from trimtab.node.router.batches import Batches
from trimtab.node.router.clock_memory import PREFIX as CLOCK_PREFIX
from trimtab.node.router.clock_memory import ClockMemory
from trimtab.node.router.deadlines import Deadlines
from trimtab.node.router.door import RowsDoor
from trimtab.node.router.epochs import Unsettled
from trimtab.node.router.executor import Executor
from trimtab.node.router.gets import Gets
from trimtab.node.router.overload import Overload
from trimtab.node.router.paging import Paging
from trimtab.node.router.parcels import Parcels
from trimtab.node.router.reads import Reads
from trimtab.node.router.replica_door import Ages, ReplicaDoor, Replicas
from trimtab.node.router.routes import Routes
from trimtab.node.router.schemas import Schemas
from trimtab.node.router.shown import Shown
from trimtab.node.router.stamping import Stamping
from trimtab.node.router.writes import Hints, Writes
from trimtab.storage.mutation_log import Records
from trimtab.tablets.clock import HybridClock
from trimtab.tablets.domains import domain_of

if TYPE_CHECKING:
    from trimtab.node.control import ClusterControl
    from trimtab.node.instance import Instance

BATCHES_PREFIX = b"b"


class Router:
    """See the module's text. `records` is where batches are held that others coordinate."""

    def __init__(
        self,
        instance: Instance,
        control: ClusterControl,
        replicas: Replicas,
        hints: Hints,
        records: Records,
        schemas: Schemas,
    ) -> None:
        timing = instance.settings.timing
        # What goes to one replica in one message; some room is left for what surrounds it.
        limit_bytes = instance.settings.limits.frame_bytes * 3 // 4
        answer_bytes = instance.settings.net_limits.answer_bytes
        raft_id, view, serving = instance.raft_id, instance.watching.view, control.serving
        loads = instance.watching.loads
        links = instance.host.links
        self._raft_id = raft_id
        self._view = view
        self._serving = serving
        self._ask = control.calls.ask
        self._turn = 0
        self.clock = HybridClock(timing.max_skew_ms)
        self.clock_memory = ClockMemory(self.clock, instance.holdings.log.records(CLOCK_PREFIX))
        self.shown = Shown(instance.wall_ms, timing.max_skew_ms)
        self.deadlines = Deadlines()
        self.overload = Overload()
        self.routes = Routes(raft_id, view, instance.watching.tables, loads)
        self.parcels = Parcels(
            links,
            limit_bytes,
            wall_ms=instance.wall_ms,
            max_skew_ms=timing.max_skew_ms,
            complain=instance.complaints.add,
        )
        self.replica_door = ReplicaDoor(
            raft_id,
            view,
            schemas,
            loads,
            replicas,
            serving,
            control.waits,
            self.clock,
            Ages(timing.hint_life_ms, timing.max_skew_ms),
            self.shown,
            wall_ms=instance.wall_ms,
            judged_ms=control.clock_watch.judged_ms,
            barrier=control.read_barrier,
            trusted=instance.admission.speaks_for,
            complain=instance.complaints.add,
            answer_bytes=answer_bytes,
        )
        self.writes = Writes(
            raft_id,
            self.routes,
            self.replica_door,
            self.parcels,
            hints,
            serving,
            control.open_requests,
            control.waits,
            self.deadlines,
        )
        self.reads = Reads(
            raft_id,
            self.routes,
            schemas,
            loads,
            self.replica_door,
            links,
            self.parcels,
            serving,
            control.open_requests,
            control.waits,
            self.deadlines,
            spawn=self._spawn,
        )
        self.batches = Batches(
            raft_id,
            self.writes,
            records,
            self,
            new_id=lambda: instance.rng.randbytes(16),
            wall_ms=instance.wall_ms,
            limit_bytes=limit_bytes,
            replay_after_ms=timing.batch_replay_ms,
            hint_life_ms=timing.hint_life_ms,
            trusted=self._trusts(instance.admission.speaks_for),
            complain=instance.complaints.add,
            name=instance.settings.instance_id,
        )
        unsettled = Unsettled(loads, instance.wall_ms)
        self.executor = Executor(
            schemas,
            loads,
            self.writes,
            self.batches,
            Gets(self.reads, self.replica_door, self.routes, loads, unsettled, self.shown, instance.wall_ms),
            Paging(
                self.reads,
                self.routes,
                loads,
                unsettled,
                control.waits,
                self.shown,
                instance.wall_ms,
                answer_bytes=answer_bytes,
            ),
            Stamping(self.clock, instance.wall_ms, self.clock_memory, control.clock_watch),
            control.waits,
            limit_bytes=limit_bytes,
            complain=instance.complaints.add,
        )
        self.door = RowsDoor(self.executor, self.overload, answer_bytes)

    def handlers(self) -> dict[str, Handler]:
        """Methods that are answered by callbacks: everything that has to be fast."""
        return {**self.door.handlers(), **self.replica_door.handlers()}

    def methods(self) -> dict[str, Method]:
        return self.batches.methods()

    def start(self) -> None:
        self.clock_memory.start()
        self.batches.start()

    def stop(self) -> None:
        """Begin and answer nothing any more."""
        self.batches.stop()
        self.writes.close()
        self.executor.close()
        self.replica_door.close()
        self.deadlines.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.executor.spawn(work)

    def _trusts(self, speaks_for: Callable[[Hello], bool]) -> Callable[[Hello], bool]:
        return lambda hello: hello.raft_id == self._raft_id or speaks_for(hello)

    # Neighbours

    def holders(self) -> list[int]:
        """Who can hold a batch: those on other hosts first, each host once, those near first; this instance last."""
        own = domain_of(self._view.instances[self._raft_id]) if self._raft_id in self._view.instances else None
        found = []
        for raft_id, record in self._view.members().items():
            if raft_id != self._raft_id and self.parcels.connected(raft_id) and self._serving.takes_writes(raft_id):
                found.append((raft_id, domain_of(record)))
        # Not always the same two.
        self._turn += 1
        turn = self._turn % len(found) if found else 0
        found = found[turn:] + found[:turn]
        if own is not None:
            found.sort(key=lambda each: (each[1].host == own.host, each[1].dc != own.dc))
        hosts: set[str] = set()
        first: list[int] = []
        rest: list[int] = []
        for raft_id, domain in found:
            (rest if domain.host in hosts else first).append(raft_id)
            hosts.add(domain.host)
        return [*first, *rest, self._raft_id]

    def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> Awaitable[bytes]:
        return self._ask(raft_id, method, body, timeout_s)
