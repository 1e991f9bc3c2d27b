"""Tablets that move away: nothing is left of a replica whose tablet others have, whatever interrupts that."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.unit.node.replicas.move_stage import (
    OWN,
    TABLE,
    MoveStage,
    arriving,
    code_of,
    disk_of,
    merged_run,
    stage_copy,
)
from tests.unit.node.replicas.shelves import model_disk, written

from trimtab.tablets.selectors import Stage


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_nothing_is_left_of_a_tablet_that_moved_away(kind, tmp_path):
    async def story():
        disk = disk_of(kind, tmp_path / "disk")
        stage = await arriving(disk)
        views = stage.views
        assert await written(stage.replica(), 5) is None
        stage_copy(disk, merged_run(disk, [1]), kind="merge")
        disk.write_file("quarantine/1/0.1-7/CURRENT-like", b"x")
        disk.write_file("quarantine/1/1.1-7/CURRENT-like", b"x")
        disk.write_file("arriving/1-0.1/half", b"x")
        assert code_of(await stage.clean(within_s=1.0)) == "stale"
        views.stage(Stage.CLEANUP_TARGET)
        assert code_of(await stage.clean()) == ""
        assert code_of(await stage.clean()) == "", "asked again it is done"
        left = [name for name in disk.names() if not name.startswith("log")]
        assert left == ["quarantine/1/1.1-7/CURRENT-like"]
        assert not stage.shelf.held() and not list(stage.life.mutations.records(b"r").scan())
        stage.stop()
        disk.close()

    asyncio.run(story())


def test_a_life_that_ends_while_a_replica_is_removed_is_continued_by_the_next():
    async def story():
        for step in range(1, 12):
            disk = model_disk()
            stage = await arriving(disk)
            stage.views.stage(Stage.CLEANUP_TARGET)
            left, real = [step], disk.start

            def start(work, done, left=left, real=real, disk=disk):
                left[0] -= 1
                if left[0] == 0:
                    disk.abandon()
                else:
                    real(work, done)

            disk.start = start
            with suppress(TimeoutError):  # a dead process answers nobody
                await asyncio.wait_for(stage.clean(within_s=0.2), 0.3)
            disk.start = real
            disk.abandon()
            again = await MoveStage(disk, stage.views).start()
            assert code_of(await again.clean()) == ""
            assert not disk.names("tablets") and not disk.names("staging")
            again.stop()

    asyncio.run(story())


def test_a_left_over_replica_is_kept_as_it_is_until_nobody_writes_to_it():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        views = stage.views
        assert await written(stage.replica(), 5) is None
        # The target is changed: the tablet goes to somebody else now.
        views.move(session="s2", stage=Stage.ALLOW_WRITE_BOTH_READ_OLD, leftovers=(OWN,))
        current = views.tables.transition(TABLE, 0)
        views.tables.transitions[TABLE][0] = type(current)(
            (1, 2, 5), current.kind, current.stage, "s2", leftovers=(OWN,)
        )
        stage.shelf.look()
        await asyncio.sleep(0.05)
        assert stage.replica().arriving and await written(stage.replica(), 6) is None
        assert code_of(await stage.adopt(session="s2")) == "stale"
        assert code_of(await stage.clean(session="s1")) == "stale"
        views.tables.transitions[TABLE][0] = type(current)((1, 2, 5), current.kind, Stage.WRITE_BOTH_READ_OLD, "s2")
        assert code_of(await stage.clean(session="s1")) == ""

    asyncio.run(story())
