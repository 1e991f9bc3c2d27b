"""The doors for instances, as the leader answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.unit.topology.clusters import member, view_of

from trimtab.net.hello import Hello
from trimtab.node.answering import Asked
from trimtab.node.cluster_service import ClusterService, Self
from trimtab.node.leader_door import Decision
from trimtab.topology import protocol
from trimtab.topology.grades import Grade
from trimtab.topology.names import MAX_TEXT_CHARACTERS
from trimtab.topology.protocol import UpdateRequest


class Leader:
    """Instance 1 leads, and writes what it decides at once."""

    def __init__(self) -> None:
        self.view = view_of(member(1), member(2))
        self.events: list[str] = []
        door: Any = SimpleNamespace(pass_on=self._pass_on, decide=self._decide, left_s=lambda deadline: 1.0)
        self.service = ClusterService(
            Self(1, "i1", "h:1", "c", "g", "0.1.0", "uuid-1"),
            SimpleNamespace(),  # type: ignore[arg-type]
            self.view,
            SimpleNamespace(term=4),  # type: ignore[arg-type]
            door,
            governs=lambda: True,
            barrier=lambda _timeout_s: asyncio.sleep(0),
            alive=lambda _raft_id: True,
            heard_of=lambda _raft_id: None,
            addresses=dict,
            wall_ms=lambda: 1,
            join_deadline_ms=1,
        )

    async def _pass_on(self, *_arguments: object, **_more: object) -> None:
        return None

    async def _decide(self, look: Callable[[], Decision], _kind: str, _names: Sequence[str]) -> None:
        if (decided := look()) is not None:
            write, texts = decided
            self.events += texts
            for key, value in write.puts.items():
                self.view.change(key, value, 1_000)

    def update(self, request: UpdateRequest) -> protocol.UpdateReply:
        body = asyncio.run(self.service.update(Asked(protocol.encode(request), 1e9, Hello())))
        return protocol.decode_update_reply(body)


def test_a_reason_of_any_length_is_cut_once_for_row_and_event() -> None:
    leader = Leader()
    reply = leader.update(UpdateRequest(2, "uuid-2", Grade.OFFLINE, "because " * 100_000))
    assert reply.grades.target.grade is Grade.OFFLINE and reply.term == 4
    assert len(leader.view.instances[2].reason) == MAX_TEXT_CHARACTERS
    (event,) = leader.events
    assert len(event) < MAX_TEXT_CHARACTERS + 100 and leader.view.instances[2].reason in event
