"""The model's own promises: crashes, space and latencies that a simulation can rely on, the same for every run."""

import heapq
import random
from collections.abc import Callable

import pytest

from trimtab.raft.messages import ConfState, Entry, EntryType
from trimtab.storage.model import ModelDisk
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import DiskFull, StoreClosed, SyncFailed

NO_LIMIT = 1 << 60


class Clock:
    """Virtual time: runs what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def call_later(self, seconds: float, run: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, run))

    def run(self) -> None:
        while self._due:
            self.now, _, run = heapq.heappop(self._due)
            run()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put(store, *pairs):
    batch = store.batch()
    for key, value in pairs:
        batch.put(key, value)
    store.write(batch)


def test_a_power_failure_keeps_what_was_synced_and_a_prefix_of_the_rest(clock):
    survivors, torn = set(), 0
    for seed in range(200):
        disk = ModelDisk(clock.call_later)
        store = disk.open("log", wal=True)
        for number in range(10):
            put(store, (b"%d" % number, b"x"), (b"last", b"%d" % number))
            if number == 3:
                store.start_sync(lambda error: None)
                clock.run()
        report = disk.crash(random.Random(seed))
        reports = []
        store = disk.open("log", wal=True, report=reports.append)
        last = int(store.get(b"last"))
        assert last >= 3
        assert [store.get(b"%d" % number) for number in range(10)] == [b"x"] * (last + 1) + [None] * (9 - last)
        assert report.lost_batches == 9 - last
        assert len(reports) == report.torn
        assert all("torn tail" in line for line in reports)
        survivors.add(last)
        torn += report.torn
    assert survivors == set(range(3, 10))
    assert 20 < torn < 180


def test_a_crash_takes_back_overwrites_deletions_and_ranges_exactly(clock):
    rng = random.Random(11)
    for seed in range(60):
        disk = ModelDisk(clock.call_later)
        store = disk.open("log", wal=True)
        states = [{}]
        synced = 0
        for number in range(1, 15):
            batch = store.batch()
            state = dict(states[-1])
            for _ in range(rng.randint(1, 5)):
                low, high = sorted((b"%02d" % rng.randrange(20), b"%02d" % rng.randrange(20)))
                kind = rng.random()
                if kind < 0.6:
                    batch.put(low, b"%d" % number)
                    state[low] = b"%d" % number
                elif kind < 0.8:
                    batch.delete(low)
                    state.pop(low, None)
                else:
                    batch.delete_range(low, high)
                    state = {key: value for key, value in state.items() if not low <= key < high}
            store.write(batch)
            states.append(state)
            if rng.random() < 0.2:
                store.start_sync(lambda error: None)
                clock.run()
                synced = number
        disk.crash(random.Random(seed))
        found = dict(disk.open("log", wal=True).scan(b"", None))
        assert found in states[synced:]
        used = sum(len(key) + len(value) + 16 for key, value in found.items())
        disk.capacity_bytes = 1000
        assert disk.free_bytes() == 1000 - used


def test_a_sync_covers_what_was_written_before_it_was_asked_for(clock):
    disk = ModelDisk(clock.call_later, sync_latency=lambda: 0.5)
    store = disk.open("log", wal=True)
    put(store, (b"before", b"x"))
    store.start_sync(lambda error: None)
    put(store, (b"after", b"x"))
    clock.run()
    assert clock.now == 0.5
    seen = set()
    for seed in range(20):
        copy = ModelDisk(clock.call_later)
        store = copy.open("log", wal=True)
        put(store, (b"before", b"x"))
        store.start_sync(lambda error: None)
        put(store, (b"after", b"x"))
        clock.run()
        copy.crash(random.Random(seed))
        store = copy.open("log", wal=True)
        assert store.get(b"before") == b"x"
        seen.add(store.get(b"after"))
    assert seen == {b"x", None}


def test_a_killed_process_loses_only_what_had_no_log(clock):
    disk = ModelDisk(clock.call_later)
    log, metastore = disk.open("log", wal=True), disk.open("metastore", wal=False)
    put(metastore, (b"1", b"flushed"))
    metastore.start_flush(lambda error: None)
    clock.run()
    put(metastore, (b"2", b"not flushed"))
    put(log, (b"1", b"not synced"))
    disk.abandon()
    with pytest.raises(StoreClosed):
        log.get(b"1")
    assert disk.open("log", wal=True).get(b"1") == b"not synced"
    metastore = disk.open("metastore", wal=False)
    assert (metastore.get(b"1"), metastore.get(b"2")) == (b"flushed", None)
    # It is still only in the page cache: a power failure may yet take it.
    lost = set()
    for seed in range(20):
        disk = ModelDisk(clock.call_later)
        put(disk.open("log", wal=True), (b"1", b"x"))
        disk.abandon()
        disk.crash(random.Random(seed))
        lost.add(disk.open("log", wal=True).get(b"1"))
    assert lost == {b"x", None}


def test_nothing_that_was_under_way_finishes_after_a_crash(clock):
    disk = ModelDisk(clock.call_later)
    calls = []
    store = disk.open("log", wal=True)
    put(store, (b"k", b"v"))
    scan = store.scan(b"", None)
    store.start_sync(calls.append)
    store.start_flush(calls.append)
    disk.start(lambda: calls.append("ran"), lambda result, error: calls.append("told"))
    disk.crash(random.Random(1))
    clock.run()
    assert calls == []
    for attempt in (lambda: store.get(b"k"), lambda: store.write(store.batch()), lambda: next(scan)):
        with pytest.raises(StoreClosed, match="crashed"):
            attempt()


def test_files_renames_removals_and_checkpoints_survive_a_crash(clock):
    disk = ModelDisk(clock.call_later)
    store = disk.open("metastore", wal=False)
    put(store, (b"k", b"v"))
    store.checkpoint("snapshots/1")
    disk.write_file("note", b"x")
    disk.rename("note", "instance.json")
    disk.open("old", wal=True).close()
    disk.remove("old")
    disk.rename("snapshots/1", "snapshots/2")
    disk.crash(random.Random(0))
    assert disk.names() == ["instance.json", "metastore", "snapshots/2"]
    assert disk.open("snapshots/2", wal=False).get(b"k") == b"v"
    assert disk.read_file("instance.json") == b"x"


def test_a_failed_sync_is_final_until_the_machine_is_started_again(clock):
    disk = ModelDisk(clock.call_later)
    log = NodeLog.open(disk)
    log.group(1).bootstrap(ConfState(voters=(1,)))
    log.write()
    answers = []
    disk.fail_next_sync()
    log.sync(answers.append)
    log.sync(answers.append)
    clock.run()
    assert [type(answer) for answer in answers] == [SyncFailed, SyncFailed]
    log.stage(1, [Entry(1, 2)])
    for attempt in (log.write, lambda: log.sync(answers.append), lambda: log.store.get(b"x"), log.store.reopen):
        with pytest.raises(SyncFailed):
            attempt()
    disk.crash(random.Random(0))
    NodeLog.open(disk).close()


def test_a_full_disk_refuses_until_there_is_space_and_the_log_heals_itself(clock):
    disk = ModelDisk(clock.call_later, capacity_bytes=5000)
    log = NodeLog.open(disk)
    log.group(1).bootstrap(ConfState(voters=(1,)))
    log.write()
    answers = []
    index = 2
    with pytest.raises(DiskFull):
        for _ in range(1000):
            log.stage(1, [Entry(1, index, EntryType.NORMAL, bytes(100))])
            log.write()
            index += 1
    log.sync(answers.append)
    clock.run()
    assert answers == []
    assert not log.has_space()
    # A smaller write does not slip through: the store is broken until it is reopened, and that needs space.
    disk.full = True
    for attempt in (log.write, log.reopen):
        with pytest.raises(DiskFull):
            attempt()
    assert log.group(1).last_index() == index - 1
    disk.full = False
    disk.capacity_bytes = 50_000
    log.write()
    clock.run()
    assert answers == [None]
    assert log.group(1).last_index() == index
    disk.crash(random.Random(0))
    assert NodeLog.open(disk).group(1).last_index() >= index - 1


def test_the_same_seed_gives_the_same_survivors(clock):
    def run(seed):
        rng = random.Random(seed)
        disk = ModelDisk(clock.call_later, sync_latency=rng.random)
        log = NodeLog.open(disk)
        for _ in range(100):
            group = log.group(rng.randrange(5))
            first = max(group.first_index(), group.last_index() + 1 - rng.randrange(3))
            log.stage(group.id, [Entry(1, first + i, EntryType.NORMAL, rng.randbytes(5)) for i in range(3)])
            log.write()
            if rng.random() < 0.2:
                log.sync(lambda error: None)
            if rng.random() < 0.1:
                clock.run()
            if rng.random() < 0.05:
                str(disk.crash(rng))
                log = NodeLog.open(disk)
        return [(i, log.group(i).entries(1, log.group(i).last_index() + 1, NO_LIMIT)) for i in log.group_ids()]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_whatever_the_log_acknowledged_survives_every_crash():
    for seed in range(100):
        rng = random.Random(seed)
        clock = Clock()
        disk = ModelDisk(clock.call_later, sync_latency=rng.random)
        log = NodeLog.open(disk)
        acknowledged = 0
        for _ in range(40):
            index = log.group(1).last_index() + 1
            log.stage(1, [Entry(1, index, EntryType.NORMAL, b"%d" % index)])
            log.write()

            def done(error, index=index):
                nonlocal acknowledged
                assert error is None
                acknowledged = max(acknowledged, index)

            log.sync(done)
            if rng.random() < 0.5:
                clock.run()
            if rng.random() < 0.1:
                disk.crash(rng)
                log = NodeLog.open(disk)
                last = log.group(1).last_index()
                assert last >= acknowledged
                assert [e.data for e in log.group(1).entries(1, last + 1, NO_LIMIT)] == [
                    b"%d" % i for i in range(1, last + 1)
                ]
