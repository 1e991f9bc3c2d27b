"""Tablets come: replicas are made for a session, and take their copy over once it is verified."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress

import pytest
from tests.unit.node.replicas.move_stage import (
    TABLE,
    MoveStage,
    Views,
    arriving,
    code_of,
    copied_store,
    disk_of,
    merged_run,
    stage_copy,
)
from tests.unit.node.replicas.shelves import flushed, model_disk, rows, until, written

from trimtab.node import failpoints
from trimtab.node.replicas.replica import ReplicaState
from trimtab.storage.port import DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk
from trimtab.tablets.move_protocol import PREPARE, MovingTablet
from trimtab.tablets.selectors import Stage


@pytest.mark.parametrize("kind", ["model", "rocks"])
@pytest.mark.parametrize("copy", ["copy", "merge"])
def test_a_copy_becomes_the_replica_with_everything_that_was_written_meanwhile(kind, copy, tmp_path):
    async def story():
        disk, other = disk_of(kind, tmp_path / "disk"), disk_of(kind, tmp_path / "other")
        stage = await arriving(disk)
        replica = stage.replica()
        assert replica.arriving and not replica.readable and replica.meta.session == "s1"
        assert await written(replica, 5, 6) is None
        files = await copied_store(other, 0, [1, 2, 3], repaired_through_ms=4_000, forgot_us=9)
        if copy == "copy":
            stage_copy(disk, files, epoch=50)
        else:
            stage_copy(disk, merged_run(other, [1, 2, 3]), kind="merge", epoch=50, repaired_through_ms=4_001)
        assert code_of(await stage.adopt()) == ""
        assert code_of(await stage.adopt()) == "", "asked again it is done"
        assert stage.replica() is replica and replica.readable and replica.meta.session == "s1"
        assert set(rows(replica)) - {1_000} == {1, 2, 3, 5, 6}
        assert (replica.adopted, replica.repaired_through_ms) == (50, 4_001)
        assert await written(replica, 7) is None
        stage.stop()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert again.replica().readable and set(rows(again.replica())) - {1_000} == {1, 2, 3, 5, 6, 7}
        assert (again.replica().adopted, again.replica().repaired_through_ms) == (50, 4_001)
        assert not disk.names("arriving")
        again.stop()
        other.close()
        disk.close()

    asyncio.run(story())


PLACES = ("before", "verified", "linked", "recorded", "swapped", "after")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("copy", ["copy", "merge"])
def test_a_process_killed_at_any_step_of_adopting_goes_on_in_its_next_life(place, copy):
    async def story():
        disk, other = model_disk(), model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        files = await copied_store(other, 0, [1]) if copy == "copy" else merged_run(other, [1])
        stage_copy(disk, files, kind=copy)

        def kill(_name, _who):
            disk.abandon()
            raise failpoints.FailpointError("killed here")

        failpoints.arm(f"moves.adopt.{place}", kill)
        try:
            reply = await stage.adopt(within_s=1.0)
        finally:
            failpoints.disarm()
        if copy == "copy" or place not in ("linked", "recorded"):
            assert code_of(reply) != ""
        disk.abandon()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) >= {5}, "what was acknowledged is there"
        done_before = again.replica().readable
        assert done_before == (place == "after" or (copy == "merge" and place in ("linked", "recorded", "swapped")))
        assert code_of(await again.adopt()) == ""
        assert set(rows(again.replica())) - {1_000} == {1, 5} and again.replica().readable
        assert not disk.names("arriving")
        assert await written(again.replica(), 6) is None
        disk.abandon()
        third = await MoveStage(disk, stage.views).start()
        await third.life.ready()
        assert set(rows(third.replica())) - {1_000} == {1, 5, 6} and third.replica().readable
        third.stop()

    asyncio.run(story())


@pytest.mark.parametrize("place", PLACES)
def test_a_real_disk_as_a_killed_process_leaves_it_at_any_step_of_adopting(place, tmp_path):
    async def story():
        disk, other = RocksDisk(tmp_path / "disk", reserve_bytes=0), RocksDisk(tmp_path / "other", reserve_bytes=0)
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        stage_copy(disk, await copied_store(other, 0, [1]))

        def photograph(_name, _who):
            for _ in range(10):
                with suppress(shutil.Error):  # RocksDB removes a file that it needs no more
                    shutil.copytree(tmp_path / "disk", tmp_path / "killed")
                    return
                shutil.rmtree(tmp_path / "killed")
            raise AssertionError("files go too fast")

        failpoints.arm(f"moves.adopt.{place}", photograph)
        try:
            assert code_of(await stage.adopt()) == ""
        finally:
            failpoints.disarm()
        stage.stop()
        disk.close()
        other.close()
        disk = RocksDisk(tmp_path / "killed", reserve_bytes=0)
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) >= {5}
        assert again.replica().readable == (place == "after")
        assert code_of(await again.adopt()) == ""
        assert set(rows(again.replica())) - {1_000} == {1, 5} and again.replica().readable
        assert not disk.names("arriving")
        again.stop()
        disk.close()

    asyncio.run(story())


def test_many_writes_that_came_meanwhile_are_put_in_before_writers_have_to_wait():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage.shelf.swaps._few_bytes = 100
        replica = stage.replica()
        assert await written(replica, *range(10, 2_000)) is None
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        late = []

        def write_more(_name, _who):
            late.append(asyncio.ensure_future(written(replica, 5_000)))

        failpoints.arm("moves.adopt.linked", write_more)
        try:
            assert code_of(await stage.adopt()) == ""
        finally:
            failpoints.disarm()
        assert await late[0] is None and replica.pinned is None
        assert set(rows(replica)) - {1_000} == {1, 5_000, *range(10, 2_000)} - {1_000}
        disk.abandon()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) - {1_000} == {1, 5_000, *range(10, 2_000)} - {1_000}
        again.stop()

    asyncio.run(story())


@pytest.mark.parametrize("whose", [0, 1])
def test_what_comes_while_much_is_put_in_is_put_in_as_well_before_writers_have_to_wait(whose):
    """Whoever it is for: all that is in the log since is read in one step in the end."""

    async def story():
        disk, views = model_disk(), Views()
        stage = await arriving(disk, views)
        views.move(1, "other")
        stage.shelf.look()
        await until(lambda: stage.shelf.find(TABLE, 1, 1) is not None)
        swaps, replica = stage.shelf.swaps, stage.replica()
        swaps._few_bytes = 1_000
        assert await written(replica, *range(10, 100)) is None
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        coming, pour, exchange, seen = iter(range(100, 1_000)), swaps._put, swaps._exchange, []

        async def put_slowly(store, pairs):
            if len(seen) < 3 and not replica.swapping:
                seen.append(replica.pinned)
                await asyncio.gather(*(written(stage.replica(whose), next(coming)) for _ in range(200)))
            await pour(store, pairs)

        async def exchanged(*of):
            seen.append(len(list(stage.life.mutations.entries({stage.replica(whose).incarnation: of[3]}))))
            await exchange(*of)

        swaps._put, swaps._exchange = put_slowly, exchanged
        assert code_of(await stage.adopt()) == ""
        *pinned, left = seen
        assert pinned[0] == pinned[1] < pinned[2] and left == 0
        assert set(rows(replica)) - {1_000} == {1, *range(10, next(coming) if whose == 0 else 100)}
        assert replica.pinned is None

    asyncio.run(story())


def test_writes_go_on_while_a_copy_takes_the_place_of_the_store():
    async def story():
        disk = model_disk(work_latency=lambda: 0.002, sync_latency=lambda: 0.0005)
        stage = await arriving(disk)
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        replica = stage.replica()
        adopting = asyncio.ensure_future(stage.adopt())
        number = 10
        while not adopting.done():
            assert await written(replica, number) is None
            number += 1
        assert code_of(await adopting) == "" and number > 12
        assert set(rows(replica)) - {1_000} == {1, *range(10, number)}
        disk.abandon()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert set(rows(again.replica())) - {1_000} == {1, *range(10, number)}
        again.stop()

    asyncio.run(story())


# Loads and generations


def test_only_a_copy_with_the_loads_that_the_replica_can_not_have_is_taken():
    async def story():
        disk, views = model_disk(), Views()
        views.epochs(committed=3, visible=2)
        stage = await arriving(disk, views)
        assert stage.replica().meta.floor == 3
        files = merged_run(model_disk(), [1])
        stage_copy(disk, files, kind="merge", stream="a", generation=2, epoch=3)
        assert code_of(await stage.adopt()) == "stale_copy"
        stage_copy(disk, files, kind="merge", stream="b", epoch=2)
        assert code_of(await stage.adopt()) == "stale_copy"
        views.epochs(committed=5, visible=5)
        stage_copy(disk, files, kind="merge", stream="c", epoch=4)
        assert code_of(await stage.adopt()) == "stale_copy", "epoch 5 is visible, and it has not come here"
        stage_copy(disk, files, kind="merge", stream="d", epoch=5)
        assert code_of(await stage.adopt()) == "" and stage.replica().adopted == 5

    asyncio.run(story())


def test_a_generation_that_was_made_before_the_tablet_came_here_is_rebuilt():
    async def story():
        disk, views = model_disk(), Views()
        views.epochs(committed=2, visible=2, generations=((0, 1), (2, 2)), next_generation=3)
        views.move()
        views.end()
        stage = await MoveStage(disk, views).start()
        await stage.life.ready()
        assert stage.replica(generation=2).state is ReplicaState.OPEN
        views.epochs(committed=3, visible=3, generations=((3, 1),))
        stage.shelf.look()
        await stage.life.ready()
        assert stage.replica(generation=1).state is ReplicaState.REBUILDING

    asyncio.run(story())


# Losses


@pytest.mark.parametrize("staged", ["before", "since"])
def test_a_replica_that_lost_what_it_had_taken_takes_no_copy_of_that_session(staged):
    """A copy that comes after the loss may be of a snapshot from before it: the write of 5 would be nowhere here."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        assert await flushed(stage.replica()) is None
        if staged == "before":
            stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        stage.stop()
        disk.remove("tablets/1/0.1")
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        if staged == "since":
            stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        assert again.replica().arriving and again.replica().meta.lost
        assert code_of(await again.adopt()) == "lost" and again.replica().arriving
        again.views.move(session="s2")
        again.shelf.look()
        await until(lambda: (found := again.shelf.find(TABLE, 0, 1)) is not None and found.meta.session == "s2")
        stage_copy(disk, merged_run(model_disk(), [1, 5]), kind="merge", session="s2")
        assert code_of(await again.adopt(session="s2")) == "" and rows(again.replica()) == [1, 5]

    asyncio.run(story())


