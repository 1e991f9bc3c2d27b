"""Rows through the asyncio client: what goes in comes out, and wrong input is named before anything is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.playing import Stage, fake, play

from trimtab.client.asks import Reply
from trimtab.client.database import Database
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.client.operations import RowWithMeta
from trimtab.rows import protocol
from trimtab.tablets.consistency import Level


def users() -> FakeCluster:
    cluster = fake()
    cluster.create("shop.users", "id bigint, name text, score double", "id")
    return cluster


def visits() -> FakeCluster:
    cluster = fake()
    cluster.create("shop.visits", "page text, at bigint, who text, title text static", "page", "at")
    return cluster


def test_a_row_is_put_read_updated_and_deleted() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        await table.put({"id": 1, "name": "Ada", "score": 0.5})
        assert await table.get(id=1) == {"id": 1, "name": "Ada", "score": 0.5}
        await table.update({"id": 1, "score": None})
        assert await table.get({"id": 1}, columns=["score", "name"]) == {"score": None, "name": "Ada"}
        await table.delete(id=1, columns=["name"])
        assert await table.get(id=1) == {"id": 1, "name": None, "score": None}
        await table.delete(id=1)
        assert await table.get(id=1) is None

    cluster = users()
    assert play(cluster, work) is None
    put, update = cluster.of(protocol.PUT)
    assert (put.update, update.update) == (False, True)


def test_what_is_known_about_cells_comes_with_them_where_asked_for() -> None:
    async def work(db: Database, _: Stage) -> RowWithMeta:
        table = db.table("shop.users")
        stamp = await table.put({"id": 1, "name": "Ada"}, ttl=60)
        found = await table.get(id=1, with_meta=True)
        assert found is not None and found.writetime == {"name": stamp}
        return found

    assert play(users(), work) == RowWithMeta(
        {"id": 1, "name": "Ada", "score": None}, {"name": 1_000_001}, {"name": 60}, False
    )


def test_replies_are_gathered_without_tasks_and_can_be_tasks_too() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        await asyncio.gather(*(table.get(id=each) for each in range(50)))  # connects to all members
        await asyncio.sleep(1)
        before = len(asyncio.all_tasks())
        replies = [table.put({"id": each, "name": str(each)}) for each in range(50)]
        assert len(asyncio.all_tasks()) == before
        await asyncio.gather(*replies)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(table.get(id=7))
        row = task.result()
        assert row is not None and row["name"] == "7"
        assert isinstance(table.get(id=8), Reply)
        assert await asyncio.wait_for(table.get(id=9), 1) is not None

    assert play(users(), work) is None


def test_a_cancelled_reply_leaves_room_for_others() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        for _ in range(5):
            table.get(id=1).cancel()
        assert await table.get(id=1) is None
        assert db._session.dispatcher.in_flight == 0

    assert play(users(), work, max_in_flight=2) is None


def test_writes_are_stamped_later_than_all_before_whoever_coordinates() -> None:
    async def work(db: Database, _: Stage) -> list[int]:
        table = db.table("shop.users")
        return [await table.put({"id": each % 3, "name": "x"}) for each in range(9)]

    cluster = users()
    stamps = play(cluster, work)
    assert stamps == sorted(set(stamps))
    assert [each.after_us for each in cluster.of(protocol.PUT)] == [0, *stamps[:-1]]


def test_levels_timestamps_and_ttls_travel() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users", consistency="LOCAL_QUORUM")
        await table.put({"id": 1, "name": "a"}, ttl=5, timestamp=77, consistency="ALL")
        await table.get(id=1, as_of=99)
        await table.delete(id=1, timestamp=78)

    cluster = users()
    assert play(cluster, work) is None
    (put,), (get,), (delete,) = (cluster.of(each) for each in (protocol.PUT, protocol.GET, protocol.DELETE))
    assert (put.level, put.ttl_s, put.timestamp_us) == (Level.ALL, 5, 77)
    assert (get.level, get.as_of_us) == (Level.LOCAL_QUORUM, 99)
    assert (delete.level, delete.timestamp_us, delete.row) == (Level.LOCAL_QUORUM, 78, [])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.put({"id": "one", "name": "a"}), "shop.users.id is of type bigint: expected a whole number"),
        (lambda t: t.put({"id": 1 << 63}), "shop.users.id is of type bigint"),
        (
            lambda t: t.put({"id": 1, "name": 5}),
            "shop.users.name is of type text: expected a str for text, got 5 (int)",
        ),
        (lambda t: t.put({"id": None, "name": "a"}), "id is None, but it is part of the primary key"),
        (lambda t: t.put({"name": "a"}), "the row has no id"),
        (lambda t: t.put({"id": 1, "nmae": "a"}), "shop.users has no column 'nmae'; did you mean 'name'?"),
        (lambda t: t.put({}), "the row has no id"),
        (lambda t: t.put({"id": 1}, ttl=-1), "ttl is whole seconds"),
        (lambda t: t.put({"id": 1}, ttl=1.5), "ttl is whole seconds"),
        (lambda t: t.put({"id": 1}, timestamp=0), "timestamp is whole microseconds"),
        (lambda t: t.put({"id": 1}, timeout=0), "a timeout is a number of seconds above 0"),
        (lambda t: t.put({"id": 1}, consistency="MOST"), "there is no consistency level 'MOST'"),
        (lambda t: t.get(id=1, consistency="ANY"), "nothing can be read at ANY"),
        (lambda t: t.get(), "id is missing: the primary key is id"),
        (lambda t: t.get(name="Ada"), "name is not part of the primary key, which is id"),
        (lambda t: t.get(1), "a key is given by its columns' names"),
        (lambda t: t.get(id=None), "id is None"),
        (lambda t: t.get(id=1, name="x"), "name is not part of the primary key"),
        (lambda t: t.get(id=1, columns=["nme"]), "has no column 'nme'; did you mean 'name'?"),
        (lambda t: t.get(id=1, columns="name"), "columns are given as a list"),
        (lambda t: t.get(id=1, columns=[]), "at least one"),
        (lambda t: t.get(id=1, as_of=-5), "as_of is whole microseconds"),
        (lambda t: t.delete(id=1, columns=["id"]), "id is part of the primary key; delete the row instead"),
        (lambda t: t.delete(), "a key begins with id; nothing is not such a beginning"),
        (lambda t: t.slice(id=1, limit=0), "limit is a whole number above 0"),
        (lambda t: t.slice(id=1, after=1), "no clustering column is left"),
        (lambda t: t.slice(id=1, after=1, since=2), "after and since say two things"),
        (lambda t: t.scan(after_token="x"), "a token is a whole number"),
        (lambda t: t.scan(page_rows=-1), "page_rows is a whole number above 0"),
    ],
)
def test_wrong_input_is_named_before_anything_is_sent(call: Any, said: str) -> None:
    async def work(db: Database, _: Stage) -> str:
        with pytest.raises(InvalidRequest) as caught:
            call(db.table("shop.users"))
        return str(caught.value)

    cluster = users()
    text = play(cluster, work)
    assert said in text
    assert not [asked for _, asked, _ in cluster.asked if asked != protocol.SCHEMA]


def test_a_table_that_is_not_there_is_not_found_and_the_alternatives_are_named() -> None:
    async def work(db: Database, _: Stage) -> list[str]:
        said = []
        for name in ("shop.user", "shoop.users", "shop.orders"):
            with pytest.raises(NotFound) as caught:
                await db.table(name).get(id=1)
            said.append(str(caught.value))
        with pytest.raises(InvalidRequest, match=r"write KEYSPACE\.TABLE"):
            db.table("users")
        return said

    said = play(users(), work)
    assert "did you mean shop.users?" in said[0]
    assert "there is no keyspace 'shoop'" in said[1] and "keyspaces: shop" in said[1]
    assert "shop has users" in said[2]


def test_a_table_made_by_somebody_else_is_found_at_first_use() -> None:
    async def work(db: Database, stage: Stage) -> Any:
        table = db.table("shop.late")
        stage.cluster.create("shop.late", "id bigint, name text", "id")
        await table.put({"id": 1, "name": "a"})
        return await table.get(id=1)

    assert play(users(), work) == {"id": 1, "name": "a"}


# Partitions


def test_slices_begin_and_end_where_they_are_told() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.visits")
        for at in range(10):
            await table.put({"page": "p", "at": at, "who": f"u{at}"})
        await table.put({"page": "other", "at": 5, "who": "x"})

        async def ats(**options: Any) -> list[int]:
            return [row["at"] async for row in table.slice(page="p", **options)]

        assert await ats() == list(range(10))
        assert await ats(after=6) == [7, 8, 9]
        assert await ats(since=6, before=8) == [6, 7]
        assert await ats(until=1) == [0, 1]
        assert await ats(until=(1,)) == [0, 1]
        assert await ats(until={"at": 1}) == [0, 1]
        assert await ats(reverse=True, limit=3) == [9, 8, 7]
        assert await ats(at=4) == [4]
        assert await ats(limit=7, page_rows=3) == [0, 1, 2, 3, 4, 5, 6]
        assert await ats(page_rows=3) == list(range(10))
        rows = [row async for row in table.slice(page="p", columns=["who"], limit=1)]
        assert rows == [{"who": "u0"}]

    assert play(visits(), work) is None


def test_a_page_is_asked_for_only_when_it_is_wanted() -> None:
    async def work(db: Database, stage: Stage) -> int:
        table = db.table("shop.visits")
        for at in range(20):
            await table.put({"page": "p", "at": at, "who": "u"})
        async for row in table.slice(page="p", page_rows=5):
            if row["at"] == 4:
                break
        return len(stage.cluster.of(protocol.SLICE))

    assert play(visits(), work) == 1


def test_ranges_and_prefixes_are_deleted_by_their_bounds() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.visits")
        await table.put_many({"page": "p", "at": at, "who": "u"} for at in range(10))
        await table.delete_range(page="p", since=2, before=5)
        await table.delete(page="p", at=9)
        assert [row["at"] async for row in table.slice(page="p")] == [0, 1, 5, 6, 7, 8]
        await table.delete(page="p")
        assert [row async for row in table.slice(page="p")] == []

    cluster = visits()
    assert play(cluster, work) is None
    ranged, row, partition = cluster.of(protocol.DELETE)
    assert (ranged.row, ranged.start.inclusive, ranged.end.inclusive) == (None, True, False)
    assert row.row is not None and partition.row is None and partition.start is None


def test_static_cells_need_no_clustering_key() -> None:
    async def work(db: Database, _: Stage) -> Any:
        table = db.table("shop.visits")
        await table.put({"page": "p", "at": 1, "who": "u"})
        await table.put({"page": "p", "title": "Home"})
        with pytest.raises(InvalidRequest, match="who can only be in a row, so at is needed"):
            table.put({"page": "p", "title": "Home", "who": "u"})
        with pytest.raises(InvalidRequest, match="cells are deleted in one row, so at is needed too"):
            table.delete(page="p", columns=["who"])
        await table.delete(page="p", columns=["title"])
        return await table.get(page="p", at=1)

    cluster = visits()
    assert play(cluster, work) == {"page": "p", "at": 1, "who": "u", "title": None}
    (delete,) = cluster.of(protocol.DELETE)
    assert delete.row is None and delete.columns


def test_a_scan_gives_every_row_once_whatever_the_pages_are() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        await table.put_many({"id": each, "name": "x"} for each in range(100))
        for options in ({}, {"page_rows": 7}, {"limit": 100, "page_rows": 30}):
            found = [row["id"] async for row in table.scan(columns=["id"], **options)]
            assert sorted(found) == list(range(100)), options
        assert len([row async for row in table.scan(limit=13, page_rows=5)]) == 13

    assert play(users(), work) is None


def test_a_scan_asks_members_for_what_they_hold() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        await table.put({"id": 1, "name": "x"})
        await asyncio.gather(*(table.get(id=each) for each in range(50)))  # until it is connected to all
        assert len([row async for row in table.scan()]) == 1

    cluster = fake(6, replicas=2)
    cluster.create("shop.users", "id bigint, name text", "id", tablets=16)
    assert play(cluster, work) is None
    for number, method, request in cluster.asked:
        if method == protocol.SCAN:
            first = 0 if request.first_token is None else (request.first_token + 1 + (1 << 63)) >> 60
            assert number in cluster.holders(first)


# Batches


def test_a_batch_is_one_request_and_all_of_it() -> None:
    async def work(db: Database, _: Stage) -> Any:
        users, visits = db.table("shop.users"), db.table("shop.visits")
        await users.put({"id": 2, "name": "old"})
        async with db.batch() as batch:
            batch.put(users, {"id": 1, "name": "Ada"}, ttl=9)
            batch.update("shop.visits", {"page": "p", "at": 1, "who": "Ada"})
            batch.delete(users, id=2)
            batch.delete_range(visits, page="p", after=5)
        assert len(batch) == 4
        with pytest.raises(InvalidRequest, match="sent already"):
            batch.put(users, {"id": 3})
        return await users.get(id=2), await users.get(id=1), [row async for row in visits.slice(page="p")]

    cluster = visits()
    cluster.create("shop.users", "id bigint, name text", "id")
    gone, there, rows = play(cluster, work)
    assert gone is None and there["name"] == "Ada" and len(rows) == 1
    (batch,) = cluster.of(protocol.BATCH)
    assert batch.logged and [type(each).__name__ for each in batch.writes] == [
        "PutRequest",
        "PutRequest",
        "DeleteRequest",
        "DeleteRequest",
    ]


def test_a_batch_that_fails_inside_or_is_empty_sends_nothing() -> None:
    async def work(db: Database, _: Stage) -> None:
        with pytest.raises(ZeroDivisionError):
            async with db.batch(logged=False) as batch:
                batch.put("shop.users", {"id": 1})
                raise ZeroDivisionError
        async with db.batch():
            pass
        with pytest.raises(InvalidRequest, match=r"shop\.users\.id is of type bigint"):
            db.batch().put("shop.users", {"id": "x"})

    cluster = users()
    assert play(cluster, work) is None
    assert not cluster.of(protocol.BATCH)
