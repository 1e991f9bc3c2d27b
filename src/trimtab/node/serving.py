"""The gate that every data request passes, on its way out of a router and on its way into a replica.

The router stamps a request with the topology version it routes by, and counts it as open until it has ended: that is
what a barrier waits for, and so none is open for longer than MAX_ROUTED_S, whatever its sender asks. The replica
refuses what is stamped older than the fence (`fenced`), what comes while it has not caught up since it came back
(`not_ready`), and, above ONE, what comes while it holds no lease (`no_lease`). At ONE it answers without a lease too,
unless that is switched off, and marks the answer as possibly stale. Lease and fence are looked at again when the answer
leaves: a process that was stopped in between must not answer as if no time had passed.

Writes are let in earlier than reads: by an instance that is still catching up, from RaftSynced on. Otherwise it would
miss what is written while it repairs what it missed, and never be done. And never without a lease, whatever the level.

`probe` is such a request without data. Tests and operators use it; rows take the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.calls import Calls
from trimtab.node.waits import Waits
from trimtab.topology import protocol
from trimtab.topology.barriers import OpenRequests
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import Level, ProbeReply, ProbeRequest
from trimtab.topology.view import View

_CAUGHT_UP = (Grade.REPLICATED, Grade.SHARDING_INITIALIZED, Grade.ONLINE)
_TAKES_WRITES = (Grade.RAFT_SYNCED, *_CAUGHT_UP)
_MARGIN_S = 0.02
MAX_ROUTED_S = 60.0

Hold = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Admitted:
    """A request that a replica has let in. `stale`: its answer may be behind."""

    level: Level
    version: int
    stale: bool


class Serving:
    """The gate of one instance.

    `lease_left_ms` is what is left of the lease now; `incarnation` that of this life, None before the cluster knows of
    it. `hold`, where a test set it, keeps a request open inside the replica.
    """

    def __init__(
        self,
        raft_id: int,
        view: View,
        open_requests: OpenRequests,
        waits: Waits,
        calls: Calls,
        *,
        lease_left_ms: Callable[[], int],
        incarnation: Callable[[], int | None],
        applied: Callable[[], int],
        stale_reads: bool,
        name: str = "",
    ) -> None:
        self._raft_id = raft_id
        self._view = view
        self._open = open_requests
        self._waits = waits
        self._calls = calls
        self._lease_left_ms = lease_left_ms
        self._incarnation = incarnation
        self._applied = applied
        self._stale_reads = stale_reads
        self._name = name
        self._loop = asyncio.get_running_loop()
        self.closed = ""  # why nothing is served any more
        self.hold: Hold | None = None

    def methods(self) -> dict[str, Method]:
        return {protocol.PROBE: self.probe}

    # The replica's side

    def admit(self, level: Level, version: int) -> Admitted:
        """Let a request in, or Refused. What is admitted must pass `release` before its answer leaves."""
        return Admitted(level, version, self.admit_read(version, may_be_stale=level is Level.ONE))

    def release(self, admitted: Admitted) -> bool:
        """Let the answer out, or Refused; whether it must be marked as possibly stale."""
        return self.release_read(admitted.version, may_be_stale=admitted.level is Level.ONE) or admitted.stale

    def admit_read(self, version: int, *, may_be_stale: bool) -> bool:
        """Let a read in, or Refused: whether its answer must be marked as possibly stale."""
        self._check_fence(version)
        if not self._stands(_CAUGHT_UP):
            raise Refused("not_ready", f"instance {self._raft_id} is catching up and answers nothing yet; ask another")
        return self._without_lease(may_be_stale)

    def release_read(self, version: int, *, may_be_stale: bool) -> bool:
        """Let the answer of a read out, or Refused; whether it must be marked as possibly stale."""
        self._check_fence(version)
        return self._without_lease(may_be_stale)

    def answer_own(self, *, may_be_stale: bool) -> bool:
        """Let out what was read here and now for this instance's own router, or Refused; whether it may be stale.

        It was routed by the topology of this moment, so no fence can be above it.
        """
        if not self._stands(_CAUGHT_UP):
            raise Refused("not_ready", f"instance {self._raft_id} is catching up and answers nothing yet; ask another")
        return self._without_lease(may_be_stale)

    def admit_own_write(self) -> None:
        """Let a write of this instance's own router in, which holds a lease (`route`), or Refused."""
        if not self._stands(_TAKES_WRITES):
            raise Refused("not_ready", f"instance {self._raft_id} has just started and takes no writes yet; ask again")

    def admit_write(self, version: int) -> None:
        """Let a write in, or Refused. It must pass `release_write` before it is acknowledged."""
        self._check_fence(version)
        if not self._stands(_TAKES_WRITES):
            raise Refused("not_ready", f"instance {self._raft_id} has just started and takes no writes yet; ask again")
        self._without_lease(False)

    def release_write(self, version: int) -> None:
        """Let the acknowledgement out, or Refused: then the write is kept, but counts for nothing."""
        self._check_fence(version)
        self._without_lease(False)

    def route(self, *, may_be_stale: bool = False) -> bool:
        """Let this instance route a request, or Refused; whether the answer must be marked as possibly stale.

        Barriers don't wait for whoever is Offline or has not caught up yet. Such a one has no lease, and must not route
        by what may be an old topology.
        """
        if self.closed:
            raise Refused("not_ready", self.closed)
        return self._without_lease(may_be_stale)

    def takes_writes(self, raft_id: int) -> bool:
        """Whether an instance may take writes, as far as the topology tells."""
        return self._known_to_stand(raft_id, _TAKES_WRITES)

    def answers_reads(self, raft_id: int) -> bool:
        """Whether an instance may answer reads, as far as the topology tells."""
        return self._known_to_stand(raft_id, _CAUGHT_UP)

    def _known_to_stand(self, raft_id: int, grades: tuple[Grade, ...]) -> bool:
        record = self._view.instances.get(raft_id)
        # One that must climb stands where it stood in an earlier life.
        return record is not None and record.grades.current.grade in grades and not record.grades.must_climb

    def _stands(self, grades: tuple[Grade, ...]) -> bool:
        if self.closed:
            raise Refused("not_ready", self.closed)
        record = self._view.instances.get(self._raft_id)
        life = self._incarnation()
        if record is None or life is None:
            return False
        current = record.grades.current
        # The grade of an earlier life says nothing: what happened since the process ended was missed.
        return current.incarnation >= life and current.grade in grades

    def _check_fence(self, version: int) -> None:
        if version < self._view.fence:
            text = f"the request was routed by topology version {version}, but the fence is at {self._view.fence}"
            raise Refused("fenced", f"{text}; route it again")

    def _without_lease(self, may_be_stale: bool) -> bool:
        if self._lease_left_ms() > 0:
            return False
        if not may_be_stale or not self._stale_reads:
            raise Refused(
                "no_lease",
                f"instance {self._raft_id} holds no lease: it does not hear from a leader with a majority behind it, "
                "so its data may be behind; ask another",
            )
        return True

    # The probe

    async def probe(self, asked: Asked) -> bytes:
        """From outside: route it. From a router, which stamped it: answer it."""
        request = protocol.decode_probe(asked.body)
        if request.version:
            answer: bytes = protocol.encode(await self._answer(request, asked.deadline))
            return answer
        target = request.target or self._raft_id
        if target not in self._view.instances:
            raise Refused("invalid", f"there is no instance with raft id {target}")
        return await self._route(request, target, asked.deadline)

    async def _route(self, request: ProbeRequest, target: int, deadline: float) -> bytes:
        self._without_lease(request.level is Level.ONE)
        stamped = msgspec.structs.replace(request, target=target, version=self._view.version)
        token = self._open.open(stamped.version)
        try:
            left_s = min(deadline - self._loop.time(), MAX_ROUTED_S) - _MARGIN_S
            return await self._calls.ask(target, protocol.PROBE, protocol.encode(stamped), max(left_s, 0.001))
        finally:
            self._open.close(token)
            self._waits.look()

    async def _answer(self, request: ProbeRequest, deadline: float) -> ProbeReply:
        if self._view.version < request.version:
            # The router knows more than this replica: it will, in a moment.
            what = f"topology version {request.version}"
            await self._waits.until(lambda: self._view.version >= request.version, deadline - _MARGIN_S, what)
        admitted = self.admit(request.level, request.version)
        await failpoints.hold("serving.hold", self._name)
        if self.hold is not None:
            await self.hold()
        stale = self.release(admitted)
        return ProbeReply(self._raft_id, request.version, stale, self._applied())
