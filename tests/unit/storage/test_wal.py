"""A damaged log: what may be dropped is dropped and reported, what may not stops the node. Nothing hangs."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from trimtab.raft.messages import ConfState, Entry, EntryType, HardState
from trimtab.storage import log_framing, wal
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Corrupt, StorageError
from trimtab.storage.rocks import RocksDisk

NO_LIMIT = 1 << 60


class Copy:
    """A data directory as the power failure left it, with a log to damage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[str] = []

    @property
    def log_file(self) -> Path:
        return wal.live_logs(self.path / "log")[-1]

    def open(self) -> tuple[RocksDisk, NodeLog]:
        disk = RocksDisk(self.path, reserve_bytes=0)
        try:
            return disk, NodeLog.open(disk, report=self.reports.append)
        except BaseException:
            disk.close()
            raise

    def last_index(self) -> int:
        disk, log = self.open()
        group = log.group(1)
        assert [entry.index for entry in group.entries(2, group.last_index() + 1, NO_LIMIT)] == list(
            range(2, group.last_index() + 1)
        )
        disk.close()
        return group.last_index()


class Original:
    """A log of batches, one entry each; `ends[i]` is the file's length after the batch with entry i+2 was synced."""

    def __init__(self, path: Path, sizes: list[int]) -> None:
        self.path = path
        self.ends: list[int] = []
        asyncio.run(self._write(path / "live", sizes))

    async def _write(self, live: Path, sizes: list[int]) -> None:
        disk = RocksDisk(live, reserve_bytes=0)
        log = NodeLog.open(disk)
        log.group(1).bootstrap(ConfState(voters=(1, 2, 3)))
        log.write()
        rng = random.Random(3)
        for number, size in enumerate(sizes):
            log.stage(1, [Entry(1, number + 2, EntryType.NORMAL, rng.randbytes(size))], HardState(1, 1, number + 1))
            log.write()
            done = asyncio.get_running_loop().create_future()
            log.sync(done.set_result)
            assert await done is None
            self.ends.append(wal.live_logs(live / "log")[-1].stat().st_size)
        shutil.copytree(live, self.path / "saved")
        disk.close()
        shutil.rmtree(live)

    def copy(self) -> Copy:
        target = self.path / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path / "saved", target)
        return Copy(target)


def flip(file: Path, offset: int, mask: int = 1) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= mask
    file.write_bytes(data)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Original:
    return Original(tmp_path_factory.mktemp("small"), [20, 30, 40, 50, 24])


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Original:
    """Its last record spans four blocks."""
    return Original(tmp_path_factory.mktemp("large"), [20, 40_000, 100_000])


def test_crc32c_gives_the_published_check_value():
    assert log_framing.crc32c(b"123456789") == 0xE3069283
    assert log_framing.crc32c(bytes(32)) == 0x8A9136AA


def test_an_intact_copy_opens_without_a_word(small):
    copy = small.copy()
    assert copy.last_index() == 6
    assert copy.reports == []
    assert wal.judge(small.path / "saved" / "log", checksums=True) is None


def test_a_log_cut_at_every_byte_of_its_last_record_keeps_everything_synced_before(small):
    start, end = small.ends[-2], small.ends[-1]
    assert end - start > 40
    for length in range(start, end):
        copy = small.copy()
        file = copy.log_file
        with file.open("r+b") as opened:
            opened.truncate(length)
        assert copy.last_index() == 5, f"cut at {length}"
        if length == start:
            assert copy.reports == []
        else:
            assert len(copy.reports) == 1
            assert f"dropped the last {length - start} bytes of {file}" in copy.reports[0]


