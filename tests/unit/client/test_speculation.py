"""Reads that take long are asked of a second replica: when, of whom, how often, and what becomes of the first."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from tests.unit.client.fake_cluster import FakeCluster, fails, ignores
from tests.unit.client.playing import Stage, play
from tests.unit.client.served import contact, served
from tests.unit.client.test_dispatch import asked_once, slowly, users, warm

import trimtab
from trimtab.catalog import commands
from trimtab.client import loop_thread
from trimtab.client.database import Database
from trimtab.client.speculation import BURST, LONGEST_S, MAX_SENT, SHARE, SHORTEST_S, Speculation
from trimtab.net.server import Request
from trimtab.rows import protocol

KIND = "reads of one table"


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


class Sink:
    gone = False


class Read:
    """An ask that is answered at a time of its own."""

    sink = Sink()
    under_way = True

    def __init__(self, loop: Loop, takes_s: float) -> None:
        self._loop = loop
        self._until = loop.now + takes_s

    @property
    def over(self) -> bool:
        return self._loop.now >= self._until


def offered(takes_s: Callable[[], float], reads: int, every_s: float = 0.003) -> tuple[float, int]:
    """Reads in a row: how patient it has become, and how many were asked twice."""
    loop = Loop()
    asked: list[Any] = []
    speculation = Speculation(loop, lambda ask: not asked.append(ask))  # type: ignore[arg-type]
    for _ in range(reads):
        speculation.patience(KIND).sent(Read(loop, takes_s()), loop.now)  # type: ignore[arg-type]
        loop.run_until(loop.now + every_s)
    loop.run_until(loop.now + 10)
    return speculation.patience(KIND).seconds, len(asked)


def test_patience_becomes_what_nearly_all_reads_need() -> None:
    rng = random.Random(3)
    patience_s, asked = offered(lambda: rng.uniform(0.001, 0.003), 5000)
    assert 0.0025 < patience_s < 0.0035
    assert asked < 5000 * 0.04


def test_a_bad_second_is_not_taken_for_what_is_usual() -> None:
    rng, numbers = random.Random(4), iter(range(10_000))

    def takes_s() -> float:
        return 0.05 if next(numbers) >= 4000 else rng.uniform(0.001, 0.002)

    usual_s, _ = offered(lambda: rng.uniform(0.001, 0.002), 4000)
    patience_s, asked = offered(takes_s, 4400)
    assert usual_s < patience_s < 2 * usual_s
    assert asked > BURST, "those of the bad second"


def test_where_everything_becomes_slow_patience_follows() -> None:
    rng, numbers = random.Random(5), iter(range(100_000))

    def takes_s() -> float:
        return 0.02 if next(numbers) >= 1000 else rng.uniform(0.001, 0.002)

    assert offered(takes_s, 60_000)[0] > 0.015


def test_where_everything_is_slow_few_are_asked_twice_and_patience_grows() -> None:
    patience_s, asked = offered(lambda: 0.5, 2000)
    assert patience_s > 0.1
    assert 0 < asked <= BURST + 2000 * SHARE


def test_patience_has_bounds() -> None:
    assert offered(lambda: 0.0, 200_000)[0] == SHORTEST_S
    assert offered(lambda: 1e9, 5_000)[0] == LONGEST_S


def test_reads_that_do_not_take_alike_long_have_each_their_own_patience() -> None:
    loop = Loop()
    loop.call_at = lambda when, call: (when, call)  # type: ignore[method-assign, assignment, return-value]
    speculation = Speculation(loop, lambda _ask: True)  # type: ignore[arg-type]
    slow, fast = speculation.patience("slow"), speculation.patience("fast")
    slow.seconds = 0.7
    assert speculation.patience("slow") is slow and fast.seconds < 0.01
    for number in range(1000):
        speculation.patience(number)
    assert len(speculation._patience) <= 256


def test_who_could_not_be_asked_does_not_count() -> None:
    loop = Loop()
    speculation = Speculation(loop, lambda _ask: False)  # type: ignore[arg-type]
    for _ in range(100):
        speculation.patience(KIND).sent(Read(loop, 1e9), loop.now)  # type: ignore[arg-type]
    loop.run_until(5)
    assert speculation.asked_twice == 0


def test_no_more_are_kept_than_there_is_a_bound_for() -> None:
    loop = Loop()
    speculation = Speculation(loop, lambda _ask: False)  # type: ignore[arg-type]
    for _ in range(MAX_SENT + 100):
        speculation.patience(KIND).sent(Read(loop, 1e9), loop.now)  # type: ignore[arg-type]
    assert len(speculation.patience(KIND)._sent) == MAX_SENT


def test_a_loop_whose_clock_has_whole_milliseconds_does_not_turn_idly() -> None:
    """It fired on the tick before, found nothing due, and was armed for at once, hundreds of times."""
    looks = 0

    async def main() -> None:
        nonlocal looks
        speculation = Speculation(asyncio.get_running_loop(), lambda _ask: False)
        patience = speculation.patience(KIND)
        look = patience._look

        def noted() -> None:
            nonlocal looks
            looks += 1
            look()

        patience._look = noted  # type: ignore[method-assign]

        class Answered:
            over = True

        for _ in range(100):
            patience.seconds = 0.0022
            patience.sent(Answered(), asyncio.get_running_loop().time())  # type: ignore[arg-type]
            await asyncio.sleep(0.004)

    uvloop.run(main())
    assert 1 <= looks <= 400


# In a client


def holds(cluster: FakeCluster, seconds: float, member: int) -> None:
    """One member takes so long for its next reads."""

    def answer(request: Request) -> None:
        body = cluster._rows_answer(member, protocol.decode_get(request.body))
        asyncio.get_running_loop().call_later(seconds, request.reply, body)

    cluster.script(protocol.GET, *[answer] * 50, members=(member,))


async def timed(db: Database, id: int, **options: Any) -> tuple[Any, float]:
    began = asyncio.get_running_loop().time()
    row = await db.table("shop.users").get(id=id, **options)
    return row, asyncio.get_running_loop().time() - began


def idle(db: Database) -> bool:
    dispatcher = db._session.dispatcher
    return dispatcher.in_flight == 0 and all(each.outstanding == 0 for each in dispatcher.members.by_id.values())


async def ready(db: Database, stage: Stage) -> None:
    """Warm, with a row; what is asked counts from here."""
    await warm(db)
    await db.table("shop.users").put({"id": 1, "name": "a"})
    stage.cluster.asked.clear()


def test_a_member_that_stands_still_for_a_moment_delays_no_read_for_long() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        holds(stage.cluster, 1.0, member=2)
        found = [await timed(db, 1) for _ in range(12)]
        twice = db._session.dispatcher.speculation.asked_twice
        await asyncio.sleep(2)
        return found, twice, idle(db)

    found, twice, all_back = play(users(), work)
    assert all(row == {"id": 1, "name": "a"} for row, _ in found)
    assert max(took_s for _, took_s in found) < 0.1
    assert twice >= 1 and all_back, "late answers are counted, and then forgotten"


def test_a_second_one_that_fails_leaves_the_first_alone_and_is_avoided() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
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
        now = asyncio.get_running_loop().time()
        avoided = [each for each in db._session.members.by_id.values() if each.avoid_until > now]
        return row, took_s, len(stage.cluster.of(protocol.GET)), idle(db), len(avoided)

    row, took_s, asked, all_back, avoided = play(users(), work)
    assert row == {"id": 1, "name": "a"} and 0.29 < took_s < 0.4
    assert asked == 2 and all_back and avoided == 1


def test_a_first_one_that_fails_afterwards_is_not_tried_again() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
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


def test_a_member_that_never_answers_is_avoided_though_others_did() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        stage.cluster.script(protocol.GET, *[ignores] * 50, members=(2,))
        while not stage.cluster.asked or stage.cluster.asked[-1][0] != 2:
            await db.table("shop.users").get(id=1)
        await asyncio.sleep(2.1)
        return db._session.members.by_id[2].avoid_until > asyncio.get_running_loop().time(), idle(db)

    assert play(users(), work) == (True, True)


def test_a_second_one_that_never_answers_is_given_up_long_before_a_long_deadline() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        first = iter([True])

        def answer(request: Request) -> None:
            if next(first, False):
                body = stage.cluster._rows_answer(1, protocol.decode_get(request.body))
                asyncio.get_running_loop().call_later(0.2, request.reply, body)

        stage.cluster.script(protocol.GET, answer)
        row, _ = await timed(db, 1, timeout=3600)
        await asyncio.sleep(3)
        return row, idle(db)

    assert play(users(), work) == ({"id": 1, "name": "a"}, True)


@pytest.mark.parametrize(
    "cluster", [users(3, replicas=1), users(2, replicas=2, dcs={2: "dc2"})], ids=["one replica", "far away"]
)
def test_whoever_is_not_as_good_as_the_first_is_not_asked(cluster: FakeCluster) -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        slowly(stage.cluster, 0.5)
        await db.table("shop.users").get(id=1)
        return len(stage.cluster.of(protocol.GET)), db._session.dispatcher.speculation.asked_twice

    assert play(cluster, work, datacenter="dc1") == (1, 0)


def test_writes_and_reads_of_many_rows_or_of_the_past_are_never_asked_twice() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        table = db.table("shop.users")
        speculation = db._session.dispatcher.speculation
        before = speculation.asked_twice
        slowly(stage.cluster, 0.5)
        await table.get_many([{"id": each} for each in range(10)])
        await table.get(id=1, as_of=1_000_000)
        await table.put({"id": 1, "name": "a"})
        return speculation.asked_twice - before

    assert play(users(), work) == 0


def test_a_table_may_say_that_nobody_is_asked_twice() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        holds(stage.cluster, 0.5, member=2)
        found = [await timed(db, 1) for _ in range(6)]
        return max(took_s for _, took_s in found), db._session.dispatcher.speculation.asked_twice

    longest_s, twice = play(asked_once(users()), work)
    assert longest_s >= 0.5 and twice == 0


def test_the_client_has_no_more_under_way_than_it_may() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        slowly(stage.cluster, 0.3, times=200)
        dispatcher = db._session.dispatcher
        most = 0
        reads = [asyncio.ensure_future(db.table("shop.users").get(id=each)) for each in range(60)]
        while not all(each.done() for each in reads):
            most = max(most, dispatcher.in_flight)
            await asyncio.sleep(0.001)
        return most

    assert play(users(), work, max_in_flight=8) == 8


def test_nobody_is_asked_twice_for_who_has_gone() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        slowly(stage.cluster, 0.5)
        speculation = db._session.dispatcher.speculation
        before = speculation.asked_twice
        reads = [asyncio.ensure_future(db.table("shop.users").get(id=1)) for _ in range(10)]
        await asyncio.sleep(0.001)
        for each in reads:
            each.cancel()
        await asyncio.sleep(0.3)
        return speculation.asked_twice - before

    assert play(users(), work) == 0


def test_a_closed_client_asks_nobody_any_more() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
        slowly(stage.cluster, 0.5)
        read = asyncio.ensure_future(db.table("shop.users").get(id=1))
        await asyncio.sleep(0.001)
        await db.close()
        await asyncio.gather(read, return_exceptions=True)
        await asyncio.sleep(0.3)
        return len(stage.cluster.of(protocol.GET))

    assert play(users(), work) <= 1


def test_an_answer_to_a_message_that_was_made_anew_since_is_not_taken() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await ready(db, stage)
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


def test_a_thread_reads_its_answer_by_the_schema_it_was_made_for(
    free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first replica refuses because the table has changed; the second, which does not know, answers meanwhile; and
    the thread that waits gets the processor only after the schema was looked at again.
    """
    wait = loop_thread.Waiter.wait

    def slowly_woken(self: loop_thread.Waiter, ask: Any) -> Any:
        assert self._gate.acquire(timeout=20)
        time.sleep(1.0)
        self._gate.release()
        return wait(self, ask)

    with served(free_ports(2)) as cluster:
        cluster.replicas = 2
        cluster.create("shop.users", "id bigint, name text", "id", tablets=4)
        with trimtab.connect(contact(cluster)) as db:
            table = db.table("shop.users")
            table.put({"id": 1, "name": "secret"})
            for _ in range(50):
                table.get(id=1)
            known = cluster.catalog
            cluster.change(commands.AlterTable("shop", "users", add=[commands.ColumnSpec("nick", "text")]))
            cluster.change(commands.AlterTable("shop", "users", drop=["name"]))
            asked: list[int] = []
            for number in (1, 2):
                cluster.script(protocol.GET, _by_turns(cluster, number, asked, known), members=(number,))
                cluster.script(protocol.SCHEMA, _schema_later(cluster, number), members=(number,))
            monkeypatch.setattr(loop_thread.Waiter, "wait", slowly_woken)
            assert table.get(id=1) in ({"id": 1, "name": "secret"}, {"id": 1, "nick": None})
            assert len(asked) == 2


def _by_turns(cluster: FakeCluster, number: int, asked: list[int], known: Any) -> Callable[[Request], None]:
    """Whoever is asked first refuses soon; the other one knows the schema of before, and answers a little later."""

    def answer(request: Request) -> None:
        asked.append(number)
        loop = asyncio.get_running_loop()
        if len(asked) == 1:
            cluster.behind[3 - number] = known
            loop.call_later(0.3, request.fail, "version_mismatch", "another version")
        else:
            body = cluster._rows_answer(number, protocol.decode_get(request.body))
            loop.call_later(0.45, request.reply, body)

    return answer


def _schema_later(cluster: FakeCluster, number: int) -> Callable[[Request], None]:
    def answer(request: Request) -> None:
        behind = dict(cluster.behind)
        cluster.behind.clear()
        body = cluster._schema(number, request.body)
        cluster.behind.update(behind)
        asyncio.get_running_loop().call_later(0.4, request.reply, body)

    return answer
