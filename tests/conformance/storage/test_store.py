"""The Store and Disk ports, on RocksDB and on the model."""

import asyncio
import gc
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.storage.conftest import flushed, put, synced
from trimtab.storage.file_sums import sum_of
from trimtab.storage.port import Corrupt, DiskFull, ScanLost, StorageError, StoreClosed

KEYS = [b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"b\xff", b"c", b"\xff", b"\xff\xff"]


def test_a_written_batch_is_visible_at_once_and_as_a_whole(machine):
    store = machine.disk().open("log", wal=True)
    batch = store.batch()
    batch.put(b"k", b"1")
    batch.put(b"gone", b"1")
    batch.delete(b"gone")
    batch.put(b"k", b"2")
    assert len(batch) == 4
    assert store.get(b"k") is None
    store.write(batch)
    assert store.get(b"k") == b"2"
    assert store.get(b"gone") is None
    assert store.get(b"never") is None


def test_operations_of_a_batch_take_effect_in_order(machine):
    store = machine.disk().open("log", wal=True)
    put(store, a=b"1", b=b"1", c=b"1")
    batch = store.batch()
    batch.put(b"b", b"lost")
    batch.delete_range(b"a", b"c")
    batch.put(b"a", b"kept")
    store.write(batch)
    assert list(store.scan(b"", None)) == [(b"a", b"kept"), (b"c", b"1")]


def test_a_range_the_wrong_way_round_deletes_nothing(machine):
    store = machine.disk().open("log", wal=True)
    put(store, a=b"1", b=b"1")
    batch = store.batch()
    batch.delete_range(b"b", b"a")
    batch.delete_range(b"a", b"a")
    store.write(batch)
    assert [key for key, _ in store.scan(b"", None)] == [b"a", b"b"]