def test_a_last_record_over_many_blocks_may_be_cut_anywhere(large):
    start, end = large.ends[-2], large.ends[-1]
    near_blocks = [
        block + shift
        for block in range(start // log_framing.BLOCK_BYTES * log_framing.BLOCK_BYTES, end, log_framing.BLOCK_BYTES)
        for shift in (-7, -1, 0, 1, 6, 7, 8)
        if start < block + shift < end
    ]
    for length in [start + 1, *near_blocks, end - 1]:
        copy = large.copy()
        with copy.log_file.open("r+b") as opened:
            opened.truncate(length)
        assert copy.last_index() == 3, f"cut at {length}"
        assert f"from byte {start}" in copy.reports[0]


def test_any_flipped_byte_in_the_last_record_costs_only_that_record(small):
    start, end = small.ends[-2], small.ends[-1]
    for offset in range(start, end):
        copy = small.copy()
        flip(copy.log_file, offset, 1 << offset % 8)
        assert copy.last_index() == 5, f"flipped at {offset}"
        assert len(copy.reports) == 1


@pytest.mark.parametrize("mask", [1, 4, 0x80])
def test_a_flipped_byte_before_the_last_record_stops_the_node_and_is_located(small, mask):
    start, end = small.ends[1], small.ends[2]
    for offset in range(start, end):
        copy = small.copy()
        flip(copy.log_file, offset, mask)
        before = copy.log_file.read_bytes()
        with pytest.raises(Corrupt) as caught:
            copy.last_index()
        assert caught.value.where == str(copy.log_file)
        assert caught.value.offset == start, f"flipped at {offset}"
        assert "do not start this instance" in str(caught.value)
        assert copy.log_file.read_bytes() == before
        assert copy.reports == []


def test_damage_inside_a_large_record_is_told_from_a_torn_one(large):
    middle = (large.ends[0] + large.ends[1]) // 2
    copy = large.copy()
    flip(copy.log_file, middle)
    with pytest.raises(Corrupt) as caught:
        copy.open()
    assert caught.value.offset == large.ends[0]
    # The same damage in the last record: its later fragments are whole, but no record follows.
    copy = large.copy()
    flip(copy.log_file, large.ends[1] + 50)
    assert copy.last_index() == 3
    assert len(copy.reports) == 1


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 130, 255])
def test_garbage_after_the_last_record_is_dropped_and_never_hangs(small, kind):
    """Cause: RocksDB spins for ever in open() on record types 5 to 8 and 11 in a log that was not recycled."""
    for length in (5, 2000, 60_000):
        copy = small.copy()
        garbage = random.Random(kind).randbytes(4) + length.to_bytes(2, "little") + bytes([kind])
        with copy.log_file.open("ab") as file:
            file.write(garbage + random.Random(length).randbytes(100))
        assert copy.last_index() == 6
        assert len(copy.reports) == 1


def test_zeros_after_the_last_record_are_dropped(small):
    for count in (1, 6, 7, 100, 70_000):
        copy = small.copy()
        with copy.log_file.open("ab") as file:
            file.write(bytes(count))
        assert copy.last_index() == 6
        assert "bytes" in copy.reports[0]


def test_a_log_that_lost_everything_is_a_torn_tail_of_nothing(small):
    copy = small.copy()
    copy.log_file.write_bytes(b"")
    disk, log = copy.open()
    assert log.group_ids() == []
    disk.close()


def test_a_repaired_log_goes_on(small):
    copy = small.copy()
    with copy.log_file.open("r+b") as file:
        file.truncate(small.ends[-1] - 3)
    disk, log = copy.open()
    log.stage(1, [Entry(2, 6, EntryType.NORMAL, b"again"), Entry(2, 7, EntryType.NORMAL, b"more")])
    log.write()
    disk.close()
    assert copy.last_index() == 7
    assert len(copy.reports) == 1


def test_damage_in_an_older_log_stops_the_node_when_a_newer_one_has_records(small):
    copy = small.copy()
    older = copy.log_file
    newer = older.with_name(f"{int(older.stem) + 100:06}.log")
    data = older.read_bytes()
    cut = small.ends[2]
    older.write_bytes(data[: cut - 3])
    newer.write_bytes(data[cut:])
    with pytest.raises(Corrupt, match=f"{newer.name} holds valid records") as caught:
        copy.open()
    assert caught.value.where == str(older)
    # With an empty newer log it is the end of the data.
    newer.write_bytes(b"")
    assert copy.last_index() == 3
    assert "torn tail" in copy.reports[0]


