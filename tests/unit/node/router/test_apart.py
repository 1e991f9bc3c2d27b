"""Puts that travel together are answered by tablet, and those that are done don't wait for those that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.node.router.stage import TABLE, play
from tests.unit.node.router.test_reads import big, users

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router.apart import PATIENCE_S
from trimtab.node.router.deadlines import Deadlines
from trimtab.node.router.executor import Executor
from trimtab.node.router.refusals import NothingDone, failed
from trimtab.node.router.stamping import Stamping
from trimtab.node.waits import Waits
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import ALONE, UNFINISHED, PutRequest, ReplicaWrite, WriteReply
from trimtab.tablets.clock import HybridClock
from trimtab.tablets.consistency import Level

TOO_LARGE = {1: ("no_answer", "it did not answer in time"), 2: ("too_large", "so many bytes")}
NOW_MS = 1_700_000_000_000
Done = Callable[[Refused | None, int], None]


class Desk:
    """An executor whose writes end when, and as, a test says."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.begun: list[tuple[list[ReplicaWrite], Done]] = []
        self.deadlines = Deadlines()
        nothing: Any = SimpleNamespace()
        schemas: Any = SimpleNamespace(asked=lambda *_: RowLayout(replace(users(), tablets=8)))
        writes: Any = SimpleNamespace(raft_id=1, deadlines=self.deadlines, begin=self._begin)
        stamping = Stamping(HybridClock(500), lambda: NOW_MS)
        self.executor = Executor(
            schemas,
            LoadView(),
            writes,
            nothing,
            nothing,
            nothing,
            stamping,
            Waits(),
            limit_bytes=limit_bytes,
            complain=pytest.fail,
        )

    def _begin(self, writes: list[ReplicaWrite], _level: Any, _deadline: float, done: Done) -> None:
        self.begun.append((writes, done))

    def put(self, count: int, *, apart: bool = True, timeout_s: float = 5.0) -> asyncio.Task[Any]:
        loop = asyncio.get_running_loop()
        request = PutRequest(TABLE, 1, [1, 2], [[big(each), b"name"] for each in range(count)], apart=apart)
        return loop.create_task(self.executor.ask(request, loop.time() + timeout_s))

    def end(self, refused: Refused | None = None) -> int:
        """The oldest write ends so; its tablet."""
        (write,), done = self.begun.pop(0)
        done(refused, 0 if refused else 3)
        return write.tablet


def test_each_tablet_has_a_write_of_its_own_and_all_are_answered_together() -> None:
    async def story() -> None:
        desk = Desk()
        asked = desk.put(100)
        await asyncio.sleep(0)
        tablets = [writes[0].tablet for writes, _ in desk.begun]
        assert all(len(writes) == 1 for writes, _ in desk.begun)
        assert len(tablets) == len(set(tablets)) > 1
        assert sum(len(writes[0].pairs) for writes, _ in desk.begun) == 200
        while desk.begun:
            assert not asked.done()
            desk.end()
        reply = await asked
        assert (reply.acknowledged, reply.refused) == (3, {}) and reply.timestamp_us
        assert not len(desk.deadlines)

    play(story)


def test_a_tablet_that_is_refused_is_named_with_its_reason() -> None:
    async def story() -> None:
        desk = Desk()
        asked = desk.put(100)
        await asyncio.sleep(0)
        wrong = desk.end(Refused("unavailable", "too few", b"numbers"))
        while desk.begun:
            desk.end()
        reply = await asked
        assert {tablet: (each.code, each.text, each.details) for tablet, each in reply.refused.items()} == {
            wrong: ("unavailable", "too few", b"numbers")
        }

    play(story)


def test_those_that_are_done_do_not_wait_for_one_that_hangs() -> None:
    async def story() -> None:
        desk, loop = Desk(), asyncio.get_running_loop()
        begin = loop.time()
        asked = desk.put(100)
        await asyncio.sleep(0)
        while len(desk.begun) > 1:
            desk.end()
        reply = await asked
        assert PATIENCE_S <= loop.time() - begin < 2 * PATIENCE_S
        hangs = desk.begun[0][0][0].tablet
        assert {tablet: each.code for tablet, each in reply.refused.items()} == {hangs: UNFINISHED}
        desk.end()  # too late to say so; and nobody is answered twice

    play(story)


