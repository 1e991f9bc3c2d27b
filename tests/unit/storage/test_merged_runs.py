"""Loads of few runs: what RocksDB would never merge by itself becomes one file."""

import os

import pytest

from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_store import RocksStore


def loaded(disk: RocksDisk, runs: int, before: int = 0, rows: int = 500) -> RocksStore:
    """A store that a load has brought so many runs, each over all keys; `before`: rows that it had."""
    if before:
        disk.write_table("before", ((b"%08d" % n, os.urandom(200)) for n in range(0, before * 10, 10)))
    for run in range(runs):
        disk.write_table(f"run{run}", ((b"%08d" % (n * 10 + run + 1), os.urandom(200)) for n in range(rows)))
    store = disk.open("tablets/1/0.1", wal=False, small=True, coming=runs)
    if before:
        store.ingest(["before"])
    store.ingest([f"run{run}" for run in range(runs)])
    return store


@pytest.mark.parametrize(("runs", "before", "files"), [(1, 0, 1), (2, 0, 1), (3, 1000, 1), (1, 5000, 2)])
def test_a_few_runs_of_a_load_become_one_file_where_they_are_much_of_a_store(tmp_path, runs, before, files):
    disk = RocksDisk(tmp_path / "data")
    store = loaded(disk, runs, before)
    held = list(store.scan(b"", None))
    store.merge()
    assert len(list((tmp_path / "data" / "tablets" / "1" / "0.1").glob("*.sst"))) == files
    assert list(store.scan(b"", None)) == held and len(held) == before + 500 * runs
    disk.close()


def test_they_stay_as_they_are_where_there_is_no_room(tmp_path, monkeypatch):
    disk = RocksDisk(tmp_path / "data")
    store = loaded(disk, 3)
    monkeypatch.setattr(disk, "free_bytes", lambda: disk.reserve_bytes + 1000)
    store.merge()
    assert len(list((tmp_path / "data" / "tablets" / "1" / "0.1").glob("*.sst"))) == 3
    disk.close()
