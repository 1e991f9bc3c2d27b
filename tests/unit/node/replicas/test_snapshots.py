"""Copies of replicas: at a known position, kept while their lease lasts, and gone afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.node.replicas.shelves import Life, model_disk, number_of, rows, until, written

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica_meta import read_meta, read_position
from trimtab.node.replicas.snapshots import ReplicaSnapshots
from trimtab.storage.rocks import RocksDisk

TWO = {(1, 0): 1, (1, 1): 1}


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def snapshots_of(disk, clock, complaints=None):
    told = complaints if complaints is not None else []
    made = ReplicaSnapshots(disk, wall_ms=clock, complain=told.append, defect=told.append)
    made.start()
    return made


def found_in(disk, path):
    store = disk.open(path, wal=False, small=True)
    found = [number_of(key) for key, _ in store.scan(bytes(8), None)]
    position, meta = read_position(store, path), read_meta(store, path)
    store.close()
    return found, position, meta


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_a_snapshot_holds_what_was_applied_up_to_its_position_while_writes_go_on(kind, tmp_path):
    async def story():
        disk = model_disk() if kind == "model" else RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, Clock())
        first, second = await life.replica(1, 0), await life.replica(1, 1)
        await written(first, 1, 2)
        await written(second, 100)
        writing = [asyncio.ensure_future(written(first, number)) for number in range(10, 60)]
        record = await snapshots.take("nightly", [first, second], 60_000)
        assert await asyncio.gather(*writing) == [None] * 50
        await written(first, 999)
        assert [each.path for each in record.replicas] == ["snapshots/nightly/1/0.1", "snapshots/nightly/1/1.1"]
        for copied, replica in zip(record.replicas, (first, second), strict=True):
            found, position, meta = found_in(disk, copied.path)
            assert (position, meta.incarnation) == (copied.position, replica.incarnation)
            assert 999 not in found
            # Every write of this test is one position after the other, and the first two were there before.
            assert set(found) == ({100} if replica is second else {1, 2, *range(10, 10 + len(found) - 2)})
        assert rows(first) == [1, 2, *range(10, 60), 999]
        snapshots.stop()
        life.stop()
        disk.close()

    asyncio.run(story())


def test_a_snapshot_goes_when_its_lease_ends_and_not_before():
    async def story():
        disk, clock = model_disk(), Clock()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, clock)
        await snapshots.take("a", [await life.replica()], 1_000)
        clock.now_ms += 900
        await snapshots.renew("a", 1_000)
        clock.now_ms += 900
        await asyncio.sleep(0)
        assert [each.name for each in snapshots.known()] == ["a"]
        snapshots.stop()
        # A new life keeps it, and removes it in time.
        snapshots = snapshots_of(disk, clock)
        await until(lambda: snapshots.get("a") is not None)
        clock.now_ms += 100
        snapshots.stop()
        snapshots = snapshots_of(disk, clock)
        await until(lambda: not disk.names("snapshots/"))
        with pytest.raises(Refused, match="lease may have ended"):
            await snapshots.renew("a", 1_000)
        snapshots.stop()

    asyncio.run(story())


def test_a_snapshot_that_is_dropped_while_it_is_renewed_leaves_nothing():
    """Its record, which a thread wrote after the removal, stayed until the next start."""

    async def story():
        disk = model_disk()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, Clock())
        await snapshots.take("a", [await life.replica()], 1_000)
        started, disk.start = disk.start, lambda work, done: late.append((work, done))
        late = []
        renewing = asyncio.ensure_future(snapshots.renew("a", 1_000))
        await asyncio.sleep(0)
        dropping = asyncio.ensure_future(snapshots.drop("a"))
        await asyncio.sleep(0)
        disk.start = started
        for work, done in reversed(late):  # threads have no order
            started(work, done)
        await asyncio.gather(renewing, dropping)
        assert list(disk.names("snapshots/")) == []
        snapshots.stop()
        life.stop()

    asyncio.run(story())


def test_a_renewal_whose_caller_is_gone_is_finished_before_the_snapshot_is_dropped():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, Clock())
        await snapshots.take("a", [await life.replica()], 1_000)
        started, disk.start = disk.start, lambda work, done: late.append((work, done))
        late = []
        renewing = asyncio.ensure_future(snapshots.renew("a", 1_000))
        for _ in range(3):
            await asyncio.sleep(0)
        renewing.cancel()
        dropping = asyncio.ensure_future(snapshots.drop("a"))
        for _ in range(3):
            await asyncio.sleep(0)
        disk.start = started
        assert len(late) == 1
        for work, done in late:
            started(work, done)
        await dropping
        assert renewing.cancelled() and list(disk.names("snapshots/")) == []
        snapshots.stop()
        life.stop()

    asyncio.run(story())


def test_a_snapshot_that_is_renewed_while_the_sweep_waits_for_its_turn_stays():
    async def story():
        disk, clock = model_disk(), Clock()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, clock)
        await snapshots.take("a", [await life.replica()], 1_000)
        clock.now_ms += 2_000
        renewing = asyncio.ensure_future(snapshots.renew("a", 5_000))
        await asyncio.sleep(0)
        sweeping = asyncio.ensure_future(snapshots._drop("a", expired_alone=True))
        await asyncio.gather(renewing, sweeping)
        assert snapshots.get("a") is not None and list(disk.names("snapshots/"))
        snapshots.stop()
        life.stop()

    asyncio.run(story())


def test_half_made_snapshots_are_swept_at_the_start():
    async def story():
        disk, clock = model_disk(), Clock()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, clock)
        await snapshots.take("whole", [await life.replica()], 60_000)
        (await life.replica()).store.checkpoint("snapshots/half/1/0.1")
        disk.write_file("snapshots/torn/record", b"\xc1")
        snapshots.stop()
        snapshots = snapshots_of(disk, clock)
        await until(lambda: {name.split("/")[1] for name in disk.names("snapshots/")} == {"whole"})
        snapshots.stop()

    asyncio.run(story())


def test_a_directory_that_a_crash_left_empty_is_swept_at_the_start(tmp_path):
    async def story():
        (tmp_path / "disk" / "snapshots" / "empty").mkdir(parents=True)
        (tmp_path / "disk" / "snapshots" / ".hidden").touch()
        disk = RocksDisk(tmp_path / "disk")
        snapshots = snapshots_of(disk, Clock())
        await until(lambda: disk.entries("snapshots") == [".hidden"])
        snapshots.stop()
        disk.close()

    asyncio.run(story())


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_a_snapshot_outlives_its_process_but_not_the_machine(power):
    """Nothing of it is synced: after the power was lost it may be half there, and look whole."""

    async def story():
        disk, clock = model_disk(), Clock()
        life = await (await Life(disk, TWO).start()).ready()
        replica = await life.replica(1, 0)
        await written(replica, 1)
        before = snapshots_of(disk, clock)
        await before.take("kept", [replica], 60_000)
        before.stop()
        record = disk.read_file("snapshots/kept/record")
        if power:
            disk.crash(random.Random(1))
            disk.write_file("snapshots/kept/record", record)  # of all its files the one that reached the disk
        else:
            disk.abandon()
        after = snapshots_of(disk, clock)
        await until(lambda: (after.get("kept") is None) == power and disk.exists("snapshots") != power)
        if not power:
            assert found_in(disk, "snapshots/kept/1/0.1")[0] == [1]
        after.stop()

    asyncio.run(story())


def test_what_can_not_be_taken_is_refused_and_leaves_nothing():
    async def story():
        disk, clock = model_disk(), Clock()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, clock)
        replica = await life.replica()
        for name, lease_ms, why in (("../x", 1_000, "no name"), ("a", 0, "lease"), ("a", 10**12, "lease")):
            with pytest.raises(Refused, match=why):
                await snapshots.take(name, [replica], lease_ms)
        await snapshots.take("a", [replica], 1_000)
        with pytest.raises(Refused, match="already"):
            await snapshots.take("a", [replica], 1_000)
        replica.close()
        with pytest.raises(Refused, match="can't be copied"):
            await snapshots.take("b", [replica], 1_000)
        clock.now_ms += 10_000
        snapshots.stop()
        snapshots = snapshots_of(disk, clock)
        await until(lambda: not disk.names("snapshots/"))
        snapshots.stop()

    asyncio.run(story())


def test_a_snapshot_that_nobody_waits_for_any_more_is_finished_and_leaves_nothing_when_its_lease_is_over():
    """Its files are made beside the loop: given up half-way, they would come after all that is swept."""

    async def story():
        latency = [0.0]
        disk, clock = model_disk(work_latency=lambda: latency[0]), Clock()
        life = await (await Life(disk, TWO).start()).ready()
        snapshots = snapshots_of(disk, clock)
        replica = await life.replica()
        latency[0] = 0.05
        taking = asyncio.ensure_future(snapshots.take("a", [replica], 1_000))
        await until(lambda: replica.held)
        taking.cancel()
        await asyncio.wait([taking])
        assert taking.cancelled() and replica.held, "it is being copied"
        await until(lambda: snapshots.get("a") is not None)
        assert not replica.held
        clock.now_ms += 2_000
        await until(lambda: not disk.names("snapshots/"))
        snapshots.stop()
        life.stop()

    asyncio.run(story())