@pytest.mark.parametrize("low", KEYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_keep_to_their_bounds(machine, low, reverse):
    store = machine.disk().open("log", wal=True)
    batch = store.batch()
    for key in KEYS:
        batch.put(key, key + b"!")
    store.write(batch)
    for high in [*KEYS, None]:
        expected = [key for key in KEYS if key >= low and (high is None or key < high)]
        found = list(store.scan(low, high, reverse=reverse))
        assert found == [(key, key + b"!") for key in (expected[::-1] if reverse else expected)]


def test_a_scan_shows_what_was_there_when_it_began(machine):
    store = machine.disk().open("log", wal=True)
    put(store, a=b"1", b=b"1", c=b"1")
    scan = store.scan(b"", None)
    assert next(scan) == (b"a", b"1")
    put(store, b=b"2", d=b"2")
    batch = store.batch()
    batch.delete(b"c")
    store.write(batch)
    assert list(scan) == [(b"b", b"1"), (b"c", b"1")]
    assert list(store.scan(b"", None)) == [(b"a", b"1"), (b"b", b"2"), (b"d", b"2")]


def test_bounded_scans_over_many_blocks_of_files_are_complete(machine):
    """Cause: RocksDB's iterator kept a pointer to a bound that was freed, and ended at the first block's end."""

    async def story():
        store = machine.disk().open("log", wal=True)
        rng = random.Random(7)
        batch = store.batch()
        for number in range(3000):
            batch.put(number.to_bytes(4, "big"), rng.randbytes(200))
        store.write(batch)
        assert await flushed(store) is None
        for low, high in [(0, 3000), (10, 2000), (1500, 1501), (17, 2999)]:
            for reverse in (False, True):
                scan = store.scan(low.to_bytes(4, "big"), high.to_bytes(4, "big"), reverse=reverse)
                gc.collect()
                noise = [bytes(64) for _ in range(1000)]
                found = [int.from_bytes(key, "big") for key, _ in scan]
                assert found == sorted(range(low, high), reverse=reverse)
                assert noise

    asyncio.run(story())


def test_a_sync_answers_later_on_the_loop_that_asked(machine):
    async def story():
        store = machine.disk().open("log", wal=True)
        put(store, a=b"1")
        answers = []
        finished = asyncio.Event()
        store.start_sync(lambda error: (answers.append(error), finished.set()))
        assert answers == []
        await asyncio.wait_for(finished.wait(), 10)
        assert answers == [None]

    asyncio.run(story())


def test_everything_is_there_after_a_clean_restart(machine):
    async def story():
        store = machine.disk().open("log", wal=True)
        put(store, a=b"1", b=b"2")
        assert await synced(store) is None
        store.close()
        again = machine.restart().open("log", wal=True)
        assert dict(again.scan(b"", None)) == {b"a": b"1", b"b": b"2"}

    asyncio.run(story())


def test_a_store_without_a_log_keeps_what_was_flushed(machine):
    async def story():
        store = machine.disk().open("metastore", wal=False)
        put(store, a=b"1")
        with pytest.raises(StorageError, match="no write-ahead log"):
            store.start_sync(lambda error: None)
        assert await flushed(store) is None
        store.close()
        assert machine.restart().open("metastore", wal=False).get(b"a") == b"1"

    asyncio.run(story())


def test_a_closed_store_refuses_everything(machine):
    async def story():
        store = machine.disk().open("log", wal=True)
        put(store, a=b"1", b=b"1")
        scan = store.scan(b"", None)
        next(scan)
        batch = store.batch()
        batch.put(b"x", b"y")
        calls = []
        store.start_sync(calls.append)
        store.close()
        store.close()
        for attempt in (
            lambda: store.get(b"a"),
            lambda: store.scan(b"", None),
            lambda: store.write(batch),
            lambda: store.start_sync(calls.append),
            lambda: store.start_flush(calls.append),
            lambda: store.checkpoint("copy"),
            lambda: store.approximate_bytes(),
            lambda: store.memory_bytes(),
            lambda: store.reopen(),
            lambda: next(scan),
        ):
            with pytest.raises(StoreClosed):
                attempt()
        # The name is free again, although a scan was left unfinished.
        assert machine.disk().open("log", wal=True).get(b"a") == b"1"
        await asyncio.sleep(0.05)
        assert calls == []

    asyncio.run(story())


def test_a_scan_does_not_seem_to_end_when_the_store_is_opened_again_under_it(machine):
    async def story():
        store = machine.disk().open("log", wal=True)
        batch = store.batch()
        for key in (b"a", b"b", b"c"):
            batch.put(key, b"1")
        store.write(batch)
        finished, cut_off = store.scan(b"", None), store.scan(b"", None)
        assert [key for key, _ in finished] == [b"a", b"b", b"c"]
        next(cut_off)
        store._full = DiskFull("log", free_bytes=0, reserve_bytes=0)  # as after a write that found no space
        store.reopen()
        with pytest.raises(ScanLost):
            list(cut_off)
        assert list(finished) == []
        assert len(list(store.scan(b"", None))) == 3

    asyncio.run(story())


def test_a_batch_is_used_once_and_only_in_a_store_of_its_kind(machine):
    store = machine.disk().open("log", wal=True)
    batch = store.batch()
    batch.put(b"a", b"1")
    store.write(batch)
    with pytest.raises((StorageError, TypeError)):
        store.write(batch)
    with pytest.raises(TypeError):
        store.write(object())


@pytest.mark.parametrize("bad", ["text", 3, None, bytearray(b"x"), memoryview(b"x")])
def test_keys_and_values_are_bytes_and_nothing_else(machine, bad):
    store = machine.disk().open("log", wal=True)
    batch = store.batch()
    for attempt in (
        lambda: batch.put(bad, b""),
        lambda: batch.put(b"", bad),
        lambda: batch.delete(bad),
        lambda: batch.delete_range(bad, b"z"),
        lambda: store.get(bad),
        lambda: store.scan(bad, None),
    ):
        with pytest.raises((TypeError, KeyError, ValueError)):
            attempt()
    store.write(store.batch())
    assert list(store.scan(b"", None)) == []


def test_a_checkpoint_and_its_origin_go_separate_ways(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("metastore", wal=False)
        put(store, a=b"1", b=b"1")
        store.checkpoint("snapshots/1")
        put(store, a=b"2")
        copy = disk.open("snapshots/1", wal=False)
        assert dict(copy.scan(b"", None)) == {b"a": b"1", b"b": b"1"}
        put(copy, b=b"3")
        assert store.get(b"b") == b"1"
        copy.close()
        disk.remove("snapshots/1")
        assert dict(store.scan(b"", None)) == {b"a": b"2", b"b": b"1"}
        store.checkpoint("snapshots/2")
        with pytest.raises(StorageError, match="taken"):
            store.checkpoint("snapshots/2")
        assert machine.restart().open("snapshots/2", wal=False).get(b"a") == b"2"

    asyncio.run(story())


def test_what_need_not_be_synced_is_there_at_once_and_in_the_next_process_of_this_boot(machine):
    async def story():
        disk = machine.disk()
        boot_id = disk.boot_id
        store = disk.open("a", wal=False)
        put(store, k=b"v")
        store.checkpoint("snapshots/1/a", synced=False)
        disk.write_file("snapshots/1/record", b"whose", synced=False)
        store.close()
        disk = machine.restart()
        assert boot_id and disk.boot_id == boot_id
        assert disk.read_file("snapshots/1/record") == b"whose"
        copy = disk.open("snapshots/1/a", wal=False)
        assert copy.get(b"k") == b"v"
        copy.close()
        disk.remove("snapshots/1", synced=False)
        assert not disk.exists("snapshots/1/a") and not disk.exists("snapshots/1/record")

    asyncio.run(story())


def test_a_checkpoint_is_adopted_by_a_rename(machine):
    disk = machine.disk()
    store = disk.open("metastore", wal=False)
    put(store, a=b"1")
    store.checkpoint("staging/new")
    with pytest.raises(StorageError, match="open"):
        disk.rename("metastore", "old")
    with pytest.raises(StorageError, match=r"open|taken"):
        disk.rename("staging/new", "metastore")
    store.close()
    with pytest.raises(StorageError, match="taken"):
        disk.rename("staging/new", "metastore")
    disk.remove("metastore")
    disk.rename("staging/new", "metastore")
    with pytest.raises(StorageError, match="nothing of this name"):
        disk.rename("staging/new", "metastore2")
    assert not disk.exists("staging/new")
    assert machine.restart().open("metastore", wal=False).get(b"a") == b"1"


def test_names_lists_stores_and_files_and_remove_takes_whole_directories(machine):
    disk = machine.disk()
    for name in ("log", "tablets/7/1", "tablets/7/2", "tablets/8/1"):
        disk.open(name, wal=False).close()
    disk.write_file("instance.json", b"{}")
    disk.write_file("tablets/note", b"x")
    assert disk.names() == ["instance.json", "log", "tablets/7/1", "tablets/7/2", "tablets/8/1", "tablets/note"]
    assert disk.names("tablets/7/") == ["tablets/7/1", "tablets/7/2"]
    assert disk.names("tablets/n") == ["tablets/note"] and disk.names("lo") == ["log"]
    assert disk.names("tablets/7/1/") == disk.names("tablets/note/") == disk.names("nothing/") == []
    assert disk.exists("tablets/7")
    disk.remove("tablets/7")
    disk.remove("tablets/7")
    assert not disk.exists("tablets/7")
    held = disk.open("tablets/8/1", wal=False)
    with pytest.raises(StorageError, match="open"):
        disk.remove("tablets")
    held.close()
    disk.remove("tablets")
    assert machine.restart().names() == ["instance.json", "log"]


def test_files_are_replaced_as_a_whole(machine):
    disk = machine.disk()
    assert disk.read_file("instance.json") is None
    disk.write_file("instance.json", b"old" * 1000)
    disk.write_file("instance.json", b"new")
    disk.write_file("next.json", b"newer")
    disk.rename("next.json", "instance.json")
    assert disk.names() == ["instance.json"]
    assert machine.restart().read_file("instance.json") == b"newer"
    with pytest.raises(TypeError):
        machine.disk().write_file("instance.json", "text")


def test_the_files_of_a_directory_are_told_with_their_bytes(machine):
    disk = machine.disk()
    store = disk.open("tablets/1/0.1", wal=False)
    store.checkpoint("snapshots/s/1/0.1")
    disk.write_file("snapshots/s/proof", b"12345")
    disk.write_file("snapshots/s/record", b"")
    assert disk.files("snapshots/s") == [("proof", 5), ("record", 0)]
    assert "CURRENT" in dict(disk.files("snapshots/s/1/0.1"))
    assert disk.files("snapshots/other") == []
    with pytest.raises(StorageError):
        disk.files("../snapshots")
    store.close()


def test_stores_files_and_directories_do_not_share_names(machine):
    disk = machine.disk()
    disk.open("log", wal=True).close()
    disk.write_file("note", b"x")
    for attempt in (
        lambda: disk.write_file("log", b"x"),
        lambda: disk.open("note", wal=True),
        lambda: disk.open("log/inside", wal=True),
        lambda: disk.write_file("log/inside", b"x"),
        lambda: disk.write_file("note/inside", b"x"),
    ):
        with pytest.raises(StorageError):
            attempt()
    first = disk.open("log", wal=True)
    with pytest.raises(StorageError, match="open already"):
        disk.open("log", wal=True)
    first.close()


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "..", ".hidden", "a/.b", "a\\b", "a\0b", None, 3],
)
def test_names_that_could_leave_the_disk_are_refused(machine, name):
    disk = machine.disk()
    store = disk.open("log", wal=True)
    for attempt in (
        lambda: disk.open(name, wal=True),
        lambda: disk.exists(name),
        lambda: disk.remove(name),
        lambda: disk.rename(name, "ok"),
        lambda: disk.rename("log", name),
        lambda: disk.read_file(name),
        lambda: disk.write_file(name, b""),
        lambda: store.checkpoint(name),
    ):
        with pytest.raises(StorageError):
            attempt()
    assert disk.names() == ["log"]


