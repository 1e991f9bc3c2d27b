"""A store that has no directory before it needs one, on both kinds of disk."""

from __future__ import annotations

import asyncio
import errno

import pytest

from trimtab.storage import late_store
from trimtab.storage.late_store import LateStore, NotMade
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import DiskFull, StorageError, StoreClosed
from trimtab.storage.rocks import RocksDisk

FIRST = {b"a": b"first", b"b": b"first"}


@pytest.fixture(params=["model", "rocks"])
def kind(request):
    return request.param


def disk_of(kind, path):
    if kind == "rocks":
        return RocksDisk(path, reserve_bytes=0)
    return ModelDisk(lambda seconds, run: asyncio.get_running_loop().call_later(seconds, run))


def put(store, *keys, value=b"v"):
    batch = store.batch()
    for key in keys:
        batch.put(key, value)
    store.write(batch)


def pairs(store):
    return dict(store.scan(b"", None))


async def flushed(store):
    done = asyncio.get_running_loop().create_future()
    store.start_flush(lambda error: done.done() or done.set_result(error))
    return await done


def late(disk, told=None):
    return LateStore(disk, "late", FIRST, lambda: None if told is None else told.append("files"))


def run(story):
    asyncio.run(story())


def test_it_reads_and_writes_like_any_other_and_the_disk_knows_nothing_of_it(kind, tmp_path):
    async def story():
        disk, told = disk_of(kind, tmp_path), []
        store = late(disk, told)
        put(store, b"c", b"d", b"e")
        batch = store.batch()
        batch.delete(b"a")
        batch.delete_range(b"d", b"f")
        batch.put(b"g", b"v")
        store.write(batch)
        assert store.in_memory and not disk.exists("late") and told == []
        assert pairs(store) == {b"b": b"first", b"c": b"v", b"g": b"v"}
        assert [key for key, _ in store.scan(b"b", b"g", reverse=True)] == [b"c", b"b"]
        assert store.read(b"", b"z", 2) == [(b"b", b"first"), (b"c", b"v")]
        assert (store.get(b"a"), store.get(b"g")) == (None, b"v")
        assert store.memory_bytes() == store.approximate_bytes() > 0
        disk.close() if kind == "rocks" else None

    run(story)


def test_what_is_written_while_it_gets_its_files_is_there_too_and_a_scan_sees_what_was(kind, tmp_path):
    async def story():
        disk, told = disk_of(kind, tmp_path), []
        store = late(disk, told)
        put(store, b"c", b"d")
        seen, prepared = store.scan(b"c", None), store.batch()
        prepared.put(b"f", b"v")
        one, two = asyncio.ensure_future(flushed(store)), asyncio.ensure_future(flushed(store))
        await asyncio.sleep(0)
        assert not store.in_memory
        put(store, b"e")
        batch = store.batch()
        batch.delete(b"d")
        store.write(batch)
        assert await one is None and await two is None and told == ["files"]
        store.write(prepared)
        assert dict(seen) == {b"c": b"v", b"d": b"v"}
        wanted = {**FIRST, b"c": b"v", b"e": b"v", b"f": b"v"}
        assert pairs(store) == wanted and disk.exists("late")
        assert await flushed(store) is None and told == ["files"], "only once"
        store.close()
        again = disk.open("late", wal=False, small=True)
        assert pairs(again) == wanted
        again.close()

    run(story)


def test_a_checkpoint_or_tables_that_are_taken_over_need_files(kind, tmp_path):
    async def story():
        disk, told = disk_of(kind, tmp_path), []
        store = late(disk, told)
        put(store, b"c")
        disk.write_table("table", [(b"d", b"taken")])
        store.ingest(["table"])
        store.checkpoint("copy")
        assert pairs(store) == {**FIRST, b"c": b"v", b"d": b"taken"} and not disk.exists("table")
        assert await flushed(store) is None and told == ["files"]
        copy = disk.open("copy", wal=False, small=True)
        assert pairs(copy) == pairs(store)
        copy.close()
        store.close()

    run(story)


def test_one_that_is_closed_says_so_and_leaves_nothing_open(kind, tmp_path):
    async def story():
        disk = disk_of(kind, tmp_path)
        store = late(disk)
        never = asyncio.ensure_future(flushed(store))
        await asyncio.sleep(0)
        store.close()
        for refused in (lambda: store.get(b"a"), lambda: put(store, b"c"), lambda: store.start_flush(print)):
            with pytest.raises(StoreClosed):
                refused()
        await asyncio.sleep(0.05)
        assert not never.done(), "after a close nobody is called back"
        never.cancel()
        disk.remove("late")
        with pytest.raises(StorageError, match="no write-ahead log"):
            late(disk).start_sync(print)

    run(story)


def test_a_full_disk_costs_what_was_in_memory_only_and_its_first_pairs_stay():
    async def story():
        disk, told = disk_of("model", None), []
        store = late(disk, told)
        put(store, b"c")
        disk.full = True
        assert isinstance(await flushed(store), StorageError)
        assert pairs(store) == {**FIRST, b"c": b"v"}, "nothing is lost before it is opened again"
        disk.full = False
        store.reopen()
        assert pairs(store) == FIRST
        put(store, b"d")
        assert await flushed(store) is None and told == ["files"]
        store.close()
        assert pairs(disk.open("late", wal=False)) == {**FIRST, b"d": b"v"}

    run(story)


