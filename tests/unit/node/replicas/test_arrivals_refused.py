"""Copies that are not taken: the guard says no, or they are not what was sent."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.replicas.move_stage import (
    OLD,
    MoveStage,
    arriving,
    code_of,
    copied_store,
    merged_run,
    stage_copy,
)
from tests.unit.node.replicas.shelves import flushed, model_disk, rows, written

from trimtab.node import failpoints
from trimtab.node.replicas.replica import ReplicaState
from trimtab.node.replicas.staging import path_of
from trimtab.storage.port import StorageError
from trimtab.tablets.selectors import Stage

# The guard


def test_an_order_that_is_stale_in_any_way_does_nothing():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        views = stage.views
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        assert code_of(await stage.adopt(session="s0")) == "stale"
        assert code_of(await stage.adopt(1)) == "stale", "that tablet does not move"
        assert code_of(await stage.clean()) == "stale", "it belongs here"
        for wrong in (Stage.WRITE_BOTH_READ_OLD, Stage.CLEANUP_TARGET, Stage.ALLOW_WRITE_BOTH_READ_OLD):
            views.stage(wrong)
            assert code_of(await stage.adopt()) in ("stale", "under_way")
        with pytest.raises(Exception, match="term 2"):
            await stage.adopt(term=2)

    asyncio.run(story())


@pytest.mark.parametrize("copy", ["copy", "merge"])
@pytest.mark.parametrize("place", ["before", "verified", "linked", "recorded"])
def test_rows_are_not_taken_over_when_the_session_ends_before_the_last_moment(place, copy):
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        files = await copied_store(model_disk(), 0, [1]) if copy == "copy" else merged_run(model_disk(), [1])
        stage_copy(disk, files, kind=copy)
        where = place if copy == "copy" or place in ("before", "verified") else "verified"
        failpoints.arm(f"moves.adopt.{where}", lambda _name, _who: stage.views.loads.sessions.clear())
        try:
            assert code_of(await stage.adopt()) == "stale"
        finally:
            failpoints.disarm()
        replica = stage.replica()
        assert replica.arriving and rows(replica) == [5]
        assert await written(replica, 6) is None and rows(replica) == [5, 6]
        assert not disk.names("arriving")

    asyncio.run(story())


def test_a_deletion_is_not_undone_by_the_copy_of_an_abandoned_session():
    """004's topology guard: the stream of a session that was given up comes to its end long after, with a row that was
    deleted and whose deletion is forgotten since. Nobody ever takes it over.
    """

    async def story():
        disk, deleted, alive = model_disk(), 1, 2
        stage = await arriving(disk)
        views = stage.views
        assert await written(stage.replica(), deleted) is None
        # The move is given up, and begun once more. The late stream of the first attempt is staged only now.
        views.stage(Stage.CLEANUP_TARGET)
        assert code_of(await stage.clean()) == ""
        views.end(stable=OLD)
        stage_copy(disk, await copied_store(model_disk(), 0, [deleted]), session="s1", stream="late")
        views.move(session="s2", stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        assert code_of(await stage.adopt(session="s1")) == "stale"
        assert code_of(await stage.prepare(session="s2")) == ""
        assert rows(stage.replica()) == [], "nor is anything left of what the first attempt had taken"
        views.move(session="s2")
        assert code_of(await stage.adopt(session="s1")) == "stale"
        assert code_of(await stage.adopt(session="s2")) == "no_copy"
        stage_copy(disk, await copied_store(model_disk(), 0, [alive]), session="s2", stream="new")
        assert code_of(await stage.adopt(session="s2")) == ""
        assert set(rows(stage.replica())) - {1_000} == {alive}

    asyncio.run(story())


def test_a_copy_taken_over_at_the_very_moment_at_which_its_session_ends_is_dropped_unread():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        views = stage.views
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))

        def adjust(_name, _who):
            views.loads.sessions.clear()
            views.move(session="s2", stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
            stage.shelf.look()

        failpoints.arm("moves.adopt.swapped", adjust)
        try:
            assert code_of(await stage.adopt()) == "stale"
        finally:
            failpoints.disarm()
        assert code_of(await stage.prepare(session="s2")) == ""
        assert stage.replica().arriving and rows(stage.replica()) == []

    asyncio.run(story())


# Checksums


@pytest.mark.parametrize("copy", ["copy", "merge"])
def test_a_copy_that_is_not_what_was_sent_is_removed_and_another_one_is_taken(copy):
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        files = await copied_store(model_disk(), 0, [1]) if copy == "copy" else merged_run(model_disk(), [1])
        for number, spoil in enumerate((lambda data: data[:-1], lambda data: data[:-1] + b"\0", lambda _data: None)):
            stage_copy(disk, files, kind=copy, stream=f"bad{number}")
            path = path_of("s1", 0, f"bad{number}.{files[0][0]}")
            spoiled = spoil(files[0][1])
            disk.remove(path) if spoiled is None else disk.write_file(path, spoiled)
            assert code_of(await stage.adopt()) == "damaged"
            assert not [name for name in disk.entries("staging/s1/0") if name.startswith("bad")]
            assert stage.replica().arriving and rows(stage.replica()) == []
            assert code_of(await stage.adopt()) == "no_copy"
        disk.write_file(path_of("s1", 0, "odd.manifest.json"), b"{")
        assert code_of(await stage.adopt()) == "no_copy"
        stage_copy(disk, files, kind=copy, stream="good")
        assert code_of(await stage.adopt()) == "" and stage.arrivals.spoiled == 3

    asyncio.run(story())


@pytest.mark.parametrize("wrong", ["tablet", "state", "store"])
def test_a_store_that_is_another_one_is_put_away_and_the_replica_is_as_it_was(wrong):
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        if wrong == "tablet":
            files = await copied_store(model_disk(), 1, [1])
        elif wrong == "state":
            files = await copied_store(model_disk(), 0, [1], state=ReplicaState.REBUILDING)
        else:
            files = [("CURRENT", b"no store")]
        stage_copy(disk, files)
        assert code_of(await stage.adopt()) == "damaged"
        replica = stage.replica()
        assert replica.arriving and rows(replica) == [5] and not disk.names("arriving")
        assert await written(replica, 6) is None
        disk.abandon()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert rows(again.replica()) == [5, 6] and again.replica().arriving

    asyncio.run(story())


@pytest.mark.parametrize("mended", [True, False])
def test_a_store_that_an_earlier_exchange_left_behind_is_never_put_back(mended, monkeypatch):
    """Its removal failed. The tablet arrives once more in the same life, and that copy turns out to be of no use."""

    async def story():
        disk, stuck = model_disk(), ["-old"]
        remove = disk.remove

        def sticks(name):
            if stuck and name.endswith(stuck[0]) and disk.exists(name):
                raise StorageError(f"{name} can't be removed")
            remove(name)

        monkeypatch.setattr(disk, "remove", sticks)
        stage = await arriving(disk)
        assert await written(stage.replica(), 5) is None
        assert await flushed(stage.replica()) is None
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        assert code_of(await stage.adopt()) == "", "the exchange itself is done"
        assert any("could not be removed" in said for said in stage.said) and disk.exists("arriving/1-0.1-old")

        stage.views.move(session="s2", stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        assert code_of(await stage.prepare(session="s2")) == ""
        assert await written(stage.replica(), 9) is None
        assert await flushed(stage.replica()) is None
        stage.views.move(session="s2")
        stage_copy(disk, await copied_store(model_disk(), 1, [2]), session="s2")
        if mended:
            stuck.clear()
        assert code_of(await stage.adopt(session="s2")) == ("damaged" if mended else "failed")
        assert stage.replica().arriving and rows(stage.replica()) == [9]
        stuck.clear()
        disk.abandon()
        again = await MoveStage(disk, stage.views).start()
        await again.life.ready()
        assert again.replica().arriving and rows(again.replica()) == [9], "nor does a start put it back"
        assert not disk.names("arriving")
        stage_copy(disk, await copied_store(model_disk(), 0, [2]), session="s2", stream="good")
        assert code_of(await again.adopt(session="s2")) == ""
        assert set(rows(again.replica())) - {1_000} == {2, 9}

    asyncio.run(story())
