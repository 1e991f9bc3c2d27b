"""Requests that become tasks: how many there may be, and of what kind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

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


def test_a_body_that_can_not_be_read_is_refused_and_is_no_defect() -> None:
    async def story() -> None:
        told: list[str] = []
        answering = Answering(told.append, lambda _raft_id: "")

        async def decode(asked: Asked) -> bytes:
            msgspec.msgpack.decode(asked.body)
            return b""

        refused: list[str] = []
        for body in (b"\xc1", b"\x91" * 100_000 + b"\x00"):
            request = a_request(refused)
            request.body = body
            answering.handler(decode)(request)
            await asyncio.sleep(0.01)
        assert refused == ["invalid", "invalid"] and told == []

    asyncio.run(story())