def test_work_off_the_loop_reports_its_result_or_its_error(machine):
    async def story():
        disk = machine.disk()
        results = []
        finished = asyncio.Event()

        def done(result, error):
            results.append((result, str(error) if error else None))
            if len(results) == 2:
                finished.set()

        def fail():
            raise ValueError("no")

        disk.start(lambda: 42, done)
        disk.start(fail, done)
        assert results == []
        await asyncio.wait_for(finished.wait(), 10)
        assert sorted(results, key=str) == [(42, None), (None, "no")]

    asyncio.run(story())


def test_free_space_and_size_are_told(machine):
    disk = machine.disk()
    store = disk.open("log", wal=True)
    assert disk.free_bytes() > 0
    before = store.approximate_bytes()
    batch = store.batch()
    batch.put(b"k", bytes(100_000))
    store.write(batch)
    assert store.approximate_bytes() >= before + 100_000
    assert 0 <= store.memory_bytes() <= store.approximate_bytes()


small_keys = st.binary(max_size=2) | st.sampled_from(KEYS)
operations = st.one_of(
    st.tuples(st.just("put"), small_keys, st.binary(max_size=40)),
    st.tuples(st.just("delete"), small_keys),
    st.tuples(st.just("delete_range"), small_keys, small_keys),
)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(operations, max_size=8)),
    st.tuples(st.just("scan"), small_keys, small_keys | st.none(), st.booleans()),
    st.just(("flush",)),
    st.just(("sync",)),
    st.just(("restart",)),
)


