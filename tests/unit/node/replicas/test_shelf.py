"""Replicas that come, go, crash and come back: nothing acknowledged is lost, nothing foreign is replayed."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.node.replicas.shelves import Life, flushed, key, model_disk, rows, until, written

from trimtab.node.answering import Refused
from trimtab.node.replicas.flushing import FlushBounds
from trimtab.node.replicas.replica import LargePartition, ReplicaState
from trimtab.node.replicas.replica_meta import META_KEY, POSITION_KEY
from trimtab.node.replicas.shelf import Name
from trimtab.node.waits import WaitedTooLong
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Corrupt, StorageError
from trimtab.storage.rocks import RocksDisk

ONE = {(1, 0): 1}
TWO = {(1, 0): 1, (1, 1): 1}


def test_a_replica_takes_writes_shows_them_and_has_them_again_after_a_kill():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        assert (replica.state, replica.readable) == (ReplicaState.OPEN, True)
        assert await written(replica, 3, 1, 2) is None
        assert rows(replica) == [1, 2, 3]
        assert [value for _, value in replica.get_row(key(2)[:-17])] == [b"v"]
        disk.abandon()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        assert (rows(replica), life.shelf.replayed, replica.position) == ([1, 2, 3], 1, 1)

    asyncio.run(story())


def test_nothing_is_visible_or_acknowledged_before_its_sync():
    async def story():
        latency = [0.0]
        disk = model_disk(sync_latency=lambda: latency[0])
        replica = await (await Life(disk, ONE).start()).replica()
        latency[0] = 0.05
        outcomes = []
        replica.write([key(1), b"v"], outcomes.append)
        for _ in range(5):
            await asyncio.sleep(0)
        assert (outcomes, rows(replica)) == ([], [])
        await until(lambda: outcomes)
        assert (outcomes, rows(replica)) == ([None], [1])

    asyncio.run(story())


def test_writes_of_many_replicas_and_of_one_turn_share_one_batch_and_one_sync():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, {(1, tablet): 1 for tablet in range(8)}).start()).ready()
        before = (life.log.metrics.batches, life.log.metrics.syncs)
        replicas = [await life.replica(1, tablet) for tablet in range(8)]
        outcomes = await asyncio.gather(*(written(each, number) for each in replicas for number in range(10)))
        assert outcomes == [None] * 80
        assert (life.log.metrics.batches, life.log.metrics.syncs) == (before[0] + 1, before[1] + 1)
        assert [rows(each) for each in replicas] == [list(range(10))] * 8

    asyncio.run(story())


def test_replay_begins_at_the_replicas_own_position_and_touches_no_other_incarnation():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, TWO).start()).ready()
        first, second = await life.replica(1, 0), await life.replica(1, 1)
        await written(first, 1)
        await written(second, 100)
        assert await flushed(first) is None
        await written(first, 2)
        disk.abandon()
        # What was flushed is not replayed: a row that is taken away beneath the position does not come back.
        store = disk.open(first.name, wal=False)
        batch = store.batch()
        batch.delete(key(1))
        store.write(batch)
        await _flush_store(store)
        store.close()
        life = await (await Life(disk, TWO).start()).ready()
        assert rows(await life.replica(1, 0)) == [2]
        assert rows(await life.replica(1, 1)) == [100]
        assert life.shelf.replayed == 2

    asyncio.run(story())


async def _flush_store(store):
    done = asyncio.get_running_loop().create_future()
    store.start_flush(done.set_result)
    assert await done is None


def test_entries_of_a_closed_incarnation_are_dropped():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        old = await life.replica()
        await written(old, 1, 2)
        life.wanted = {}
        life.shelf.look()
        await until(lambda: not disk.names("tablets/"))
        life.wanted = {(1, 0): 2}
        life.shelf.look()
        new = await life.replica()
        assert new.incarnation > old.incarnation
        await written(new, 7)
        disk.abandon()
        life = await (await Life(disk, {(1, 0): 2}).start()).ready()
        assert rows(await life.replica()) == [7]

    asyncio.run(story())


def test_a_position_of_another_log_means_nothing_and_the_replica_is_compared_with_others():
    async def story():
        elsewhere = model_disk()
        life = await (await Life(elsewhere, ONE, seed=5).start()).ready()
        for number in range(50):
            await written(await life.replica(), number)
        assert await flushed(await life.replica()) is None
        life.stop()
        disk = model_disk()
        life = await (await Life(disk, {}, seed=6).start()).ready()
        life.stop()
        # Files copied from elsewhere: their position, 50, is far ahead of this log.
        disk._stores["tablets/1/0.1"] = elsewhere._stores["tablets/1/0.1"]
        life = await (await Life(disk, ONE, seed=7).start()).ready()
        replica = await life.replica()
        assert (replica.state, replica.readable, life.rebuilds) == (ReplicaState.REBUILDING, False, [replica])
        assert len(rows(replica)) == 50
        assert replica.position < 50
        assert await written(replica, 1000) is None
        disk.abandon()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        assert 1000 in rows(replica)
        assert replica.state is ReplicaState.REBUILDING

    asyncio.run(story())


def test_what_was_acknowledged_survives_a_power_failure_at_any_step():
    """Create, write, flush, cut, write: the power fails after each completion of the disk in turn."""

    async def one_run(limit: int, seed: int) -> bool:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        steps = 0
        crashed = loop.create_future()

        def call_later(seconds, run):
            def step():
                nonlocal steps
                steps += 1
                if steps > limit:
                    if not crashed.done():
                        disk.crash(rng)
                        crashed.set_result(None)
                    return
                run()

            loop.call_later(seconds, step)

        disk = ModelDisk(call_later)
        acknowledged: set[int] = set()
        bounds = FlushBounds(replica_bytes=300, total_bytes=10_000, age_s=1e9, cut_bytes=0, cut_every_s=0)

        async def work() -> None:
            life = await Life(disk, TWO, bounds=bounds, seed=seed).start()
            first, second = await life.replica(1, 0), await life.replica(1, 1)
            for number in range(24):
                replica = first if number % 3 else second
                if await written(replica, number, value=bytes(60)) is None:
                    acknowledged.add(number)
                life.shelf.flushing.tick()

        task = loop.create_task(work())
        await asyncio.wait({task, crashed}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        finished = not crashed.done()
        if finished:
            assert task.exception() is None
            disk.crash(rng)
            crashed.set_result(None)
        task.cancel()
        disk.call_later = lambda seconds, run: loop.call_later(seconds, run)
        life = await (await Life(disk, TWO, bounds=bounds).start()).ready()
        found = {*rows(await life.replica(1, 0)), *rows(await life.replica(1, 1))}
        assert acknowledged <= found, f"lost after {limit} steps: {acknowledged - found}"
        assert found <= set(range(24))
        for tablet in (0, 1):
            replica = await life.replica(1, tablet)
            # A tablet that is new may be made again; one that took writes never begins anew.
            assert replica.state is ReplicaState.OPEN
            assert await written(replica, 500 + tablet) is None
        life.stop()
        return finished

    async def story():
        for limit in range(400):
            ends = [await one_run(limit, seed) for seed in range(3)]
            if all(ends):
                assert limit > 30
                return
        raise AssertionError("400 steps were not enough")

    asyncio.run(story())


def test_a_half_made_directory_is_made_again():
    async def story():
        disk = model_disk()
        disk.open("tablets/1/0.1", wal=False).close()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        assert replica.state is ReplicaState.OPEN
        assert await written(replica, 1) is None

    asyncio.run(story())


def test_a_replica_whose_directory_vanished_is_rebuilt_and_not_taken_for_a_new_one():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        await written(await life.replica(), 1)
        life.stop()
        disk.remove("tablets/1/0.1")
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        assert (replica.state, rows(replica), life.rebuilds) == (ReplicaState.REBUILDING, [], [replica])
        assert replica.change_meta(state=ReplicaState.OPEN)
        assert await flushed(replica) is None
        life.stop()
        life = await (await Life(disk, ONE).start()).ready()
        assert (await life.replica()).readable

    asyncio.run(story())


def test_replicas_of_dropped_tables_go_but_not_before_the_tables_are_known_to_be_those_of_now():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, {(1, 0): 1, (2, 0): 1}).start()).ready()
        await written(await life.replica(2), 5)
        life.stop()
        life = Life(disk, {(1, 0): 1})
        life.settled = False
        await (await life.start()).ready()
        await asyncio.sleep(0.01)
        assert rows(await life.replica(2)) == [5]
        life.settled = True
        life.shelf.look()
        await until(lambda: disk.names("tablets/") == ["tablets/1/0.1"])
        with pytest.raises(WaitedTooLong, match="tablet 0 of table 2"):
            await life.replica(2, within_s=0.01)
        # Nothing remembers it either: should the name come again, it is a new replica.
        await until(lambda: [each for each, _ in life.mutations.records(b"r").scan()] == [Name(1, 0, 1).record])

    asyncio.run(story())


def test_a_table_that_is_dropped_while_the_tables_are_not_certain_goes_as_soon_as_they_are():
    """Found by simulation: an instance was Offline, though it ran, when it heard of the drop, and kept the replica."""

    async def story():
        disk = model_disk()
        life = await (await Life(disk, {(1, 0): 1, (2, 0): 1}).start()).ready()
        await until(lambda: not life.shelf.unsettled)
        life.settled = False
        del life.wanted[2, 0]
        life.shelf.look()
        await until(lambda: life.shelf.unsettled)
        assert len(life.shelf.held()) == 2
        # Whoever tells the shelf of changes looks at this, and tells of a new grade too.
        life.settled = True
        life.shelf.look()
        await until(lambda: disk.names("tablets/") == ["tablets/1/0.1"])
        assert not life.shelf.unsettled

    asyncio.run(story())


def test_a_write_to_a_replica_that_is_closed_under_it_is_refused():
    async def story():
        disk = model_disk(sync_latency=lambda: 0.02)
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        waiting = asyncio.ensure_future(written(replica, 1))
        await asyncio.sleep(0)
        life.wanted = {}
        life.shelf.look()
        outcome = await waiting
        assert isinstance(outcome, Refused)
        assert outcome.code == "not_ready"
        assert isinstance(await written(replica, 2), Refused)
        with pytest.raises(Refused):
            replica.scan(b"", None)

    asyncio.run(story())


def test_damage_puts_a_replica_into_quarantine_and_an_empty_one_in_its_place():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        old = await life.replica()
        await written(old, 1, 2, 3)
        assert await flushed(old) is None
        disk.damage(old.name, key(2))
        with pytest.raises(Corrupt, match=r"000007\.sst"):
            list(old.scan(b"", None))
        new = await life.replica()
        assert (new is old, old.closed, new.state) == (False, True, ReplicaState.REBUILDING)
        assert (life.rebuilds, life.shelf.quarantined) == ([new], 1)
        assert disk.names("quarantine/") == [f"quarantine/1/0.1-{old.incarnation}"]
        assert any("000007.sst" in line and "put aside" in line for line in life.said)
        assert rows(new) == []
        assert await written(new, 9) is None
        disk.abandon()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        assert (rows(replica), replica.state, life.rebuilds) == ([9], ReplicaState.REBUILDING, [replica])

    asyncio.run(story())


@pytest.mark.parametrize("tablets", [ONE, TWO])
@pytest.mark.parametrize("killed", ["when it is met", "when it is put aside"])
def test_the_log_is_kept_for_a_damaged_replica_until_it_is_put_aside(killed, tablets):
    """A start finds its directory, opens it, and brings it up to date with the log; the damage may be met later."""

    async def story():
        disk = model_disk()
        bounds = FlushBounds(age_s=1e9, cut_bytes=0, cut_every_s=0.0)
        life = await (await Life(disk, tablets, bounds=bounds).start()).ready()
        damaged = [await life.replica(*place) for place in tablets]
        for replica in damaged:
            await written(replica, 1, 2, 3)
            assert await flushed(replica) is None
            await written(replica, 5)
            disk.damage(replica.name, key(2))
        ended = asyncio.Event()

        def is_killed(*_names):
            life.shelf.flushing.tick()
            disk.abandon()
            life.shelf.close()
            ended.set()
            raise StorageError("killed here")

        disk.rename, rename = is_killed, disk.rename
        for replica in damaged:
            with pytest.raises(Corrupt):
                list(replica.scan(b"", None))
        if killed == "when it is met":
            with pytest.raises(StorageError):
                is_killed()
        await ended.wait()
        disk.rename = rename
        life = await (await Life(disk, tablets, bounds=bounds).start()).ready(5.0)
        for place in tablets:
            replica = await life.replica(*place)
            assert replica.state is ReplicaState.OPEN and len(replica.get_row(key(5)[:-17])) == 1
            with pytest.raises(Corrupt):
                list(replica.scan(b"", None))
        await until(lambda: len(life.rebuilds) == len(tablets))
        life.shelf.flushing.tick()
        assert life.mutations.cut_position == life.mutations.applied_position, "nobody needs it any more"

    asyncio.run(story())


def test_a_crash_amid_a_quarantine_does_not_forget_that_rows_are_missing():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        await written(await life.replica(), 1)
        life.stop()
        disk.rename("tablets/1/0.1", "quarantine/1/0.1-1")
        life = await (await Life(disk, ONE).start()).ready()
        assert (await life.replica()).state is ReplicaState.REBUILDING

    asyncio.run(story())


def test_rows_without_a_record_of_whose_they_are_go_into_quarantine():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        await written(await life.replica(), 1)
        life.stop()
        store = disk.open("tablets/1/0.1", wal=False)
        batch = store.batch()
        batch.put(META_KEY, b"rubbish")
        store.write(batch)
        store.close()
        life = await (await Life(disk, ONE).start()).ready()
        assert (await life.replica()).state is ReplicaState.REBUILDING
        assert disk.names("quarantine/") == ["quarantine/1/0.1-0"]

    asyncio.run(story())


def test_a_replica_of_a_store_that_can_not_be_opened_pins_the_log():
    async def story():
        disk = model_disk()
        bounds = FlushBounds(age_s=0, cut_every_s=0)
        life = await (await Life(disk, TWO).start()).ready()
        await written(await life.replica(1, 0), 1)
        await written(await life.replica(1, 1), 2)
        disk.abandon()
        blocker = disk.open("tablets/1/0.1", wal=False)  # somebody else has it open
        life = await Life(disk, TWO, bounds=bounds).start()
        await life.replica(1, 1)
        life.shelf.flushing.tick()
        await asyncio.sleep(0.01)
        life.shelf.flushing.tick()
        assert life.mutations.cut_position == 0
        blocker.close()
        life.shelf.look()
        await life.ready()
        assert rows(await life.replica(1, 0)) == [1]

    asyncio.run(story())


def test_held_writes_wait_for_their_release_and_keep_their_order():
    async def story():
        life = await (await Life(model_disk(), ONE).start()).ready()
        replica = await life.replica()
        replica.hold()
        first = asyncio.ensure_future(written(replica, 1))
        await until(lambda: life.mutations.applied_position == 1)
        second = asyncio.ensure_future(written(replica, 2))
        await until(lambda: life.mutations.applied_position == 2)
        assert (first.done(), rows(replica), replica.position) == (False, [], 0)
        replica.release()
        assert (await first, await second, rows(replica), replica.position) == (None, None, [1, 2], 2)

    asyncio.run(story())


@pytest.mark.parametrize("pairs", [[], [key(1)], [b"short", b"v"], [POSITION_KEY, b"v"], [META_KEY, b"v"]])
def test_what_is_no_row_is_refused(pairs):
    async def story():
        life = await (await Life(model_disk(), ONE).start()).ready()
        replica = await life.replica()
        done = asyncio.get_running_loop().create_future()
        replica.write(pairs, done.set_result)
        outcome = await done
        assert isinstance(outcome, Refused)
        assert outcome.code == "invalid"

    asyncio.run(story())


def test_too_large_partitions_take_no_puts_but_deletes():
    async def story():
        life = await (await Life(model_disk(), ONE).start()).ready()
        replica = await life.replica()
        replica.large = {key(1)[:8]: [LargePartition(key(1)[:9], 4_900, 5_000)]}
        assert await written(replica, 1, value=bytes(200)) is None
        outcome = await written(replica, 1)
        assert isinstance(outcome, Refused)
        assert (outcome.code, "5000 is the most" in outcome.text) == ("too_large", True)
        assert await written(replica, 2) is None
        done = asyncio.get_running_loop().create_future()
        replica.write([key(1, kind=1), b"deletion"], done.set_result)
        assert await done is None

    asyncio.run(story())


def test_a_shelf_of_real_stores_comes_back_and_goes_for_good(tmp_path):
    async def story():
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, TWO).start()).ready()
        replica = await life.replica()
        outcomes = await asyncio.gather(*(written(replica, number) for number in range(200)))
        assert outcomes == [None] * 200
        assert replica.held_bytes > 0
        assert [each[:2] for each in life.shelf.figures()] == [(1, 2)]
        life.stop()
        life = await (await Life(disk, TWO).start()).ready()
        replica = await life.replica()
        # RocksDB flushes when it is closed in an orderly way.
        assert (life.shelf.replayed, rows(replica)) == (0, list(range(200)))
        life.wanted = {}
        life.shelf.look()
        await until(lambda: not disk.names("tablets/"))
        life.stop()
        disk.close()

    asyncio.run(story())


def test_a_byte_flipped_in_a_table_is_named_and_the_replica_quarantined(tmp_path):
    async def story():
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        rng = random.Random(3)
        for start in range(0, 2000, 100):
            await written(replica, *range(start, start + 100), value=rng.randbytes(50))
        assert await flushed(replica) is None
        life.stop()
        tables = sorted((tmp_path / "disk" / "tablets/1/0.1").glob("*.sst"), key=lambda path: path.stat().st_size)
        data = bytearray(tables[-1].read_bytes())
        data[len(data) // 2] ^= 0xFF
        tables[-1].write_bytes(data)
        life = await (await Life(disk, ONE).start()).ready()
        old = await life.replica()
        with pytest.raises(Corrupt, match=tables[-1].name):
            list(old.scan(b"", None))
        await until(lambda: life.rebuilds or life.failures, within_s=3)
        assert life.failures == [], life.said
        new = await life.replica()
        assert (new.state, rows(new)) == (ReplicaState.REBUILDING, [])
        assert any(tables[-1].name in line for line in life.said)
        assert (tmp_path / "disk" / "quarantine/1" / f"0.1-{old.incarnation}" / tables[-1].name).exists()
        life.stop()
        disk.close()

    asyncio.run(story())


def test_a_newer_generation_on_disk_is_not_removed_by_tables_of_yesterday():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, {(1, 0): 2}).start()).ready()
        await written(await life.replica(), 5)
        life.stop()
        life = Life(disk, {(1, 0): 1})  # the metastore has not caught up yet
        life.settled = False
        await life.start()
        replica = await life.replica()
        await asyncio.sleep(0.01)
        assert (replica.generation, rows(replica), disk.names("tablets/")) == (2, [5], ["tablets/1/0.2"])
        life.wanted = {(1, 0): 2}
        life.settled = True
        life.shelf.look()
        await life.ready()
        assert rows(await life.replica()) == [5]

    asyncio.run(story())
