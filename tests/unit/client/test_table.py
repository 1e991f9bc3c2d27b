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
from trimtab.client.reads import RowWithMeta
from trimtab.rows import protocol
from trimtab.rows.protocol import Bound
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


@pytest.mark.parametrize("way", ["get", "get_many", "slice", "scan"])
def test_what_was_read_is_older_than_what_is_written_then_whoever_stamps_it(way: str) -> None:
    """A member whose clock is behind, and that holds no replica, would stamp the write earlier than what was read."""

    async def work(db: Database, stage: Stage) -> list[int]:
        table = db.table("shop.users")
        stamps = [await table.put({"id": 1, "name": "x"})]
        for shown_us in (stamps[0] + 5_000, stamps[0] + 4_000):
            stage.cluster.shown_us = shown_us
            if way == "get":
                await table.get(id=1)
            elif way == "get_many":
                await table.get_many([{"id": 1}, {"id": 2}])
            else:
                assert [row async for row in (table.slice(id=1) if way == "slice" else table.scan())]
            stage.cluster.stamp_us = 0
            stamps.append(await table.put({"id": 1, "name": "y"}))
        return stamps

    cluster = users()
    first, second, third = play(cluster, work)
    assert second > first + 5_000 and third > second
    assert [each.after_us for each in cluster.of(protocol.PUT)] == [0, first + 5_000, second]


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


def test_a_ttl_of_0_is_never_and_none_is_what_the_table_says() -> None:
    async def work(db: Database, _: Stage) -> None:
        table = db.table("shop.users")
        await table.put({"id": 1, "name": "a"})
        await table.put({"id": 1, "name": "a"}, ttl=0)
        await table.put_many([{"id": 1, "name": "a"}], ttl=0)
        async with db.batch() as batch:
            batch.put(table, {"id": 2}, ttl=0)
            batch.update(table, {"id": 2, "name": "b"})

    cluster = users()
    assert play(cluster, work) is None
    assert [each.ttl_s for each in cluster.of(protocol.PUT)] == [None, 0, 0]
    (batch,) = cluster.of(protocol.BATCH)
    assert [each.ttl_s for each in batch.writes] == [0, None]


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
        (lambda t: t.scan(page_rows=10**30), "page_rows is a whole number above 0, and at most"),
        (lambda t: t.put(None), "a row is given as a mapping of its columns: {'id': 1, 'name': 'Ada'}, not None"),
        (lambda t: t.update([1]), "a row is given as a mapping of its columns"),
        (lambda t: t.get(id=1, columns=5), "columns are given as a list of names: ['id', 'name'], not 5"),
        (lambda t: t.get(id=1, columns=[[5]]), "columns are given as a list of names: ['id', 'name'], not [[5]]"),
        (lambda t: t.slice(id=1, columns=5), "columns are given as a list of names"),
        (lambda t: t.scan(columns=[5]), "columns are given as a list of names"),
        (lambda t: t.delete(id=1, columns=5), "columns are given as a list of names"),
        (lambda t: t.delete(id=1, columns=""), "columns are given as a list of names"),
        (lambda t: t.put({"id": 1}, consistency=5), "there is no consistency level 5"),
        (lambda t: t.put({"id": 1}, consistency=[]), "there is no consistency level []"),
    ],
)
def test_wrong_input_is_named_before_anything_is_sent(call: Any, said: str) -> None:
    async def work(db: Database, _: Stage) -> str:
        with pytest.raises(InvalidRequest) as caught:
            made = call(db.table("shop.users"))
            await (made if isinstance(made, Reply) else anext(made))
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
        with pytest.raises(InvalidRequest, match=r"the name of a table is a text KEYSPACE\.TABLE, .* not 5"):
            db.table(5)  # type: ignore[arg-type]
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


