"""A copy has become a replica and was not flushed since: the log's store says whose it is, until its files do."""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import replace

import pytest
from tests.unit.node.replicas.move_stage import (
    OLD,
    TABLE,
    MoveStage,
    arriving,
    code_of,
    copied_store,
    stage_copy,
)
from tests.unit.node.replicas.shelves import flushed, key, model_disk, rows, until, written

from trimtab.node.replicas import replica_files
from trimtab.node.replicas.replica_meta import ReplicaMeta, ReplicaState, read_meta
from trimtab.node.replicas.unfiled import Unfiled, parse_record
from trimtab.storage.port import Corrupt, DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk

PATH = f"tablets/{TABLE}/0.1"


async def with_a_copy(disk, other, **meta):
    """A replica that took row 5 while it arrived, then a copy with row 1, and then row 7."""
    stage = await arriving(disk)
    assert await written(stage.replica(), 5) is None
    stage_copy(disk, await copied_store(other, 0, [1], **meta))
    assert code_of(await stage.adopt()) == ""
    assert stage.replica().has_copy
    assert await written(stage.replica(), 7) is None
    return stage


async def next_life(stage, disk):
    again = await MoveStage(disk, stage.views).start()
    await again.life.ready()
    return again


def own_rows(replica):
    return set(rows(replica)) - {1_000}


@pytest.mark.parametrize("number", range(12))
def test_the_power_is_lost_before_or_after_its_first_flush_and_a_cut_of_the_log(number):
    async def story():
        disk = model_disk()
        stage = await with_a_copy(disk, model_disk())
        flushing = stage.shelf.flushing
        flushing.bounds = replace(flushing.bounds, cut_bytes=0, cut_every_s=0)
        flushing._cut()
        if number % 2:
            assert await flushed(stage.replica()) is None and not stage.replica().has_copy
            flushing._cut()
        disk.crash(random.Random(number))
        again = await next_life(stage, disk)
        assert own_rows(again.replica()) == {1, 5, 7} and again.replica().readable
        assert again.replica().incarnation == stage.replica().incarnation
        again.stop()

    asyncio.run(story())


def test_files_of_rocksdb_as_a_kill_leaves_them_and_as_a_stop_does(tmp_path):
    async def story():
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await with_a_copy(disk, RocksDisk(tmp_path / "source", reserve_bytes=0))
        shutil.copytree(tmp_path / "disk", tmp_path / "killed")
        stage.stop()
        disk.close()
        for left in ("killed", "disk"):
            disk = RocksDisk(tmp_path / left, reserve_bytes=0)
            again = await next_life(stage, disk)
            assert own_rows(again.replica()) == {1, 5, 7} and again.replica().readable
            assert again.replica().meta.session == "s1"
            again.stop()
            disk.close()

    asyncio.run(story())


def test_it_comes_into_files_soon_and_not_with_the_others():
    async def story():
        disk = model_disk()
        stage = await with_a_copy(disk, model_disk())
        flushing, replica = stage.shelf.flushing, stage.replica()
        flushing.bounds = replace(flushing.bounds, age_s=1e9, copied_age_s=1e9)
        assert flushing._next() is None
        flushing.bounds = replace(flushing.bounds, copied_age_s=0.0)
        flushing.tick()
        await until(lambda: not replica.has_copy)
        assert await written(replica, 8) is None
        assert flushing._next() is None, "from now on it is one like any other"
        stage.stop()

    asyncio.run(story())


def test_a_full_disk_at_its_first_flush_costs_nothing():
    async def story():
        disk = model_disk()
        stage = await with_a_copy(disk, model_disk())
        replica = stage.replica()
        replica.store._store._full = disk.full_error(PATH)
        assert isinstance(await flushed(replica), DiskFull)
        stage.shelf._news.set()
        await until(lambda: replica.stalled is None)
        assert own_rows(replica) == {1, 5, 7}
        disk.abandon()
        again = await next_life(stage, disk)
        assert own_rows(again.replica()) == {1, 5, 7}
        again.stop()

    asyncio.run(story())


