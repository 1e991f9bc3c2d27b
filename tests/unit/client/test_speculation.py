"""Reads that take long are asked of a second replica: when, of whom, how often, and what becomes of the first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails
from tests.unit.client.playing import Stage, play
from tests.unit.client.test_dispatch import slowly, users, warm

from trimtab.catalog import commands
from trimtab.client.database import Database
from trimtab.client.speculation import BURST, LONGEST_S, SHARE, SHORTEST_S, Speculation
from trimtab.net.server import Request
from trimtab.rows import protocol


class Loop:
    """A clock and its timer, of which there is one at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> object:
        assert self.timer is None
        self.timer = when, call
        return self.timer

    def run_until(self, until: float) -> None:
        while self.timer is not None and self.timer[0] <= until:
            (when, call), self.timer = self.timer, None
            self.now = max(self.now, when)
            call()
        self.now = until


class Read:
    """An ask that is answered at a time of its own."""

    def __init__(self, loop: Loop, takes_s: float) -> None:
        self._loop = loop
        self._until = loop.now + takes_s

    @property
    def over(self) -> bool:
        return self._loop.now >= self._until


def offered(takes_s: Callable[[], float], reads: int) -> tuple[Speculation, int]:
    """Reads in a row, 3 ms apart: how patient it has become, and how many were asked twice."""
    loop = Loop()
    asked: list[Any] = []
    speculation = Speculation(loop, lambda ask: not asked.append(ask))  # type: ignore[arg-type]
    for _ in range(reads):
        speculation.sent(Read(loop, takes_s()), loop.now)  # type: ignore[arg-type]
        loop.run_until(loop.now + 0.003)
    loop.run_until(loop.now + 10)
    return speculation, len(asked)


def test_patience_becomes_what_nearly_all_reads_need() -> None:
    rng = random.Random(3)
    speculation, asked = offered(lambda: rng.uniform(0.001, 0.003), 5000)
    assert 0.0025 < speculation.patience_s < 0.0035
    assert asked < 5000 * 0.04


def test_a_bad_time_is_not_taken_for_what_is_usual() -> None:
    rng = random.Random(4)
    slow = {number for number in range(4000, 4800) if rng.random() < 0.06}
    numbers = iter(range(10_000))
    speculation, _ = offered(lambda: 0.05 if next(numbers) in slow else rng.uniform(0.001, 0.002), 4800)
    assert speculation.patience_s < 0.005


def test_where_everything_is_slow_few_are_asked_twice_and_patience_grows() -> None:
    speculation, asked = offered(lambda: 0.5, 2000)
    assert speculation.patience_s > 0.1
    assert 0 < asked <= BURST + 2000 * SHARE


def test_patience_has_bounds() -> None:
    assert offered(lambda: 0.0, 200_000)[0].patience_s == SHORTEST_S
    assert offered(lambda: 1e9, 5_000)[0].patience_s == LONGEST_S


def test_who_could_not_be_asked_does_not_count() -> None:
    loop = Loop()
    speculation = Speculation(loop, lambda _ask: False)  # type: ignore[arg-type]
    for _ in range(100):
        speculation.sent(Read(loop, 1e9), loop.now)  # type: ignore[arg-type]
    loop.run_until(5)
    assert speculation.asked_twice == 0


def holds(cluster: FakeCluster, seconds: float, member: int) -> None:
    """One member takes so long for its next reads."""

    def answer(request: Request) -> None:
        body = cluster._rows_answer(member, protocol.decode_get(request.body))
        asyncio.get_running_loop().call_later(seconds, request.reply, body)

    cluster.script(protocol.GET, *[answer] * 50, members=(member,))


async def timed(db: Database, id: int) -> tuple[Any, float]:
    began = asyncio.get_running_loop().time()
    row = await db.table("shop.users").get(id=id)
    return row, asyncio.get_running_loop().time() - began


def idle(db: Database) -> bool:
    dispatcher = db._session.dispatcher
    return dispatcher.in_flight == 0 and all(each.outstanding == 0 for each in dispatcher.members.by_id.values())