def apply_to_dict(reference, changes):
    for change in changes:
        if change[0] == "put":
            reference[change[1]] = change[2]
        elif change[0] == "delete":
            reference.pop(change[1], None)
        else:
            for key in [key for key in reference if change[1] <= key < change[2]]:
                del reference[key]


@pytest.mark.parametrize("resting", [False, True])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(steps, max_size=25))
def test_any_sequence_of_operations_agrees_with_a_dictionary(machines, resting, story):
    """`resting`: a small one that was made of a few pairs, and is flushed where the other is synced."""

    def opened(disk):
        return disk.open("store", wal=False, small=True, resting=True) if resting else disk.open("store", wal=True)

    async def run():
        machine = machines()
        reference: dict[bytes, bytes] = {}
        if resting:
            reference = {b"a": b"first", b"ab": b"first", b"c": b"first"}
            assert machine.disk().compose("store", [], sorted(reference.items()))
        store = opened(machine.disk())
        try:
            for step in story:
                if step[0] == "write":
                    batch = store.batch()
                    for change in step[1]:
                        getattr(batch, change[0])(*change[1:])
                    store.write(batch)
                    apply_to_dict(reference, step[1])
                elif step[0] == "scan":
                    _, low, high, reverse = step
                    expected = sorted(
                        (pair for pair in reference.items() if low <= pair[0] and (high is None or pair[0] < high)),
                        reverse=reverse,
                    )
                    assert list(store.scan(low, high, reverse=reverse)) == expected
                elif step[0] == "flush":
                    assert await flushed(store) is None
                elif step[0] == "sync":
                    assert await (flushed if resting else synced)(store) is None
                else:
                    assert not resting or await flushed(store) is None
                    store.close()
                    store = opened(machine.restart())
            assert dict(store.scan(b"", None)) == reference
            assert all(store.get(key) == reference.get(key) for key in KEYS)
        finally:
            machine.stop()

    asyncio.run(run())


