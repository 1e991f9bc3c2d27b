"""Stores that rested and are woken: what is written meanwhile, and what if they are closed just then."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import rocksdict
from tests.unit.storage.external_tables import composed, tables_in, union
from tests.unit.storage.resting_stores import (
    HELD,
    PATIENCE_S,
    Gate,
    begin_flush,
    contents,
    delete,
    flushed,
    held_while_it_opens,
    open_resting,
    put,
    resting,
    rests,
    run,
    until,
    until_so,
)

from trimtab.storage import resting_store
from trimtab.storage.memory_table import MemoryBatch, Operation
from trimtab.storage.port import StorageError, StoreClosed
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_store import RocksBatch

# When it wakes


class Asked:
    """A lock that says when somebody wants to have it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock, self.wanted = lock, threading.Event()

    def __enter__(self) -> None:
        self.wanted.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_what_is_written_while_it_wakes_is_there_afterwards(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a", b"b", b"key 0001", value=b"before")
        with held_while_it_opens(disk, monkeypatch) as gate:
            flushing = begin_flush(store)
            await until(gate.begun)
            put(store, b"a", b"c", value=b"while")
            delete(store, b"b", b"key 0000", b"c")
            for number in range(100):
                put(store, b"many %d" % (number % 10), b"c", value=b"%d" % number)
            delete(store, b"many 3")
            wanted = HELD | {b"a": b"while", b"key 0001": b"before", b"c": b"99"}
            wanted |= {b"many %d" % number: b"9%d" % number for number in range(10)}
            del wanted[b"key 0000"], wanted[b"many 3"]
            assert contents(store) == wanted and rests(store), "it is read and written to meanwhile"
            gate.open.set()
            assert await flushing is None
        assert not rests(store) and contents(store) == wanted
        put(store, b"after")
        assert await flushed(store) is None
        store.close()
        again = disk.open("store", wal=False, small=True, resting=True)
        assert contents(again) == wanted | {b"after": b"new"}

    run(story)


def test_what_is_written_while_it_is_filled_is_there_afterwards(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many at a time while some are put in, then a few, and at last one that comes when all the others are in."""

    async def story() -> None:
        store = resting(disk)
        many = resting_store._FEW_BATCHES + 1
        fill, slices, made = store._put, list[Gate](), threading.Semaphore(0)

        def waits(database: rocksdict.Rdict, some: Sequence[Sequence[Operation]]) -> None:
            slices.append(Gate())
            made.release()
            slices[-1].passes()
            fill(database, some)

        def write_some(count: int, value: bytes) -> None:
            for number in range(count):
                put(store, b"n %04d" % number, b"of " + value, value=value)
            delete(store, b"n 0000", b"of " + value)

        write_some(many, b"before")
        monkeypatch.setattr(store, "_put", waits)
        flushing = begin_flush(store)
        for count in (many, many, 3):
            assert await asyncio.to_thread(made.acquire, timeout=PATIENCE_S)
            write_some(count, b"%d" % count)
            assert rests(store)
            slices[-1].open.set()
        assert await asyncio.to_thread(made.acquire, timeout=PATIENCE_S)
        turn = Asked(store._turn)
        monkeypatch.setattr(store, "_turn", turn)
        last = asyncio.create_task(asyncio.to_thread(put, store, b"n 0001", b"last"))
        await until(turn.wanted)
        assert rests(store) and not last.done()
        slices[-1].open.set()
        await last
        assert await flushing is None and not rests(store) and len(slices) == 4
        wanted = HELD | {b"n %04d" % number: b"%d" % many for number in range(3, many)}
        assert contents(store) == wanted | {b"n 0001": b"new", b"n 0002": b"3", b"last": b"new"}

    run(story)


def test_it_may_wake_at_any_moment_while_it_is_written_to(disk: RocksDisk) -> None:
    async def story() -> None:
        rng = random.Random(3)
        for turn in range(10):
            store, wanted = resting(disk, f"{turn}"), dict(HELD)
            flushing: asyncio.Task[BaseException | None] | None = None
            begins = rng.randrange(1, 60)
            for number in range(400):
                batch = store.batch()
                if number % 7 == 3:
                    await asyncio.sleep(0)  # others have a turn between its beginning and its end
                key, value = b"%d" % rng.randrange(30), b"%d" % number
                batch.put(key, value)
                batch.delete(b"key %04d" % (number % 100))
                store.write(batch)
                wanted[key] = value
                wanted.pop(b"key %04d" % (number % 100), None)
                assert store.get(key) == value
                if number == begins:
                    flushing = begin_flush(store)
                if number % 50 == 0:
                    assert contents(store) == wanted
            assert flushing is not None and await flushing is None and not rests(store)
            assert contents(store) == wanted
            assert await flushed(store) is None
            store.close()
            assert contents(disk.open(f"{turn}", wal=False, small=True)) == wanted

    run(story)


def test_who_writes_faster_than_it_is_filled_is_held_at_last(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = resting(disk)
        fill, calls, written = store._put, list[int](), dict(HELD)

        def write_some(value: bytes) -> None:
            for number in range(resting_store._FEW_BATCHES + 1):
                put(store, b"%d" % number, value=value)
                written[b"%d" % number] = value

        def more_comes(database: rocksdict.Rdict, some: Sequence[Sequence[Operation]]) -> None:
            calls.append(len(some))
            fill(database, some)
            if len(calls) <= resting_store._MAX_PASSES:
                write_some(b"%d" % len(calls))

        write_some(b"first")
        monkeypatch.setattr(store, "_put", more_comes)
        assert await flushed(store) is None
        assert len(calls) == resting_store._MAX_PASSES + 1 and not rests(store)
        assert contents(store) == written

    run(story)


class Recording:
    """A database that counts what is in each batch."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, batch: rocksdict.WriteBatch, _: object) -> None:
        self.written.append(len(batch))


@pytest.mark.parametrize(
    ("batches", "written"),
    [
        ([], []),
        ([0, 0], []),
        ([1, 2, 3], [6]),
        ([499, 1, 1], [500, 1]),
        ([499, 600, 3], [1099, 3]),
        ([1000, 1000], [1000, 1000]),
        ([250] * 5, [500, 500, 250]),
    ],
)
def test_batches_are_put_in_whole_and_several_at_once(disk: RocksDisk, batches: list[int], written: list[int]) -> None:
    """What a crash leaves is a prefix of the batches: half of one would be none."""
    store, database = resting(disk), Recording()
    some: list[list[Operation]] = [[(b"%d" % number, b"v") for number in range(size)] for size in batches]
    store._put(database, some)  # type: ignore[arg-type]
    assert database.written == written


def test_they_come_into_the_database_in_the_order_in_which_they_were_written(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store, rng, seen = resting(disk), random.Random(1), list[Operation]()
        put_in, written = store._put, list[Operation]()

        def noted(database: rocksdict.Rdict, some: Sequence[Sequence[Operation]]) -> None:
            seen.extend(operation for operations in some for operation in operations)
            put_in(database, some)

        def write_some() -> None:
            for _ in range(40):
                batch = store.batch()
                for _ in range(rng.randrange(1, 4)):
                    key, value = b"%d" % rng.randrange(10), rng.choice((None, rng.randbytes(3)))
                    written.append((key, value))
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                store.write(batch)

        monkeypatch.setattr(store, "_put", noted)
        write_some()
        with held_while_it_opens(disk, monkeypatch) as gate:
            flushing = begin_flush(store)
            await until(gate.begun)
            write_some()
            gate.open.set()
            assert await flushing is None
        assert seen == written and len(seen) > 80
        last = {operation[0]: operation[1] for operation in written}
        assert contents(store) == HELD | {key: value for key, value in last.items() if isinstance(value, bytes)}

    run(story)


def test_a_batch_that_was_begun_before_it_woke_is_written_afterwards(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        begun, of_ranges, unused = store.batch(), store.batch(), store.batch()
        for batch in (begun, of_ranges):
            batch.put(b"a", b"1")
            batch.delete(b"key 0001")
            batch.put(b"a", b"2")
        of_ranges.delete_range(b"key 0010", b"key 0090")
        of_ranges.put(b"key 0050", b"back")
        put(store, b"b")
        assert await flushed(store) is None and not rests(store)
        assert isinstance(begun, MemoryBatch) and isinstance(store.batch(), RocksBatch)
        store.write(begun)
        store.write(unused)
        wanted = HELD | {b"a": b"2", b"b": b"new"}
        del wanted[b"key 0001"]
        assert contents(store) == wanted
        store.write(of_ranges)
        wanted = {key: value for key, value in wanted.items() if not b"key 0010" <= key < b"key 0090"}
        assert contents(store) == wanted | {b"key 0050": b"back"}
        for batch in (begun, of_ranges):
            with pytest.raises(StorageError, match="written already"):
                store.write(batch)

    run(story)


def test_to_delete_a_range_wakes_it_and_takes_effect_in_its_turn(disk: RocksDisk) -> None:
    store = resting(disk)
    put(store, b"key 0015", b"key 0016", b"a")
    batch = store.batch()
    batch.put(b"key 0017", b"lost")
    batch.delete_range(b"key 0010", b"key 0090")
    batch.put(b"key 0018", b"kept")
    store.write(batch)
    assert not rests(store)
    left = {key: value for key, value in HELD.items() if not b"key 0010" <= key < b"key 0090"}
    assert contents(store) == left | {b"a": b"new", b"key 0018": b"kept"}


def test_what_is_copied_or_taken_over_comes_after_what_was_written(disk: RocksDisk) -> None:
    async def story() -> None:
        store, other = resting(disk), resting(disk, "other")
        put(store, b"a", b"key 0001")
        put(other, b"a", b"key 0001")
        disk.write_table("run", [(b"key 0001", b"taken"), (b"z", b"taken")])
        store.ingest(["run"])
        assert not rests(store) and not disk.exists("run")
        wanted = HELD | {b"a": b"new", b"key 0001": b"taken", b"z": b"taken"}
        assert contents(store) == wanted
        other.checkpoint("copies/one")
        assert not rests(other)
        put(other, b"b")
        copy = open_resting(disk, "copies/one")
        assert contents(copy) == HELD | {b"a": b"new", b"key 0001": b"new"}
        store.close()
        again = disk.open("store", wal=False, small=True, resting=True)
        assert contents(again) == wanted, "all of it was durable"

    run(story)


def test_scans_that_began_before_go_on_over_the_old_files(disk: RocksDisk) -> None:
    """Also where these were merged into others meanwhile, and are gone by their names."""

    async def story() -> None:
        rng = random.Random(2)
        tables = [{b"%06d" % rng.randrange(20_000): rng.randbytes(100) for _ in range(2000)} for _ in range(3)]
        composed(disk, "store", tables, {})
        store, old = open_resting(disk), tables_in(disk.path / "store")
        held = union(tables)
        over_files = [store.scan(b"", None), store.scan(b"", None, reverse=True), store.scan(b"005", b"015")]
        put(store, b"000000 and a half", b"000000", b"zzz")
        delete(store, *rng.sample(sorted(held), 100))
        with_memory = contents(store)
        over_both = [store.scan(b"", None), store.scan(b"", None, reverse=True), store.scan(b"005", b"015")]
        begun = [next(scan) for scan in over_files + over_both]
        unbegun = store.scan(b"", None)
        put(store, b"later")
        delete(store, *rng.sample(sorted(held), 1000))
        assert await flushed(store) is None
        now = contents(store)
        store._db.compact_range(None, None)
        assert not tables_in(store.path) & old and contents(store) == now
        for pairs, scans, first in ((held, over_files, begun[:3]), (with_memory, over_both, begun[3:])):
            some = {key: value for key, value in pairs.items() if b"005" <= key < b"015"}
            assert [first[0], *scans[0]] == sorted(pairs.items())
            assert [first[1], *scans[1]] == sorted(pairs.items(), reverse=True)
            assert [first[2], *scans[2]] == sorted(some.items())
        assert list(unbegun) == sorted(with_memory.items())

    run(story)


def test_a_scan_that_began_before_finds_old_files_that_it_had_not_come_to(disk: RocksDisk) -> None:
    """None of them lies over another, so it opens one after the other."""

    async def story() -> None:
        first = disk.open("first", wal=False, small=True)
        held = {b"%06d" % number: b"first" for number in range(30 * 20)}
        pairs = sorted(held.items())
        for start in range(0, len(pairs), 20):
            disk.write_table("run", pairs[start : start + 20])
            first.ingest(["run"])
        assert first._loose_files() == 0
        first.checkpoint("store")
        store, old = open_resting(disk), tables_in(disk.path / "store")
        assert len(old) == 30
        forward, backward = store.scan(b"", None), store.scan(b"", None, reverse=True)
        begun = [next(forward), next(backward)]
        put(store, *held)
        assert await flushed(store) is None
        store._db.compact_range(None, None)
        assert not tables_in(store.path) & old
        assert [begun[0], *forward] == pairs and [begun[1], *backward] == pairs[::-1]
        assert contents(store) == dict.fromkeys(held, b"new")

    run(story)


def test_two_flushes_at_once_wake_it_once(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store, opened = resting(disk), list[str]()
        opens = disk.open_database

        def noted(name: str, *how: Any, **more: Any) -> rocksdict.Rdict:
            opened.append(name)
            return opens(name, *how, **more)

        monkeypatch.setattr(disk, "open_database", noted)
        put(store, b"a")
        assert await asyncio.gather(*(flushed(store) for _ in range(4))) == [None] * 4
        assert opened == ["store"] and contents(store) == HELD | {b"a": b"new"}

    run(story)


# When it is closed meanwhile


def test_to_close_it_waits_until_it_is_awake(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store, called = resting(disk), list[object]()
        put(store, b"a")
        with held_while_it_opens(disk, monkeypatch) as gate:
            store.start_flush(called.append)
            await until(gate.begun)
            put(store, b"b")
            asked = Asked(store._flushing)
            monkeypatch.setattr(store, "_flushing", asked)

            def opens_the_gate() -> None:
                asked.wanted.wait(PATIENCE_S)
                gate.open.set()

            other = threading.Thread(target=opens_the_gate)
            other.start()
            store.close()
            other.join()
        with pytest.raises(StoreClosed):
            store.get(b"a")
        again = disk.open("store", wal=False, small=True, resting=True)
        assert contents(again) == HELD | {b"a": b"new", b"b": b"new"}
        assert await flushed(again) is None
        assert called == [], "after a close nobody is called back"

    run(story)


def test_a_flush_that_comes_too_late_does_not_open_a_closed_one(disk: RocksDisk) -> None:
    async def story() -> None:
        store, called = resting(disk), list[object]()
        put(store, b"a")
        assert store._flushing.acquire()
        store.start_flush(called.append)
        store.start_flush(called.append)
        store._flushing.release()
        store.close()
        other = resting(disk, "other")
        put(other, b"a")
        assert await flushed(other) is None
        again = disk.open("store", wal=False, small=True, resting=True)
        assert contents(again) in (HELD, HELD | {b"a": b"new"})
        assert called == []

    run(story)


def test_a_flush_that_gets_its_turn_while_it_is_closed_does_not_open_it_again(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = resting(disk)
    put(store, b"a")
    let_go = store._let_go

    def then_comes_a_flush(**how: Any) -> None:
        let_go(**how)
        with suppress(StoreClosed):
            store.start_flush(lambda _: None)

    monkeypatch.setattr(disk.off_loop, "start", lambda work, done: work())  # it has waited on a thread until now
    monkeypatch.setattr(store, "_let_go", then_comes_a_flush)
    store.close()
    assert contents(disk.open("store", wal=False, small=True)) == HELD


def test_the_disk_closes_it_too(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one, two = resting(disk), resting(disk, "two")
        put(one, b"a")
        put(two, b"a")
        with held_while_it_opens(disk, monkeypatch) as gate:
            one.start_flush(lambda _: None)
            await until(gate.begun)
            gate.open.set()
            disk.close()
        for store in (one, two):
            with pytest.raises(StoreClosed):
                store.get(b"a")
        again = RocksDisk(disk.path, reserve_bytes=0)
        assert contents(again.open("store", wal=False, small=True, resting=True)) == HELD | {b"a": b"new"}
        assert contents(open_resting(again, "two")) == HELD
        again.close()

    run(story)


def test_one_that_has_taken_much_is_woken_up_without_a_flush(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting_store, "WOKEN_BYTES", 10_000)

    async def story() -> None:
        store = resting(disk)
        for number in range(200):
            batch = store.batch()
            batch.put(b"%06d" % number, bytes(100))
            store.write(batch)
            if number < 70:
                assert store.resting
        await until_so(lambda: not store.resting)
        assert all(store.get(b"%06d" % number) == bytes(100) for number in range(200))
        assert len(contents(store)) == len(HELD.keys() | {b"%06d" % number for number in range(200)})

    run(story)
