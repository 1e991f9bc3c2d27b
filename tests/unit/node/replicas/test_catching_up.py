"""An instance that comes back, and what it asks of the others before it may serve. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from trimtab.net.errors import NotConnected
from trimtab.node.answering import Refused
from trimtab.node.replicas.catching_up import CatchingUp
from trimtab.node.waits import Waits
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.repair_protocol import DoneReply, StatusReply
from trimtab.sim.world import World


class Memory:
    """What an instance remembers of those who are gone (see Hints)."""

    def __init__(self) -> None:
        self.known_gone: dict[int, int] = {}

    def note_gone(self, gone: Mapping[int, int]) -> None:
        self.known_gone = dict(gone)


class Returning:
    """Instance 1, back again; the others answer as they are told to."""

    def __init__(self) -> None:
        self.members = {2: "i2", 3: "i3"}
        self.marks: dict[int, tuple[int, int]] = {}
        self.hints: dict[int, list[int]] = {}  # what each answers, one after the other
        self.down: set[int] = set()
        self.missing: dict[int, int] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.may_repair = asyncio.Event()
        self.may_repair.set()
        self.on_repair: Callable[[], None] = lambda: None
        self.repairs: list[str] = []
        self.fetched = 0
        self.climb = 1
        self.holds = True
        self.asked: list[tuple[int, str]] = []
        self.stories: list[str] = []
        self.defects: list[BaseException] = []
        self.memory = Memory()
        self.waits = Waits()
        self.catching_up = CatchingUp(
            self,
            self.memory,  # type: ignore[arg-type]
            self.waits,
            climb=lambda: self.climb,
            grace_s=1.0,
            story=self.stories.append,
            defect=self.defects.append,
        )

    async def back(self, within_s: float = 3.0) -> float:
        """The order; how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.catching_up.wait(began + within_s)
        return loop.time() - began

    # Ground

    def others(self) -> Mapping[int, str]:
        return self.members

    def gone(self) -> Mapping[int, int]:
        return self.missing

    def stands(self) -> bool:
        return True

    def holds_any(self) -> bool:
        return self.holds

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self.asked.append((raft_id, method))
        await asyncio.sleep(0.001)
        if raft_id in self.down:
            raise NotConnected("it is down")
        if method == protocol.DONE:
            cleared = protocol.decode_done(body).mark == self.marks.get(raft_id)
            if cleared:
                del self.marks[raft_id]
            return bytes(protocol.encode(DoneReply(cleared)))
        left = self.hints.get(raft_id, [0])
        hints = left.pop(0) if len(left) > 1 else left[0]
        mark = self.marks.get(raft_id)
        return bytes(protocol.encode(StatusReply(hints, 0, 777 if mark else 0, mark or (0, 0))))

    async def opened(self) -> None:
        await self.open.wait()

    async def repair_all(self, why: str, *, gentle: bool) -> None:
        await self.may_repair.wait()
        self.repairs.append(why)
        self.on_repair()

    async def fetch_loads(self, *, gentle: bool) -> None:
        self.fetched += 1

    def repairing(self) -> str:
        return "" if self.may_repair.is_set() else "0 of 8 replicas are repaired"


def play(story: Callable[[Returning], Awaitable[Any]]) -> None:
    with World(1) as world:
        process = world.process("i1", "10.0.0.1")
        process.start()

        async def main() -> None:
            it = Returning()
            await story(it)
            it.catching_up.stop()
            assert it.defects == []

        world.run_until_done(process.spawn(main()), 10_000)


def test_if_nobody_has_anything_for_it_a_few_milliseconds_are_enough() -> None:
    async def story(it: Returning) -> None:
        assert await it.back() < 0.02
        assert it.repairs == [] and it.catching_up.caught_up and it.catching_up.progress() == ""

    play(story)


def test_hints_are_waited_for() -> None:
    async def story(it: Returning) -> None:
        it.hints[2] = [30, 20, 20, 10, 0]
        await it.back()
        assert it.asked.count((2, protocol.STATUS)) == 5 and it.repairs == []

    play(story)


def test_hints_that_don_t_get_through_are_made_up_for_by_a_repair() -> None:
    async def story(it: Returning) -> None:
        it.hints[2] = [30]
        await it.back()
        assert it.repairs == ["i2 can't be asked for its hints"]

    play(story)


def test_a_mark_is_repaired_and_cleared() -> None:
    async def story(it: Returning) -> None:
        it.marks[3] = (5, 1)
        await it.back()
        assert it.repairs == ["i3 has not kept hints of all that was missed"] and it.marks == {}

    play(story)


