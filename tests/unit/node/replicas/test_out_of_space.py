"""Replicas whose memory, log or disk is full: flushed, refused, opened again, and nothing lost."""

from __future__ import annotations

import asyncio

from tests.unit.node.replicas.shelves import Life, flushed, key, model_disk, rows, until, written

from trimtab.node.answering import Refused
from trimtab.node.replicas import replaying
from trimtab.node.replicas.flushing import FlushBounds
from trimtab.node.replicas.replaying import replay
from trimtab.node.replicas.replica_meta import read_position
from trimtab.storage.port import DiskFull

ONE = {(1, 0): 1}
TWO = {(1, 0): 1, (1, 1): 1}


def test_a_replica_that_is_full_is_flushed_and_the_log_is_cut_behind_it():
    async def story():
        disk = model_disk()
        bounds = FlushBounds(replica_bytes=4_000, total_bytes=1 << 20, cut_bytes=0, cut_every_s=0)
        life = await (await Life(disk, TWO, bounds=bounds).start()).ready()
        hot, cold = await life.replica(1, 0), await life.replica(1, 1)
        await written(cold, 1)
        for number in range(100):
            await written(hot, number, value=bytes(200))
        await until(lambda: not hot.flushing)
        assert hot.flushed_position > 1
        # The one write of the cold replica pins the log ...
        assert life.mutations.cut_position == cold.flushed_position
        assert await flushed(cold) is None
        life.shelf.flushing.tick()
        # ... and no longer.
        assert life.mutations.cut_position == hot.flushed_position
        life.stop()
        life = await (await Life(disk, TWO, bounds=bounds).start()).ready()
        assert life.shelf.replayed < 25
        assert rows(await life.replica(1, 0)) == list(range(100))
        assert rows(await life.replica(1, 1)) == [1]
        assert await written(await life.replica(1, 1), 2) is None

    asyncio.run(story())


def test_a_cold_replica_is_flushed_by_age():
    async def story():
        disk = model_disk()
        bounds = FlushBounds(age_s=0.02, cut_every_s=0)
        life = await (await Life(disk, ONE, bounds=bounds).start()).ready()
        replica = await life.replica()
        await written(replica, 1)
        life.shelf.flushing.tick()
        assert replica.unflushed
        await asyncio.sleep(0.03)
        life.shelf.flushing.tick()
        await until(lambda: not replica.unflushed)
        life.shelf.flushing.tick()
        assert life.mutations.cut_position == life.mutations.newest_position

    asyncio.run(story())


def test_positions_go_on_after_a_restart_with_an_empty_log():
    async def story():
        disk = model_disk()
        bounds = FlushBounds(age_s=0, cut_every_s=0)
        life = await (await Life(disk, ONE, bounds=bounds).start()).ready()
        for number in range(5):
            await written(await life.replica(), number)
        life.shelf.flushing.tick()
        await until(lambda: life.mutations.cut_position == 5)
        await asyncio.sleep(0.01)
        life.stop()
        life = await (await Life(disk, ONE, bounds=bounds).start()).ready()
        assert life.mutations.newest_position == 5
        assert await written(await life.replica(), 77) is None
        disk.abandon()
        life = await (await Life(disk, ONE).start()).ready()
        assert rows(await life.replica()) == [0, 1, 2, 3, 4, 77]

    asyncio.run(story())


def test_too_much_in_memory_refuses_writers_until_it_is_flushed():
    async def story():
        disk = model_disk(flush_latency=lambda: 0.05)
        bounds = FlushBounds(replica_bytes=1 << 20, total_bytes=1_000)
        life = await (await Life(disk, ONE, bounds=bounds).start()).ready()
        replica = await life.replica()
        assert await written(replica, 1, value=bytes(3_000)) is None
        refused = await written(replica, 2)
        assert "slow down" in str(refused)
        await until(lambda: not replica.unflushed)
        assert await written(replica, 2) is None

    asyncio.run(story())


def test_a_failed_sync_is_fatal_and_acknowledges_nothing():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        disk.fail_next_sync()
        outcomes = []
        replica.write([key(1), b"v"], outcomes.append)
        await until(lambda: life.failures)
        assert "sync" in str(life.failures[0])
        assert (outcomes, rows(replica)) == ([], [])

    asyncio.run(story())


def test_below_the_reserve_writes_are_refused_while_votes_and_clean_up_pass():
    async def story():
        disk = model_disk(reserve_bytes=1_000)
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        disk.capacity_bytes = 1_000  # less than the reserve is free
        life.log._free_trusted = 0
        refused = await written(replica, 1)
        assert isinstance(refused, DiskFull)
        flags = life.mutations.records(b"f")
        outcomes = []
        flags.put(b"hint", b"", outcomes.append)
        flags.put(b"mark", b"", outcomes.append, essential=True)
        flags.delete(b"x", outcomes.append)
        await until(lambda: len(outcomes) == 3)
        assert sorted(map(type, outcomes), key=str) == [type(None), type(None), DiskFull]
        assert [each for each, _ in flags.scan()] == [b"mark"]
        disk.capacity_bytes = 1 << 50
        assert await written(replica, 1) is None

    asyncio.run(story())


def test_a_store_that_ran_out_of_space_is_opened_again_and_replays_what_it_lost():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        await written(replica, 1)
        replica.store._full = disk.full_error(replica.name)  # as RocksDB after a flush that found no space
        # 2 is refused after its sync: whoever asked must not think that it was not taken.
        late = await written(replica, 2)
        assert isinstance(late, Refused) and late.code == "not_ready" and "in its log" in late.text
        assert isinstance(await written(replica, 3), DiskFull)
        life.shelf.look()
        await until(lambda: replica.stalled is None)
        assert await written(replica, 4) is None
        assert set(rows(replica)) >= {1, 4}
        assert 3 not in rows(replica)
        assert any("takes writes again" in each for each in life.said)

    asyncio.run(story())


def test_a_replay_during_which_the_log_is_opened_again_leaves_nothing_out(monkeypatch):
    monkeypatch.setattr(replaying, "_LOOK_EVERY", 1)
    monkeypatch.setattr(replaying, "SLICE_S", 0.0)

    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        for number in range(50):
            await written(replica, number)
        replica.store._full = disk.full_error(replica.name)
        replica.store.reopen()
        replica.recovered(read_position(replica.store, replica.name))
        assert rows(replica) == []
        replayed = asyncio.create_task(replay(life.mutations, [replica], asyncio.get_running_loop()))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not replayed.done()
        life.log.store._full = disk.full_error("log")  # the whole disk was full, so the log is opened again as well
        life.log.store.reopen()
        assert await replayed == 50
        assert rows(replica) == list(range(50))

    asyncio.run(story())


def test_a_flush_that_ends_after_a_recovery_does_not_take_what_is_in_memory_for_flushed():
    async def story():
        disk = model_disk(flush_latency=lambda: 0.05)
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        await written(replica, 1)
        flushing = asyncio.create_task(flushed(replica))
        await asyncio.sleep(0)
        replica.store._full = disk.full_error(replica.name)
        replica.store.reopen()
        replica.recovered(read_position(replica.store, replica.name))
        await replay(life.mutations, [replica], asyncio.get_running_loop())
        assert await flushing is None
        assert rows(replica) == [1]
        assert replica.unflushed and replica.unflushed_bytes > 0  # the log is still needed for it

    asyncio.run(story())
