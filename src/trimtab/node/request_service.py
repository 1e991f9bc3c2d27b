"""Operators' requests: asked of any member, taken down or taken back by the leader.

What may be asked is decided by `topology.lifecycle`; what becomes of it, by the governor. Asking twice is no mistake:
an equal request that is open is the answer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trimtab.catalog.keys import VERSION_KEY as CATALOG_VERSION
from trimtab.governor.steps import Write
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.tablets.domains import datacenters
from trimtab.topology import lifecycle, protocol
from trimtab.topology.lifecycle import RequestRefused
from trimtab.topology.protocol import RequestReply
from trimtab.topology.records import (
    TRANSITION_KEY,
    RequestKind,
    RequestRecord,
    encode,
    instance_key,
    request_key,
)
from trimtab.topology.view import View


class RequestService:
    """Answers request.create and request.cancel for one instance.

    `alive` is the leader's knowledge of who lives; `holds` says in words which replicas an instance holds, and `keeps`
    why they can't be anywhere else.
    """

    def __init__(
        self,
        view: View,
        door: LeaderDoor,
        *,
        alive: Callable[[int], bool],
        holds: Callable[[int], str],
        keeps: Callable[[int, RequestKind], str | None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._view = view
        self._door = door
        self._alive = alive
        self._holds = holds
        self._keeps = keeps
        self._wall_ms = wall_ms

    def methods(self) -> dict[str, Method]:
        return {protocol.CREATE: self.create, protocol.CANCEL: self.cancel}

    async def create(self, asked: Asked) -> bytes:
        """A new request, or the equal one that is open."""
        request = protocol.decode_create(asked.body)
        there = datacenters(self._view)
        if request.source and request.source not in there:
            known = ", ".join(there)
            raise Refused("not_found", f"there is no data centre '{request.source[:80]}'; there are {known}")
        onward = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        answer = await self._door.pass_on(protocol.CREATE, onward, asked.deadline, forwarded=request.forwarded)
        if answer is not None:
            return answer
        number = 0

        def look() -> Decision:
            nonlocal number
            if (same := lifecycle.same_request(self._view, request)) is not None:
                number = same
                return None
            record = _refusing(
                lambda: lifecycle.create(
                    self._view, request, self._alive, self._wall_ms(), holds=self._holds, keeps=self._keeps
                )
            )
            number = self._view.next_request()
            # The number stands for all other requests that were looked at: one more, and it is taken.
            expect = self._view.unused(number)
            if record.raft_id:
                key = instance_key(record.raft_id)
                expect[key] = self._view.revisions.get(key, 0)
                # What it holds, and whether others can, was judged by the tables and their replication.
                expect[CATALOG_VERSION] = self._view.revisions.get(CATALOG_VERSION, 0)
            what = f"{record.kind.value} {request.instance_id}".strip()
            return Write(expect, {request_key(number): encode(record)}), (f"asked for: {what} (request {number})",)

        await self._door.decide(look, "request", [request.instance_id] if request.instance_id else [])
        return self._reply(number)

    async def cancel(self, asked: Asked) -> bytes:
        """Take a request back, if it is not too late."""
        request = protocol.decode_cancel(asked.body)
        onward = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        answer = await self._door.pass_on(protocol.CANCEL, onward, asked.deadline, forwarded=request.forwarded)
        if answer is not None:
            return answer
        key = request_key(request.number)

        def look() -> Decision:
            record = _refusing(lambda: lifecycle.cancel(self._view, request.number, request.reason, self._wall_ms()))
            if record == self._view.requests[request.number]:
                return None
            expect = {each: self._view.revisions.get(each, 0) for each in (key, TRANSITION_KEY)}
            why = record.cancel or record.reason
            text = f"request {request.number} ({record.kind.value}) is to be cancelled: {why}"
            return Write(expect, {key: encode(record)}), (text,)

        before = self._view.requests.get(request.number)
        subject = self._view.instances.get(before.raft_id) if before is not None else None
        await self._door.decide(look, "request", [subject.instance_id] if subject is not None else [])
        return self._reply(request.number)

    def _reply(self, number: int) -> bytes:
        body: bytes = protocol.encode(RequestReply(number, self._view.requests[number]))
        return body


def _refusing(judge: Callable[[], RequestRecord]) -> RequestRecord:
    try:
        return judge()
    except RequestRefused as error:
        raise Refused(error.code, str(error)) from error
