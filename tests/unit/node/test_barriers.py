"""Orders of the leader, as a member obeys or refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.barriers import Orders
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.topology import protocol
from trimtab.topology.barriers import OpenRequests
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import BarrierCall, SyncCall
from trimtab.topology.records import InstanceRecord
from trimtab.topology.view import View


class Member:
    """In term 5, applied up to 10, at topology version 3."""

    def __init__(self) -> None:
        self.raft = SimpleNamespace(term=5)
        self.machine = SimpleNamespace(applied_index=10)
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=self.raft), machine=self.machine)
        self.view = View(version=3)
        self.open = OpenRequests()
        self.waits = Waits()
        self.life: int | None = 2
        self.stand(2)
        self.orders = Orders(4, group, self.view, self.open, self.waits, incarnation=lambda: self.life)

    def stand(self, incarnation: int) -> None:
        grades = Grades(Standing(Grade.ONLINE, incarnation), Standing(Grade.ONLINE, 2))
        self.view.instances[4] = InstanceRecord("i4", "h4:1", grades=grades)

    def ask(self, call: SyncCall | BarrierCall, timeout_s: float = 1.0) -> asyncio.Future[bytes]:
        asked = Asked(protocol.encode(call), asyncio.get_running_loop().time() + timeout_s, Hello())
        method = self.orders.sync if isinstance(call, SyncCall) else self.orders.barrier
        return asyncio.ensure_future(method(asked))


def play(story: Callable[[Member], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Member())

    asyncio.run(main())


@pytest.mark.parametrize("call", [SyncCall(4, 1), BarrierCall(4, 1, 1)])
def test_an_order_of_a_term_that_is_over_is_refused(call: SyncCall | BarrierCall) -> None:
    async def story(member: Member) -> None:
        with pytest.raises(Refused) as refused:
            await member.ask(call)
        assert refused.value.code == "stale_term"

    play(story)


def test_an_order_is_refused_when_its_term_ends_while_it_waits() -> None:
    async def story(member: Member) -> None:
        waiting = member.ask(SyncCall(5, 12))
        await asyncio.sleep(0)
        member.raft.term, member.machine.applied_index = 6, 12
        member.waits.look()
        with pytest.raises(Refused) as refused:
            await waiting
        assert refused.value.code == "stale_term"

    play(story)


def test_a_sync_is_answered_when_everything_up_to_the_index_is_applied() -> None:
    async def story(member: Member) -> None:
        assert await member.ask(SyncCall(5, 10)) == b""
        waiting = member.ask(SyncCall(5, 11))
        await asyncio.sleep(0)
        member.waits.look()
        await asyncio.sleep(0)
        assert not waiting.done()
        member.machine.applied_index = 11
        member.waits.look()
        assert await waiting == b""

    play(story)


def test_a_barrier_is_passed_when_the_version_is_seen_and_older_requests_have_ended() -> None:
    async def story(member: Member) -> None:
        token = member.open.open(3)
        waiting = member.ask(BarrierCall(5, 4, 10))
        await asyncio.sleep(0)
        member.view.version = 4
        newer = member.open.open(4)
        member.waits.look()
        await asyncio.sleep(0)
        assert not waiting.done()
        member.open.close(token)
        member.waits.look()
        assert await waiting == b"" and newer

    play(story)


def test_a_barrier_that_can_not_be_passed_in_time_says_what_it_waits_for() -> None:
    async def story(member: Member) -> None:
        with pytest.raises(WaitedTooLong, match="topology version 4"):
            await member.ask(BarrierCall(5, 4, 10), timeout_s=0.08)
        assert len(member.waits) == 0

    play(story)


@pytest.mark.parametrize(("life", "standing"), [(None, 2), (2, 1)])
def test_a_life_that_the_cluster_does_not_know_of_passes_no_barrier(life: int | None, standing: int) -> None:
    """What the process before it sent may still be carried out somewhere, and this one knows nothing of that."""

    async def story(member: Member) -> None:
        member.life = life
        member.stand(standing)
        waiting = member.ask(BarrierCall(5, 3, 10))
        await asyncio.sleep(0)
        member.waits.look()
        await asyncio.sleep(0)
        assert not waiting.done()
        member.life = 2
        member.stand(2)
        member.waits.look()
        assert await waiting == b""

    play(story)