def test_damage_in_a_log_whose_data_is_in_tables_already_does_not_matter(small):
    copy = small.copy()
    assert copy.last_index() == 6
    assert copy.last_index() == 6
    current = copy.log_file
    left_over = current.with_name("000002.log")
    left_over.write_bytes((small.path / "saved" / "log" / "000004.log").read_bytes()[:100] + b"\x05" * 200)
    assert left_over not in wal.live_logs(copy.path / "log")
    assert copy.last_index() == 6
    assert copy.reports == []


def test_a_missing_or_wrong_skeleton_is_refused_not_replaced(small):
    for damage in (
        lambda path: (path / "CURRENT").unlink(),
        lambda path: next(path.glob("MANIFEST-*")).unlink(),
        lambda path: (path / "CURRENT").write_bytes(b""),
        lambda path: (path / "CURRENT").write_bytes(b"MANIFEST-999999\n"),
        lambda path: (path / "CURRENT").write_bytes(b"\xff\xfe"),
        lambda path: next(path.glob("MANIFEST-*")).write_bytes(b""),
        lambda path: flip(next(path.glob("MANIFEST-*")), 10),
        lambda path: flip(next(path.glob("MANIFEST-*")), 6, 4),
    ):
        copy = small.copy()
        damage(copy.path / "log")
        with pytest.raises(StorageError) as caught:
            copy.open()
        assert str(copy.path) in str(caught.value)
        assert copy.log_file.stat().st_size == small.ends[-1]


def test_an_interrupted_creation_starts_over(tmp_path):
    path = tmp_path / "data" / "log"
    path.mkdir(parents=True)
    (path / "MANIFEST-000001").write_bytes(b"")
    (path / "rocksdict-config.json").write_bytes(b"")
    disk = RocksDisk(tmp_path / "data")
    assert NodeLog.open(disk).group_ids() == []
    disk.close()


def test_a_torn_settings_file_does_not_stop_the_node(small):
    copy = small.copy()
    (copy.path / "log" / "rocksdict-config.json").write_bytes(b"{")
    assert copy.last_index() == 6


def test_a_directory_can_be_copied_and_opened_elsewhere(small, tmp_path):
    shutil.copytree(small.path / "saved", tmp_path / "elsewhere")
    copy = Copy(tmp_path / "elsewhere")
    assert copy.last_index() == 6
    assert copy.last_index() == 6


def test_a_damaged_table_is_an_error_and_never_a_short_answer(tmp_path):
    """Cause: RocksDB's iterator, as rocksdict wraps it, ends quietly at a damaged block."""

    async def story():
        disk = RocksDisk(tmp_path, reserve_bytes=0)
        store = disk.open("log", wal=True)
        rng = random.Random(5)
        batch = store.batch()
        for number in range(5000):
            batch.put(number.to_bytes(4, "big"), rng.randbytes(100))
        store.write(batch)
        done = asyncio.get_running_loop().create_future()
        store.start_flush(done.set_result)
        await done
        disk.close()
        table = next((tmp_path / "log").glob("*.sst"))
        flip(table, table.stat().st_size // 2)
        disk = RocksDisk(tmp_path, reserve_bytes=0)
        store = disk.open("log", wal=True)
        for reverse in (False, True):
            with pytest.raises(Corrupt, match=r"\.sst"):
                list(store.scan(b"", None, reverse=reverse))
        with pytest.raises(Corrupt, match=r"\.sst"):
            for number in range(5000):
                assert store.get(number.to_bytes(4, "big")) is not None
        disk.close()
        table.write_bytes(table.read_bytes()[:1000])
        for damage in (lambda: None, table.unlink):
            damage()
            with pytest.raises(Corrupt, match=r"\.sst"):
                RocksDisk(tmp_path, reserve_bytes=0).open("log", wal=True)

    asyncio.run(story())
