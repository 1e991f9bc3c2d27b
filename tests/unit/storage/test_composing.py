"""Stores made of tables without RocksDB: it finds in them what it would find had it taken the tables over itself."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import pytest
import rocksdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.storage.external_tables import (
    Pairs,
    composed,
    numbered,
    tables_in,
    two_tables,
    union,
    write,
    write_external,
)

from trimtab.storage import composing
from trimtab.storage.linking import NO_LINKS
from trimtab.storage.log_framing import (
    BLOCK_BYTES,
    FIRST,
    LAST,
    fragments,
)
from trimtab.storage.manifest import (
    framing_trouble,
    live_tables,
    manifest_of,
)
from trimtab.storage.port import Corrupt, DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.sst_file import (
    EXTERNAL_SEQUENCE,
    EXTERNAL_VERSION,
    FIRST_KEY,
    FOOTER_BYTES,
    LAST_KEY,
    Unreadable,
    bounds_of,
    open_table,
)
from trimtab.storage.sst_writing import TableWriter

Change = Callable[[bytes], bytes]


def read_only(path: Path) -> list[tuple[bytes, bytes]]:
    """As RocksDB reads it with options of its own."""
    options = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(path), options, access_type=rocksdict.AccessType.read_only())
    try:
        items: Any = database.items()
        return list(items)
    finally:
        database.close()


def names_of(disk: RocksDisk) -> set[str]:
    """Whatever there is in the disk's folder, also what begins with a dot."""
    return {path.relative_to(disk.path).as_posix() for path in disk.path.rglob("*")}


def all_of_two_tables(own: Pairs = ()) -> list[tuple[bytes, bytes]]:
    return sorted((numbered(range(60), b"one") | numbered(range(40, 100), b"two") | dict(own)).items())


keys = st.binary(min_size=1, max_size=3) | st.integers(1, 300).map(lambda size: b"ab" * size)
values = st.binary(max_size=30) | st.integers(0, 300).map(lambda size: b"ab" * size)
any_tables = st.lists(st.dictionaries(keys, values, min_size=1, max_size=12), max_size=5)
any_own = st.dictionaries(keys | st.just(b""), values, max_size=5)
any_changes = st.lists(st.dictionaries(keys, st.none() | values, max_size=8), max_size=3)


@settings(max_examples=35, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_tables, any_own, any_changes, st.tuples(keys, keys), st.sampled_from([1, 3, 1000]))
def test_later_tables_win_over_earlier_ones_and_its_own_pairs_over_all_of_them(
    tmp_path_factory: pytest.TempPathFactory,
    tables: list[dict[bytes, bytes]],
    own: dict[bytes, bytes],
    changes: list[dict[bytes, bytes | None]],
    bounds: tuple[bytes, bytes],
    batch: int,
) -> None:
    """Read without RocksDB's files for writing, then opened for writing, written to, and opened again."""
    disk = RocksDisk(tmp_path_factory.mktemp("composing"), reserve_bytes=0)
    held, staged = union([*tables, own]), []
    for number, table in enumerate(tables):
        path = write_external(disk, f"staging/{number}", sorted(table.items()), batch=batch)
        assert bounds_of(path) == (min(table), max(table), path.stat().st_size)
        staged.append(f"staging/{number}")
    assert disk.compose("store", staged, sorted(own.items()))
    assert read_only(disk.path / "store") == sorted(held.items())
    low, high = sorted(bounds)
    for resting in (True, False):
        store = disk.open("store", wal=False, small=True, resting=resting)
        for reverse in (False, True):
            assert list(store.scan(b"", None, reverse=reverse)) == sorted(held.items(), reverse=reverse)
            between = sorted((pair for pair in held.items() if low <= pair[0] < high), reverse=reverse)
            assert list(store.scan(low, high, reverse=reverse)) == between
        assert all(store.get(key) == value for key, value in held.items())
        assert store.get(b"never written") is None
        assert store.read(b"", b"\xff", 3) == sorted(pair for pair in held.items() if pair[0] < b"\xff")[:3]
        if resting:
            store.close()
    for change in changes:
        write(store, change)
        held = {key: value for key, value in (held | change).items() if value is not None}
        assert dict(store.scan(b"", None)) == held
        store._db.flush()
    store.close()
    assert read_only(disk.path / "store") == sorted(held.items())
    disk.close()