def test_what_is_missed_during_the_repair_is_repaired_too() -> None:
    async def story(it: Returning) -> None:
        it.marks[3] = (5, 1)

        def miss_more() -> None:
            if len(it.repairs) == 1:
                it.marks[3] = (5, 2)

        it.on_repair = miss_more
        await it.back()
        assert len(it.repairs) == 2 and it.marks == {}

    play(story)


def test_one_that_can_t_be_asked_is_waited_for_a_moment_and_then_repaired_around() -> None:
    async def story(it: Returning) -> None:
        it.down.add(2)
        assert 1.0 <= await it.back() < 1.5
        assert it.repairs == ["i2 can't be asked for its hints"]

    play(story)


def test_one_that_comes_up_within_the_moment_is_asked() -> None:
    async def story(it: Returning) -> None:
        it.down.add(2)
        asyncio.get_running_loop().call_later(0.5, it.down.clear)
        assert await it.back() < 1.2
        assert it.repairs == []

    play(story)


def test_the_order_is_refused_with_what_it_is_at_and_goes_on_by_itself() -> None:
    async def story(it: Returning) -> None:
        it.open.clear()
        with pytest.raises(Refused, match="replicas are being opened") as refused:
            await it.back()
        assert refused.value.code == "catching_up"
        it.open.set()
        it.marks[2] = (1, 1)
        it.may_repair.clear()
        with pytest.raises(Refused, match="0 of 8 replicas are repaired"):
            await it.back()
        it.may_repair.set()
        await asyncio.sleep(1)
        assert it.catching_up.caught_up and await it.back() == 0

    play(story)


def test_each_climb_catches_up_anew() -> None:
    async def story(it: Returning) -> None:
        await it.back()
        it.climb = 2
        assert not it.catching_up.caught_up
        it.marks[2] = (1, 1)
        await it.back()
        assert len(it.repairs) == 1

    play(story)


def test_who_was_gone_when_it_had_last_caught_up_is_not_missed_but_who_has_lived_since_is() -> None:
    async def story(it: Returning) -> None:
        it.missing = {3: 4, 9: 2}
        it.down.add(3)
        await it.back()
        assert it.repairs == ["i3 can't be asked for its hints; member 9 has left, and its hints with it"]
        it.climb = 2
        assert await it.back() < 0.1
        assert len(it.repairs) == 1
        it.climb, it.missing = 3, {3: 5, 9: 2}
        await it.back()
        assert it.repairs[1:] == ["i3 can't be asked for its hints"]

    play(story)


def test_one_that_serves_and_is_told_of_a_mark_looks_into_it_at_its_leisure() -> None:
    async def story(it: Returning) -> None:
        it.catching_up.missed()
        assert it.asked == [], "it has not caught up at all yet, and will ask everybody anyway"
        await it.back()
        it.marks[2] = (1, 7)
        it.catching_up.missed()
        it.catching_up.missed()
        await asyncio.sleep(1)
        assert len(it.repairs) == 1 and it.marks == {} and it.catching_up.caught_up

    play(story)


def test_one_that_holds_nothing_asks_nobody_when_it_comes_and_clears_marks_without_a_repair() -> None:
    async def story(it: Returning) -> None:
        it.holds = False
        await it.back()
        assert it.asked == []
        it.marks[2] = (1, 7)
        it.catching_up.missed()
        await asyncio.sleep(1)
        assert it.repairs == [] and it.marks == {}, "else it would be told of it for ever"

    play(story)


def test_one_that_ended_uncleanly_serves_and_then_fetches_what_it_had_coordinated_and_not_written_itself() -> None:
    async def story(it: Returning) -> None:
        it.catching_up.lost_own = True
        it.may_repair.clear()
        assert await it.back() < 0.02, "a quorum has it: nobody is kept waiting"
        await asyncio.sleep(1)
        assert it.catching_up.lost_own, "not before it is repaired"
        it.may_repair.set()
        await asyncio.sleep(1)
        assert it.repairs == ["this instance ended before it had written all that it had sent to others"]
        assert not it.catching_up.lost_own

    play(story)


def test_one_that_is_alone_has_nobody_to_be_repaired_by() -> None:
    async def story(it: Returning) -> None:
        it.catching_up.lost_own = True
        it.members = {}
        await it.back()
        await asyncio.sleep(1)
        assert it.repairs == [] and it.stories == [] and not it.catching_up.lost_own

    play(story)


def test_a_repair_for_another_reason_brings_back_what_it_had_coordinated_too() -> None:
    async def story(it: Returning) -> None:
        it.catching_up.lost_own = True
        it.marks[2] = (1, 7)
        await it.back()
        await asyncio.sleep(1)
        assert len(it.repairs) == 1 and not it.catching_up.lost_own

    play(story)