def test_a_replica_that_lost_its_copy_after_the_move_had_gone_on_is_rebuilt():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage.views.stage(Stage.WRITE_BOTH_READ_NEW)
        stage.shelf.look()
        await until(lambda: stage.replica().state is ReplicaState.REBUILDING)
        assert stage.life.rebuilds == [stage.replica()]

    asyncio.run(story())


# Answers


def test_who_asks_before_it_is_done_is_told_and_finds_it_done_later():
    async def story():
        disk, views = model_disk(work_latency=lambda: 0.15), Views()
        for tablet in range(4):
            views.move(tablet, f"s{tablet}", Stage.ALLOW_WRITE_BOTH_READ_OLD)
        stage = await MoveStage(disk, views).start()
        all_of_them = [MovingTablet(TABLE, tablet, f"s{tablet}") for tablet in range(4)]
        await until(lambda: stage.shelf.ready)
        reply = await stage.ask(PREPARE, *all_of_them, within_s=0.25)
        assert reply.failed and {each.code for each in reply.failed} == {"under_way"}
        reply = await stage.ask(PREPARE, *all_of_them)
        assert len(reply.done) == 4 and not reply.failed

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_a_replica_that_can_not_be_made_is_told_with_the_reason_and_keeps_no_other_waiting(kind, tmp_path):
    """It was "being made; ask again" for ever, and the move stood still without anybody knowing why."""

    async def story():
        disk = disk_of(kind, tmp_path / "disk")
        disk.write_file(f"tablets/{TABLE}/0.1", b"somebody put this here")
        views = Views()
        for tablet in (0, 1):
            views.move(tablet, stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        stage = await MoveStage(disk, views).start()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        reply = await stage.prepare(0, 1)
        assert loop.time() - began_s < 10, "the answer does not wait for what fails"
        assert [moving.tablet for moving in reply.done] == [1]
        (failed,) = reply.failed
        assert failed.code == "failed" and "tablet 0 of table 1 could not be made: " in failed.text
        # Another attempt is not judged by what the one before met.
        disk.remove(f"tablets/{TABLE}/0.1")
        views.move(0, "s2", stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        assert code_of(await stage.prepare(0, session="s2")) == ""
        stage.stop()
        disk.close()

    asyncio.run(story())


def test_a_target_without_space_says_so_when_a_replica_is_to_be_made():
    async def story():
        disk, views = model_disk(), Views()
        stage = await MoveStage(disk, views).start()
        await stage.life.ready()
        begin = stage.shelf._files._begin_late

        async def full(*_args):
            raise DiskFull("tablets/1/0.1", free_bytes=5, reserve_bytes=10)

        stage.shelf._files._begin_late = full
        views.move(stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        (failed,) = (await stage.prepare()).failed
        assert failed.code == "disk_full" and "has 5 bytes free" in failed.text
        stage.shelf._files._begin_late = begin
        await until(lambda: stage.shelf.find(TABLE, 0, 1) is not None, "it is tried again")
        assert code_of(await stage.prepare()) == "" and stage.shelf.failure((TABLE, 0)) is None
        stage.stop()

    asyncio.run(story())


@pytest.mark.parametrize("root", ["tablets/", "staging/"])
def test_files_that_can_not_be_removed_are_told_with_the_reason(root):
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None and await flushed(stage.replica()) is None
        disk.write_file("staging/s1/0/left", b"x")
        remove, refuses = disk.remove, True

        def removed(name):
            if refuses and name.startswith(root):
                raise StorageError(f"can't remove {name!r}: the disk can only be read")
            remove(name)

        disk.remove = removed
        stage.views.stage(Stage.CLEANUP_TARGET)
        (failed,) = (await stage.clean(within_s=2.0)).failed
        assert failed.code == "failed" and "the disk can only be read" in failed.text
        refuses = False
        assert code_of(await stage.clean()) == ""
        stage.stop()

    asyncio.run(story())


def test_a_directory_that_a_crash_left_half_made_goes_with_a_move_that_was_undone_meanwhile(tmp_path):
    async def story():
        disk = disk_of("rocks", tmp_path / "disk")
        stage = await arriving(disk)
        stage.stop()
        disk.close()
        half = tmp_path / "disk" / "tablets" / str(TABLE) / "0.1"
        half.mkdir(parents=True)
        (half / "LOG").write_text("RocksDB had written no more when the process was killed")
        disk, views = disk_of("rocks", tmp_path / "disk"), Views()
        views.move(1)  # the table stays, with another tablet
        stage = await MoveStage(disk, views).start()
        await until(lambda: not half.exists())
        stage.stop()
        disk.close()

    asyncio.run(story())
