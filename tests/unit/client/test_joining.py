"""Puts that are made at the same time travel together: which do, which don't, and what becomes of each of them."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails, ignores
from tests.unit.client.playing import Stage, fake, play
from tests.unit.client.test_dispatch import users, warm

import trimtab
from trimtab.client.database import Database
from trimtab.client.errors import Error, InvalidRequest, Overloaded, Timeout, WriteFailed
from trimtab.client.joining import MAX_BYTES, MAX_ROWS
from trimtab.net.server import Handler, Request
from trimtab.rows import protocol
from trimtab.rows.hashing import token_of_bytes
from trimtab.rows.protocol import PutRequest, Refusal, WriteReply
from trimtab.tablets.ring import tablet_of


def tablet(id: int) -> int:
    return tablet_of(token_of_bytes(id.to_bytes(8, "big")), 16)


def puts(cluster: FakeCluster) -> list[PutRequest]:
    return cluster.of(protocol.PUT)


def ids(request: PutRequest) -> list[int]:
    return [int.from_bytes(row[0] or b"", "big") for row in request.rows]


async def together(db: Database, rows: list[dict[str, Any]], **options: Any) -> list[Any]:
    """What became of puts that are made in one turn, while something else is under way."""
    table = db.table("shop.users")
    other = asyncio.ensure_future(table.get(id=0))
    await asyncio.sleep(0)
    made = [table.put(row, **options) for row in rows]
    results = await asyncio.gather(*made, return_exceptions=True)
    await other
    return results


def named(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": each, "name": f"n{each}"} for each in range(first, first + count)]


def refuses(code: str, *tablets: int, stamp_us: int = 77) -> Handler:
    """Of a request these tablets are not done, and all others are."""
    refused = {each: Refusal(code, "because") for each in tablets}
    return lambda request: request.reply(protocol.encode(WriteReply(stamp_us, 2, refused)))


def test_puts_of_a_turn_go_to_a_member_as_one_request_and_each_has_its_answer() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        return await together(db, named(20))

    cluster = users()
    stamps = play(cluster, work)
    assert [len(request.rows) for request in puts(cluster)] == [20]
    assert puts(cluster)[0].apart
    assert stamps == [cluster.stamp_us] * 20
    table = next(iter(cluster.catalog.tables))
    assert len(cluster.rows[table]) == 20


def test_a_put_with_nothing_else_under_way_goes_at_once_and_is_no_part_of_anything() -> None:
    async def work(db: Database, stage: Stage) -> None:
        for row in named(3):
            await db.table("shop.users").put(row)

    cluster = users()
    assert play(cluster, work) is None
    assert [(len(request.rows), request.apart) for request in puts(cluster)] == [(1, False)] * 3


def test_a_request_has_only_rows_that_whoever_gets_it_holds() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        return await together(db, named(200))

    cluster = users(6, replicas=2)
    assert not [each for each in play(cluster, work) if isinstance(each, Exception)]
    asked = [(number, request) for number, method, request in cluster.asked if method == protocol.PUT]
    for number, request in asked:
        for id in ids(request):
            assert number in cluster.holders(tablet(id))
    assert sorted(id for _, request in asked for id in ids(request)) == list(range(200))
    assert len(asked) < 60


def test_a_request_is_bounded_in_rows_and_in_bytes() -> None:
    async def work(db: Database, stage: Stage) -> None:
        await warm(db)
        await together(db, named(300))
        await together(db, [{"id": each, "name": "x" * 5_000} for each in range(10)])
        await together(db, [{"id": each, "name": "x" * 2 * MAX_BYTES} for each in range(3)])

    cluster = users(1)
    assert play(cluster, work) is None
    sizes = [len(request.rows) for request in puts(cluster)]
    assert max(sizes) == MAX_ROWS and sum(sizes) == 313
    for request in puts(cluster):
        assert len(request.rows) == 1 or sum(len(cell or b"") for row in request.rows for cell in row) <= MAX_BYTES


def test_puts_of_the_same_row_are_never_in_one_request_and_the_later_one_wins() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await together(db, [{"id": 1, "name": str(each)} for each in range(10)])
        return await db.table("shop.users").get(id=1)

    cluster = users()
    assert play(cluster, work) == {"id": 1, "name": "9"}
    assert [len(request.rows) for request in puts(cluster)] == [1] * 10


def test_what_differs_in_more_than_the_row_does_not_travel_together() -> None:
    async def work(db: Database, stage: Stage) -> None:
        await warm(db)
        table = db.table("shop.users")
        row = [{"id": each, "name": "a"} for each in range(12)]
        other = asyncio.ensure_future(table.get(id=0))
        await asyncio.sleep(0)
        await asyncio.gather(
            table.put(row[0]),
            table.put(row[8]),
            table.put(row[1], ttl=60),
            table.put(row[2], consistency="ALL"),
            table.put({"id": 3}),
            table.put(row[4], timeout=3),
            table.update(row[5]),
            table.put(row[6], timestamp=5),
            table.put(row[7], timestamp=5),
        )
        await other

    cluster = users(1)
    assert play(cluster, work) is None
    assert sorted(ids(request) for request in puts(cluster)) == [[0, 8], [1], [2], [3], [4], [5], [6], [7]]


def test_cells_that_belong_to_a_partition_or_change_elements_go_alone() -> None:
    async def work(db: Database, stage: Stage) -> None:
        table = db.table("shop.events")
        for rows in (
            [{"id": 1, "at": each, "title": str(each)} for each in range(3)],
            [{"id": 1, "at": each, "tags": trimtab.Add({"new"})} for each in range(3)],
            [{"id": 1, "at": each, "tags": {"all"}} for each in range(3)],
        ):
            other = asyncio.ensure_future(table.get(id=0, at=0))
            await asyncio.sleep(0)
            await asyncio.gather(*(table.update(row) for row in rows))
            await other

    cluster = fake(1)
    cluster.create("shop.events", "id bigint, at int, title text static, tags set<text>", "id", "at")
    assert play(cluster, work) is None
    assert [len(request.rows) for request in puts(cluster)] == [1, 1, 1, 1, 1, 1, 3]


def test_writes_leave_in_the_order_that_they_were_made_in() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.users")
        other = asyncio.ensure_future(table.get(id=0))
        await asyncio.sleep(0)
        await asyncio.gather(table.put({"id": 1, "name": "a"}), table.delete(id=1), table.put({"id": 2, "name": "b"}))
        await other
        return await table.get(id=1), await table.get(id=2)

    assert play(users(1), work) == (None, {"id": 2, "name": "b"})


# What becomes of each


def test_where_a_request_is_at_fault_each_put_is_sent_alone_and_only_the_wrong_one_fails() -> None:
    def only_five_is_wrong(request: Request) -> None:
        asked = protocol.decode_put(request.body)
        if 5 in ids(asked):
            request.fail("invalid", "five is wrong")
        else:
            cluster.write(asked, 9)
            request.reply(protocol.encode(WriteReply(9, 2)))

    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, *[only_five_is_wrong] * 50)
        return await together(db, named(10))

    cluster = users(1)
    results = play(cluster, work)
    assert [type(each) for each in results if isinstance(each, Error)] == [InvalidRequest]
    assert isinstance(results[5], InvalidRequest) and "five is wrong" in str(results[5])
    assert [len(request.rows) for request in puts(cluster)] == [10] + [1] * 10


def test_tablets_that_are_refused_say_nothing_about_the_others() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, refuses("write_failed", tablet(3)))
        return await together(db, named(10))

    cluster = users(1)
    results = play(cluster, work)
    for id, result in enumerate(results):
        assert isinstance(result, WriteFailed) if tablet(id) == tablet(3) else result == 77
    assert len(puts(cluster)) == 1, "what may have been done is not done again"


def test_tablets_that_were_certainly_not_written_are_tried_again() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, refuses("unavailable", tablet(3)))
        return await together(db, named(10))

    cluster = users(1)
    results = play(cluster, work)
    again = [id for id in range(10) if tablet(id) == tablet(3)]
    assert not [each for each in results if isinstance(each, Exception)]
    assert sorted(ids(request)[0] for request in puts(cluster)[1:]) == again
    assert all(request.timestamp_us == 0 for request in puts(cluster)[1:])


def test_what_is_not_finished_goes_on_alone_with_the_stamp_that_it_was_given() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, refuses(protocol.UNFINISHED, tablet(3), stamp_us=1_234))
        return await together(db, named(10))

    cluster = users(1)
    results = play(cluster, work)
    again = [id for id in range(10) if tablet(id) == tablet(3)]
    assert results == [1_234] * 10
    assert sorted((ids(request), request.timestamp_us) for request in puts(cluster)[1:]) == [
        ([id], 1_234) for id in again
    ]


def test_what_is_never_finished_is_in_doubt_and_the_others_are_done() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, refuses(protocol.UNFINISHED, tablet(3)), *[ignores] * 100)
        return await together(db, named(10), timeout=3)

    results = play(cluster := users(1), work)
    for id, result in enumerate(results):
        if tablet(id) == tablet(3):
            assert isinstance(result, Timeout) and "may or may not have been carried out" in str(result)
        else:
            assert result == 77
    assert len(cluster.of(protocol.PUT)) > 1


def test_no_answer_leaves_each_put_in_doubt() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, ignores)
        return await together(db, named(10), timeout=1)

    cluster = users(1)
    results = play(cluster, work)
    assert [type(each) for each in results] == [Timeout] * 10
    assert len(puts(cluster)) == 1


@pytest.mark.parametrize("code", ["unavailable", "overloaded", "no_lease", "not_found", "version_mismatch"])
def test_a_whole_request_that_was_not_carried_out_is_tried_again(code: str) -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, fails(code))
        return await together(db, named(10))

    cluster = users(1)
    results = play(cluster, work)
    assert not [each for each in results if isinstance(each, Exception)], results
    assert sorted(id for request in puts(cluster)[1:] for id in ids(request)) == list(range(10))


def test_an_answer_that_can_not_be_read_ends_every_put() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, lambda request: request.reply(b"\xc1"))
        return await together(db, named(10))

    cluster = users(1)
    assert all(isinstance(each, Error) for each in play(cluster, work))


def test_a_member_that_dies_with_them_leaves_each_in_doubt() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, lambda _request: stage.kill(1))
        return await together(db, named(10), timeout=2)

    cluster = users(1)
    assert [type(each) for each in play(cluster, work)] == [Timeout] * 10


@pytest.mark.parametrize("whole", [False, True])
def test_rows_that_should_go_alone_do_so_at_once_and_without_a_stamp(whole: bool) -> None:
    tablets = {tablet(id) for id in range(10)} if whole else {tablet(3)}

    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, refuses(protocol.ALONE, *tablets))
        return await together(db, named(10))

    cluster = users(1)
    assert not [each for each in play(cluster, work) if isinstance(each, Exception)]
    again = [id for id in range(10) if tablet(id) in tablets]
    assert sorted((ids(request), request.timestamp_us) for request in puts(cluster)[1:]) == [([id], 0) for id in again]


def test_what_goes_on_is_asked_of_whoever_stamped_it_first_and_then_of_others() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        cluster.script(protocol.PUT, refuses(protocol.UNFINISHED, tablet(3)), fails("not_ready"))
        return await together(db, [{"id": 3, "name": "x"}, {"id": 4, "name": "y"}])

    cluster = users(3)
    assert play(cluster, work) == [77, 77]
    asked = [number for number, method, _ in cluster.asked if method == protocol.PUT]
    assert asked[0] == asked[1] != asked[2]


def test_a_stamp_that_is_still_to_come_elsewhere_is_waited_for() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        future = fails("invalid", "the timestamp is ahead of this instance's clock")
        cluster.script(protocol.PUT, refuses(protocol.UNFINISHED, tablet(3)), future, future)
        return await together(db, [{"id": 3, "name": "x"}, {"id": 4, "name": "y"}])

    cluster = users(1)
    assert play(cluster, work) == [77, 77]
    assert [request.timestamp_us for request in puts(cluster)] == [0, 77, 77, 77]


def test_what_fails_for_good_when_it_is_alone_fails_then() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        cluster.script(protocol.PUT, refuses(protocol.UNFINISHED, tablet(3)), fails("write_failed", "it is too large"))
        return await together(db, [{"id": 3, "name": "x"}, {"id": 4, "name": "y"}])

    failed, done = play(cluster := users(1), work)
    assert isinstance(failed, WriteFailed) and done == 77
    assert len(puts(cluster)) == 2


def test_puts_go_to_members_that_are_as_near_and_as_well_as_those_they_would_go_to_alone() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        members = db._session.members.by_id
        members[1].avoid_until = asyncio.get_running_loop().time() + 60
        return await together(db, named(200))

    cluster = users(4, replicas=3, dcs={3: "dc2", 4: "dc2"})
    assert not [each for each in play(cluster, work, datacenter="dc1") if isinstance(each, Exception)]
    asked = [(number, request) for number, method, request in cluster.asked if method == protocol.PUT]
    for number, request in asked:
        for id in ids(request):
            if 2 in cluster.holders(tablet(id)):
                assert number == 2
    assert max(len(request.rows) for _, request in asked) > 10


def test_many_members_get_a_request_each() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        return await together(db, named(200))

    cluster = users(12, replicas=1)
    assert not [each for each in play(cluster, work) if isinstance(each, Exception)]
    assert len(puts(cluster)) <= 16


def test_a_put_that_has_waited_does_not_take_others_time_away() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        table = db.table("shop.users")
        stage.kill(1)
        await asyncio.sleep(0.5)
        early = [asyncio.ensure_future(table.put(row, timeout=6)) for row in named(3)]
        await asyncio.sleep(3)
        stage.start(1)
        late: list[Any] = []
        while not any(each.done() for each in early):
            late.append(asyncio.ensure_future(table.put({"id": 100 + len(late), "name": "x"}, timeout=6)))
            await asyncio.sleep(0.01)
        return await asyncio.gather(*early, *late, return_exceptions=True)

    cluster = users(1)
    assert not [each for each in play(cluster, work) if isinstance(each, Exception)]
    joint = [request for request in puts(cluster) if len(request.rows) > 1]
    assert joint, "those of one time travel together"
    assert not [request for request in joint if min(ids(request)) < 100 <= max(ids(request)) - 50]


# Limits and ends


def test_what_is_held_counts_as_under_way() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        return await together(db, named(10))

    cluster = users(1)
    results = play(cluster, work, max_in_flight=4, max_waiting=2)
    assert sum(isinstance(each, Overloaded) for each in results) == 5, results
    assert sum(len(request.rows) for request in puts(cluster)) == 5


def test_what_has_waited_travels_together_too_within_the_limit_and_in_order() -> None:
    most = 0

    async def work(db: Database, stage: Stage) -> Any:
        table, dispatcher = db.table("shop.users"), db._session.dispatcher

        def watch(request: Request) -> None:
            nonlocal most
            most = max(most, dispatcher.in_flight)
            body = cluster._rows_answer(1, protocol.decode_put(request.body))
            request.reply(body)

        cluster.script(protocol.PUT, *[watch] * 1_000)
        await asyncio.gather(*(table.put(row) for row in named(400)), *(table.delete(id=each) for each in range(400)))
        return [each async for each in table.scan()]

    cluster = users(1)
    assert play(cluster, work, max_in_flight=32) == []
    assert most <= 32
    assert len(puts(cluster)) < 100


def test_puts_of_a_row_keep_their_order_whatever_else_differs() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.users")
        other = asyncio.ensure_future(table.get(id=0))
        await asyncio.sleep(0)
        row = {"id": 1, "name": "first"}
        await asyncio.gather(
            table.put({"id": 5, "name": "x"}), table.put(row, ttl=60), table.put({**row, "name": "last"})
        )
        await other
        return await table.get(id=1)

    assert play(users(1), work) == {"id": 1, "name": "last"}


@pytest.mark.parametrize(("type_", "values"), [("decimal", [Decimal("1.0"), Decimal("1.00")]), ("double", [0.0, -0.0])])
def test_keys_that_are_equal_in_several_forms_are_put_alone(type_: str, values: list[Any]) -> None:
    async def work(db: Database, stage: Stage) -> None:
        table = db.table("shop.prices")
        other = asyncio.ensure_future(table.get(id=0, at=values[0]))
        await asyncio.sleep(0)
        await asyncio.gather(*(table.put({"id": 1, "at": value, "a": 1}) for value in values))
        await other

    cluster = fake(1)
    cluster.create("shop.prices", f"id bigint, at {type_}, a int", "id", "at")
    assert play(cluster, work) is None
    assert [len(request.rows) for request in puts(cluster)] == [1, 1]


def test_a_client_that_closes_ends_what_it_holds() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        table = db.table("shop.users")
        other = table.get(id=0)
        made = [table.put(row) for row in named(5)]
        db._session.dispatcher.close()
        results = await asyncio.gather(*made, return_exceptions=True)
        await asyncio.gather(other, return_exceptions=True)
        return results

    cluster = users(1)
    results = play(cluster, work)
    assert [type(each) for each in results] == [Error] * 5 and "closed" in str(results[0])
    assert not puts(cluster)


def test_whoever_stops_waiting_does_not_keep_the_others_from_their_answers() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        table = db.table("shop.users")
        other = asyncio.ensure_future(table.get(id=0))
        await asyncio.sleep(0)
        made = [table.put(row) for row in named(5)]
        made[2].cancel()
        results = await asyncio.gather(*made, return_exceptions=True)
        await other
        return results

    results = play(users(1), work)
    assert [isinstance(each, int) for each in results] == [True, True, False, True, True]
