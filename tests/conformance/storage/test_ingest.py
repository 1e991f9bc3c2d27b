"""Tables written beside a store and taken over by it, short reads and copies, on RocksDB and on the model."""

import asyncio
import random

import pytest

from tests.conformance.storage.conftest import flushed, put
from trimtab.storage.port import Corrupt, StorageError, StoreClosed


def pairs(numbers, value=b"v"):
    return [(number.to_bytes(4, "big"), value) for number in numbers]


async def off_loop(disk, work):
    done = asyncio.get_running_loop().create_future()
    disk.start(work, lambda result, error: done.set_result(error))
    return await done


def test_tables_are_taken_over_whole_and_their_files_with_them(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("tablets/1/0.1", wal=False, small=True)
        put(store, a=b"1")
        assert disk.write_table("staging/7/one", pairs(range(100))) > 0
        assert disk.write_table("staging/7/two", pairs(range(100, 200))) > 0
        assert disk.names("staging/") == ["staging/7/one", "staging/7/two"]
        assert await off_loop(disk, lambda: store.ingest(["staging/7/one", "staging/7/two"])) is None
        assert [int.from_bytes(key, "big") for key, _ in store.scan(b"", b"a")] == list(range(200))
        assert store.get(b"a") == b"1"
        assert disk.names("staging/") == []

    asyncio.run(story())


def test_what_is_ingested_wins_over_what_was_there_and_loses_to_what_comes_later(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("t", wal=False, small=True)
        batch = store.batch()
        for key, value in pairs(range(10), b"old"):
            batch.put(key, value)
        store.write(batch)
        disk.write_table("one", pairs(range(3, 7), b"new"))
        # The same keys again, in the same call: the later table wins.
        disk.write_table("two", pairs([6], b"newer"))
        store.ingest(["one", "two"])
        batch = store.batch()
        batch.put(*pairs([4], b"newest")[0])
        store.write(batch)
        found = [value for _, value in store.scan(b"", None)]
        assert found == [b"old"] * 3 + [b"new", b"newest", b"new", b"newer"] + [b"old"] * 3

    asyncio.run(story())


def test_an_ingest_that_fails_takes_nothing(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("t", wal=False, small=True)
        put(store, a=b"1")
        disk.write_table("good", pairs(range(5)))
        disk.write_file("bad", b"no table at all" * 100)
        with pytest.raises(StorageError, match="no such file"):
            store.ingest(["good", "never"])
        with pytest.raises(Corrupt, match="bad"):
            store.ingest(["good", "bad"])
        assert list(store.scan(b"", None)) == [(b"a", b"1")]
        assert disk.names() == ["bad", "good", "t"]
        store.ingest(["good"])
        store.ingest([])
        assert len(list(store.scan(b"", None))) == 6

    asyncio.run(story())


def test_keys_of_a_table_ascend_and_a_refused_table_leaves_nothing(machine):
    disk = machine.disk()
    for wrong in ([2, 1], [1, 1]):
        with pytest.raises(StorageError, match="does not come after"):
            disk.write_table("t", pairs(wrong))
    assert disk.names() == []


def test_what_was_ingested_is_durable_with_everything_before_it(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("t", wal=False, small=True)
        put(store, a=b"1")
        disk.write_table("one", pairs(range(5)))
        store.ingest(["one"])
        put(store, b=b"lost with the process, perhaps")
        if machine.kind == "model":
            disk.crash(random.Random(1))
        else:
            store.close()
        store = machine.restart().open("t", wal=False, small=True)
        found = dict(store.scan(b"", None))
        assert set(found) >= {b"a", *(key for key, _ in pairs(range(5)))}

    asyncio.run(story())


def test_it_holds_the_same_whether_its_files_are_merged_or_not(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("t", wal=False, small=True)
        for round_, change in enumerate([lambda: store.hold_merging(6), lambda: store.hold_merging(90), store.merge]):
            assert await off_loop(disk, change) is None
            for number in range(6):
                disk.write_table("one", pairs([number, 100], b"%d" % round_))
                store.ingest(["one"])
            assert {value for _, value in store.scan(b"", None)} == {b"%d" % round_}
        store.close()
        with pytest.raises(StoreClosed):
            store.hold_merging(1)
        with pytest.raises(StoreClosed):
            store.merge()

    asyncio.run(story())


def test_a_store_is_made_of_tables_and_pairs_as_if_it_had_taken_them_over_or_not_at_all(machine):
    """The real disk may refuse tables that do not say what lies in them; a store of pairs alone is always made."""

    async def story():
        disk = machine.disk()
        disk.write_table("staging/7/one", pairs(range(10), b"one"))
        disk.write_table("staging/7/two", pairs(range(5, 15), b"two"))
        own = pairs([7, 20], b"own")
        held = dict(pairs(range(10), b"one")) | dict(pairs(range(5, 15), b"two")) | dict(own)
        staged = disk.names()
        wanted = {}
        if disk.compose("tablets/1/0.1", ["staging/7/one", "staging/7/two"], own):
            wanted["tablets/1/0.1"] = held
        else:
            assert not disk.exists("tablets")
        assert disk.compose("tablets/2/0.1", [], own)
        assert disk.compose("tablets/3/0.1", [], [])
        wanted |= {"tablets/2/0.1": dict(own), "tablets/3/0.1": {}}
        assert disk.names() == staged + sorted(wanted), "the tables stay where they are"
        disk.remove("staging")
        for resting in (True, False):
            disk = machine.restart()
            assert disk.names() == sorted(wanted)
            for name, contents in wanted.items():
                store = disk.open(name, wal=False, small=True, resting=resting)
                assert dict(store.scan(b"", None)) == contents
                assert list(store.scan(b"", None, reverse=True)) == sorted(contents.items(), reverse=True)
                put(store, later=b"%d" % resting)
                assert await flushed(store) is None
                contents[b"later"] = b"%d" % resting
                assert dict(store.scan(b"", None)) == contents
        machine.restart()

    asyncio.run(story())


@pytest.mark.parametrize("bad", ["staging/7/never", "staging/7/bad", "staging/7/empty", "staging"])
def test_of_what_is_no_table_no_store_is_made(machine, bad):
    disk = machine.disk()
    disk.write_table("staging/7/good", pairs(range(10)))
    disk.write_file("staging/7/bad", b"no table at all" * 100)
    disk.write_file("staging/7/empty", b"")
    before = disk.names()
    assert not disk.compose("tablets/1/0.1", ["staging/7/good", bad], pairs([1]))
    assert not disk.compose("tablets/1/0.1", [bad], [])
    assert disk.names() == before and not disk.exists("tablets/1/0.1")
    assert machine.restart().names() == before


def test_a_store_is_not_made_where_something_is_nor_of_pairs_that_are_not_in_order(machine):
    disk = machine.disk()
    disk.open("tablets/1/0.1", wal=False, small=True)
    disk.write_file("note", b"x")
    before = disk.names()
    for taken in ("tablets/1/0.1", "tablets/1", "note"):
        with pytest.raises(StorageError, match=f"can't compose '{taken}': the name is taken"):
            disk.compose(taken, [], pairs([1]))
    with pytest.raises(StorageError, match="would lie inside"):
        disk.compose("tablets/1/0.1/inside", [], pairs([1]))
    for wrong in ([2, 1], [1, 1]):
        with pytest.raises(StorageError, match="does not come after"):
            disk.compose("other", [], pairs(wrong))
    with pytest.raises(StorageError):
        disk.compose("../other", [], pairs([1]))
    assert disk.names() == before


def test_a_closed_store_ingests_and_reads_nothing(machine):
    disk = machine.disk()
    store = disk.open("t", wal=False, small=True)
    disk.write_table("one", pairs(range(5)))
    store.close()
    with pytest.raises(StoreClosed):
        store.ingest(["one"])
    with pytest.raises(StoreClosed):
        store.read(b"", b"\xff", 1)
    assert disk.names() == ["one", "t"]


def test_short_reads_give_the_first_pairs_of_a_scan(machine):
    async def story():
        store = machine.disk().open("t", wal=False, small=True)
        batch = store.batch()
        for key, value in pairs(range(100)):
            batch.put(key, value)
        store.write(batch)
        for _ in range(2):
            for low, high, limit in ((0, 100, 5), (10, 12, 9), (50, 50, 3), (98, 300, 9), (7, 8, 1), (200, 300, 4)):
                bounds = low.to_bytes(4, "big"), high.to_bytes(4, "big")
                assert store.read(*bounds, limit) == list(store.scan(*bounds))[:limit]
            assert await flushed(store) is None
        with pytest.raises((TypeError, KeyError, ValueError)):
            store.read("a", b"b", 1)

    asyncio.run(story())


def test_many_small_stores_are_open_at_once(machine):
    async def story():
        disk = machine.disk()
        stores = [disk.open(f"tablets/1/{number}.1", wal=False, small=True) for number in range(40)]
        for number, store in enumerate(stores):
            put(store, a=b"%d" % number)
        assert [store.get(b"a") for store in stores] == [b"%d" % number for number in range(40)]
        assert len(disk.names("tablets/")) == 40

    asyncio.run(story())
