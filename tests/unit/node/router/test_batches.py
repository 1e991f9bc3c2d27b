"""Logged batches: what their coordinator may say of one that its holders have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.batches import REMOVE, STORE, Batches
from trimtab.rows.protocol import ReplicaWrite
from trimtab.tablets.consistency import Level

WRITES = [ReplicaWrite(1, tablet, [b"key", b"value"], 1) for tablet in (0, 1)]


class Gate:
    """The writes of a node that may route when it is asked first, and then perhaps not."""

    def __init__(self, refusal: Refused | None) -> None:
        self.refusal = refusal

    def check(self, writes: Sequence[ReplicaWrite], level: Level) -> tuple[Refused | None, list[Any]]:
        return None, []

    def begin(self, writes: Sequence[ReplicaWrite], level: Level, deadline: float, done: Any) -> None:
        done(self.refusal, 0 if self.refusal is not None else 2)


class Holders:
    """Two others, who are told."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def holders(self) -> list[int]:
        return [2, 3]

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self.asked.append(method)
        return b""


async def carried_out(gate: Gate, holders: Holders) -> int:
    batches = Batches(
        1,
        gate,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        holders,
        new_id=lambda: b"0123456789abcdef",
        wall_ms=lambda: 1,
        limit_bytes=1 << 20,
        replay_after_ms=1_000,
        hint_life_ms=10_000,
        trusted=lambda _hello: True,
        complain=lambda _text: None,
    )
    acknowledged = await batches.run(WRITES, Level.QUORUM, asyncio.get_running_loop().time() + 5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return acknowledged


def test_when_all_is_written_the_holders_are_told_to_forget_it() -> None:
    holders = Holders()
    assert asyncio.run(carried_out(Gate(None), holders)) == 2
    assert holders.asked == [STORE, STORE, REMOVE, REMOVE]


@pytest.mark.parametrize("code", ["no_lease", "not_ready", refusals.UNAVAILABLE])
def test_nobody_is_told_that_nothing_happens_once_holders_have_the_batch(code: str) -> None:
    """Found by simulation: a lease ended between storing the batch and writing it, and the holders carried it out."""
    holders = Holders()
    with pytest.raises(Refused, match="the batch will still happen") as refused:
        asyncio.run(carried_out(Gate(Refused(code, "not now")), holders))
    assert refused.value.code == refusals.WRITE_TIMEOUT
    assert holders.asked == [STORE, STORE]


@pytest.mark.parametrize("code", [refusals.WRITE_TIMEOUT, refusals.WRITE_FAILED])
def test_what_may_have_happened_is_told_as_it_is(code: str) -> None:
    with pytest.raises(Refused, match="too few") as refused:
        asyncio.run(carried_out(Gate(Refused(code, "too few")), Holders()))
    assert refused.value.code == code