def test_from_then_on_it_is_a_store_like_any_other(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdict, "Checkpoint", None)  # its manifest is understood, so nobody asks RocksDB for copies
    rng = random.Random(1)
    tables = [{b"%05d" % rng.randrange(3000): rng.randbytes(100) for _ in range(1500)} for _ in range(3)]
    composed(disk, "store", tables, {b"own": b"pair", b"00000": b"own"})
    held = union([*tables, {b"own": b"pair", b"00000": b"own"}])
    store = disk.open("store", wal=False, small=True)
    store.checkpoint("as-it-was")
    before = dict(held)
    changes: dict[bytes, bytes | None] = dict.fromkeys(rng.sample(sorted(held), 300))
    changes |= {b"%05d" % rng.randrange(4000): b"later" for _ in range(300)}
    write(store, changes)
    batch = store.batch()
    batch.delete_range(b"00100", b"00200")
    store.write(batch)
    held = {key: value for key, value in (held | changes).items() if value is not None}
    held = {key: value for key, value in held.items() if not b"00100" <= key < b"00200"}
    assert dict(store.scan(b"", None)) == held
    store._db.flush()
    assert dict(store.scan(b"", None)) == held
    disk.write_table("run", [(b"00150", b"taken"), (b"own", b"taken")])
    store.ingest(["run"])
    held |= {b"00150": b"taken", b"own": b"taken"}
    assert list(store.scan(b"", None, reverse=True)) == sorted(held.items(), reverse=True)
    store.checkpoint("before-merging")
    store._db.compact_range(None, None)
    store.merge()
    assert dict(store.scan(b"", None)) == held
    write(store, {b"last": b"of all"})
    store.checkpoint("after-merging")
    store.close()
    again = disk.open("store", wal=False, small=True)
    assert dict(again.scan(b"", None)) == held | {b"last": b"of all"}
    again.close()
    for name, wanted in (
        ("as-it-was", before),
        ("before-merging", held),
        ("after-merging", held | {b"last": b"of all"}),
    ):
        copy = disk.open(name, wal=False, small=True)
        assert dict(copy.scan(b"", None)) == wanted
        copy.close()


def test_a_few_tables_are_merged_into_one(disk: RocksDisk) -> None:
    tables = [numbered(range(start, start + 300), b"%d" % start) for start in (0, 100, 200)]
    composed(disk, "store", tables, {})
    store = disk.open("store", wal=False, small=True)
    assert tables_in(store.path) == {"000002.sst", "000003.sst", "000004.sst"} and store._loose_files() == 3
    store.merge()
    assert len(tables_in(store.path)) == 1 and not tables_in(store.path) & {"000002.sst", "000003.sst", "000004.sst"}
    assert dict(store.scan(b"", None)) == union(tables)


def test_there_may_be_hundreds_of_tables(disk: RocksDisk) -> None:
    """Their record in the manifest is longer than a block of it. From 256 loose files on RocksDB would hold writers."""
    tables = [
        {b"%04d" % number + bytes(50): b"%d" % table for number in range(table, table + 9)} for table in range(300)
    ]
    composed(disk, "store", tables, {b"own": b"pair"})
    held = union([*tables, {b"own": b"pair"}])
    data = (disk.path / "store" / "MANIFEST-000001").read_bytes()
    assert [kind for _, kind, _ in fragments(data)] == [FIRST, LAST] and len(data) > BLOCK_BYTES
    assert live_tables(data) == (set(range(2, 303)), len(data))
    assert read_only(disk.path / "store") == sorted(held.items())
    store = disk.open("store", wal=False, small=True, coming=5)  # nothing is merged meanwhile
    assert store._loose_files() == 301
    write(store, {b"later": b"pair"})
    assert dict(store.scan(b"", None)) == held | {b"later": b"pair"}
    store.merge()
    store._db.compact_range(None, None)
    assert len(tables_in(store.path)) < 10
    assert dict(store.scan(b"", None)) == held | {b"later": b"pair"}


