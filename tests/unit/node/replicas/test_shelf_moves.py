"""What the shelf makes of tablets that move: replicas for a session, none of another one, and nothing in a hurry."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.node.replicas.shelves import Life, flushed, model_disk, number_of, rows, until, written

from trimtab.loads.records import EpochRecord
from trimtab.node.replicas.replica import FIRST_KEY, ReplicaState
from trimtab.node.replicas.snapshots import ReplicaSnapshots
from trimtab.storage.rocks import RocksDisk

HERE = (1, 0)
ONE = {HERE: 1}


async def life_of(disk, wanted=ONE, arriving=None, **settings):
    life = Life(disk, wanted)
    life.arriving = arriving or {}
    for name, value in settings.items():
        setattr(life, name, value)
    return await life.start()


def test_a_replica_is_made_for_the_session_and_is_the_same_in_the_next_life():
    async def story():
        disk = model_disk()
        life = await (await life_of(disk, arriving={HERE: "s"}, epochs=EpochRecord(committed=4))).ready()
        replica = await life.replica()
        assert (replica.state, replica.meta.session, replica.meta.floor) == (ReplicaState.ARRIVING, "s", 4)
        assert await written(replica, 1) is None
        incarnation = replica.incarnation
        disk.abandon()
        life = await (await life_of(disk, arriving={HERE: "s"}, epochs=EpochRecord(committed=7))).ready()
        replica = await life.replica()
        assert (replica.incarnation, replica.arriving, rows(replica)) == (incarnation, True, [1])
        assert replica.meta.floor == 4 and not life.rebuilds

    asyncio.run(story())


@pytest.mark.parametrize("before", [{HERE: "old"}, {}])
def test_what_lies_here_of_another_session_or_from_earlier_is_dropped_and_made_anew(before):
    async def story():
        disk = model_disk()
        life = await (await life_of(disk, arriving=before)).ready()
        old = await life.replica()
        assert await written(old, 1) is None
        life.arriving = {HERE: "new"}
        life.shelf.look()
        await life.ready()
        replica = await life.replica()
        assert replica is not old and old.closed and rows(replica) == []
        assert replica.arriving and replica.meta.session == "new" and replica.incarnation > old.incarnation
        disk.abandon()
        life = await (await life_of(disk, arriving={HERE: "new"})).ready()
        assert rows(await life.replica()) == [], "nor does the log bring it back"

    asyncio.run(story())


def test_nothing_is_dropped_before_it_is_certain_that_the_tables_are_those_of_now():
    async def story():
        disk = model_disk()
        life = await (await life_of(disk, arriving={HERE: "new"})).ready()
        assert await written(await life.replica(), 1) is None
        disk.abandon()
        # The metastore is older at first than it was.
        life = await life_of(disk, arriving={HERE: "old"}, settled=False)
        await until(lambda: life.shelf.ready)
        await asyncio.sleep(0.02)
        replica = life.shelf.get(*HERE)
        assert replica is not None and rows(replica) == [1] and life.shelf.missing() == [HERE]
        life.arriving, life.settled = {HERE: "new"}, True
        life.shelf.look()
        await life.ready()
        assert await life.replica() is replica and rows(replica) == [1]

    asyncio.run(story())


def test_a_replica_that_was_made_when_the_tables_were_older_becomes_one_that_arrives():
    async def story():
        disk = model_disk()
        life = await (await life_of(disk, arriving={HERE: "s"})).ready()
        assert await written(await life.replica(), 1) is None
        assert await flushed(await life.replica()) is None
        life.stop()
        disk.remove("tablets/1/0.1")
        life = await life_of(disk, settled=False)
        replica = await life.replica()
        assert (replica.state, replica.meta.session) == (ReplicaState.REBUILDING, "s")
        life.arriving, life.settled = {HERE: "s"}, True
        life.shelf.look()
        await until(lambda: replica.arriving)
        assert await life.replica() is replica

    asyncio.run(story())


def test_a_replica_somebody_is_at_is_dropped_when_he_has_ended():
    async def story():
        life = await (await life_of(model_disk(), arriving={HERE: "old"})).ready()
        old = await life.replica()
        with life.shelf.in_hand(old):
            life.arriving = {HERE: "new"}
            life.shelf.look()
            await asyncio.sleep(0.02)
            assert not old.closed
        await life.ready()
        assert old.closed and (await life.replica()).meta.session == "new"

    asyncio.run(story())


def test_power_that_fails_again_and_again_while_sessions_change_never_leaves_rows_of_another():
    async def story():
        for seed in range(30):
            rng = random.Random(seed)
            disk = model_disk(work_latency=lambda rng=rng: rng.random() / 500, sync_latency=lambda: 0.0002)
            session = 0
            for _ in range(6):
                life = await life_of(disk, arriving={HERE: f"s{session}"})
                for _ in range(rng.randrange(3)):
                    await life.ready()
                    replica = await life.replica()
                    assert replica.meta.session == f"s{session}" and set(rows(replica)) <= {session}
                    assert await written(replica, session) is None
                    assert rows(replica) == [session]
                    session += 1
                    life.arriving = {HERE: f"s{session}"}
                    life.shelf.look()
                    await asyncio.sleep(rng.random() / 100)
                life.shelf._task.cancel()
                disk.crash(rng)
            life = await (await life_of(disk, arriving={HERE: f"s{session}"})).ready()
            assert set(rows(await life.replica())) <= {session}
            life.stop()

    asyncio.run(story())


def test_rows_that_were_kept_ready_go_with_the_replica():
    async def story():
        life = await (await life_of(model_disk(), {HERE: 1, (1, 1): 1})).ready()
        gone, stays = await life.replica(1, 0), await life.replica(1, 1)
        cache, cell = life.shelf.row_cache, (b"v",)
        gone.rows.keep(b"before a copy was taken", 1, cell, 100)
        gone.hold()
        gone.release()
        gone.rows.keep(b"since", 1, cell, 100)
        stays.rows.keep(b"other", 1, cell, 100)
        life.wanted = {(1, 1): 1}
        life.shelf.look()
        await until(lambda: len(cache.entries) == 1)
        assert stays.rows.find([b"other"], 1) == [cell]
        assert cache.bytes == sum(entry[3] for entry in cache.entries.values())

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_a_snapshot_outlives_the_replica_that_moved_away(kind, tmp_path):
    async def story():
        disk = model_disk() if kind == "model" else RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await life_of(disk)).ready()
        replica = await life.replica()
        assert await written(replica, 1, 2) is None
        snapshots = ReplicaSnapshots(disk, wall_ms=lambda: 1, complain=life.said.append, defect=life.failures.append)
        record = await snapshots.take("kept", [replica], 60_000)
        life.wanted = {}
        life.shelf.look()
        await until(lambda: not disk.names("tablets"))
        copy = disk.open(record.replicas[0].path, wal=False)
        assert [number_of(stored) for stored, _ in copy.scan(FIRST_KEY, None)] == [1, 2]
        copy.close()
        await snapshots.drop("kept")
        assert not disk.names("snapshots")
        life.stop()
        disk.close()

    asyncio.run(story())
