"""The gate of data requests: stamps, the fence, grades of this life, leases before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.net.errors import DeadlineExceeded
from trimtab.net.hello import Hello
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Refused
from trimtab.node.calls import Calls
from trimtab.node.serving import MAX_ROUTED_S, Serving
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.sim.world import World
from trimtab.topology import protocol
from trimtab.topology.barriers import OpenRequests
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import Level, ProbeReply, ProbeRequest
from trimtab.topology.records import InstanceRecord
from trimtab.topology.view import View


class Gate:
    """Instance 1, Online in its second life, with a lease, at version 5 and fence 3."""

    def __init__(self, *, stale_reads: bool = True) -> None:
        self.view = View(version=5, fence=3)
        self.stand(Grade.ONLINE, 2)
        self.lease_ms = 1_000
        self.life: int | None = 2
        self.open = OpenRequests()
        self.waits = Waits()
        methods: dict[str, Any] = {}
        self.serving = Serving(
            1,
            self.view,
            self.open,
            self.waits,
            Calls(Hello(raft_id=1), {}, methods),
            lease_left_ms=lambda: self.lease_ms,
            incarnation=lambda: self.life,
            applied=lambda: 42,
            stale_reads=stale_reads,
        )
        methods.update(self.serving.methods())

    def stand(self, grade: Grade, incarnation: int) -> None:
        grades = Grades(Standing(grade, incarnation), Standing(Grade.ONLINE, 2))
        self.view.instances[1] = InstanceRecord("i1", "h:1", grades=grades)

    async def probe(self, level: Level = Level.QUORUM, version: int = 0, timeout_s: float = 1.0) -> ProbeReply:
        deadline = asyncio.get_running_loop().time() + timeout_s
        body = protocol.encode(ProbeRequest(0, level, version))
        return protocol.decode_probe_reply(await self.serving.probe(Asked(body, deadline, Hello())))

    async def code(self, level: Level = Level.QUORUM, version: int = 0) -> str:
        with pytest.raises(Refused) as refused:
            await self.probe(level, version)
        return refused.value.code


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    asyncio.run(main())


def test_a_request_is_stamped_with_the_version_it_is_routed_by_and_open_until_it_ends() -> None:
    async def story() -> None:
        gate = Gate()
        gate_open = asyncio.Event()

        async def hold() -> None:
            await gate_open.wait()

        gate.serving.hold = hold
        asking = asyncio.ensure_future(gate.probe())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert gate.open.oldest() == 5 and not gate.open.drained(6)
        gate_open.set()
        assert await asking == ProbeReply(1, 5, False, 42)
        assert len(gate.open) == 0

    play(story)


def test_what_is_older_than_the_fence_is_refused_also_when_the_fence_rises_meanwhile() -> None:
    async def story() -> None:
        gate = Gate()
        assert await gate.code(version=2) == "fenced"

        async def hold() -> None:
            gate.view.fence = 6

        gate.serving.hold = hold
        assert await gate.code(version=5) == "fenced"

    play(story)


def test_without_a_lease_only_one_is_answered_and_marked_stale() -> None:
    async def story() -> None:
        gate = Gate()
        gate.lease_ms = 0
        assert await gate.code() == "no_lease"
        assert (await gate.probe(Level.ONE)).stale
        gate = Gate(stale_reads=False)
        gate.lease_ms = 0
        assert await gate.code(Level.ONE) == "no_lease"

    play(story)


def test_a_router_without_a_lease_routes_nothing_above_one() -> None:
    """Barriers don't wait for it, so it must not act on a topology that may be old."""

    async def story() -> None:
        gate = Gate()
        gate.lease_ms = 0
        opened: list[int] = []
        gate.open.open = opened.append  # type: ignore[assignment, method-assign]
        assert await gate.code() == "no_lease"
        assert opened == []

    play(story)


def test_a_lease_that_ends_while_the_request_is_carried_out_is_noticed_when_the_answer_leaves() -> None:
    async def story() -> None:
        gate = Gate()

        async def hold() -> None:
            gate.lease_ms = 0

        gate.serving.hold = hold
        assert await gate.code() == "no_lease"
        gate.lease_ms = 1_000
        assert (await gate.probe(Level.ONE)).stale

    play(story)


def test_an_instance_that_comes_back_answers_nothing_before_it_has_caught_up() -> None:
    async def story() -> None:
        gate = Gate()
        for grade in (Grade.OFFLINE, Grade.RAFT_SYNCED, Grade.EXPELLED):
            gate.stand(grade, 2)
            assert await gate.code(Level.ONE) == "not_ready"
        gate.stand(Grade.REPLICATED, 2)
        assert not (await gate.probe()).stale

    play(story)


def test_a_grade_of_an_earlier_life_counts_for_nothing() -> None:
    async def story() -> None:
        gate = Gate()
        gate.stand(Grade.ONLINE, 1)
        assert await gate.code(Level.ONE) == "not_ready"
        gate.stand(Grade.ONLINE, 2)
        gate.life = None
        assert await gate.code(Level.ONE) == "not_ready"

    play(story)


def test_no_request_keeps_a_barrier_waiting_for_longer_than_a_minute_whatever_its_sender_asks() -> None:
    with World(1) as world:
        process = world.process("i1", "10.0.0.1")
        process.start()

        async def story() -> None:
            gate = Gate()

            async def hold() -> None:
                await asyncio.sleep(3_600)

            gate.serving.hold = hold
            asking = asyncio.ensure_future(gate.probe(timeout_s=3_600))
            await asyncio.sleep(MAX_ROUTED_S - 1)
            assert not gate.open.drained(6)
            await asyncio.sleep(2)
            assert gate.open.drained(6)
            with pytest.raises(DeadlineExceeded):
                await asking

        world.run_until_done(process.spawn(story()), 10_000)


def test_a_router_that_knows_a_newer_version_waits_for_the_replica_to_see_it() -> None:
    async def story() -> None:
        gate = Gate()
        asking = asyncio.ensure_future(gate.probe(version=6))
        await asyncio.sleep(0)
        gate.view.version = 6
        gate.waits.look()
        assert (await asking).version == 6
        with pytest.raises(WaitedTooLong):
            await gate.probe(version=7, timeout_s=0.05)

    play(story)


def test_an_operator_of_tests_can_hold_a_request_while_all_else_goes_on(tmp_path: Path) -> None:
    held = tmp_path / "held"

    async def story() -> None:
        gate = Gate()
        asking = asyncio.ensure_future(gate.probe(timeout_s=10))
        for _ in range(5):
            await asyncio.sleep(0)
        assert held.exists() and not asking.done() and len(gate.open) == 1
        held.unlink()
        assert not (await asking).stale

    for name, action in failpoints.parse(f"serving.hold=hold:{held}").items():
        failpoints.arm(name, action)
    try:
        play(story)
    finally:
        failpoints.disarm()