@pytest.mark.parametrize("size", [100, 127, 128, 16_370, 16_384, BLOCK_BYTES, 100_000])
def test_keys_may_be_long(disk: RocksDisk, size: int) -> None:
    """The manifest has the first and the last one of each table."""
    tables = [{bytes([table, first]) + bytes(size): b"%d" % table for first in range(3)} for table in range(3)]
    own = {b"\x01\x01" + bytes(size): b"own", b"\xff" * size: b"own"}
    composed(disk, "store", tables, own)
    found = manifest_of(disk.path / "store")
    assert found is not None and framing_trouble(found) is None
    assert live_tables(found.read_bytes()) == ({2, 3, 4, 5}, found.stat().st_size)
    assert read_only(disk.path / "store") == sorted(union([*tables, own]).items())
    store = disk.open("store", wal=False, small=True)
    assert list(store.scan(b"", None, reverse=True)) == sorted(union([*tables, own]).items(), reverse=True)


@pytest.mark.parametrize("own", [[], [(b"", b"")], [(b"a", b"1"), (b"b", b"2")]])
def test_it_may_consist_of_its_own_pairs_or_of_nothing(disk: RocksDisk, own: Pairs) -> None:
    assert disk.compose("tablets/7/0.1", [], own)
    assert read_only(disk.path / "tablets/7/0.1") == own
    store = disk.open("tablets/7/0.1", wal=False, small=True)
    write(store, {b"c": b"3"})
    store._db.flush()
    store.close()
    again = disk.open("tablets/7/0.1", wal=False, small=True)
    assert list(again.scan(b"", None)) == [*own, (b"c", b"3")]


def test_a_table_may_be_in_it_twice_and_in_many_stores(disk: RocksDisk) -> None:
    one, two = two_tables(disk)
    assert disk.compose("a", [one, two, one], []) and disk.compose("b", [two], []) and disk.compose("c", [one, two], [])
    assert dict(read_only(disk.path / "a")) == numbered(range(40, 100), b"two") | numbered(range(60), b"one")
    assert dict(read_only(disk.path / "b")) == numbered(range(40, 100), b"two")
    stores = [disk.open(name, wal=False, small=True) for name in "abc"]
    stores[0]._db.compact_range(None, None)
    disk.remove("staging")
    stores[0].close()
    disk.remove("a")
    disk.await_deleted()
    assert list(stores[2].scan(b"", None)) == all_of_two_tables()


def test_the_tables_stay_where_they_are_and_may_be_deleted(disk: RocksDisk) -> None:
    staged = two_tables(disk)
    before = {name: disk.digest(name) for name in staged}
    own = [(b"key 0050", b"own")]
    assert disk.compose("store", staged, own)
    assert {name: disk.digest(name) for name in staged} == before
    assert disk.path_of("staging/one").samefile(disk.path / "store" / "000002.sst"), "a link, not a copy"
    store = disk.open("store", wal=False, small=True)
    write(store, {b"later": b"pair"})
    store._db.flush()
    store._db.compact_range(None, None)
    assert {name: disk.digest(name) for name in staged} == before, "merging them away leaves them as they were"
    store.close()
    assert disk.compose("other", staged, own)
    disk.remove("staging")
    disk.await_deleted()
    assert read_only(disk.path / "other") == all_of_two_tables(own)
    assert read_only(disk.path / "store") == [*all_of_two_tables(own), (b"later", b"pair")]


