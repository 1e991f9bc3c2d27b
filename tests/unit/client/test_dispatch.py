"""Whom requests go to, what is tried again, and what is raised when it is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails, ignores
from tests.unit.client.playing import Stage, address, fake, play

from trimtab.catalog import commands
from trimtab.client.database import Database
from trimtab.client.errors import (
    Error,
    InvalidRequest,
    NotFound,
    Overloaded,
    ReadFailed,
    Timeout,
    TooLarge,
    Unavailable,
    VersionMismatch,
    WriteFailed,
)
from trimtab.net.server import Request
from trimtab.rows import protocol
from trimtab.tablets.ring import tablet_of


def users(members: int = 3, **options: Any) -> FakeCluster:
    cluster = fake(members, **options)
    cluster.create("shop.users", "id bigint, name text", "id", tablets=16)
    return cluster


def asked_once(cluster: FakeCluster) -> FakeCluster:
    """Nobody is asked besides whoever has a read already."""
    cluster.change(commands.AlterTable("shop", "users", options={"speculative_retry": "none"}))
    return cluster


async def put(db: Database, _: Stage) -> Any:
    return await db.table("shop.users").put({"id": 1, "name": "a"})


async def put_with_timestamp(db: Database, _: Stage) -> Any:
    return await db.table("shop.users").put({"id": 1, "name": "a"}, timestamp=5)


async def get(db: Database, _: Stage) -> Any:
    return await db.table("shop.users").get(id=1)


async def warm(db: Database) -> None:
    """Connected to every member."""
    table = db.table("shop.users")
    for _ in range(3):
        await asyncio.gather(*(table.get(id=each) for each in range(60)))
        await asyncio.sleep(0.2)


# Whom


def test_requests_go_straight_to_a_replica_and_to_all_of_them_in_turn() -> None:
    async def work(db: Database, stage: Stage) -> None:
        await warm(db)
        stage.cluster.asked.clear()
        table = db.table("shop.users")
        for each in range(90):
            await table.get(id=each)

    cluster = users(6, replicas=2)
    assert play(cluster, work) is None
    asked: dict[int, int] = {}
    for number, method, request in cluster.asked:
        if method == protocol.GET:
            key = request.keys[0]
            token = _token(key[0])
            assert number in cluster.holders(tablet_of(token, 16))
            asked[number] = asked.get(number, 0) + 1
    assert set(asked) == set(range(1, 7)) and max(asked.values()) < 40


def test_replicas_of_the_own_data_centre_are_asked_first() -> None:
    async def work(db: Database, stage: Stage) -> None:
        await warm(db)
        stage.cluster.asked.clear()
        for each in range(30):
            await db.table("shop.users").get(id=each)

    cluster = users(4, replicas=4, dcs={3: "dc2", 4: "dc2"})
    assert play(cluster, work, datacenter="dc2") is None
    assert {number for number, method, _ in cluster.asked if method == protocol.GET} == {3, 4}


def test_a_data_centre_that_is_not_there_is_refused_with_those_that_are() -> None:
    error = play(users(), get, datacenter="mars")
    assert isinstance(error, InvalidRequest) and "there are dc1" in str(error)


def test_one_connection_to_each_member_carries_everything() -> None:
    async def work(db: Database, _: Stage) -> list[int]:
        await warm(db)
        table = db.table("shop.users")
        await asyncio.gather(*(table.put({"id": each, "name": "x"}) for each in range(500)))
        channels = db._session.contacts._channels
        return [channel.counters.connects for channel in channels.values()]

    assert play(users(), work) == [1, 1, 1]


def test_members_are_reached_through_the_contact_even_under_another_name() -> None:
    cluster = users(1)
    cluster.addresses = {1: "unknown.host:3301"}

    def answer_as_member(stage: Stage) -> None:
        cluster.addresses = {1: "10.9.9.9:3301"}

    async def work(db: Database, stage: Stage) -> Any:
        answer_as_member(stage)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        return await db.table("shop.users").get(id=1)

    assert play(cluster, work) == {"id": 1, "name": "a"}


# What is tried again


@pytest.mark.parametrize("code", ["unavailable", "overloaded", "not_ready", "no_lease", "starting", "skew"])
@pytest.mark.parametrize("work", [put, get])
def test_what_was_certainly_not_done_is_tried_again_elsewhere(work: Any, code: str) -> None:
    cluster = users()
    method = protocol.PUT if work is put else protocol.GET
    cluster.script(method, fails(code), members=(1,))
    result = play(cluster, work)
    assert not isinstance(result, Error), result


@pytest.mark.parametrize("failure", [fails("read_timeout"), fails("stopped"), ignores, fails("internal")])
def test_a_read_is_tried_again_whatever_happened_to_it(failure: Any) -> None:
    cluster = users()
    cluster.script(protocol.GET, failure, members=(1, 2))
    assert play(cluster, get) is None


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (fails("write_timeout", "1 of 2", required=2, received=1, consistency="QUORUM"), Timeout),
        (fails("write_failed", "2 refused", required=2, received=1, failures=2), WriteFailed),
        (fails("disk_full", "the disk is full"), WriteFailed),
        (fails("stopped", "stopping"), Timeout),
        (fails("internal", "KeyError"), Error),
        (ignores, Timeout),
    ],
)
def test_a_write_that_may_have_been_done_is_not_done_again(failure: Any, kind: type[Error]) -> None:
    cluster = users()
    cluster.script(protocol.PUT, failure)
    error = play(cluster, put)
    assert type(error) is kind
    assert len(cluster.of(protocol.PUT)) == 1


def test_errors_carry_their_numbers_and_say_what_to_do() -> None:
    cluster = users()
    cluster.script(protocol.PUT, fails("write_timeout", "1 of the 2", required=2, received=1, consistency="QUORUM"))
    timeout = play(cluster, put)
    assert (timeout.required, timeout.received, timeout.consistency, timeout.alive) == (2, 1, "QUORUM", None)
    cluster = users()
    cluster.script(protocol.PUT, *[fails("unavailable", "QUORUM needs 2", required=2, alive=1)] * 9)
    short = play(cluster, put)
    assert isinstance(short, Unavailable) and (short.required, short.alive) == (2, 1)
    assert len(cluster.of(protocol.PUT)) == 3
    cluster = users()
    cluster.script(protocol.GET, *[fails("read_failed", "2 refused", failures=2, reasons={"1": "corrupt"})] * 9)
    damaged = play(cluster, get)
    assert isinstance(damaged, ReadFailed) and damaged.failures == 2 and damaged.reasons == {"1": "corrupt"}
    cluster = users()
    cluster.script(protocol.PUT, ignores)
    lost = play(cluster, put)
    assert "may or may not have been carried out" in str(lost) and "writing the same again does no harm" in str(lost)


@pytest.mark.parametrize("failure", [fails("write_timeout"), fails("stopped"), ignores])
def test_a_write_with_a_timestamp_is_the_same_write_when_it_is_done_again(failure: Any) -> None:
    cluster = users()
    cluster.script(protocol.PUT, failure, members=(1,))
    assert play(cluster, put_with_timestamp) == 5
    assert {each.timestamp_us for each in cluster.of(protocol.PUT)} == {5}


def test_a_write_with_a_timestamp_that_fails_after_a_doubtful_attempt_says_so() -> None:
    cluster = users(2)
    cluster.script(protocol.PUT, ignores, members=(1,))
    cluster.script(protocol.PUT, fails("invalid", "no such thing"))
    error = play(cluster, put_with_timestamp)
    assert isinstance(error, Timeout) and "an earlier attempt may have been carried out" in str(error)


def test_a_wrong_request_is_raised_at_once() -> None:
    for code, kind in (("invalid", InvalidRequest), ("too_large", TooLarge)):
        cluster = users()
        cluster.script(protocol.GET, fails(code, "it makes no sense"))
        error = play(cluster, get)
        assert type(error) is kind and len(cluster.of(protocol.GET)) == 1


def test_a_member_that_dies_is_replaced_by_another_for_reads() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        await db.table("shop.users").put({"id": 1, "name": "a"})
        stage.kill(2)
        return await asyncio.gather(*(db.table("shop.users").get(id=1) for _ in range(30)))

    found = play(users(), work)
    assert [row["name"] for row in found] == ["a"] * 30


def test_a_member_that_stands_still_delays_a_read_by_an_attempt_only() -> None:
    async def work(db: Database, stage: Stage) -> float:
        await warm(db)
        stage.processes[2].pause()
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(db.table("shop.users").get(id=each) for each in range(30)))
        return asyncio.get_running_loop().time() - began

    assert play(users(), work) < 3


def slowly(cluster: FakeCluster, seconds: float, times: int = 20) -> None:
    """Every member takes so long for a read, whoever is asked."""

    def answer(request: Request) -> None:
        body = cluster._rows_answer(1, protocol.decode_get(request.body))
        asyncio.get_running_loop().call_later(seconds, request.reply, body)

    cluster.script(protocol.GET, *[answer] * times)


@pytest.mark.parametrize("shape", [{"members": 1}, {"members": 3, "replicas": 1}])
def test_who_alone_can_answer_gets_all_the_time_for_it(shape: dict[str, int]) -> None:
    """It was asked anew every two seconds: what took longer never came to an end, and buried the member."""

    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await put(db, stage)
        stage.cluster.asked.clear()
        slowly(stage.cluster, 7)
        return await get(db, stage)

    cluster = users(**shape)
    assert play(cluster, work) == {"id": 1, "name": "a"}
    assert len(cluster.of(protocol.GET)) == 1


def test_where_all_are_slow_each_gets_twice_the_time_of_the_one_before() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        await put(db, stage)
        stage.cluster.asked.clear()
        slowly(stage.cluster, 7)
        return await db.table("shop.users", timeout=30).get(id=1)

    cluster = asked_once(users())
    assert play(cluster, work) == {"id": 1, "name": "a"}
    asked = [number for number, method, _ in cluster.asked if method == protocol.GET]
    assert len(asked) == 3 and len(set(asked[:2])) == 2


def test_refusals_do_not_make_the_next_attempt_longer() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        stage.cluster.asked.clear()
        stage.cluster.script(protocol.GET, fails("not_ready"), fails("not_ready"), ignores)
        return await get(db, stage)

    cluster = asked_once(users())
    assert isinstance(play(cluster, work), Timeout)
    assert len(cluster.of(protocol.GET)) == 3 * 2 + 3  # 2 s, 4 s, and what was left


def test_without_any_member_it_says_so_and_nothing_was_done() -> None:
    async def work(db: Database, stage: Stage) -> list[Any]:
        await warm(db)
        for number in (1, 2, 3):
            stage.kill(number)
        await asyncio.sleep(0.5)
        table = db.table("shop.users", timeout=2)
        return await asyncio.gather(table.put({"id": 1}), table.get(id=1), return_exceptions=True)

    for error in play(users(), work):
        assert isinstance(error, Unavailable) and "nothing was done" in str(error)
    nobody = play(fake(0), get)
    assert isinstance(nobody, Unavailable) and address(1) in str(nobody)


def test_a_member_that_comes_back_is_used_again() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        await warm(db)
        stage.kill(1)
        await asyncio.sleep(0.5)
        stage.world.later(asyncio.get_running_loop(), 1.0, stage.start, 1)  # type: ignore[arg-type]
        return await db.table("shop.users", timeout=20).get(id=1)

    cluster = users(1)
    assert play(cluster, work) is None


# The schema


def test_a_change_of_the_table_makes_the_request_anew() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.users")
        await table.put({"id": 1, "name": "a"})
        added = [commands.ColumnSpec("age", "int")]
        stage.cluster.change(commands.AlterTable("shop", "users", add=added))
        assert await table.get(id=1) == {"id": 1, "name": "a", "age": None}
        await table.put({"id": 1, "age": 3})
        stage.cluster.change(commands.AlterTable("shop", "users", drop=["name"]))
        with pytest.raises(NotFound, match="no column 'name'"):
            await table.put({"id": 1, "name": "b"})
        return await table.get(id=1)

    assert play(users(), work) == {"id": 1, "age": 3}


def test_a_member_with_an_older_schema_is_given_time() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        cluster = stage.cluster
        cluster.behind = dict.fromkeys(cluster.addresses, cluster.catalog)
        cluster.change(commands.AlterTable("shop", "users", add=[commands.ColumnSpec("age", "int")]))
        cluster.behind.pop(1)
        await db.refresh()
        stage.world.later(asyncio.get_running_loop(), 1.0, cluster.behind.clear)  # type: ignore[arg-type]
        await db.table("shop.users").put({"id": 1, "age": 3})
        return (await db.table("shop.users").get(id=1, columns=["age"]))["age"]

    assert play(users(), work) == 3


def test_a_table_that_keeps_changing_ends_as_a_version_mismatch() -> None:
    cluster = users()
    cluster.script(protocol.GET, *[fails("version_mismatch", "it is at version 9 now")] * 2_000)
    error = play(cluster, get)
    assert isinstance(error, VersionMismatch) and "version 9" in str(error)


def test_a_dropped_table_is_not_found() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        stage.cluster.change(commands.DropTable("shop", "users"))
        return await db.table("shop.users").get(id=1)

    error = play(users(), work)
    assert isinstance(error, NotFound) and "there is no table shop.users" in str(error)


# Limits


def test_no_more_than_the_limit_is_under_way_and_the_rest_waits_its_turn() -> None:
    most = 0

    async def work(db: Database, _: Stage) -> int:
        nonlocal most
        table = db.table("shop.users")
        replies = [table.get(id=each) for each in range(50)]
        most = db._session.dispatcher.in_flight
        return len(await asyncio.gather(*replies))

    assert play(users(), work, max_in_flight=4) == 50
    assert most == 4


def test_beyond_both_limits_a_request_is_overloaded_at_once() -> None:
    async def work(db: Database, _: Stage) -> list[Any]:
        table = db.table("shop.users")
        replies = [table.get(id=each) for each in range(10)]
        return await asyncio.gather(*replies, return_exceptions=True)

    results = play(users(), work, max_in_flight=2, max_waiting=3)
    refused = [each for each in results if isinstance(each, Overloaded)]
    assert len(refused) == 5 and "2 requests are under way and 3 wait" in str(refused[0])


def test_a_request_that_waits_for_its_whole_time_is_overloaded() -> None:
    async def work(db: Database, _: Stage) -> list[Any]:
        slow = db.table("shop.users", timeout=5)
        quick = db.table("shop.users", timeout=1)
        replies = [slow.put({"id": 1}), slow.put({"id": 1}), quick.put({"id": 1})]
        return await asyncio.gather(*replies, return_exceptions=True)

    cluster = users()
    cluster.script(protocol.PUT, ignores, ignores)
    *_, last = play(cluster, work, max_in_flight=2)
    assert isinstance(last, Overloaded) and "not sent within 1 s" in str(last)


def test_a_request_larger_than_a_frame_is_refused_and_named() -> None:
    async def work(db: Database, _: Stage) -> Any:
        return await db.table("shop.users").put({"id": 1, "name": "x" * (5 << 20)})

    error = play(users(), work)
    assert isinstance(error, InvalidRequest) and "send less at a time" in str(error)


def test_closing_ends_what_is_under_way_and_what_waits() -> None:
    async def work(db: Database, _: Stage) -> list[Any]:
        table = db.table("shop.users")
        replies = [table.put({"id": 1}) for _ in range(4)]
        await asyncio.sleep(0.1)
        await db.close()
        ended = await asyncio.gather(*replies, return_exceptions=True)
        with pytest.raises(Error, match="closed"):
            await table.get(id=1)
        return ended

    cluster = users()
    cluster.script(protocol.PUT, ignores, ignores)
    ended = play(cluster, work, max_in_flight=2)
    assert all(isinstance(each, Error) for each in ended), ended


def test_an_answer_that_can_not_be_read_is_an_error_and_not_a_hang() -> None:
    def nonsense(request: Request) -> None:
        request.reply(b"\xc1")

    cluster = users()
    cluster.script(protocol.GET, nonsense)
    error = play(cluster, get)
    assert isinstance(error, Error) and "can't be read" in str(error)


def _token(cell: bytes) -> int:
    from trimtab.rows.hashing import token_of_bytes

    return token_of_bytes(cell)
