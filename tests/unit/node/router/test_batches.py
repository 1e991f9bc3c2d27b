"""Logged batches: what their coordinator may say of one that its holders have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from trimtab.net.errors import DeadlineExceeded, RpcError
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.router import refusals
from trimtab.node.router.batches import REMOVE, STORE, Batches, BatchRecord, BatchRemoval, encode
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

    def of_known_tables(self, writes: Sequence[ReplicaWrite]) -> Sequence[ReplicaWrite]:
        return writes


class Holders:
    """Two others, who are told; of `silent` ones no answer comes to what they are to store; `full` have no space."""

    def __init__(self, *silent: int, full: tuple[int, ...] = (), code: str = refusals.DISK_FULL) -> None:
        self.asked: list[str] = []
        self.told: list[int] = []
        self._silent = silent
        self._full = full
        self._code = code

    def holders(self) -> list[int]:
        return [2, 3]

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self.asked.append(method)
        if method == REMOVE:
            self.told.append(raft_id)
        elif raft_id in self._silent:
            raise DeadlineExceeded("no answer came")
        elif raft_id in self._full:
            raise RpcError(self._code, "disk full")
        return b""


class Records:
    """Of the log, in a dict."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes, done: Any) -> None:
        self.values[key] = value
        asyncio.get_running_loop().call_soon(done, None)

    def delete(self, key: bytes) -> None:
        del self.values[key]


def made(gate: Gate, holders: Holders, records: Any = None) -> Batches:
    return Batches(
        1,
        gate,  # type: ignore[arg-type]
        records,
        holders,
        new_id=lambda: b"0123456789abcdef",
        wall_ms=lambda: 1,
        limit_bytes=1 << 20,
        replay_after_ms=1_000,
        hint_life_ms=10_000,
        trusted=lambda _hello: True,
        complain=lambda _text: None,
    )


async def carried_out(gate: Gate, holders: Holders) -> int:
    batches = made(gate, holders)
    try:
        return await batches.run(WRITES, Level.QUORUM, asyncio.get_running_loop().time() + 5)
    finally:
        for _ in range(3):
            await asyncio.sleep(0)


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


def test_a_batch_that_too_few_could_hold_happens_wholly_or_not_at_all_and_all_who_may_have_it_are_told() -> None:
    """One that was silent may have stored it: it is told to forget it like the others."""
    holders = Holders(3)
    with pytest.raises(
        Refused, match="nothing of it was written yet, and it will happen wholly or not at all"
    ) as found:
        asyncio.run(carried_out(Gate(None), holders))
    assert found.value.code == refusals.WRITE_TIMEOUT
    assert sorted(holders.told) == [2, 3]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (refusals.DISK_FULL, refusals.DISK_FULL),
        (refusals.OVERLOADED, refusals.OVERLOADED),
        ("not_member", refusals.UNAVAILABLE),
    ],
)
def test_a_batch_that_all_have_refused_to_hold_was_not_done(code: str, said: str) -> None:
    """On a full disk it was called a timeout, after which the batch may happen."""
    holders = Holders(full=(2, 3), code=code)
    with pytest.raises(Refused, match=r"instance 2: disk full; instance 3: disk full.*; nothing was done$") as found:
        asyncio.run(carried_out(Gate(None), holders))
    assert found.value.code == said and holders.told == []


@pytest.mark.parametrize("holders", [Holders(full=(2,)), Holders(2, full=(3,)), Holders(full=(2, 3), code="internal")])
def test_a_batch_that_somebody_may_hold_may_still_happen(holders: Holders) -> None:
    with pytest.raises(Refused, match="wholly or not at all") as found:
        asyncio.run(carried_out(Gate(None), holders))
    assert found.value.code == refusals.WRITE_TIMEOUT and holders.told


def test_what_holders_have_will_happen_also_if_no_replica_takes_it_now() -> None:
    refused = refusals.failed(True, Level.QUORUM, 2, 0, "", {1: ("too_large", "no")}, nothing_done=True)
    with pytest.raises(Refused, match=r"nothing was done yet .*; the batch will still happen") as found:
        asyncio.run(carried_out(Gate(refused), Holders()))
    assert found.value.code == refusals.WRITE_TIMEOUT


def test_what_a_holder_has_begun_to_carry_out_is_not_forgotten_before_it_is_done() -> None:
    """Its coordinator had stored it too late and tells to forget it; a part of it is written by then."""

    async def story() -> None:
        records, gate = Records(), Gate(Refused(refusals.WRITE_FAILED, "on some"))
        batches = made(gate, Holders(), records)
        record = BatchRecord(b"b", 2, 1, Level.QUORUM, WRITES)
        forget = Asked(encode(BatchRemoval([b"b"])), 0.0, Hello())
        await batches.store(Asked(encode(record), 0.0, Hello()))
        await batches._carry_out(record)
        await batches.remove(forget)
        assert batches.held == 1
        gate.refusal = None
        await batches._carry_out(record)
        assert (batches.held, batches.replayed, records.values) == (0, 1, {})
        await batches.store(Asked(encode(record), 0.0, Hello()))
        await batches.remove(forget)
        assert batches.held == 0

    asyncio.run(story())