def test_it_is_on_the_disk_before_it_has_its_name(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    staged, seen = two_tables(disk), []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        seen.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    assert disk.compose("store", staged, [(b"own", b"pair")])
    begun = seen[seen.index("renamed") - 1]
    assert begun.startswith(".unfinished-"), "its names, when all of them are there"
    assert set(seen[: seen.index(begun)]) == {"own", "MANIFEST-000001", "CURRENT"}
    assert seen[-2:] == ["renamed", disk.path.name]


def test_what_a_dying_process_has_left_is_swept_away(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = two_tables(disk)

    def dies(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(composing, "framed", dies)
    with pytest.raises(SystemExit):
        disk.compose("store", staged, [])
    assert not disk.exists("store") and list(disk.path.glob(".unfinished-*"))
    after = RocksDisk(disk.path)
    after.await_deleted()
    assert not list(disk.path.glob(".unfinished-*"))
    assert after.names() == staged
    after.close()


# What can only be ingested, or not even that


class Lying(TableWriter):
    """Writes tables that say other things of themselves."""

    says: dict[bytes, bytes | None]

    def _properties(self, data_bytes: int, index_bytes: int) -> dict[bytes, bytes]:
        found = super()._properties(data_bytes, index_bytes) | self.says
        return {name: value for name, value in sorted(found.items()) if value is not None}


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({FIRST_KEY: None}, "does not say"),
        ({LAST_KEY: None}, "does not say"),
        ({FIRST_KEY: b"z", LAST_KEY: b"a"}, "does not say"),
        ({EXTERNAL_VERSION: None}, "taken over"),
        ({EXTERNAL_VERSION: struct.pack("<I", 1)}, "taken over"),
        ({EXTERNAL_SEQUENCE: None}, "taken over"),
        ({EXTERNAL_SEQUENCE: b"\x07" + bytes(7)}, "taken over"),
        ({b"rocksdb.deleted.keys": b"\x01"}, "more than puts"),
        ({b"rocksdb.num.range-deletions": b"\x01"}, "more than puts"),
        ({b"rocksdb.merge.operands": b"\x01"}, "more than puts"),
        ({b"rocksdb.comparator": b"rocksdb.ReverseBytewiseComparator"}, "sorted by"),
        ({b"rocksdb.block.based.table.index.type": b"\x02\0\0\0"}, "another kind of index"),
    ],
)
def test_a_table_of_another_kind_is_left_to_rocksdb(disk: RocksDisk, says: dict[bytes, bytes | None], why: str) -> None:
    staged = two_tables(disk)
    writer: Any = type("Writer", (Lying,), {"says": says})
    path = write_external(disk, "staging/other", sorted(numbered(range(10), b"other").items()), writer=writer)
    with pytest.raises(Unreadable, match=why):
        bounds_of(path)
    before = names_of(disk)
    assert not disk.compose("tablets/7/0.1", [*staged, "staging/other"], [(b"own", b"pair")])
    assert names_of(disk) == before


def test_tables_that_do_not_say_what_lies_in_them_can_only_be_ingested(disk: RocksDisk) -> None:
    staged = two_tables(disk)
    disk.write_table("staging/silent", [(b"key 0050", b"silent")])
    before = names_of(disk)
    assert not disk.compose("store", [*staged, "staging/silent"], [(b"own", b"pair")])
    assert names_of(disk) == before
    store = disk.open("store", wal=False, small=True)
    store.ingest([*staged, "staging/silent"])
    assert list(store.scan(b"", None)) == all_of_two_tables([(b"key 0050", b"silent")])


def damaged(place: int) -> Change:
    return lambda data: data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: FOOTER_BYTES - 1], id="shorter than a footer"),
        pytest.param(lambda data: data[:-1], id="without its last byte"),
        pytest.param(lambda data: data[: len(data) // 2], id="half of it"),
        pytest.param(lambda data: data[-FOOTER_BYTES:], id="nothing but a footer"),
        pytest.param(lambda data: data[100:], id="without its beginning"),
        pytest.param(lambda data: data + b"\0", id="with a byte behind it"),
        pytest.param(lambda data: b"no table at all" * 100, id="no table"),
        pytest.param(lambda data: bytes(len(data)), id="zeroes"),
        *(pytest.param(damaged(place - FOOTER_BYTES), id=f"footer, byte {place}") for place in (0, 1, 4, 9, 13, 16)),
        *(pytest.param(damaged(place - FOOTER_BYTES), id=f"footer, byte {place}") for place in (41, 45, 52)),
    ],
)
def test_what_is_no_whole_table_is_refused_and_nothing_is_left(disk: RocksDisk, change: Change) -> None:
    staged = two_tables(disk)
    path = disk.path_of("staging/two")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(change(data))
    before = names_of(disk)
    assert not disk.compose("tablets/7/0.1", staged, [(b"own", b"pair")])
    assert names_of(disk) == before


