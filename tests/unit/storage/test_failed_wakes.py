"""Stores that rested and could not be woken, for a while or for good: nothing is lost, and it is told."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import rocksdict
from tests.unit.storage.resting_stores import (
    HELD,
    contents,
    delete,
    failing_to_open,
    flushed,
    put,
    resting,
    rests,
    run,
    until_so,
)

from trimtab.storage import resting_store
from trimtab.storage.late_store import NotMade
from trimtab.storage.manifest import manifest_of
from trimtab.storage.port import Corrupt, DiskFull, ScanLost, StorageError
from trimtab.storage.rocks import RocksDisk


def test_where_files_can_not_be_opened_now_it_stays_in_memory_and_is_flushed_later(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a")
        refusal = StorageError("open store: IO error: While open a file for appending: LOG: Too many open files")
        with failing_to_open(disk, monkeypatch, refusal):
            for _ in range(2):
                error = await flushed(store)
                assert isinstance(error, NotMade) and "stays in memory" in str(error) and "Too many" in str(error)
            disk.write_table("run", [(b"z", b"taken")])
            refused: list[Callable[[], object]] = [
                lambda: store.ingest(["run"]),
                lambda: store.checkpoint("copy"),
            ]
            for attempt in refused:
                with pytest.raises(NotMade):
                    attempt()
            assert disk.exists("run") and not disk.exists("copy")
            put(store, b"b")
            assert rests(store) and contents(store) == HELD | {b"a": b"new", b"b": b"new"}
        put(store, b"c")
        assert await flushed(store) is None and not rests(store)
        store.close()
        again = disk.open("store", wal=False, small=True)
        assert contents(again) == HELD | dict.fromkeys((b"a", b"b", b"c"), b"new")

    run(story)


@pytest.mark.parametrize("text", ["Input/output error", "Read-only file system"])
def test_what_will_not_pass_by_itself_is_told_as_it_is(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a")
        with failing_to_open(disk, monkeypatch, StorageError(f"open store: IO error: {text}")):
            error = await flushed(store)
        assert isinstance(error, StorageError) and not isinstance(error, NotMade) and text in str(error)
        assert contents(store) == HELD | {b"a": b"new"}

    run(story)


@contextmanager
def no_more_files(but: int = 0) -> Iterator[None]:
    """The process may open so many more, and no other."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    mine: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    try:
        while True:
            try:
                mine.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(but):
            os.close(mine.pop())
        yield
    finally:
        for each in mine:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.parametrize("but", range(6))
def test_a_process_that_really_has_too_many_files_open_loses_nothing(disk: RocksDisk, but: int) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a")
        with no_more_files(but):
            error = await flushed(store)
        assert rests(store) and contents(store) == HELD | {b"a": b"new"}
        assert await flushed(store) is None and not rests(store)
        assert contents(store) == HELD | {b"a": b"new"}
        assert isinstance(error, NotMade), str(error)

    run(story)


class Refusing:
    """A database that takes a few batches and then finds the disk full."""

    def __init__(self, database: rocksdict.Rdict, takes: int) -> None:
        self.database, self.takes, self.closed = database, takes, False

    def write(self, *what: Any) -> None:
        if not self.takes:
            raise Exception("IO error: No space left on device: While appending to file: 000009.sst")
        self.takes -= 1
        self.database.write(*what)

    def close(self) -> None:
        self.closed = True
        self.database.close()