def test_what_rocksdb_flushed_by_itself_is_not_replaced_by_what_was_noted_before(tmp_path):
    """A store is closed when it is opened again, and RocksDB brings everything into files then."""

    async def story():
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await with_a_copy(disk, RocksDisk(tmp_path / "source", reserve_bytes=0))
        replica = stage.replica()
        store = replica.store._store
        with store._flushing:
            store._awaken()  # as when it has taken much
        assert replica.rewrite([key(5)], [], forgot_us=123)
        full = DiskFull(PATH, free_bytes=0, reserve_bytes=0)
        replica.store._store._full = full
        replica.ran_full(full)
        stage.shelf._news.set()
        await until(lambda: replica.stalled is None)
        assert own_rows(replica) == {1, 7}, "what was folded away is not replayed"
        assert read_meta(replica.store, PATH).forgot_us == replica.meta.forgot_us == 123
        stage.stop()
        disk.close()

    asyncio.run(story())


def test_a_mark_from_before_the_copy_does_not_take_back_what_the_copy_has():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        marked = asyncio.get_running_loop().create_future()
        stage.replica().set_adopted(3, marked.set_result)
        assert await marked is None
        stage_copy(disk, await copied_store(model_disk(), 0, [1]), epoch=7)
        assert code_of(await stage.adopt()) == "" and stage.replica().adopted == 7
        for _ in range(2):
            disk.abandon()
            stage = await next_life(stage, disk)
            assert stage.replica().adopted == 7
        stage.stop()

    asyncio.run(story())


def test_a_copy_that_is_gone_is_lost_and_its_move_begins_anew():
    async def story():
        disk = model_disk()
        stage = await with_a_copy(disk, model_disk())
        disk.abandon()
        disk.remove(PATH)
        again = await next_life(stage, disk)
        assert again.replica().meta.lost and again.replica().state is ReplicaState.ARRIVING
        disk.abandon()
        third = await next_life(stage, disk)
        assert third.replica().meta.lost, "and is not taken for whole later"
        third.stop()

    asyncio.run(story())


def test_what_was_removed_before_a_crash_is_not_made_again():
    async def story():
        disk = model_disk()
        stage = await with_a_copy(disk, model_disk())
        disk.abandon()
        disk.remove(PATH)  # as the last deed of the life before
        stage.views.end(stable=OLD)
        made = []
        open_real = disk.open
        disk.open = lambda name, **how: made.append(name) or open_real(name, **how)
        again = await next_life(stage, disk)
        await until(lambda: not again.shelf.places())
        assert again.life.rebuilds == [] and PATH not in made
        again.stop()

    asyncio.run(story())


@pytest.mark.parametrize("session", ["", "of-the-source"])
def test_a_life_that_ends_while_a_damaged_one_is_put_aside_knows_what_was_lost(session, monkeypatch):
    """The files speak of the source, and of the session by which that once got its tablet."""

    async def story():
        disk = model_disk()
        stage = await with_a_copy(disk, model_disk(), session=session)
        reached = asyncio.Event()

        def ends(*_arguments):
            reached.set()
            raise StorageError("the process ends here")

        monkeypatch.setattr(replica_files, "_put_aside", ends)
        stage.shelf.damaged(stage.replica(), Corrupt(PATH, "damaged"))
        await reached.wait()
        disk.abandon()
        stage.stop()
        monkeypatch.undo()
        again = await next_life(stage, disk)
        replica = again.replica()
        assert replica.meta.lost or own_rows(replica) == {1, 5, 7}
        again.stop()

    asyncio.run(story())


OPEN = ReplicaMeta(1, TABLE, 0, 1, 3, 9, ReplicaState.OPEN, session="s1")
ARRIVING = ReplicaMeta(1, TABLE, 0, 1, 3, 9, ReplicaState.ARRIVING, session="s1")


@pytest.mark.parametrize("unfiled", [Unfiled(OPEN, 1 << 40, 7), Unfiled(OPEN, 0), Unfiled(ARRIVING, 256)])
def test_a_record_is_read_as_it_was_written(unfiled):
    assert parse_record(unfiled.record) == (unfiled.meta.session, unfiled)


def test_records_of_replicas_in_files_and_damaged_ones():
    assert parse_record(b"s1") == ("s1", None) and parse_record(b"") == ("", None)
    for damaged in (b"s1\0short", b"s1\1" + bytes(12), b"s1\0" + bytes(8) + b"no record"):
        with pytest.raises(Corrupt, match="the mutation log"):
            parse_record(damaged)
