"""Requests that become tasks: how many there may be, and of what kind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from trimtab.net.hello import Hello
from trimtab.node.answering import MAX_OPEN, MAX_OPEN_VITAL, Answering, Asked


def a_request(refused: list[str]) -> Any:
    return SimpleNamespace(
        body=b"",
        deadline=None,
        peer=Hello(),
        method="probe",
        fail=lambda code, _text, _details=b"": refused.append(code),
        reply=lambda _body: None,
        on_cancel=lambda _give_up: None,
    )


def test_clients_can_not_crowd_out_what_keeps_the_cluster_going() -> None:
    async def story() -> None:
        answering = Answering(lambda _text: None, lambda _raft_id: "")
        forever = asyncio.Event()

        async def wait(_asked: Asked) -> bytes:
            await forever.wait()
            return b""

        probe, order = answering.handler(wait), answering.handler(wait, vital=True)
        refused: list[str] = []
        for _ in range(MAX_OPEN + 5):
            probe(a_request(refused))
        assert refused == ["overloaded"] * 5
        refused.clear()
        for _ in range(MAX_OPEN_VITAL):
            order(a_request(refused))
        assert refused == []
        order(a_request(refused))
        assert refused == ["overloaded"], "this pool has its bound, too"
        answering.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        probe(a_request(refused))
        order(a_request(refused))
        assert len(refused) == 1, "there is room again"
        answering.close()

    asyncio.run(story())