def test_a_range_without_ends_is_all_rows_and_not_the_partition() -> None:
    async def work(db: Database, _: Stage) -> Any:
        with pytest.raises(InvalidRequest, match=r"shop.users has no clustering columns, so it has no ranges of rows"):
            await db.table("shop.users").delete_range(id=1)
        async with db.batch() as batch:
            batch.delete_range("shop.visits", page="p")
        return await db.table("shop.visits").delete_range(page="p")

    cluster = visits()
    cluster.create("shop.users", "id bigint, name text", "id")
    play(cluster, work)
    (alone,), (batch,) = cluster.of(protocol.DELETE), cluster.of(protocol.BATCH)
    for each in (alone, *batch.writes):
        # With static columns these stay: a range is of rows.
        assert (each.row, each.start, each.end) == (None, Bound([], True), None)


def test_static_cells_need_no_clustering_key() -> None:
    async def work(db: Database, _: Stage) -> Any:
        table = db.table("shop.visits")
        await table.put({"page": "p", "at": 1, "who": "u"})
        await table.put({"page": "p", "title": "Home"})
        with pytest.raises(InvalidRequest, match="who can only be in a row, so at is needed"):
            await table.put({"page": "p", "title": "Home", "who": "u"})
        with pytest.raises(InvalidRequest, match="cells are deleted in one row, so at is needed too"):
            await table.delete(page="p", columns=["who"])
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


def test_all_segments_of_a_scan_are_read_at_the_epoch_of_the_first_page() -> None:
    """With more members than replicas they are asked of several, each of whom would take the newest epoch."""

    async def work(db: Database, stage: Stage) -> None:
        table = db.table("shop.users")
        await table.put_many({"id": each, "name": "x"} for each in range(100))
        found = 0
        async for _row in table.scan(page_rows=20):
            found += 1
            stage.cluster.epoch = 4  # a load is published
        assert found == 100

    cluster = fake(6, replicas=2)
    cluster.create("shop.users", "id bigint, name text", "id", tablets=16)
    cluster.epoch = 3
    assert play(cluster, work) is None
    scans = cluster.of(protocol.SCAN)
    assert len({each.first_token for each in scans}) > 2
    assert [each.epoch for each in scans] == [-1, *[3] * (len(scans) - 1)]


def test_a_scan_whose_epoch_can_not_be_read_any_more_says_that_it_has_to_begin_again() -> None:
    async def work(db: Database, stage: Stage) -> None:
        table = db.table("shop.users")
        await table.put_many({"id": each, "name": "x"} for each in range(100))
        async for _row in table.scan(page_rows=20):
            stage.cluster.epoch = stage.cluster.oldest_epoch = 9

    cluster = fake(6, replicas=2)
    cluster.create("shop.users", "id bigint, name text", "id", tablets=16)
    error = play(cluster, work)
    assert isinstance(error, InvalidRequest) and "begin the scan again" in str(error)


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


def test_what_can_be_no_batch_is_named_at_once() -> None:
    async def work(db: Database, _: Stage) -> None:
        with pytest.raises(InvalidRequest, match="logged is True or False, not 'no'"):
            db.batch(logged="no")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a row is given as a mapping of its columns"):
            db.batch().put("shop.users", None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="columns are given as a list of names"):
            db.batch().delete("shop.users", id=1, columns=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="the name of a table is a text"):
            db.batch().delete(5, id=1)  # type: ignore[arg-type]

    assert play(users(), work) is None


def test_a_batch_that_fails_inside_or_is_empty_sends_nothing() -> None:
    async def work(db: Database, _: Stage) -> None:
        with pytest.raises(ZeroDivisionError):
            async with db.batch(logged=False) as batch:
                batch.put("shop.users", {"id": 1})
                raise ZeroDivisionError
        async with db.batch():
            pass
        with pytest.raises(InvalidRequest, match=r"shop\.users\.id is of type bigint"):
            async with db.batch() as batch:
                batch.put("shop.users", {"id": "x"})

    cluster = users()
    assert play(cluster, work) is None
    assert not cluster.of(protocol.BATCH)