def test_whatever_is_damaged_behind_the_rows_it_is_refused_or_rocksdb_finds_it(disk: RocksDisk) -> None:
    """Rows and index are not read for it, and of the footer only what is needed."""
    pairs = sorted(numbered(range(40), b"one").items())
    path = write_external(disk, "whole", pairs)
    data, table = path.read_bytes(), open_table(path)
    index = int(table.offsets[-1] + table.sizes[-1]) + 5
    begin = data.index(b"leveldb.BytewiseComparator")
    for place in [*range(index, begin, 5), *range(begin, len(data), 7)]:
        disk.path_of("damaged").write_bytes(damaged(place)(data))
        if not disk.compose("store", ["damaged"], []):
            continue
        assert place < begin or place >= len(data) - FOOTER_BYTES, "properties are read and checked"
        for resting in (True, False):
            with pytest.raises(Corrupt):
                disk.open("store", wal=False, small=True, resting=resting)
        disk.remove("store")


def test_damaged_rows_are_found_when_they_are_read(disk: RocksDisk) -> None:
    staged = two_tables(disk)
    path = disk.path_of("staging/one")
    data = path.read_bytes()
    path.write_bytes(damaged(30)(data))
    assert disk.compose("store", staged, [])
    for resting in (True, False):
        store = disk.open("store", wal=False, small=True, resting=resting)
        with pytest.raises(Corrupt):
            list(store.scan(b"", None))
        with pytest.raises(Corrupt):
            store.read(b"", b"\xff", 5)
        store.close()


@pytest.mark.parametrize("missing", ["staging/three", "nowhere/at/all", "staging", "staging/one/inside"])
def test_where_a_table_is_missing_there_is_nothing(disk: RocksDisk, missing: str) -> None:
    staged = two_tables(disk)
    before = names_of(disk)
    assert not disk.compose("tablets/7/0.1", [*staged, missing], [(b"own", b"pair")])
    assert names_of(disk) == before