def test_a_member_that_stands_still_for_a_moment_delays_no_read_for_long() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        holds(stage.cluster, 1.0, member=2)
        found = [await timed(db, 1) for _ in range(12)]
        twice = db._session.dispatcher.speculation.asked_twice
        await asyncio.sleep(2)
        return found, twice, idle(db)

    found, twice, all_back = play(users(), work)
    assert all(row == {"id": 1, "name": "a"} for row, _ in found)
    assert max(took_s for _, took_s in found) < 0.1
    assert twice >= 1 and all_back, "late answers are counted, and then forgotten"


def test_a_second_one_that_fails_leaves_the_first_alone() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        stage.cluster.asked.clear()
        refuse = iter([None, fails("not_ready"), fails("not_ready")])

        def answer(request: Request) -> None:
            handler = next(refuse, None)
            if handler is not None:
                handler(request)
                return
            body = stage.cluster._rows_answer(1, protocol.decode_get(request.body))
            asyncio.get_running_loop().call_later(0.3, request.reply, body)

        stage.cluster.script(protocol.GET, answer)
        row, took_s = await timed(db, 1)
        return row, took_s, len(stage.cluster.of(protocol.GET)), idle(db)

    row, took_s, asked, all_back = play(users(), work)
    assert row == {"id": 1, "name": "a"} and 0.29 < took_s < 0.4
    assert asked == 2 and all_back


def test_a_first_one_that_fails_afterwards_is_not_tried_again() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        stage.cluster.asked.clear()
        first = iter([True])

        def answer(request: Request) -> None:
            if next(first, False):
                asyncio.get_running_loop().call_later(0.2, request.fail, "not_ready", "because")
            else:
                request.reply(stage.cluster._rows_answer(1, protocol.decode_get(request.body)))

        stage.cluster.script(protocol.GET, answer)
        row, took_s = await timed(db, 1)
        await asyncio.sleep(1)
        return row, took_s, len(stage.cluster.of(protocol.GET)), idle(db)

    row, took_s, asked, all_back = play(users(), work)
    assert row == {"id": 1, "name": "a"} and took_s < 0.1
    assert asked == 2 and all_back


@pytest.mark.parametrize(
    "cluster", [users(3, replicas=1), users(2, replicas=2, dcs={2: "dc2"})], ids=["one replica", "far away"]
)
def test_whoever_is_not_as_good_as_the_first_is_not_asked(cluster: FakeCluster) -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        stage.cluster.asked.clear()
        slowly(stage.cluster, 0.5)
        await db.table("shop.users").get(id=1)
        return len(stage.cluster.of(protocol.GET)), db._session.dispatcher.speculation.asked_twice

    assert play(cluster, work, datacenter="dc1") == (1, 0)


def test_writes_and_reads_of_many_rows_are_never_asked_twice() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        table = db.table("shop.users")
        speculation = db._session.dispatcher.speculation
        before = speculation.asked_twice
        slowly(stage.cluster, 0.5)
        await table.get_many([{"id": each} for each in range(10)])
        await table.put({"id": 1, "name": "a"})
        return speculation.asked_twice - before

    assert play(users(), work) == 0


def test_a_table_may_say_that_nobody_is_asked_twice() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        holds(stage.cluster, 0.5, member=2)
        found = [await timed(db, 1) for _ in range(6)]
        return max(took_s for _, took_s in found), db._session.dispatcher.speculation.asked_twice

    cluster = users()
    cluster.change(commands.AlterTable("shop", "users", options={"speculative_retry": "none"}))
    longest_s, twice = play(cluster, work)
    assert longest_s >= 0.5 and twice == 0


def test_an_answer_to_a_message_that_was_made_anew_since_is_not_taken() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        table = db.table("shop.users")
        await table.put({"id": 1, "name": "a"})
        dispatcher = db._session.dispatcher
        taken: list[Any] = []
        answered = dispatcher.second_answered

        def noted(attempt: Any, body: bytes) -> None:
            # As if the schema had changed while both were under way.
            attempt.ask.body = bytes([*attempt.ask.body])
            taken.append(attempt)
            answered(attempt, body)

        dispatcher.second_answered = noted  # type: ignore[method-assign]
        holds(stage.cluster, 0.3, member=2)
        found = [await timed(db, 1) for _ in range(6)]
        return len(taken), max(took_s for _, took_s in found), {row["name"] for row, _ in found}

    taken, longest_s, names = play(users(), work)
    assert taken >= 1 and 0.29 < longest_s < 0.5 and names == {"a"}
