"""RocksDB on a real file system: killed processes, failed syncs, and a disk that is really full."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trimtab.raft.messages import ConfState, Entry, EntryType, HardState
from trimtab.storage import rocks
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Corrupt, DiskFull, StorageError, SyncFailed
from trimtab.storage.rocks import RocksDisk, RocksOptions

VOTERS = ConfState(voters=(1, 2, 3))
NO_LIMIT = 1 << 60
SMALL = RocksOptions(write_buffer_bytes=1024 * 1024)


def entry(index: int, size: int = 256) -> Entry:
    return Entry(1, index, EntryType.NORMAL, b"%08d" % index + os.urandom(size))


async def synced(log: NodeLog) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    log.sync(done.set_result)
    return await asyncio.wait_for(done, 30)


def test_a_directory_that_another_thread_removes_does_not_end_a_list_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node that was killed while it took a copy over started, swept and listed at once, and never came up again.
    disk = RocksDisk(tmp_path / "data")
    for name in ("arriving/1", "tablets/7/1.1", "tablets/8/1.1"):
        disk.open(name, wal=False).close()
    is_store = rocks.is_store

    def then_it_goes(path: Path) -> bool:
        found = is_store(path)
        if path.name in ("arriving", "7"):
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(rocks, "is_store", then_it_goes)
    assert disk.names() == disk.names("tablets/") == ["tablets/8/1.1"]


def test_what_another_thread_removes_at_the_same_time_is_gone_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session's staged files are swept, and those of one of its tablets are removed, at the same moment.
    disk = RocksDisk(tmp_path / "data")
    disk.write_file("staging/s/3/file", b"x")
    unfinished = disk._unfinished_path

    def meanwhile() -> Path:
        shutil.rmtree(tmp_path / "data" / "staging" / "s", ignore_errors=True)
        return unfinished()

    monkeypatch.setattr(disk, "_unfinished_path", meanwhile)
    disk.remove("staging/s/3")
    assert disk.names() == [] and not list((tmp_path / "data").glob(".unfinished-*"))


def test_a_directory_that_another_process_makes_first_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RocksDisk(tmp_path / "data")
    mkdir = Path.mkdir

    def second(path: Path, **options: bool) -> None:
        if not path.exists():
            mkdir(path)
        mkdir(path, **options)

    monkeypatch.setattr(Path, "mkdir", second)
    disk.write_file("staging/s/list", b"x")
    assert disk.names() == ["staging/s/list"]


def test_a_directory_that_went_is_no_damage_of_what_was_to_be_put_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RocksDisk(tmp_path / "data")
    monkeypatch.setattr(disk, "_make_parent", lambda name, **_how: None)
    disk.write_file("one", b"x")
    for work in (lambda: disk.write_file("staging/s/two", b"x"), lambda: disk.rename("one", "staging/s/one")):
        with pytest.raises(StorageError, match="No such file") as told:
            work()
        assert not isinstance(told.value, Corrupt)


def test_logs_that_go_while_they_are_counted_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("log", wal=True)
    gone = [tmp_path / "data" / "log" / "000099.log"]
    whole = disk.recovery_bytes("log")
    monkeypatch.setattr(rocks.wal, "live_logs", lambda path: gone)
    assert 0 < disk.recovery_bytes("log") <= whole

    def no_manifest(path: Path) -> list[Path]:
        raise FileNotFoundError(path / "MANIFEST-000001")

    monkeypatch.setattr(rocks.wal, "live_logs", no_manifest)
    assert disk.recovery_bytes("log") == whole
    store.close()


def test_a_store_whose_directory_is_gone_is_not_opened_again_as_an_empty_one(tmp_path: Path) -> None:
    disk = RocksDisk(tmp_path / "data")
    store = disk.open("log", wal=True)
    store._full = DiskFull("log", free_bytes=0, reserve_bytes=0, detail="full")
    shutil.rmtree(tmp_path / "data" / "log")  # by somebody who was asked to free some space
    with pytest.raises(StorageError, match="is gone, with all that was in it"):
        store.reopen()
    with pytest.raises(FileNotFoundError):
        disk.recovery_bytes("log")
    assert not (tmp_path / "data" / "log").exists()


WRITER = """
import asyncio, sys
from trimtab.raft.messages import ConfState, Entry, EntryType
from trimtab.storage.node_log import NodeLog
from trimtab.storage.rocks import RocksDisk