def test_a_table_that_goes_meanwhile_is_missing_too(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    staged, link = two_tables(disk), os.link

    def goes(source: Path, target: Path) -> None:
        if source.name == "two":
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", goes)
    assert not disk.compose("store", staged, [(b"own", b"pair")])
    assert names_of(disk) == {"staging", "staging/one"}


@pytest.mark.parametrize("why", NO_LINKS)
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_where_no_links_can_be_made_tables_can_only_be_ingested(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch, why: int, fails_at: int
) -> None:
    staged = two_tables(disk)
    before = names_of(disk)
    link, made = os.link, list[Path]()

    def refuses(source: Path, target: Path) -> None:
        if len(made) == fails_at:
            raise OSError(why, os.strerror(why), str(source))
        made.append(target)
        link(source, target)

    monkeypatch.setattr(os, "link", refuses)
    assert not disk.compose("store", staged, [(b"own", b"pair")])
    assert len(made) == fails_at and names_of(disk) == before


# What is told


@pytest.mark.parametrize("taken_by", ["store", "open store", "file", "directory"])
def test_a_name_that_is_taken_is_refused(disk: RocksDisk, taken_by: str) -> None:
    staged = two_tables(disk)
    if taken_by == "file":
        disk.write_file("taken", b"file")
    elif taken_by == "directory":
        disk.write_file("taken/inside", b"file")
    else:
        assert disk.compose("taken", staged[:1], [])
        if taken_by == "open store":
            disk.open("taken", wal=False, small=True)
    before = names_of(disk)
    with pytest.raises(StorageError, match="can't compose 'taken': the name is taken"):
        disk.compose("taken", staged, [])
    assert names_of(disk) == before


def test_it_can_not_lie_in_a_store_or_beside_the_disk(disk: RocksDisk) -> None:
    staged = two_tables(disk)
    assert disk.compose("store", staged, [])
    before = names_of(disk)
    with pytest.raises(StorageError, match="would lie inside the store"):
        disk.compose("store/inside", staged, [])
    for name, tables in (("../store", staged), ("", staged), (".hidden", staged), ("other", ["../outside"])):
        with pytest.raises(StorageError):
            disk.compose(name, tables, [])
    assert names_of(disk) == before


@pytest.mark.parametrize("own", [[(b"b", b"1"), (b"a", b"1")], [(b"a", b"1"), (b"a", b"2")]])
def test_its_own_pairs_ascend_or_there_is_nothing(disk: RocksDisk, own: Pairs) -> None:
    staged = two_tables(disk)
    before = names_of(disk)
    with pytest.raises(StorageError, match="does not come after"):
        disk.compose("store", staged, own)
    assert names_of(disk) == before


def test_a_disk_without_room_for_a_link_is_full_and_nothing_is_left(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = two_tables(disk)
    before = names_of(disk)
    for fails_at in range(3):
        link, made = os.link, list[Path]()

        def refuses(source: Path, target: Path, link: Any = link, made: Any = made, fails_at: int = fails_at) -> None:
            if len(made) == fails_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))
            made.append(target)
            link(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", refuses)
            with pytest.raises(DiskFull, match="No space left"):
                disk.compose("store", staged, [(b"own", b"pair")])
        assert names_of(disk) == before
    assert disk.compose("store", staged, [(b"own", b"pair")]), "when there is room again"


def failing_sync(monkeypatch: pytest.MonkeyPatch, at: int, why: int) -> list[str]:
    """From now on this sync fails. What was synced before it, by name."""
    fsync, done = os.fsync, list[str]()

    def sync(descriptor: int) -> None:
        if len(done) == at:
            raise OSError(why, os.strerror(why))
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    return done


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("fails_at", range(5))
def test_what_can_not_be_synced_is_not_there(
    disk: RocksDisk, monkeypatch: pytest.MonkeyPatch, fails_at: int, why: int
) -> None:
    staged = two_tables(disk)
    before = names_of(disk)
    done = failing_sync(monkeypatch, fails_at, why)
    with pytest.raises(StorageError, match=os.strerror(why)) as told:
        disk.compose("store", staged, [(b"own", b"pair")])
    assert isinstance(told.value, DiskFull) is (why == errno.ENOSPC)
    assert len(done) == fails_at and names_of(disk) == before
    monkeypatch.undo()
    assert disk.compose("store", staged, [(b"own", b"pair")])


def test_a_file_that_is_written_bit_by_bit_is_whole(disk: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full takes some of what is written, and says how much."""

    class Reluctant(FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[: 1 + len(data) // 2])

    staged, opened = two_tables(disk), Path.open

    def reluctantly(path: Path, mode: str = "r", **how: Any) -> Any:
        if "x" not in mode:
            return opened(path, mode, **how)
        raw = Reluctant(path, mode.replace("b", ""))
        return raw if how.get("buffering") == 0 else BufferedWriter(raw)

    monkeypatch.setattr(Path, "open", reluctantly)
    assert disk.compose("store", staged, [])
    monkeypatch.undo()
    assert read_only(disk.path / "store") == all_of_two_tables()
