"""Stores of tablets as they are opened: one at a time, new ones with links, and each time with the options of now."""

import asyncio
import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trimtab.storage import rocks
from trimtab.storage.port import DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk, RocksOptions
from trimtab.storage.rocks_options import SMALL_MERGED_FROM


def test_stores_are_opened_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switching: None) -> None:
    """While one is opened no other thread runs; two at once would keep the loop from its turn between them."""
    disk, real = RocksDisk(tmp_path), rocks.rocksdict.Rdict
    under_way, most, counting = 0, 0, threading.Lock()

    def opened(*arguments: object, **options: object) -> object:
        nonlocal under_way, most
        with counting:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.02)  # unlike the real one it lets others run
        try:
            return real(*arguments, **options)
        finally:
            with counting:
                under_way -= 1

    monkeypatch.setattr(rocks.rocksdict, "Rdict", opened)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: disk.open(f"tablets/{number}", wal=False, small=True), range(8)))
    assert most == 1
    disk.close()


def test_new_small_stores_begin_with_links_and_know_nothing_of_each_other(tmp_path):
    disk = RocksDisk(tmp_path / "data", reserve_bytes=0)
    one, two = disk.open("t/1", wal=False, small=True), disk.open("t/2", wal=False, small=True)
    batch = one.batch()
    batch.put(b"a", b"1")
    one.write(batch)
    one._db.flush()
    assert (one.get(b"a"), two.get(b"a")) == (b"1", None)
    assert disk.names() == ["t/1", "t/2"], "what new ones begin with is no store of anybody's"
    disk.close()
    assert not list((tmp_path / "data").glob(".*")), "nor is it left behind"
    again = RocksDisk(tmp_path / "data", reserve_bytes=0)
    assert again.open("t/1", wal=False, small=True).get(b"a") == b"1"
    assert again.open("t/2", wal=False, small=True).get(b"a") is None
    again.close()


def test_a_new_small_store_that_could_not_be_begun_leaves_nothing(tmp_path, monkeypatch):
    disk = RocksDisk(tmp_path / "data", reserve_bytes=0)
    disk.open("t/1", wal=False, small=True)

    def refuses(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(DiskFull):
        disk.open("t/2", wal=False, small=True)
    assert not disk.exists("t/2")
    monkeypatch.undo()
    assert disk.open("t/2", wal=False, small=True).get(b"a") is None
    disk.close()


@pytest.mark.parametrize("trouble", ["no links", "the template is gone"])
def test_a_new_small_store_can_do_without_links(tmp_path, monkeypatch, trouble):
    disk = RocksDisk(tmp_path / "data", reserve_bytes=0)
    disk.open("t/1", wal=False, small=True)

    def refuses(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    if trouble == "no links":
        monkeypatch.setattr(os, "link", refuses)
    else:
        shutil.rmtree(disk._template)
    for name in ("t/2", "t/3"):
        assert disk.open(name, wal=False, small=True).get(b"a") is None
    disk.close()
    assert not list((tmp_path / "data").glob(".*"))


def test_a_new_small_store_whose_name_is_not_durable_is_an_error(tmp_path, monkeypatch):
    disk = RocksDisk(tmp_path / "data", reserve_bytes=0)
    disk.open("t/1", wal=False, small=True)
    sync = os.fsync
    left = [1]

    def fails_second(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_second)
    with pytest.raises(StorageError, match="Input/output error"):
        disk.open("t/2", wal=False, small=True)
    monkeypatch.undo()
    disk.close()


def test_a_template_that_could_not_be_made_leaves_nothing(tmp_path, monkeypatch):
    disk = RocksDisk(tmp_path / "data", reserve_bytes=0)

    def refuses(*_, **__):
        raise Exception("IO error: No space left on device: While appending to file: x")

    monkeypatch.setattr(rocks.rocksdict, "Rdict", refuses)
    for _ in range(2):
        with pytest.raises(DiskFull):
            disk.open("t/1", wal=False, small=True)
    monkeypatch.undo()
    assert not list((tmp_path / "data").glob(".*"))
    assert disk.open("t/1", wal=False, small=True).get(b"a") is None
    disk.close()


def test_the_loop_itself_is_never_put_to_sleep(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    rocks.let_go()
    assert len(slept) == 1

    async def story():
        rocks.let_go()

    asyncio.run(story())
    assert len(slept) == 1


def test_a_store_that_is_opened_again_has_the_options_of_now_and_the_memory_of_all(tmp_path: Path) -> None:
    """Each had a cache of its own from its second life on, and one that had not been merged never was again."""
    for life in range(2):
        disk = RocksDisk(tmp_path / "data", reserve_bytes=0, options=RocksOptions(block_cache_bytes=(3 + life) << 20))
        for name in ("t/1", "t/2"):
            store = disk.open(name, wal=False, small=True, coming=0 if life else SMALL_MERGED_FROM)
            assert store._db.property_value("rocksdb.block-cache-capacity") == str((3 + life) << 20)
            for number in range(SMALL_MERGED_FROM):
                batch = store.batch()
                batch.put(b"%d" % number, os.urandom(1000))
                store.write(batch)
                store._db.flush()
        loose = [disk._open[name]._loose_files for name in ("t/1", "t/2")]
        if not life:
            assert [each() for each in loose] == [SMALL_MERGED_FROM] * 2
        deadline = time.monotonic() + 30
        while life and not all(each() < SMALL_MERGED_FROM for each in loose):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        disk.close()
