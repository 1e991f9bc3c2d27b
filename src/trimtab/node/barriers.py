"""What the leader may order of this instance: catch up, open its replicas, pass a barrier.

Each answer is a promise about this instance: everything up to an index is applied; the topology is at a version here,
and no request is open that was routed by an older one. The leader's term comes with every order. One that is older than
the term this instance knows is refused, when it arrives and again when the answer leaves: whoever sent it no longer
leads, and the order may contradict those of its successor.

A barrier is also a promise about what this instance sent before, and of that a process knows only what it sent itself.
So it passes none until its row says that another life of the instance has begun: whoever runs the barrier reads there
that the requests of the life before have to be fenced off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.group import Group
from trimtab.node.waits import Waits
from trimtab.topology import protocol
from trimtab.topology.barriers import OpenRequests
from trimtab.topology.view import View

# An answer a little before the deadline still reaches whoever waits for it.
_MARGIN_S = 0.05


class Orders:
    """Answers governor.sync, governor.replicas and governor.barrier for one instance.

    `incarnation` is that of this life; None before the cluster knows of it. `caught_up` returns when its replicas have
    caught up, or raises before the deadline it is given (loop time); None where there are none.
    """

    def __init__(
        self,
        raft_id: int,
        group: Group,
        view: View,
        open_requests: OpenRequests,
        waits: Waits,
        *,
        incarnation: Callable[[], int | None],
        caught_up: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._raft_id = raft_id
        self._group = group
        self._view = view
        self._open = open_requests
        self._waits = waits
        self._incarnation = incarnation
        self._caught_up = caught_up

    def methods(self) -> dict[str, Method]:
        return {
            protocol.SYNC: self.sync,
            protocol.REPLICAS: self.replicas,
            protocol.BARRIER: self.barrier,
        }

    async def sync(self, asked: Asked) -> bytes:
        """Answered when everything up to the index is applied here."""
        call = protocol.decode_sync(asked.body)
        self._check_term(call.term)
        await self._applied(call.index, asked.deadline)
        self._check_term(call.term)
        return b""

    async def replicas(self, asked: Asked) -> bytes:
        """Answered when every replica of this instance is open and has caught up on what it missed."""
        call = protocol.decode_sync(asked.body)
        self._check_term(call.term)
        await self._applied(call.index, asked.deadline)
        if self._caught_up is not None:
            await self._caught_up(asked.deadline)
        self._check_term(call.term)
        return b""

    async def barrier(self, asked: Asked) -> bytes:
        """Answered when the topology is at the version here, and every request of an older one has ended."""
        call = protocol.decode_barrier(asked.body)
        self._check_term(call.term)
        await self._applied(call.index, asked.deadline)
        deadline = asked.deadline - _MARGIN_S
        await self._waits.until(self._known, deadline, "the cluster to take note that this instance was started anew")
        what = f"topology version {call.version} and the end of requests that were routed by an older one"
        await self._waits.until(lambda: self._passes(call.version), deadline, what)
        self._check_term(call.term)
        return b""

    def _known(self) -> bool:
        """Whether the own row is that of this life."""
        record, life = self._view.instances.get(self._raft_id), self._incarnation()
        return record is not None and life is not None and record.grades.current.incarnation >= life

    def _passes(self, version: int) -> bool:
        return self._view.version >= version and self._open.drained(version)

    async def _applied(self, index: int, deadline: float) -> None:
        machine = self._group.machine
        so = f"index {index} to be applied (at {machine.applied_index} now)"
        await self._waits.until(lambda: machine.applied_index >= index, deadline - _MARGIN_S, so)

    def _check_term(self, term: int) -> None:
        known = self._group.raw.raft.term
        if term < known:
            raise Refused("stale_term", f"an order of term {term} came after term {known} had begun; it is not obeyed")
