"""Stores whose files are only read until something has to be in them: as if they had always been open for writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.storage.external_tables import composed, tables_in, union
from tests.unit.storage.resting_stores import (
    BASE,
    HELD,
    Held,
    contents,
    delete,
    failing_to_open,
    flushed,
    open_resting,
    put,
    resting,
    rests,
    run,
    until_so,
)

from trimtab.storage.late_store import NotMade
from trimtab.storage.port import Corrupt, StorageError, StoreClosed
from trimtab.storage.resting_store import RestingStore
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_store import RocksStore


def names_in(store: RocksStore) -> set[str]:
    return {path.name for path in store.path.iterdir()}


# Any story

few_keys = st.sampled_from([b"", b"a", b"a\0", b"b", b"key 0000", b"key 0045", b"key 0099", b"z", b"\xff\xff"])
few_keys |= st.binary(max_size=2)
values = st.binary(max_size=30)
changes = st.one_of(
    st.tuples(st.just("put"), few_keys, values),
    st.tuples(st.just("delete"), few_keys),
)
batches = st.lists(changes, min_size=1, max_size=6)
steps = st.one_of(
    st.tuples(st.just("write"), batches),
    st.tuples(st.just("write"), batches),
    st.tuples(st.just("get"), few_keys),
    st.tuples(st.just("read"), few_keys, few_keys, st.integers(0, 5)),
    st.tuples(st.just("scan"), few_keys, few_keys | st.none(), st.booleans()),
    st.tuples(st.just("scan later"), few_keys, few_keys | st.none(), st.booleans()),
    st.tuples(st.just("delete_range"), few_keys, few_keys),
    st.tuples(st.just("ingest"), st.dictionaries(few_keys, values, min_size=1, max_size=4)),
    st.sampled_from([("flush",), ("merge",), ("hold",), ("checkpoint",), ("reopen",), ("go on with a copy",)]),
)


@dataclass
class Told:
    """One store in a story, and the dictionary that it has to agree with."""

    disk: RocksDisk
    store: RocksStore
    held: Held
    filed: Held  # what its files hold while it rests
    scans: list[tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = field(default_factory=list)
    copies: int = 0

    @property
    def rests(self) -> bool:
        return rests(self.store)

    def write(self, changes: Sequence[tuple[Any, ...]]) -> None:
        batch = self.store.batch()
        for change in changes:
            getattr(batch, change[0])(*change[1:])
            if change[0] == "put":
                self.held[change[1]] = change[2]
            elif change[0] == "delete":
                self.held.pop(change[1], None)
            else:
                self.held = {key: value for key, value in self.held.items() if not change[1] <= key < change[2]}
        self.store.write(batch)

    def between(self, low: bytes, high: bytes | None, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        pairs = (pair for pair in self.held.items() if low <= pair[0] and (high is None or pair[0] < high))
        return sorted(pairs, reverse=reverse)

    def copy(self) -> str:
        self.copies += 1
        self.store.checkpoint(name := f"copies/{self.copies}")
        return name

    def finish_scans(self) -> None:
        for scan, wanted in self.scans:
            assert list(scan) == wanted
        self.scans.clear()

    def open(self, name: str, filed: Held) -> None:
        self.finish_scans()
        self.store.close()
        self.store = self.disk.open(name, wal=False, small=True, resting=True)
        self.held, self.filed = dict(filed), dict(filed)
        assert contents(self.store) == self.held

    async def do(self, what: str, *how: Any) -> None:
        rested = self.rests
        if what == "write":
            self.write(how[0])
            assert self.rests == rested
        elif what == "delete_range":
            self.write([("delete_range", *how)])
            assert self.rests == (rested and how[0] >= how[1])
        elif what == "get":
            assert self.store.get(how[0]) == self.held.get(how[0])
        elif what == "read":
            assert self.store.read(*how) == self.between(how[0], how[1])[: how[2]]
        elif what == "scan":
            assert list(self.store.scan(how[0], how[1], reverse=how[2])) == self.between(*how)
        elif what == "scan later":
            self.scans.append((self.store.scan(how[0], how[1], reverse=how[2]), self.between(*how)))
        elif what == "ingest":
            self.disk.write_table("run", sorted(how[0].items()))
            self.store.ingest(["run"])
            self.held |= how[0]
            assert not self.rests
        elif what == "flush":
            assert await flushed(self.store) is None
            assert self.rests == (rested and self.held == self.filed and not self.store.memory_bytes())
        elif what == "merge":
            self.store.merge()
        elif what == "hold":
            self.store.hold_merging(6)
            assert self.rests == rested
        elif what == "checkpoint":
            copy = self.disk.open(self.copy(), wal=False, small=True, resting=True)
            assert isinstance(copy, RestingStore) and contents(copy) == self.held
            copy.close()
        elif what == "go on with a copy":
            held = dict(self.held)
            self.open(self.copy(), held)
        else:
            if not self.rests:
                assert await flushed(self.store) is None
                self.filed = dict(self.held)
            self.open(self.store.name, self.filed)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=20))
def test_any_sequence_of_operations_agrees_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[Any, ...]]
) -> None:
    async def tell() -> None:
        disk = RocksDisk(tmp_path_factory.mktemp("resting"), reserve_bytes=0)
        tables = [{b"a": b"1", b"b": b"1", **BASE[0]}, BASE[1]]
        composed(disk, "store", tables, {b"": b"own", b"b": b"own"})
        held = union([*tables, {b"": b"own", b"b": b"own"}])
        told = Told(disk, open_resting(disk), dict(held), dict(held))
        try:
            for step in story:
                await told.do(*step)
            assert contents(told.store) == told.held
            told.finish_scans()
        finally:
            disk.close()

    run(tell)


# While it rests


def test_nothing_is_made_for_it_until_something_is_written_and_flushed(disk: RocksDisk) -> None:
    async def story() -> None:
        composed(disk, "store", BASE, {b"own": b"pair"})
        before = {path.name for path in (disk.path / "store").iterdir()}
        store = open_resting(disk)
        made_by_readers = {"rocksdict-config.json"}  # which says how keys are kept
        put(store, b"a", b"b")
        delete(store, b"a", b"own")
        assert contents(store) == HELD | {b"b": b"new"}
        store.hold_merging(2)
        assert names_in(store) - made_by_readers == before and rests(store)
        assert await flushed(store) is None
        assert not rests(store) and {"LOCK", "IDENTITY"} <= names_in(store)
        assert any(name.endswith(".log") for name in names_in(store))
        assert contents(store) == HELD | {b"b": b"new"}

    run(story)


def test_what_has_nothing_to_bring_into_files_does_not_wake_it(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        for _ in range(2):
            assert await flushed(store) is None
        store.ingest([])
        store.checkpoint("copy")
        with pytest.raises(StorageError, match="no such file"):
            store.ingest(["never"])
        with pytest.raises(StorageError, match="no write-ahead log"):
            store.start_sync(lambda _: None)
        batch = store.batch()
        batch.delete_range(b"b", b"a")
        store.hold_merging(3)
        assert rests(store)
        copy = open_resting(disk, "copy")
        assert contents(copy) == contents(store) == HELD

    run(story)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("low", "high"), [(b"", None), (b"key 0010", b"key 0020"), (b"key 0011", b"key 0011"), (b"z", b"a")]
)
def test_what_is_in_memory_lies_between_what_is_in_files(
    disk: RocksDisk, low: bytes, high: bytes | None, reverse: bool
) -> None:
    store = resting(disk)
    put(store, b"", b"before", b"key 0011 and a half", b"key 0012", b"key 0098", b"\xff")
    delete(store, b"key 0000", b"key 0013", b"key 0099", b"key 0011 and a half", b"never written")
    put(store, b"key 0019 and a half", b"key 0000")
    delete(store, b"key 0000")
    held = HELD | dict.fromkeys((b"", b"before", b"key 0012", b"key 0098", b"key 0019 and a half", b"\xff"), b"new")
    held = {key: value for key, value in held.items() if key not in (b"key 0000", b"key 0013", b"key 0099")}
    wanted = sorted(pair for pair in held.items() if low <= pair[0] and (high is None or pair[0] < high))
    assert list(store.scan(low, high, reverse=reverse)) == (wanted[::-1] if reverse else wanted)
    if high is not None:
        assert [store.read(low, high, limit) for limit in range(13)] == [wanted[:limit] for limit in range(13)]
    assert rests(store)


def test_a_scan_shows_what_was_there_when_it_began(disk: RocksDisk) -> None:
    store = resting(disk)
    put(store, b"a", b"key 0003")
    scan, back = store.scan(b"", b"key 0005"), store.scan(b"", b"key 0005", reverse=True)
    assert next(scan) == (b"a", b"new")
    put(store, b"b", b"key 0002", value=b"newer")
    delete(store, b"key 0003", b"a")
    first = [(b"key 0000", b"first"), (b"key 0001", b"first"), (b"key 0002", b"first")]
    assert list(scan) == [*first, (b"key 0003", b"new"), (b"key 0004", b"first")]
    assert list(back) == [(b"a", b"new"), *first, (b"key 0003", b"new"), (b"key 0004", b"first")][::-1]


def test_batches_are_used_once_and_hold_bytes_only(disk: RocksDisk) -> None:
    store = resting(disk)
    put(store, b"a")
    batch = store.batch()
    batch.put(b"b", b"1")
    store.write(batch)
    with pytest.raises(StorageError, match="written already"):
        store.write(batch)
    not_a_batch: Any = object()
    with pytest.raises(TypeError, match="a batch of this store is needed"):
        store.write(not_a_batch)
    text: Any = "text"
    refused: list[Callable[[], object]] = [
        lambda: store.batch().put(text, b""),
        lambda: store.batch().put(b"", text),
        lambda: store.batch().delete(text),
        lambda: store.get(text),
        lambda: store.scan(text, None),
        lambda: store.scan(b"", text),
        lambda: store.read(text, b"b", 1),
        lambda: store.read(b"a", text, 1),
    ]
    for attempt in refused:
        with pytest.raises(TypeError):
            attempt()
    assert contents(store) == HELD | {b"a": b"new", b"b": b"1"}


def test_what_it_takes_is_told(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        tables = sum(path.stat().st_size for path in store.path.glob("*.sst"))
        assert (store.memory_bytes(), store.approximate_bytes()) == (0, tables)
        put(store, b"a", value=bytes(10_000))
        delete(store, b"b")
        one = store.memory_bytes()
        assert one > 10_000 and store.approximate_bytes() == tables + one
        put(store, b"a", value=bytes(5000))
        assert store.memory_bytes() >= one + 5000, "both are kept, until they are in files"
        assert await flushed(store) is None
        assert store.approximate_bytes() > tables

    run(story)


def test_it_may_be_opened_once_and_is_neither_renamed_nor_removed_meanwhile(disk: RocksDisk) -> None:
    store = resting(disk)
    attempts: list[Callable[[], object]] = [
        lambda: disk.open("store", wal=False, small=True, resting=True),
        lambda: disk.rename("store", "other"),
        lambda: disk.remove("store"),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match="open"):
            attempt()
    store.close()
    disk.rename("store", "other")
    assert contents(open_resting(disk, "other")) == HELD


def test_a_closed_one_refuses_everything(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a", b"b")
        scans = [store.scan(b"", None), store.scan(b"c", None), store.scan(b"", None, reverse=True)]
        scans.append(store.scan(b"a", b"c"))  # all of it in memory
        for scan in scans:
            next(scan)
        unbegun = store.scan(b"", None)
        batch = store.batch()
        batch.put(b"b", b"1")
        store.close()
        store.close()
        refused: list[Callable[[], object]] = [
            lambda: store.get(b"a"),
            lambda: store.get(b"key 0000"),
            lambda: store.scan(b"", None),
            lambda: store.read(b"", b"z", 1),
            lambda: store.write(batch),
            lambda: store.start_flush(lambda _: None),
            lambda: store.start_sync(lambda _: None),
            lambda: store.checkpoint("copy"),
            lambda: store.ingest(["none"]),
            lambda: store.merge(),
            lambda: store.hold_merging(1),
            lambda: store.reopen(),
            lambda: store.memory_bytes(),
            lambda: store.approximate_bytes(),
            lambda: next(unbegun),
            *(lambda scan=scan: list(scan) for scan in scans),
        ]
        disk.write_table("none", [(b"a", b"b")])
        for attempt in refused:
            with pytest.raises(StoreClosed):
                attempt()
        assert not disk.exists("copy") and disk.exists("none")

    run(story)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_over_what_is_in_memory_ends_at_once_with_the_store(disk: RocksDisk, reverse: bool) -> None:
    store = resting(disk)
    put(store, b"a", b"z")
    scan = store.scan(b"", None, reverse=reverse)
    assert next(scan)[1] == b"new"
    store.close()
    with pytest.raises(StoreClosed):
        next(scan)


def test_damage_in_its_files_is_told(disk: RocksDisk) -> None:
    composed(disk, "store", BASE, {})
    path = disk.path / "store" / "000002.sst"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    store = open_resting(disk)
    put(store, b"a")
    reads: list[Callable[[], object]] = [
        lambda: list(store.scan(b"", None)),
        lambda: list(store.scan(b"", None, reverse=True)),
        lambda: list(store.scan(b"key", None)),
        lambda: store.read(b"", b"z", 10),
        lambda: store.get(b"key 0001"),
    ]
    for read in reads:
        with pytest.raises(Corrupt, match=r"000002\.sst"):
            read()
    assert store.get(b"a") == b"new"


@pytest.mark.parametrize(
    "damage", ["no table", "short table", "no manifest", "no CURRENT", "bad manifest", "unknown record"]
)
def test_what_is_damaged_is_not_opened(disk: RocksDisk, damage: str) -> None:
    composed(disk, "store", BASE, {})
    path = disk.path / "store"
    if damage == "no table":
        (path / "000003.sst").unlink()
    elif damage == "short table":
        os.truncate(path / "000003.sst", 200)
    elif damage == "no manifest":
        (path / "MANIFEST-000001").unlink()
    elif damage == "bad manifest":
        (path / "MANIFEST-000001").write_bytes(bytes(100))
    elif damage == "unknown record":
        with (path / "MANIFEST-000001").open("ab") as file:
            file.write(b"\0\0\0\0\x05\0\x09hello" + bytes(50_000))
    else:
        (path / "CURRENT").unlink()
    for _ in range(2):  # nothing of the first attempt keeps it open
        with pytest.raises(Corrupt, match="unknown record type 9" if damage == "unknown record" else "corrupt"):
            disk.open("store", wal=False, small=True, resting=True)


def test_how_its_keys_are_kept_need_not_be_there_and_may_be_half_written(disk: RocksDisk) -> None:
    """That file is written without a sync, so a crash may have left it empty."""
    composed(disk, "store", BASE, {})
    for left in (b"", b'{"raw_'):
        (disk.path / "store" / "rocksdict-config.json").write_bytes(left)
        store = open_resting(disk)
        assert contents(store) == HELD
        store.close()


# Which stores rest


def test_only_small_ones_without_a_log_that_nobody_has_written_to_rest(disk: RocksDisk) -> None:
    composed(disk, "store", BASE, {})
    options: list[dict[str, Any]] = [
        {"wal": False, "small": True, "coming": 25, "resting": True},
        {"wal": False, "small": False, "resting": True},
        {"wal": True, "small": True, "resting": True},
        {"wal": False, "small": True},
    ]
    for number, how in enumerate(options):
        composed(disk, f"other-{number}", BASE, {})
        store = disk.open(f"other-{number}", **how)
        assert type(store) is RocksStore and contents(store) == HELD
    new = disk.open("new", wal=False, small=True, resting=True)
    assert type(new) is RocksStore
    assert contents(open_resting(disk)) == HELD


def test_one_that_was_open_for_writing_is_an_ordinary_store_from_then_on(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a")
        assert await flushed(store) is None
        store.close()
        again = disk.open("store", wal=False, small=True, resting=True)
        assert type(again) is RocksStore and contents(again) == HELD | {b"a": b"new"}

    run(story)


def test_what_a_dead_process_had_in_memory_is_gone_and_nothing_else(disk: RocksDisk) -> None:
    async def story() -> None:
        store = resting(disk)
        put(store, b"a", b"key 0000")
        delete(store, b"key 0001")
        other = RocksDisk(disk.path, reserve_bytes=0)  # the next process
        again = open_resting(other)
        assert contents(again) == HELD
        put(again, b"b")
        assert await flushed(again) is None
        assert contents(again) == HELD | {b"b": b"new"}
        other.close()

    run(story)


# Merging


def table_of(rows: int, first: int = 0) -> Held:
    return {b"%06d" % (number * 10 + first): os.urandom(100) for number in range(rows)}


def test_one_that_lies_in_one_file_nearly_all_of_it_stays_as_it_is(disk: RocksDisk) -> None:
    tables = [table_of(3000), {b"meta": b"of a few bytes"}]
    composed(disk, "store", tables[:1], tables[1])
    store = open_resting(disk)
    before = tables_in(store.path)
    store.merge()
    assert rests(store) and tables_in(store.path) == before and len(before) == 2
    assert contents(store) == union(tables)


def test_a_few_files_of_one_size_become_one(disk: RocksDisk) -> None:
    tables = [table_of(500, first) for first in range(3)]
    composed(disk, "store", tables, {})
    store = open_resting(disk)
    put(store, b"a", b"000000")
    store.merge()
    assert not rests(store) and contents(store) == union(tables) | {b"a": b"new", b"000000": b"new"}
    assert store._loose_files() == 0


def test_they_stay_as_they_are_where_there_is_no_room(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    composed(disk, "store", [table_of(500, first) for first in range(3)], {})
    store = open_resting(disk)
    monkeypatch.setattr(disk, "free_bytes", lambda: disk.reserve_bytes + 1000)
    store.merge()
    assert rests(store) and len(tables_in(store.path)) == 3


@pytest.mark.parametrize("files", [4, 7, 20])
def test_many_loose_files_wake_it_to_be_merged(disk: RocksDisk, files: int) -> None:
    tables = [table_of(50, first) for first in range(files)]
    composed(disk, "store", tables, {})
    store = open_resting(disk, coming=files)
    put(store, b"a")
    store.hold_merging(1)
    assert rests(store) and store._loose_files() == files
    store.merge()
    assert not rests(store) and store._merging is True
    store._db.compact_range(None, None)
    assert store._loose_files() == 0
    assert contents(store) == union(tables) | {b"a": b"new"}


@pytest.mark.parametrize("files", [4, 20])
def test_one_that_was_to_be_merged_when_a_life_ended_is_merged_in_the_next(disk: RocksDisk, files: int) -> None:
    async def story() -> None:
        tables = [table_of(50, first) for first in range(files)]
        composed(disk, "store", tables, {})
        open_resting(disk, coming=files).close()
        store = disk.open("store", wal=False, small=True, resting=True)
        assert not rests(store) and contents(store) == union(tables)
        await until_so(lambda: store._loose_files() == 0)

    run(story)


def test_one_that_is_found_damaged_when_it_is_opened_to_be_merged_keeps_no_file_open(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [table_of(50, first) for first in range(6)]
    composed(disk, "store", tables, {})
    before = len(list(Path("/proc/self/fd").iterdir()))
    with failing_to_open(disk, monkeypatch, Corrupt("store", "it is damaged")), pytest.raises(Corrupt):
        open_resting(disk)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    store = disk.open("store", wal=False, small=True, resting=True)
    assert contents(store) == union(tables)


def test_one_that_can_not_be_woken_when_it_is_opened_rests(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [table_of(50, first) for first in range(6)]
    composed(disk, "store", tables, {})
    with failing_to_open(disk, monkeypatch, StorageError("open store: Too many open files")):
        store = open_resting(disk)
    assert contents(store) == union(tables)
    store.merge()
    assert not rests(store)


def test_too_many_loose_files_are_merged_all_the_same(disk: RocksDisk) -> None:
    tables = [table_of(20, first) for first in range(10)]
    composed(disk, "store", tables, {})
    store = open_resting(disk, coming=10)
    store.hold_merging(30)
    assert not rests(store) and store._merging is True and contents(store) == union(tables)


def test_one_that_is_to_be_left_as_it_is_does_not_merge_when_it_wakes(disk: RocksDisk) -> None:
    async def story() -> None:
        tables = [table_of(50, first) for first in range(6)]
        composed(disk, "store", tables, {})
        store = open_resting(disk, coming=6)
        store.hold_merging(6)
        put(store, b"a")
        assert await flushed(store) is None
        assert not rests(store) and store._loose_files() == 7
        store.merge()
        store._db.compact_range(None, None)
        assert store._loose_files() == 0 and contents(store) == union(tables) | {b"a": b"new"}

    run(story)


def test_what_can_not_be_woken_to_be_merged_is_told(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, files in (("few", 3), ("many", 5)):
        tables = [table_of(50, first) for first in range(files)]
        composed(disk, name, tables, {})
        store = open_resting(disk, name, coming=files)
        with (
            failing_to_open(disk, monkeypatch, StorageError("open store: Too many open files")),
            pytest.raises(NotMade),
        ):
            store.merge()
        assert rests(store) and contents(store) == union(tables)
        store.merge()
        assert not rests(store) and contents(store) == union(tables)