def test_where_nothing_is_done_all_are_waited_for_and_whoever_is_told_first_makes_no_other_unfinished() -> None:
    async def story() -> None:
        desk = Desk()
        asked = desk.put(100)
        await asyncio.sleep(3 * PATIENCE_S)
        assert not asked.done(), "a disk that is busy holds all of them"
        while desk.begun:
            desk.end()  # one after the other, as a sync tells them
        assert (await asked).refused == {}
        assert not len(desk.deadlines)

    play(story)


def test_where_there_is_little_time_half_of_it_is_left_for_those_that_are_done() -> None:
    async def story() -> None:
        desk, loop = Desk(), asyncio.get_running_loop()
        begin = loop.time()
        asked = desk.put(100, timeout_s=0.13)
        await asyncio.sleep(0)
        while len(desk.begun) > 1:
            desk.end()
        assert len((await asked).refused) == 1
        assert loop.time() - begin < 0.09

    play(story)


def test_that_a_tablet_is_refused_at_once_does_not_make_the_others_unfinished() -> None:
    async def story() -> None:
        desk = Desk()
        asked = desk.put(100)
        await asyncio.sleep(0)
        refused = desk.end(NothingDone("unavailable", "too few"))
        await asyncio.sleep(1.5 * PATIENCE_S)
        assert not asked.done()
        while desk.begun:
            desk.end()
        assert set((await asked).refused) == {refused}

    play(story)


def test_once_something_is_done_late_the_rest_is_not_waited_for_much_longer() -> None:
    async def story() -> None:
        desk, loop = Desk(), asyncio.get_running_loop()
        asked = desk.put(100)
        await asyncio.sleep(2.5 * PATIENCE_S)
        done, since = desk.end(), loop.time()
        reply = await asked
        assert loop.time() - since <= 1.5 * PATIENCE_S
        assert reply.refused and done not in reply.refused
        assert {each.code for each in reply.refused.values()} == {UNFINISHED}
        assert reply.acknowledged == 3

    play(story)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (failed(True, Level.QUORUM, 2, 0, "dc1", TOO_LARGE, nothing_done=True), ALONE),
        (failed(True, Level.QUORUM, 2, 0, "dc1", TOO_LARGE), UNFINISHED),
        (failed(True, Level.QUORUM, 2, 1, "dc1", TOO_LARGE), UNFINISHED),
        (NothingDone("write_failed", "all clocks are wrong"), "write_failed"),
        (NothingDone("overloaded", "all are"), "overloaded"),
        (NothingDone("unavailable", "too few"), "unavailable"),
        (Refused("version_mismatch", "it was overwritten"), ALONE),
        (Refused("write_failed", "some may have it"), "write_failed"),
    ],
)
@pytest.mark.parametrize("rows", [1, 100])
def test_what_one_row_may_be_the_reason_for_is_to_be_asked_alone(refused: Refused, said: str, rows: int) -> None:
    async def story() -> None:
        desk = Desk()
        asked = desk.put(rows)
        await asyncio.sleep(0)
        tablet = desk.end(refused)
        while desk.begun:
            desk.end()
        reply = await asked
        assert {tablet: said} == {each: part.code for each, part in reply.refused.items()}
        assert reply.acknowledged == (3 if rows > 1 else 0)

    play(story)


def test_a_tablet_with_several_writes_is_done_when_all_of_them_are() -> None:
    async def story() -> None:
        desk = Desk(limit_bytes=200)
        asked = desk.put(100)
        await asyncio.sleep(0)
        tablets = [writes[0].tablet for writes, _ in desk.begun]
        assert len(tablets) > len(set(tablets))
        while len(desk.begun) > 1:
            desk.end()
        last = desk.begun[0][0][0].tablet
        reply = await asked
        assert set(reply.refused) == {last}

    play(story)


def test_rows_that_are_not_apart_share_one_fate() -> None:
    async def story() -> None:
        desk = Desk()
        asked = desk.put(100, apart=False)
        await asyncio.sleep(0)
        ((writes, done),) = desk.begun
        assert len(writes) > 1
        done(None, 2)
        assert await asked == WriteReply((await asked).timestamp_us, 2)

    play(story)
