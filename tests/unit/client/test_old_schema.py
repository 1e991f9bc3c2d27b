"""What another client changed while this one was idle fits at first use, and what is simply wrong keeps nobody busy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.playing import Stage, fake, play
from tests.unit.client.served import contact, served

import trimtab
from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec
from trimtab.client.database import Database
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.client.session import LOOK_S, LOOKS
from trimtab.client.table import Table
from trimtab.net.server import Request
from trimtab.rows import protocol

IDLE_S = 16.0  # by then nothing is refreshed any more
NEW = {"id": 1, "n": 5}


def users() -> FakeCluster:
    cluster = fake()
    cluster.create("shop.users", "id bigint, name text", "id")
    cluster.create("shop.visits", "page text, at bigint, who text", "page", "at")
    return cluster


def add_n(cluster: FakeCluster) -> None:
    for table in ("users", "visits"):
        cluster.change(commands.AlterTable("shop", table, add=[ColumnSpec("n", "int")]))


def make_anew(cluster: FakeCluster) -> None:
    cluster.change(commands.DropTable("shop", "users"))
    cluster.create("shop.users", "id text, n int", "id")


def used_again(change: Callable[[FakeCluster], None], use: Callable[[Table, Database], Awaitable[Any]]) -> Any:
    """What a client that was idle meanwhile makes of a change of the schema."""

    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.users")
        await table.put({"id": 1, "name": "a"})
        await asyncio.sleep(IDLE_S)
        change(stage.cluster)
        return await use(table, db)

    return play(users(), work)


async def _put(table: Table, _: Database) -> Any:
    await table.put(NEW)
    return await table.get(id=1, columns=["n"])


async def _update(table: Table, _: Database) -> Any:
    await table.update(NEW)
    return await table.get(id=1, columns=["n"])


async def _put_many(table: Table, _: Database) -> Any:
    assert await table.put_many([{"id": 2, "name": "b"}, NEW, {"id": 3, "n": 6}]) == 3
    return await table.get(id=1, columns=["n"])


async def _get_many(table: Table, _: Database) -> Any:
    return [row["n"] for row in await table.get_many([{"id": 1}], columns=["n"])]


async def _get(table: Table, _: Database) -> Any:
    return await table.get(id=1, columns=["n"])


async def _scan(table: Table, _: Database) -> Any:
    return [row async for row in table.scan(columns=["n"])]


async def _slice(_: Table, db: Database) -> Any:
    await db.table("shop.visits").put({"page": "p", "at": 1, "n": 5})
    return [row async for row in db.table("shop.visits").slice(page="p", columns=["n"])]


async def _delete(table: Table, _: Database) -> Any:
    await table.delete(id=1, columns=["n"])
    return await table.get(id=1)


async def _batch(table: Table, db: Database) -> Any:
    async with db.batch() as batch:
        batch.put(table, NEW)
        batch.delete(table, id=7, columns=["n"])
    return await table.get(id=1, columns=["n"])


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (_put, {"n": 5}),
        (_update, {"n": 5}),
        (_put_many, {"n": 5}),
        (_batch, {"n": 5}),
        (_get, {"n": None}),
        (_get_many, [None]),
        (_scan, [{"n": None}]),
        (_slice, [{"n": 5}]),
        (_delete, {"id": 1, "name": "a", "n": None}),
    ],
)
def test_a_column_that_somebody_else_added_is_found_at_first_use(use: Any, found: Any) -> None:
    assert used_again(add_n, use) == found


def test_a_field_of_a_user_type_that_somebody_else_added_is_found_at_first_use() -> None:
    def change(cluster: FakeCluster) -> None:
        cluster.change(commands.AlterType("shop", "address", add=[("zip", "text")]))

    async def work(db: Database, stage: Stage) -> Any:
        await db.create_type("shop.address", {"street": "text"})
        await db.create_table("shop.homes", {"id": "int", "at": "shop.address"}, primary_key="id", tablets=8)
        homes = db.table("shop.homes")
        await homes.put({"id": 1, "at": {"street": "s"}})
        await asyncio.sleep(IDLE_S)
        change(stage.cluster)
        await homes.put({"id": 1, "at": {"street": "s", "zip": "z"}})
        return await homes.get(id=1)

    assert play(users(), work) == {"id": 1, "at": {"street": "s", "zip": "z"}}


@pytest.mark.parametrize("use", [_put, _put_many, _batch])
def test_a_table_made_anew_with_other_types_is_found_at_first_use(use: Any) -> None:
    async def of_text(table: Table, db: Database) -> Any:
        if use is _put:
            await table.put({"id": "one", "n": 5})
        elif use is _put_many:
            await table.put_many([{"id": "one", "n": 5}])
        else:
            async with db.batch() as batch:
                batch.put(table, {"id": "one", "n": 5})
        return await table.get_many([{"id": "one"}])

    assert used_again(make_anew, of_text) == [{"id": "one", "n": 5}]


def tell_slowly(cluster: FakeCluster) -> None:
    """The schema, next time: as it is when it is asked for, but a while later."""

    def handle(request: Request) -> None:
        asyncio.get_running_loop().call_later(0.2, request.reply, cluster._schema(1, request.body))

    cluster.script(protocol.SCHEMA, handle)


async def _typo(table: Table) -> None:
    with pytest.raises(NotFound, match="no column 'colour'"):
        await table.put({"id": 1, "colour": "red"})


def test_a_column_is_found_though_somebody_was_looking_already_when_it_was_added() -> None:
    """What is told to who asked before the change is the schema before the change."""

    async def work(db: Database, stage: Stage) -> int:
        table = db.table("shop.users")
        tell_slowly(stage.cluster)
        stage.cluster.asked.clear()
        looking = asyncio.ensure_future(_typo(table))
        await asyncio.sleep(0.1)
        add_n(stage.cluster)
        await asyncio.gather(*(table.put({"id": each, "n": 5}) for each in range(50)), looking)
        return len(stage.cluster.of(protocol.SCHEMA))

    assert play(users(), work) == 2, "all who waited share a second look"


def test_a_typo_does_not_hide_a_new_column_from_others() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.users")
        await _typo(table)
        await _typo(table)
        add_n(stage.cluster)
        await table.put(NEW)
        return await table.get(id=1, columns=["n"])

    assert play(users(), work) == {"n": 5}


def test_what_is_simply_wrong_looks_at_the_schema_a_few_times_a_second_only() -> None:
    async def work(db: Database, stage: Stage) -> float:
        table, loop = db.table("shop.users"), asyncio.get_running_loop()
        stage.cluster.asked.clear()
        began = loop.time()
        for each in range(200):
            with pytest.raises(NotFound, match="no column 'colour'"):
                await table.put({"id": each, "colour": "red"})
            await asyncio.sleep(0.01)
        with pytest.raises(NotFound):
            await table.put_many([{"id": 1, "colour": "red"}])
        with pytest.raises(NotFound):
            await table.get_many([{"id": 1}], columns=["colour"])
        bad = [table.put({"id": "x"}) for _ in range(100)]
        assert {type(each) for each in await asyncio.gather(*bad, return_exceptions=True)} == {InvalidRequest}
        looks = len(stage.cluster.of(protocol.SCHEMA))
        most = LOOKS + (loop.time() - began) / LOOK_S
        await asyncio.sleep(LOOK_S)
        add_n(stage.cluster)
        await table.put(NEW)
        return looks / most

    assert 0.5 < play(users(), work) <= 1


def test_what_is_wrong_is_told_though_nobody_can_be_asked_about_it() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.users", timeout=5)
        await table.get(id=1)
        for number in (1, 2, 3):
            stage.kill(number)
        await table.put({"id": 1, "colour": "red"})

    error = play(users(), work)
    assert isinstance(error, NotFound) and "no column 'colour'" in str(error)


def test_who_only_asks_wrongly_is_not_idle() -> None:
    """Its copy of the schema is kept fresh meanwhile."""

    async def work(db: Database, stage: Stage) -> bool:
        await asyncio.sleep(IDLE_S)
        with pytest.raises(NotFound):
            await db.table("shop.users").put_many([NEW])
        add_n(stage.cluster)
        await asyncio.sleep(IDLE_S)
        return "n" in db.plan("shop.users").columns

    assert play(users(), work) is True


def test_a_blocking_client_finds_what_is_new_too_and_tells_what_is_wrong_at_once(
    free_ports: Callable[[int], list[int]],
) -> None:
    with served(free_ports(1)) as cluster:
        cluster.create("shop.users", "id bigint, name text", "id")
        for use in (
            lambda db, table: table.put(NEW),
            lambda db, table: table.put_many([NEW]),
            lambda db, table: table.get_many([{"id": 1}], columns=["n"]),
            lambda db, table: table.scan(columns=["n"]),
            lambda db, table: table.slice(id=1, columns=["n"]),
            lambda db, table: table.delete(id=1, columns=["n"]),
            lambda db, table: db.batch().put(table, NEW),
        ):
            with trimtab.connect(contact(cluster)) as db:
                table = db.table("shop.users")
                cluster.change(commands.AlterTable("shop", "users", add=[ColumnSpec("n", "int")]))
                use(db, table)
                cluster.change(commands.AlterTable("shop", "users", drop=["n"]))
                db.refresh()
                with pytest.raises(trimtab.NotFound, match="no column 'n'"):
                    use(db, table)