class Noting:
    """A database that notes what it takes in one step."""

    def __init__(self, database: rocksdict.Rdict, steps: list[int]) -> None:
        self.database, self.steps = database, steps

    def write(self, batch: Any, *how: Any) -> None:
        self.steps.append(len(batch))
        self.database.write(batch, *how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


def test_what_was_half_put_in_is_put_in_as_it_is_by_now_and_in_one_step(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put in from the start once more, a crash could leave a late row in front of the deletion that had covered it."""
    monkeypatch.setattr(resting_store, "_SLICE_OPERATIONS", 1)

    async def story() -> None:
        store, opens, steps = resting(disk), disk.open_database, list[int]()
        put(store, b"late", b"tombstone")
        delete(store, b"late", b"tombstone")
        put(store, b"a", value=b"1")
        put(store, b"a", value=b"2")
        with monkeypatch.context() as patch:
            patch.setattr(disk, "open_database", lambda *how, **more: Refusing(opens(*how, **more), 3))
            assert isinstance(await flushed(store), DiskFull) and store.resting
        store._full = None
        with monkeypatch.context() as patch:
            patch.setattr(disk, "open_database", lambda *how, **more: Noting(opens(*how, **more), steps))
            assert await flushed(store) is None
        assert steps == [3] and not store.resting
        assert contents(store) == HELD | {b"a": b"2"}

    run(story)


@pytest.mark.parametrize("where", ["open", "first write", "third write"])
def test_a_disk_that_is_full_while_it_wakes_is_told_and_when_there_is_room_its_files_and_a_prefix_are_there(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def story() -> None:
        store = resting(disk)
        scan = store.scan(b"", None)
        for number in range(120):
            put(store, b"n %d" % number, b"latest", value=b"%d" % number)
        wanted = HELD | {b"n %d" % number: b"%d" % number for number in range(120)} | {b"latest": b"119"}
        monkeypatch.setattr(resting_store, "_SLICE_OPERATIONS", 20)
        opens, made = disk.open_database, list[Refusing]()

        def fills_up(*how: Any, **more: Any) -> Any:
            if where == "open":
                raise DiskFull("store", free_bytes=0, reserve_bytes=0, detail="No space left on device")
            made.append(Refusing(opens(*how, **more), 0 if where == "first write" else 2))
            return made[-1]

        with monkeypatch.context() as patch:
            patch.setattr(disk, "open_database", fills_up)
            assert isinstance(await flushed(store), DiskFull)
        assert [database.closed for database in made] == [True] * len(made), "or nobody could open it again"
        assert rests(store) and contents(store) == wanted
        attempts: list[Callable[[], object]] = [
            lambda: put(store, b"more"),
            lambda: store.checkpoint("copy"),
            lambda: store.merge(),
            lambda: store.hold_merging(1),
        ]
        for attempt in attempts:
            with pytest.raises(DiskFull):
                attempt()
        with monkeypatch.context() as patch:
            patch.setattr(disk, "free_bytes", lambda: 1000)
            with pytest.raises(DiskFull, match="opening it again needs"):
                store.reopen()
        assert contents(store) == wanted and not disk.exists("copy")
        store.reopen()
        with pytest.raises(ScanLost):
            list(scan)
        left = contents(store)
        prefixes = [HELD | {b"n %d" % n: b"%d" % n for n in range(m)} for m in range(121)]
        assert not rests(store) and {key: left[key] for key in left if key != b"latest"} in prefixes
        assert where == "third write" or left == HELD
        put(store, b"more")
        assert await flushed(store) is None
        store.close()
        again = disk.open("store", wal=False, small=True, resting=True)
        assert contents(again) == left | {b"more": b"new"}

    run(story)


def test_what_a_failed_attempt_has_left_in_files_is_a_prefix(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what is there when it is opened again, as after any full disk."""

    async def story() -> None:
        store = resting(disk)
        for number in range(10):
            put(store, b"n %d" % number, b"latest", value=b"%d" % number)
        monkeypatch.setattr(resting_store, "_SLICE_OPERATIONS", 2)
        opens = disk.open_database
        with monkeypatch.context() as patch:
            patch.setattr(disk, "open_database", lambda *how, **more: Refusing(opens(*how, **more), 4))
            assert isinstance(await flushed(store), DiskFull)
        assert contents(store) == HELD | {b"n %d" % number: b"%d" % number for number in range(10)} | {b"latest": b"9"}
        store.reopen()
        left = {key: value for key, value in contents(store).items() if key not in HELD}
        prefix = {b"n %d" % number: b"%d" % number for number in range(max(0, len(left) - 1))}
        assert left == (prefix | {b"latest": max(prefix.values())} if left else {})
        delete(store, b"n 1", b"latest")
        wanted = contents(store)
        assert await flushed(store) is None
        assert contents(store) == wanted and b"latest" not in wanted and b"n 1" not in wanted

    run(story)


def test_damage_that_is_found_when_it_wakes_is_told(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a")
        manifest = manifest_of(store.path)
        assert manifest is not None
        with manifest.open("ab") as file:
            file.write(b"\0\0\0\0\x05\0\x09hello")
        error = await flushed(store)
        assert isinstance(error, Corrupt) and "unknown record type 9" in str(error)
        assert rests(store) and contents(store) == HELD | {b"a": b"new"}

    run(story)


def test_one_that_has_taken_much_and_can_not_be_woken_up_is_tried_again_when_it_has_twice_as_much(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting_store, "WOKEN_BYTES", 1_000)
    opens, tried = disk.open_database, list[int]()

    async def story() -> None:
        store = resting(disk)

        def fails_twice(name: str, *how: Any, **more: Any) -> rocksdict.Rdict:
            tried.append(store.memory_bytes())
            if len(tried) <= 2:
                raise StorageError("IO error: Too many open files")
            return opens(name, *how, **more)

        monkeypatch.setattr(disk, "open_database", fails_twice)
        for number in range(200):
            batch = store.batch()
            batch.put(b"%06d" % number, bytes(100))
            store.write(batch)
            await asyncio.sleep(0)
        await until_so(lambda: not store.resting)
        assert len(tried) == 3 and tried[1] >= 2_000 and tried[2] >= 4_000
        assert all(store.get(b"%06d" % number) == bytes(100) for number in range(200))

    run(story)


def test_one_that_can_not_be_opened_again_after_a_full_disk_stays_as_it_is_until_it_can(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a")
        full = DiskFull("store", free_bytes=0, reserve_bytes=0)
        with failing_to_open(disk, monkeypatch, full):
            assert isinstance(await flushed(store), DiskFull)
        elsewhere = StorageError("it is open elsewhere")
        with failing_to_open(disk, monkeypatch, elsewhere), pytest.raises(StorageError, match="open elsewhere"):
            store.reopen()
        assert rests(store) and contents(store) == HELD | {b"a": b"new"}
        with pytest.raises(DiskFull):
            put(store, b"b")
        store.reopen()
        assert not rests(store) and contents(store) == HELD
        put(store, b"b")
        assert await flushed(store) is None and contents(store) == HELD | {b"b": b"new"}

    run(story)
