"""put_many and get_many: few messages, each to a member that holds what is in it, and the last of equal keys wins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails
from tests.unit.client.playing import Stage, fake, play

from trimtab.catalog import commands
from trimtab.client.database import Database
from trimtab.client.errors import InvalidRequest, NotFound, TooLarge, WriteFailed
from trimtab.client.many import MAX_BATCHES, MAX_BYTES, MAX_KEYS, MAX_ROWS
from trimtab.net.server import Request
from trimtab.rows import protocol
from trimtab.rows.hashing import token_of_bytes
from trimtab.tablets.ring import tablet_of


def users(members: int = 3, **options: Any) -> FakeCluster:
    cluster = fake(members, **options)
    cluster.create("shop.users", "id bigint, name text", "id", tablets=16)
    return cluster


def test_many_rows_go_in_few_messages_to_members_that_hold_them() -> None:
    async def work(db: Database, stage: Stage) -> int:
        table = db.table("shop.users")
        for each in range(60):
            await table.get(id=each)  # connects to all
        written = await table.put_many({"id": each, "name": f"n{each}"} for each in range(1_000))
        found = await table.get_many({"id": each} for each in reversed(range(1_000)))
        assert [row and row["name"] for row in found] == [f"n{each}" for each in reversed(range(1_000))]
        return written

    cluster = users(6, replicas=2)
    assert play(cluster, work) == 1_000
    puts = [(number, request) for number, method, request in cluster.asked if method == protocol.PUT]
    assert len(puts) < 20
    for number, request in puts:
        assert len(request.rows) <= MAX_ROWS
        for row in request.rows:
            assert number in cluster.holders(tablet_of(token_of_bytes(row[0]), 16))
    gets = [(number, request) for number, method, request in cluster.asked if method == protocol.GET]
    several = [(number, request) for number, request in gets if len(request.keys) > 1]
    assert len(several) < 40
    for number, request in several:
        assert len(request.keys) <= MAX_KEYS
        for key in request.keys:
            assert number in cluster.holders(tablet_of(token_of_bytes(key[0]), 16))


def test_where_everybody_holds_everything_keys_go_in_as_few_messages_as_there_can_be() -> None:
    async def work(db: Database, _: Stage) -> Any:
        table = db.table("shop.users")
        for each in range(30):
            await table.get(id=each)  # connects to all
        await table.put_many({"id": each, "name": f"n{each}"} for each in range(0, 600, 2))
        found = await table.get_many([{"id": each} for each in range(600)])
        assert [row and row["name"] for row in found] == [None if each % 2 else f"n{each}" for each in range(600)]
        for each in range(30):
            await table.get_many([{"id": each}, {"id": each + 1}])

    cluster = users(3, replicas=3)
    assert play(cluster, work) is None
    asked = [(number, request) for number, method, request in cluster.asked if method == protocol.GET]
    assert sorted(len(request.keys) for _, request in asked if len(request.keys) > 2) == [100, MAX_KEYS, MAX_KEYS]
    assert len({number for number, request in asked if len(request.keys) == 2}) == 3


def test_the_last_of_rows_with_one_key_wins() -> None:
    async def work(db: Database, _: Stage) -> Any:
        table = db.table("shop.users")
        rows = [{"id": each % 3, "name": f"n{each}"} for each in range(12)]
        assert await table.put_many(rows) == 12
        return [row and row["name"] for row in await table.get_many([{"id": 0}, {"id": 1}, {"id": 2}])]

    cluster = users()
    assert play(cluster, work) == ["n9", "n10", "n11"]
    assert not any(len({row[0] for row in each.rows}) < len(each.rows) for each in cluster.of(protocol.PUT))


def test_rows_with_different_columns_and_rows_that_come_asynchronously() -> None:
    async def rows() -> AsyncIterator[dict[str, Any]]:
        for each in range(20):
            yield {"id": each, "name": "x"} if each % 2 else {"id": each}

    async def work(db: Database, _: Stage) -> Any:
        assert await db.table("shop.users").put_many(rows(), ttl=9) == 20
        assert await db.table("shop.users").put_many([]) == 0
        assert await db.table("shop.users").get_many([]) == []
        return await db.table("shop.users").get_many([{"id": 1}, {"id": 99}, {"id": 2}], columns=["name"])

    cluster = users()
    assert play(cluster, work) == [{"name": "x"}, None, {"name": None}]
    assert {each.ttl_s for each in cluster.of(protocol.PUT)} == {9}


def test_a_wrong_row_ends_it_and_says_how_many_were_written() -> None:
    async def work(db: Database, _: Stage) -> Any:
        rows = [{"id": each, "name": "x"} for each in range(MAX_ROWS * 3)] + [{"id": "x", "name": "y"}]
        await db.table("shop.users").put_many(rows)

    error = play(users(1), work)
    assert isinstance(error, InvalidRequest) and "shop.users.id is of type bigint" in str(error)
    assert error.rows_written in (0, MAX_ROWS, MAX_ROWS * 2, MAX_ROWS * 3)


def test_a_refused_message_ends_it_with_its_numbers() -> None:
    async def work(db: Database, _: Stage) -> Any:
        await db.table("shop.users").put_many({"id": each, "name": "x"} for each in range(MAX_ROWS * 2))

    cluster = users(1)
    cluster.script(
        protocol.PUT, lambda request: cluster.handlers(1)[protocol.PUT](request), fails("write_failed", "no")
    )
    error = play(cluster, work)
    assert isinstance(error, WriteFailed) and error.rows_written == MAX_ROWS
    assert str(error).startswith(f"after {MAX_ROWS} rows were written: no")


def test_no_more_than_so_many_messages_are_under_way() -> None:
    most = 0

    async def work(db: Database, stage: Stage) -> None:
        async def rows() -> AsyncIterator[dict[str, Any]]:
            nonlocal most
            for each in range(MAX_ROWS * 40):
                most = max(most, db._session.dispatcher.in_flight)
                yield {"id": each, "name": "x"}

        await db.table("shop.users").put_many(rows())

    assert play(users(), work) is None
    assert 1 < most <= MAX_BATCHES


def test_the_schema_may_change_between_rows() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        async def rows() -> AsyncIterator[dict[str, Any]]:
            yield {"id": 1, "name": "x"}
            stage.cluster.change(commands.AlterTable("shop", "users", add=[commands.ColumnSpec("age", "int")]))
            yield {"id": 2, "name": "x"}
            await db.refresh()
            yield {"id": 3, "name": "x", "age": 4}

        await db.table("shop.users").put_many(rows())
        return await db.table("shop.users").get_many([{"id": 1}, {"id": 3}])

    assert play(users(), work) == [{"id": 1, "name": "x", "age": None}, {"id": 3, "name": "x", "age": 4}]


def test_wrong_keys_and_tables_are_named() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        with pytest.raises(InvalidRequest, match="keys are given as mappings"):
            await table.get_many([1, 2])  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match=r"keys are given as mappings of their columns.* not None"):
            await table.get_many(None)  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match="columns are given as a list of names"):
            await table.get_many([{"id": 1}], columns=5)  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match=r"rows are given as mappings of their columns.* not None"):
            await table.put_many(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"a row is given as a mapping of its columns.* not None"):
            await table.put_many([None])  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match="id is missing"):
            await table.get_many([{"id": 1}, {}])
        with pytest.raises(NotFound):
            await db.table("shop.nothing").get_many([{"id": 1}])
        with pytest.raises(NotFound):
            await db.table("shop.nothing").put_many([{"id": 1}])

    assert play(users(), work) is None


def test_rows_too_large_for_one_answer_come_in_several() -> None:
    async def work(db: Database, _: Stage) -> Any:
        table = db.table("shop.users")
        rows = [{"id": each, "name": str(each) * 30_000} for each in range(100, 140)]
        assert await table.put_many(rows) == 40
        found = await table.get_many([{"id": row["id"]} for row in rows])
        assert found == rows
        with pytest.raises(TooLarge):
            await table.get_many([{"id": 1}, {"id": 2}])

    cluster = users()

    def small(request: Request) -> None:
        """As a member whose messages hold 256 KiB."""
        asked = protocol.decode_get(request.body)
        answer = cluster._rows_answer(1, asked)
        if len(answer) > 256 << 10 or 1 in [int.from_bytes(key[0]) for key in asked.keys]:
            request.fail("too_large", "send less at a time")
        else:
            request.reply(answer)

    cluster.script(protocol.GET, *[small] * 1_000)
    assert play(cluster, work) is None
    assert all(
        sum(len(cell or b"") for row in put.rows for cell in row) <= MAX_BYTES for put in cluster.of(protocol.PUT)
    )
