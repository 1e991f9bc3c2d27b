"""A copy by links, and the manifest that it is made from: as RocksDB itself has them, whatever has happened to it."""

from __future__ import annotations

import errno
import os
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import rocksdict
from tests.unit.storage.external_tables import composed, numbered, write

from trimtab.storage import linking, manifest
from trimtab.storage.linking import link_tables
from trimtab.storage.log_framing import BLOCK_BYTES
from trimtab.storage.manifest import NotUnderstood, apply_record, live_tables, manifest_of
from trimtab.storage.rocks import RocksDisk, RocksOptions


def contents(path: Path) -> list[tuple[bytes, bytes]]:
    options = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(path), options, access_type=rocksdict.AccessType.read_only())
    try:
        return list(database.items())
    finally:
        database.close()


def names(path: Path) -> set[str]:
    return {each.name for each in path.glob("*.sst")}


def key_of(number: int) -> bytes:
    return b"%016d" % number


@pytest.mark.parametrize("seed", range(4))
def test_a_linked_copy_holds_what_rocksdb_would_copy_after_writes_merges_and_ingested_tables(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    disk = RocksDisk(tmp_path / "data")
    # Nothing is merged by itself, between the one copy and the other.
    store = disk.open("tablet", wal=False, small=True, coming=10)
    for step in range(60):
        what = rng.choice(("put", "put", "flush", "ingest", "range", "merge", "reopen", "hold"))
        if what == "put":
            write(store, {key_of(rng.randrange(500)): rng.choice((None, rng.randbytes(200))) for _ in range(100)})
        elif what == "flush":
            store._db.flush()
        elif what == "ingest":
            start = rng.randrange(1000)
            disk.write_table("run.sst", [(key_of(start + each), rng.randbytes(50)) for each in range(100)])
            store.ingest(["run.sst"])
        elif what == "range":
            batch = store.batch()
            batch.delete_range(key_of(100), key_of(120))
            store.write(batch)
        elif what == "merge":
            store._db.compact_range(None, None)
        elif what == "hold":
            store.hold_merging(10)
        else:
            store._db.flush()
            store.close()
            store = disk.open("tablet", wal=False, small=True, coming=10)
        if step % 5 == 0:
            linked, theirs = disk.path / f"linked-{step}", disk.path / f"theirs-{step}"
            store._db.flush()
            assert link_tables(store.path, linked)
            rocksdict.Checkpoint(store._db).create_checkpoint(str(theirs))
            assert names(linked) == names(theirs)
            assert contents(linked) == contents(theirs) == list(store.scan(b"", None))
    disk.close()


def test_a_checkpoint_has_everything_that_was_written_before_it_and_rocksdb_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdict, "Checkpoint", None)
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("tablet", wal=False, small=True)
    store.checkpoint("empty")
    write(store, {b"a": b"1"})
    store.checkpoint("snapshots/one")
    write(store, {b"a": b"2", b"b": b"2"})
    assert contents(disk.path / "empty") == []
    assert contents(disk.path / "snapshots" / "one") == [(b"a", b"1")]
    opened = disk.open("snapshots/one", wal=False, small=True)
    write(opened, {b"c": b"3"})
    assert list(opened.scan(b"", None)) == [(b"a", b"1"), (b"c", b"3")]
    assert list(store.scan(b"", None)) == [(b"a", b"2"), (b"b", b"2")]
    disk.close()


