"""The doors for instances: who leads, joining, and an instance's word about itself. Any member may be asked.

Whoever is turned away at a door is told why, and only by a member that has caught up: an old view must not send away
somebody whom the cluster would take. The same attempt to join, asked again, is one request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from trimtab.governor.steps import Write
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.cluster_writes import ClusterWrites
from trimtab.node.discovering import WRONG_CLUSTER
from trimtab.node.group import Group
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.topology import join, names, protocol, updates
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import Address, DiscoverReply, JoinReply, JoinRequest, JoinResponse, UpdateReply
from trimtab.topology.records import RequestRecord, encode, instance_key, request_key
from trimtab.topology.updates import UpdateRefused
from trimtab.topology.view import View


@dataclass(frozen=True)
class Self:
    """Who answers."""

    raft_id: int
    instance_id: str
    address: str
    cluster_id: str
    genesis: str
    release: str
    uuid: str


class ClusterService:
    """Answers for one instance.

    `governs` says whether it leads and knows all that was decided before; `barrier` is a read barrier; `alive` is the
    leader's knowledge of who lives; `heard_of` is told that an instance spoke for itself.
    """

    def __init__(
        self,
        own: Self,
        group: Group,
        view: View,
        writes: ClusterWrites,
        door: LeaderDoor,
        *,
        governs: Callable[[], bool],
        barrier: Callable[[float], Awaitable[None]],
        alive: Callable[[int], bool],
        heard_of: Callable[[int], None],
        addresses: Callable[[], dict[int, str]],
        wall_ms: Callable[[], int],
        join_deadline_ms: int,
    ) -> None:
        self._own = own
        self._group = group
        self._view = view
        self._writes = writes
        self._door = door
        self._governs = governs
        self._barrier = barrier
        self._alive = alive
        self._heard_of = heard_of
        self._addresses = addresses
        self._wall_ms = wall_ms
        self._join_deadline_ms = join_deadline_ms

    def methods(self) -> dict[str, Method]:
        return {
            protocol.DISCOVER: self.discover,
            protocol.JOIN_REQUEST: self.join,
            protocol.UPDATE: self.update,
        }

    # Who leads

    async def discover(self, asked: Asked) -> bytes:
        """A member names the leader it knows; itself if it knows none, because it takes join requests anyway."""
        request = protocol.decode_discover(asked.body)
        self._check_cluster(request.cluster_id)
        leader = self._addresses().get(self._group.raw.raft.lead) or self._own.address
        reply = DiscoverReply(self._own.address, sorted(self._addresses().values()), leader, self._own.uuid)
        body: bytes = protocol.encode(reply)
        return body

    def _check_cluster(self, cluster_id: str) -> None:
        if cluster_id != self._own.cluster_id:
            raise Refused(
                WRONG_CLUSTER,
                f"{self._own.address} belongs to the cluster '{self._own.cluster_id}', not to '{cluster_id[:100]}'; "
                "correct --cluster-id or --peer",
            )

    # Joining

    async def join(self, asked: Asked) -> bytes:
        """A door for newcomers at every member; the leader takes the request down, or says what became of it."""
        request = protocol.decode_join(asked.body)
        if not request.forwarded and (why := self._door_refusal(request)):
            # This member's view may be old. Nobody is turned away before it has caught up.
            await self._barrier(self._door.left_s(asked.deadline))
            if why := self._door_refusal(request):
                return self._reply(self._rejection(request, why))
        onward = msgspec.structs.replace(request, forwarded=True)
        answer = await self._door.pass_on(
            protocol.JOIN_REQUEST, protocol.encode(onward), asked.deadline, forwarded=request.forwarded
        )
        if answer is not None:
            return answer
        if why := self._door_refusal(request):
            return self._reply(self._rejection(request, why))
        ticket = request.ticket
        await self._door.decide(lambda: self._take_down(request), "request", [ticket.instance_id])
        number = join.find_attempt(self._view, ticket.uuid, ticket.nonce)
        if number is None:
            raise Refused("refused", "the request was forgotten already; ask again")
        config = self._group.raw.raft.tracker.config
        in_group = config.voters.ids() | config.learners | config.learners_next
        decided = join.decision(
            self._view, number, self._own.cluster_id, self._own.genesis, in_group, self._members(), self._writes.term
        )
        if decided is not None:
            return self._reply(decided)
        body: bytes = protocol.encode(JoinReply(None, f"request {number}, which the leader has taken down"))
        return body

    def _door_refusal(self, request: JoinRequest) -> str | None:
        return join.door_refusal(self._view, self._own.cluster_id, self._own.release, self._seems_alive, request)

    def _seems_alive(self, raft_id: int) -> bool:
        """The leader has heard from it; for others, its row does not say Offline."""
        if self._governs():
            return self._alive(raft_id)
        record = self._view.instances.get(raft_id)
        return record is not None and record.grades.current.grade is not Grade.OFFLINE

    def _take_down(self, request: JoinRequest) -> Decision:
        ticket = request.ticket
        if join.find_attempt(self._view, ticket.uuid, ticket.nonce) is not None:
            return None
        now_ms = self._wall_ms()
        record = join.asked_to_join(request, now_ms, now_ms + self._join_deadline_ms)
        what = f"replace {ticket.replaces}" if ticket.replaces else "join"
        text = f"{ticket.instance_id} at {ticket.address} asks to {what}"
        return self._new_request(record), (text,)

    def _new_request(self, record: RequestRecord) -> Write:
        number = self._view.next_request()
        return Write(self._view.unused(number), {request_key(number): encode(record)})

    def _members(self) -> list[Address]:
        index = self._group.machine.applied_index
        return [Address(raft_id, row.address, index) for raft_id, row in sorted(self._view.members().items())]

    def _rejection(self, request: JoinRequest, why: str) -> JoinResponse:
        ticket = request.ticket
        return JoinResponse(ticket.uuid, ticket.nonce, False, why, self._own.cluster_id)

    def _reply(self, decided: JoinResponse) -> bytes:
        body: bytes = protocol.encode(JoinReply(decided))
        return body

    # An instance's own row

    async def update(self, asked: Asked) -> bytes:
        """Change what the cluster wants of an instance, or where it is; the grades after it, committed."""
        request = protocol.decode_update(asked.body)
        # Here, so that row and event say the same.
        request = msgspec.structs.replace(request, reason=request.reason[: names.MAX_TEXT_CHARACTERS])
        onward = msgspec.structs.replace(request, forwarded=True)
        answer = await self._door.pass_on(
            protocol.UPDATE, protocol.encode(onward), asked.deadline, forwarded=request.forwarded
        )
        if answer is not None:
            return answer
        key, before = instance_key(request.raft_id), self._view.instances.get(request.raft_id)

        def decide() -> Decision:
            try:
                record = updates.update(self._view, request, self._wall_ms())
            except UpdateRefused as error:
                raise Refused(error.code, str(error)) from error
            if record == self._view.instances[request.raft_id]:
                return None
            texts = []
            if request.target is not None:
                why = f" ({request.reason})" if request.reason else ""
                texts = [f"{record.instance_id} is to be {request.target.value}{why}"]
            elif before is not None and before.address != record.address:
                texts = [f"{record.instance_id} moved to {record.address}"]
            return Write({key: self._view.revisions.get(key, 0)}, {key: encode(record)}), texts

        await self._door.decide(decide, "target", [before.instance_id] if before is not None else [])
        self._heard_of(request.raft_id)
        body: bytes = protocol.encode(UpdateReply(self._view.instances[request.raft_id].grades, self._writes.term))
        return body