def test_a_files_length_and_checksum_are_told_and_what_lies_in_a_directory(machine):
    async def story():
        disk = machine.disk()
        assert (disk.digest("staging/s/0/a"), disk.entries("staging")) == (None, [])
        disk.write_file("staging/s/0/a", b"some bytes" * 300_000)
        disk.write_file("staging/s/0/empty", b"")
        disk.write_table("staging/t/1/b", [(b"k", b"v")])
        assert disk.digest("staging/s/0/a") == (3_000_000, sum_of(b"some bytes" * 300_000))
        assert disk.digest("staging/s/0/empty") == (0, sum_of(b""))
        size, checksum = disk.digest("staging/t/1/b")
        assert size > 0 and (size, checksum) == disk.digest("staging/t/1/b")
        assert disk.digest("staging/s") is None
        assert disk.entries("staging") == ["s", "t"] and disk.entries("staging/s/0") == ["a", "empty"]
        assert disk.entries("staging/s/0/a") == []
        disk.remove("staging/s")
        assert disk.entries("staging") == ["t"]

    asyncio.run(story())


def test_a_store_is_assembled_of_files_that_lie_elsewhere_and_goes_its_own_way(machine):
    async def story():
        disk = machine.disk()
        store = disk.open("tablets/1/0.1", wal=False)
        put(store, a=b"1", b=b"1")
        store.checkpoint("copy")
        for file, _size in disk.files("copy"):
            # As they come from another machine.
            disk.write_file(f"staging/s/x.{file}", disk.read_file(f"copy/{file}"))
        links = {file: f"staging/s/x.{file}" for file, _size in disk.files("copy")}
        before = {path: disk.digest(path) for path in links.values()}
        disk.assemble("arriving/1-0.1", links)
        with pytest.raises(StorageError, match="taken"):
            disk.assemble("arriving/1-0.1", links)
        assert disk.names("arriving") == ["arriving/1-0.1"]
        with pytest.raises(StorageError, match="no file"):
            disk.assemble("arriving/other", {"CURRENT": "staging/s/nothing"})
        with pytest.raises(StorageError):
            disk.assemble("arriving/other", {"../CURRENT": links["CURRENT"]})
        assert not disk.exists("arriving/other")
        store.close()
        disk.remove("tablets/1/0.1")
        disk.rename("arriving/1-0.1", "tablets/1/0.1")
        again = disk.open("tablets/1/0.1", wal=False)
        assert dict(again.scan(b"", None)) == {b"a": b"1", b"b": b"1"}
        put(again, a=b"2", c=b"2")
        await flushed(again)
        again.close()
        assert {path: disk.digest(path) for path in links.values()} == before, "what was linked is as it was"
        disk.assemble("arriving/again", links)
        disk.remove("staging")
        assert dict(disk.open("arriving/again", wal=False).scan(b"", None)) == {b"a": b"1", b"b": b"1"}
        disk = machine.restart()
        assert disk.open("tablets/1/0.1", wal=False).get(b"c") == b"2"
        assert disk.open("arriving/again", wal=False).get(b"c") is None

    asyncio.run(story())


def test_files_of_a_closed_store_can_be_read_and_what_is_no_store_is_not_opened_as_one(machine):
    async def story():
        disk = machine.disk()
        disk.open("a", wal=False).close()
        sizes = dict(disk.files("a"))
        for file, size in sizes.items():
            assert disk.digest(f"a/{file}")[0] == size == len(disk.read_file(f"a/{file}"))
        assert disk.read_file("a/other") is None
        disk.write_file("staging/x.CURRENT", b"nothing of the kind")
        disk.write_file("staging/x.000009.sst", b"neither")
        disk.assemble("b", {"CURRENT": "staging/x.CURRENT", "000009.sst": "staging/x.000009.sst"})
        with pytest.raises(Corrupt):
            disk.open("b", wal=False)

    asyncio.run(story())