def test_copies_that_are_made_while_tables_are_written_and_merged_are_each_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch writes one number under many keys: a copy that mixes two of them is not of one moment."""
    monkeypatch.setattr(rocksdict, "Checkpoint", None)  # which would do it, too
    disk = RocksDisk(tmp_path / "data", options=RocksOptions(small_total_bytes=1 << 20))
    store = disk.open("tablet", wal=False, small=True)
    done = threading.Event()
    turns = written = 0

    def go_on() -> None:
        nonlocal turns, written
        while not done.is_set():
            turns += 1
            write(store, {key_of(each): b"%08d" % turns + bytes(100) for each in range(200)})
            store._db.flush()
            written = turns

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        tables: set[str] = set()
        for number in range(25):
            at_least = written
            store.checkpoint(f"copy-{number}")
            found = contents(disk.path / f"copy-{number}")
            (turn,) = {int(value[:8]) for _, value in found} or {0}
            assert len(found) == (200 if turn else 0) and at_least <= turn <= turns
            tables |= names(disk.path / f"copy-{number}")
    finally:
        done.set()
        writer.join()
    assert written > 1
    assert len(names(store.path)) < written, "they were merged meanwhile"
    assert not tables <= names(store.path), "and those of some copy are gone by now"
    disk.close()


@pytest.mark.parametrize("why", [errno.ENOENT, errno.EPERM, errno.EMLINK])
def test_a_table_that_goes_while_it_is_linked_is_looked_for_anew_and_at_last_rocksdb_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("tablet", wal=False, small=True)
    write(store, {b"a": b"1"})
    store._db.flush()
    link, tried = os.link, []

    def goes_at_first(source: Path, target: Path) -> None:
        tried.append(source)
        if len(tried) == 1:
            raise FileNotFoundError(errno.ENOENT, "gone", source)
        link(source, target)

    monkeypatch.setattr(linking.os, "link", goes_at_first)
    assert link_tables(store.path, disk.path / "copy")
    assert contents(disk.path / "copy") == [(b"a", b"1")]
    assert len(tried) == 3

    def never(source: Path, target: Path) -> None:
        raise OSError(why, "no", source)

    monkeypatch.setattr(linking.os, "link", never)
    assert not link_tables(store.path, disk.path / "none")
    assert not (disk.path / "none").exists()
    store.checkpoint("by-rocksdb")
    assert contents(disk.path / "by-rocksdb") == [(b"a", b"1")]
    disk.close()


def test_a_manifest_that_is_replaced_while_its_tables_are_linked_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("tablet", wal=False, small=True)
    write(store, {b"a": b"1"})
    store._db.flush()
    link, turns = os.link, []

    def another_at_first(source: Path, target: Path) -> None:
        if source.name == "CURRENT":
            turns.append(source)
        if source.name == "CURRENT" and len(turns) == 1:
            target.write_text("MANIFEST-000099\n")
        else:
            link(source, target)

    monkeypatch.setattr(linking.os, "link", another_at_first)
    assert link_tables(store.path, disk.path / "copy")
    assert contents(disk.path / "copy") == [(b"a", b"1")] and len(turns) == 2
    assert (disk.path / "copy" / "CURRENT").samefile(store.path / "CURRENT")
    write(store, {b"b": b"2"})
    store.close()
    assert disk.open("tablet", wal=False, small=True).get(b"a") == b"1", "another manifest and another CURRENT"
    assert not (disk.path / "copy" / "CURRENT").samefile(store.path / "CURRENT")
    assert contents(disk.path / "copy") == [(b"a", b"1")]
    disk.close()


def test_what_is_not_understood_is_left_to_rocksdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(manifest._OTHERS, 3)
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("tablet", wal=False, small=True)
    write(store, {b"a": b"1"})
    assert not link_tables(store.path, disk.path / "none")
    store.checkpoint("copy")
    assert contents(disk.path / "copy") == [(b"a", b"1")]
    disk.close()


def test_a_manifest_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    """Also where records lie across the blocks that it is written in: keys are long."""
    disk = RocksDisk(tmp_path / "data", options=RocksOptions())
    store = disk.open("tablet", wal=False, small=True, coming=10)  # nothing is merged meanwhile
    sets: list[tuple[int, set[str]]] = []
    path = manifest_of(store.path)
    assert path is not None
    for number in range(24):
        write(store, {b"%03d" % number + bytes(2500): b"a", b"%03d" % number + bytes(2600): b"b"})
        store._db.flush()
        sets.append((path.stat().st_size, {Path(each["name"]).name for each in store._db.live_files()}))
    data = path.read_bytes()
    assert len(data) > 3 * BLOCK_BYTES
    for (end, tables), (next_end, next_tables) in pairwise(sets):
        for cut in (end, end + 1, end + 6, end + 7, end + 500, (end + next_end) // 2, next_end - 1):
            found, found_end = live_tables(data[:cut])
            named = {f"{number:06}.sst" for number in found}
            # The record of the next flush may be followed by another one.
            assert named in (tables, next_tables) and end <= found_end <= cut
            assert named == tables or cut > end + 500
            assert found_end == end or cut > end + 500
    disk.close()


def test_a_damaged_manifest_is_refused_or_names_other_tables_but_never_ends_in_another_error(tmp_path: Path) -> None:
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("tablet", wal=False, small=True)
    for number in range(10):
        write(store, {key_of(number): os.urandom(100)})
        store._db.flush()
    path = manifest_of(store.path)
    assert path is not None
    data, rng, refused = path.read_bytes(), random.Random(1), 0
    for _ in range(1000):
        damaged = bytearray(data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            live_tables(bytes(damaged))
        except NotUnderstood:
            refused += 1
    assert refused > 100
    last = bytearray(data)
    last[-1] ^= 1
    with pytest.raises(NotUnderstood, match="checksum"):
        live_tables(bytes(last))
    disk.close()


@pytest.mark.parametrize(
    "record",
    [
        b"\xc8\x01\x01",  # another column family
        b"\x82\x40\x01a",  # a form of old
        b"\x67\x00\x05\x10\x01a\x01b\x01\x01\x41\x01x\x01",  # a table that lies elsewhere
        b"\x67\x00\x05\x10\x01a\x01b\x01\x01",  # a table without an end
        b"\x06\x00\x05",  # gone, and was never there
        b"\x02",
        b"\x01\x7fabc",
    ],
)
def test_records_that_might_mean_something_else_are_not_understood(record: bytes) -> None:
    with pytest.raises(NotUnderstood):
        apply_record(record, set())
    live: set[int] = set()
    apply_record(b"\x67\x00\x05\x10\x01a\x01b\x01\x01\x05\x01x\x01", live)
    assert live == {5}


@pytest.mark.parametrize(("coming", "merging"), [(0, True), (3, True), (4, False), (24, False), (25, True)])
def test_a_store_is_opened_as_holding_its_merging_would_leave_it(tmp_path: Path, coming: int, merging: bool) -> None:
    disk = RocksDisk(tmp_path / "data")
    opened = disk.open("opened", wal=False, small=True, coming=coming)
    held = disk.open("held", wal=False, small=True)
    held.hold_merging(coming)
    assert opened._merging is held._merging is merging
    disk.close()


def test_a_copy_of_one_that_rests_is_links_alone_and_stays_as_it_is_when_that_is_woken_and_merged(
    disk: RocksDisk,
) -> None:
    composed(disk, "store", [numbered(range(60), b"one"), numbered(range(40, 100), b"two")], {})
    store = disk.open("store", wal=False, small=True, resting=True)
    assert store.resting
    store.checkpoint("snapshots/one")
    copy, held = disk.path / "snapshots" / "one", list(store.scan(b"", None))
    assert len(held) == 100 and {each.stat().st_ino for each in copy.iterdir()} <= {
        each.stat().st_ino for each in store.path.iterdir()
    }
    before = {each.name: each.read_bytes() for each in copy.iterdir()}
    write(store, {b"later": b"x", b"key 0000": None})
    store.checkpoint("snapshots/two")
    assert not store.resting, "what it had taken had to be in files"
    store._db.compact_range(None, None)
    write(store, {b"later": b"y"})
    store._db.flush()
    assert {each.name: each.read_bytes() for each in copy.iterdir()} == before and contents(copy) == held
    assert dict(contents(disk.path / "snapshots" / "two")).get(b"later") == b"x"