def test_one_that_can_not_get_files_says_so_and_keeps_what_it_has(monkeypatch):
    async def story():
        disk, told = disk_of("model", None), []
        store = late(disk, told)
        put(store, b"c")

        def refuses(name, **options):
            raise StorageError(f"{name}: too many open files")

        monkeypatch.setattr(disk, "open", refuses)
        error = await flushed(store)
        assert isinstance(error, NotMade) and "too many open files" in str(error)
        assert store.in_memory and pairs(store) == {**FIRST, b"c": b"v"} and told == []
        monkeypatch.undo()
        assert await flushed(store) is None and told == ["files"]
        assert pairs(store) == {**FIRST, b"c": b"v"}

    run(story)


@pytest.mark.parametrize("passes", [True, False])
def test_only_what_may_pass_is_tried_again(monkeypatch, passes):
    """A device that fails is no reason to go on in memory: nobody would hear of it, and the log would only grow."""

    async def story():
        disk = disk_of("model", None)
        store = late(disk)
        errors = iter(
            [OSError(errno.EMFILE, "Too many open files"), StorageError("'late' is open already; close it first")]
            if passes
            else [OSError(errno.EIO, "Input/output error"), StorageError("open late: IO error: Input/output error")]
        )

        def refuses(name, **options):
            raise next(errors)

        monkeypatch.setattr(disk, "open", refuses)
        for _ in range(2):
            assert isinstance(await flushed(store), NotMade) is passes
        assert store.in_memory and pairs(store) == FIRST

    run(story)


def test_it_comes_into_files_in_slices_and_what_it_is_comes_last(kind, tmp_path, monkeypatch):
    """A crash leaves some of what was written first. If that said how far it got, the rest would never be replayed."""

    async def story():
        disk = disk_of(kind, tmp_path)
        store, seen = late(disk), []
        put(store, *(b"c%03d" % number for number in range(100)), value=b"v" * 20)
        put(store, b"a", value=b"later")
        open_real = disk.open

        def opened(name, **options):
            made = open_real(name, **options)
            write = made.write

            def written(batch):
                seen.append(any(made.get(key) is not None for key in FIRST))
                write(batch)

            made.write = written
            return made

        monkeypatch.setattr(late_store, "_SLICE_BYTES", 500)
        monkeypatch.setattr(disk, "open", opened)
        assert await flushed(store) is None
        assert len(seen) > 4 and not any(seen)
        assert len(pairs(store)) == 102 and store.get(b"a") == b"later" and store.get(b"b") == b"first"
        store.close()

    run(story)


def test_one_that_is_closed_while_it_comes_into_files_keeps_nobody_waiting(monkeypatch):
    async def story():
        disk = disk_of("model", None)
        store = late(disk)
        put(store, *(b"c%03d" % number for number in range(100)))
        monkeypatch.setattr(late_store, "_SLICE_BYTES", 10)
        open_real, written, begun = disk.open, [], asyncio.Event()

        def opened(name, **options):
            made = open_real(name, **options)
            made.write = lambda batch: (written.append(len(batch)), begun.set(), setattr(store, "_closed", True))
            return made

        monkeypatch.setattr(disk, "open", opened)
        never = asyncio.ensure_future(flushed(store))
        await begun.wait()
        await asyncio.sleep(0.01)
        assert len(written) == 1 and not never.done()
        never.cancel()
        store.close()
        disk.remove("late")

    run(story)


def test_what_is_written_meanwhile_and_does_not_fit_leaves_all_of_it_in_memory_and_the_next_try_begins_clean():
    async def story():
        disk, told = disk_of("model", None), []
        store = late(disk, told)
        put(store, b"c", b"d")
        open_real = disk.open

        def opened(name, **options):
            made = open_real(name, **options)
            write = made.write

            def fills_up(batch):
                write(batch)
                disk.full, disk.open = True, open_real

            made.write = fills_up
            return made

        disk.open = opened
        flushing = asyncio.ensure_future(flushed(store))
        await asyncio.sleep(0)
        put(store, b"e")
        batch = store.batch()
        batch.delete(b"d")
        store.write(batch)
        assert isinstance(await flushing, DiskFull) and told == []
        wanted = {**FIRST, b"c": b"v", b"e": b"v"}
        assert pairs(store) == wanted and store.in_memory
        disk.full = False
        assert await flushed(store) is None and told == ["files"]
        assert pairs(store) == wanted, "what was deleted meanwhile has not come back"
        store.close()

    run(story)


def test_one_that_got_its_files_but_could_not_fill_them_is_told_what_it_is_again(monkeypatch):
    async def story():
        disk, told = disk_of("model", None), []
        store = late(disk, told)
        full = disk.full_error("late")
        open_real = disk.open

        def opened(name, **options):
            made = open_real(name, **options)

            def fails(done):
                monkeypatch.undo()
                made._full = full
                asyncio.get_running_loop().call_soon(done, full)

            monkeypatch.setattr(made, "start_flush", fails)
            return made

        monkeypatch.setattr(disk, "open", opened)
        put(store, b"c")
        assert await flushed(store) is full and told == []
        store.reopen()
        assert pairs(store) == FIRST
        assert await flushed(store) is None and told == ["files"]
        store.close()
        assert pairs(disk.open("late", wal=False)) == FIRST

    run(story)