async def main():
    disk = RocksDisk(sys.argv[1], reserve_bytes=0)
    log = NodeLog.open(disk)
    store = disk.open("metastore", wal=False)
    group = log.group(1)
    if not group.exists:
        group.bootstrap(ConfState(voters=(1,)))
        log.write()
    loop = asyncio.get_running_loop()
    while True:
        index = group.last_index() + 1
        log.stage(1, [Entry(1, index, EntryType.NORMAL, b"%d" % index * 20)])
        log.write()
        batch = store.batch()
        batch.put(b"applied", b"%d" % index)
        batch.put(b"%d" % index, b"x")
        store.write(batch)
        done = loop.create_future()
        log.sync(done.set_result)
        assert await done is None
        print(index, flush=True)

asyncio.run(main())
"""


def test_a_process_killed_in_full_flight_loses_nothing_it_acknowledged(tmp_path):
    acknowledged = 1
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        with writer.stdout:
            for _ in range(40):
                line = writer.stdout.readline()
                assert line, "the writer ended by itself"
                acknowledged = int(line)
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        assert writer.wait(10) == -signal.SIGKILL
        reports: list[str] = []
        disk = RocksDisk(tmp_path, reserve_bytes=0)
        group = NodeLog.open(disk, report=reports.append).group(1)
        assert group.last_index() >= acknowledged
        assert [e.index for e in group.entries(2, group.last_index() + 1, NO_LIMIT)] == list(
            range(2, group.last_index() + 1)
        )
        assert reports == []
        store = disk.open("metastore", wal=False)
        applied = int(store.get(b"applied") or b"1")
        assert all(store.get(b"%d" % index) == b"x" for index in range(2, applied + 1))
        disk.close()


def test_a_store_that_another_process_has_open_is_refused(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline()
        disk = RocksDisk(tmp_path, reserve_bytes=0)
        with pytest.raises(StorageError, match="open elsewhere"):
            disk.open("log", wal=True)
        disk.close()
    finally:
        writer.kill()
        writer.communicate(timeout=10)


class BrokenSync:
    """A database whose device has failed: the first sync says so, later ones would claim success."""

    def __init__(self, database) -> None:
        self._database = database
        self.syncs = 0

    def __getattr__(self, name: str):
        return getattr(self._database, name)

    def flush_wal(self, sync: bool) -> None:
        self.syncs += 1
        if self.syncs == 1:
            raise Exception("IO error: While fdatasync: Input/output error")


def test_a_failed_sync_is_told_to_all_and_never_tried_again(tmp_path):
    async def story():
        disk = RocksDisk(tmp_path, reserve_bytes=0)
        log = NodeLog.open(disk)
        log.group(1).bootstrap(VOTERS)
        log.write()
        broken = log.store._db = BrokenSync(log.store._db)
        answers = []
        log.sync(answers.append)
        log.sync(answers.append)
        assert isinstance(await synced(log), SyncFailed)
        assert [type(answer) for answer in answers] == [SyncFailed, SyncFailed]
        assert "the node must stop" in str(answers[0])
        log.stage(1, [entry(2)])
        for attempt in (
            log.write,
            lambda: log.sync(answers.append),
            lambda: log.store.get(b"x"),
            lambda: log.store.scan(b"", None),
            lambda: log.store.start_flush(answers.append),
            log.store.reopen,
        ):
            with pytest.raises(SyncFailed):
                attempt()
        assert broken.syncs == 1
        disk.close()

    asyncio.run(story())


def test_unfinished_files_of_a_crash_are_swept_away(tmp_path):
    disk = RocksDisk(tmp_path)
    disk.write_file("instance.json", b"{}")
    disk.close()
    (tmp_path / ".unfinished-1-1").write_bytes(b"half")
    (tmp_path / ".unfinished-1-2").mkdir()
    (tmp_path / ".unfinished-1-2" / "CURRENT").write_bytes(b"half")
    disk = RocksDisk(tmp_path)
    assert disk.names() == ["instance.json"]
    disk.await_deleted()
    assert [path.name for path in tmp_path.iterdir()] == ["instance.json"]
    disk.close()


def used_bytes(path: Path) -> int:
    """RocksDB deletes files of its own accord while we look."""
    used = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                used += (Path(directory) / name).stat().st_size
    return used


def test_space_comes_back_after_compaction(tmp_path):
    async def story():
        disk = RocksDisk(tmp_path, reserve_bytes=0, options=SMALL)
        log = NodeLog.open(disk)
        log.group(1).bootstrap(VOTERS)
        index, largest = 2, 0
        for _ in range(60):
            for _ in range(8):
                log.stage(1, [entry(i, 1000) for i in range(index, index + 128)])
                log.write()
                index += 128
            log.compact(1, index - 100)
            log.write()
            assert await synced(log) is None
            largest = max(largest, used_bytes(tmp_path))
        assert index > 60_000  # 60 MB went through
        assert largest < 25_000_000
        assert len(log.group(1).entries(index - 99, index, NO_LIMIT)) == 99
        disk.close()

    asyncio.run(story())


class TinyDisk:
    """A tmpfs of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", str(self.path)], check=True)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[TinyDisk]:
    path = tmp_path / "tiny"
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command to make a tmpfs with")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {made.stderr.strip()}")
    try:
        yield TinyDisk(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_really_full_disk_is_an_error_to_the_caller_and_heals_when_space_returns(tiny):
    async def story():
        disk = RocksDisk(tiny.path / "data", reserve_bytes=0, options=SMALL)
        try:
            await fill_and_heal(disk)
        finally:
            disk.close()

    async def fill_and_heal(disk):
        log = NodeLog.open(disk)
        group = log.group(1)
        group.bootstrap(VOTERS)
        log.write()
        expected = {}
        index = 2
        with pytest.raises(DiskFull) as caught:
            for _ in range(10_000):
                added = [entry(i) for i in range(index, index + 16)]
                log.stage(1, added)
                expected.update((e.index, e) for e in added)
                log.write()
                index += 16
                if index % 160 == 2:
                    assert await synced(log) is None
        assert "No space left" in str(caught.value)
        assert "try the write again" in str(caught.value)
        # What is written is still readable, what is staged is still staged, and who waits is not lied to.
        assert group.last_index() == index - 1
        assert group.entries(2, 3, NO_LIMIT) == [expected[2]]
        assert not log.has_space()
        answers = []
        log.sync(answers.append)
        for attempt in (log.write, log.reopen, log.write):
            with pytest.raises(DiskFull):
                attempt()
        await asyncio.sleep(0.05)
        assert answers == []
        tiny.resize(64)
        log.write()
        assert log.has_space()
        assert group.last_index() == index + 15
        assert await synced(log) is None
        assert answers == [None]
        assert log.metrics.reopens == 1
        log.stage(1, [entry(index + 16)], HardState(3, 1, 5))
        log.write()
        assert await synced(log) is None
        log.close()
        again = NodeLog.open(disk).group(1)
        assert again.last_index() == index + 16
        assert {e.index: e for e in again.entries(2, index + 16, NO_LIMIT)} == expected
        assert again.hard_state.term == 3

    asyncio.run(story())


def test_below_the_reserve_a_full_disk_never_reaches_rocksdb(tiny):
    async def story():
        disk = RocksDisk(tiny.path / "data", reserve_bytes=6 * 1024 * 1024, options=SMALL)
        log = NodeLog.open(disk)
        log.group(1).bootstrap(VOTERS)
        log.write()
        ballast = tiny.path / "ballast"
        ballast.write_bytes(bytes(7 * 1024 * 1024))
        log.stage(1, [entry(2)])
        with pytest.raises(DiskFull):
            log.write()
        assert not log.has_space()
        ballast.unlink()
        assert log.has_space()
        log.write()
        assert await synced(log) is None
        assert log.metrics.reopens == 0
        disk.close()

    asyncio.run(story())


def test_a_full_disk_refuses_files_and_stores_with_the_same_error(tiny):
    disk = RocksDisk(tiny.path / "data", reserve_bytes=0, options=SMALL)
    disk.write_file("note", b"old")
    ballast = tiny.path / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(64 * 1024 * 1024))
    with pytest.raises(DiskFull):
        disk.write_file("note", bytes(1024 * 1024))
    with pytest.raises(DiskFull):
        disk.open("log", wal=True)
    assert disk.read_file("note") == b"old"
    ballast.unlink()
    disk.write_file("note", b"new")
    disk.open("log", wal=True).close()
    assert disk.names() == ["log", "note"]
    disk.close()


def test_threads_that_make_one_directory_at_once_do_not_meet(tmp_path: Path, switching: None) -> None:
    disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
    together = threading.Barrier(4)

    def make(thread: int) -> None:
        for number in range(20):
            together.wait(30)
            disk.write_file(f"snapshots/{number}/1/{thread}", b"x")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert len(disk.names("snapshots/")) == 80


def test_what_the_system_does_not_let_go_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RocksDisk(tmp_path / "data")
    disk.write_file("kept", b"all of it")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        with pytest.raises(StorageError, match=r"can't remove 'kept': .*cross-device"):
            disk.remove("kept")
    assert disk.read_file("kept") == b"all of it"
    disk.close()
