"""A replica that arrives is in memory until its copy comes: what becomes of it when it needs files, or dies."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.replicas.move_stage import (
    TABLE,
    MoveStage,
    arriving,
    code_of,
    copied_store,
    merged_run,
    stage_copy,
)
from tests.unit.node.replicas.shelves import flushed, key, model_disk, rows, until, written

from trimtab.node.replicas.flushing import FlushBounds
from trimtab.storage.port import Corrupt, DiskFull, StorageError


def test_a_directory_that_was_only_half_made_is_no_hindrance_for_the_copy():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        open_real = disk.open

        def opened(name, **options):
            made = open_real(name, **options)
            made.write = lambda _batch: (_ for _ in ()).throw(disk.full_error(name))
            return made

        disk.open = opened
        assert isinstance(await flushed(stage.replica()), DiskFull) and disk.exists("tablets/1/0.1")
        disk.open = open_real
        stage.shelf._news.set()
        await until(lambda: stage.replica().stalled is None)
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        assert code_of(await stage.adopt()) == "" and set(rows(stage.replica())) - {1_000} == {1, 5}
        disk.abandon()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) - {1_000} == {1, 5} and again.replica().readable

    asyncio.run(story())


def test_one_that_can_not_get_files_is_told_rests_and_is_no_reason_to_end(monkeypatch):
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        replica = stage.replica()
        assert await written(replica, 5) is None
        open_real = disk.open

        def refuses(name, **options):
            raise StorageError(f"{name}: too many open files")

        disk.open = refuses
        monkeypatch.setattr(stage.shelf.flushing, "bounds", FlushBounds(age_s=0.0))
        stage.shelf.flushing.tick()
        await until(lambda: any("too many open files; it is tried again" in said for said in stage.said))
        stage.shelf.flushing.tick()
        assert not replica.flushing, "not at once"
        assert stage.life.failures == [] and rows(replica) == [5]
        disk.open, replica.rests_until = open_real, 0.0
        stage.shelf.flushing.tick()
        await until(lambda: disk.exists("tablets/1/0.1") and not replica.flushing)
        assert rows(replica) == [5] and stage.life.failures == []

    asyncio.run(story())


def test_one_that_can_not_get_files_for_long_is_given_up_and_its_move_begins_anew(monkeypatch):
    """All the while the log could not be cut."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        replica, open_real = stage.replica(), disk.open
        assert await written(replica, 5) is None

        def refuses(name, **options):
            raise StorageError(f"{name}: too many open files")

        disk.open = refuses
        monkeypatch.setattr(stage.shelf.flushing, "bounds", FlushBounds(age_s=0.0, cut_bytes=0))
        monkeypatch.setattr("trimtab.node.replicas.flushing._REST_S", 0.0)
        for _ in range(40):
            stage.shelf.flushing.tick()
            await asyncio.sleep(0.005)
        await until(lambda: stage.shelf.find(TABLE, 0, 1) not in (None, replica))
        assert stage.replica().arriving and stage.replica().meta.lost and stage.life.failures == []
        disk.open = open_real
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        assert code_of(await stage.adopt()) == "lost"
        stage.shelf.flushing.tick()
        assert stage.life.mutations.cut_position == stage.life.mutations.applied_position

    asyncio.run(story())


def test_half_of_its_rows_came_into_files_before_it_was_killed():
    """What it is comes last, and is in the log: it begins where that says."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        assert await written(stage.replica(), 6) is None
        disk.abandon()
        half = disk.open("tablets/1/0.1", wal=False)
        batch = half.batch()
        batch.put(key(5), b"v")
        half.write(batch)
        done = asyncio.get_running_loop().create_future()
        half.start_flush(done.set_result)
        assert await done is None
        half.close()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert again.replica().arriving and not again.replica().meta.lost and rows(again.replica()) == [5, 6]

    asyncio.run(story())


@pytest.mark.parametrize("trouble", ["damage", "full"])
def test_half_of_its_files_are_damaged_or_do_not_fit_when_it_starts_again(trouble):
    """Killed while it came into files for the first time: there is a directory, and the log says what it is."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        disk.abandon()
        disk.open("tablets/1/0.1", wal=False).close()
        open_real, tries = disk.open, []

        def opened(name, **options):
            made = open_real(name, **options)
            if name == "tablets/1/0.1" and not tries:
                tries.append(name)
                error = disk.full_error(name) if trouble == "full" else Corrupt(name, "damaged")
                made.get = lambda _key: (_ for _ in ()).throw(error)
            return made

        disk.open = opened
        again = await MoveStage(disk, stage.views).start()
        await until(lambda: again.shelf.find(TABLE, 0, 1) is not None)
        replica = again.replica()
        assert tries and replica.arriving and again.life.failures == []
        if trouble == "full":
            assert rows(replica) == [5] and not replica.meta.lost
            assert replica.was_away, "it is opened late, and is of an earlier life all the same"
        else:
            assert replica.meta.lost, "no copy of this session is taken"

    asyncio.run(story())
