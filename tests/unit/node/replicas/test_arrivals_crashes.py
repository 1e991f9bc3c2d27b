"""A replica arrives on a disk that loses its power, or its process, at every single step of it."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.node.replicas.move_stage import MoveStage, Views, code_of, copied_store, merged_run, stage_copy
from tests.unit.node.replicas.shelves import flushed, model_disk, rows, written

from trimtab.storage.model import ModelDisk
from trimtab.tablets.selectors import Stage


class Mortal:
    """A disk that dies when so many things have been asked of it."""

    def __init__(self, after: int, rng: random.Random | None) -> None:
        self.left, self._rng = after, rng
        self.died = asyncio.Event()
        self.disk = ModelDisk(self._call_later)

    def _call_later(self, seconds, run):
        self.left -= 1
        if self.left == 0:
            self.died.set()
            if self._rng is None:
                self.disk.abandon()
            else:
                self.disk.crash(self._rng)
        asyncio.get_running_loop().call_later(seconds, run)


async def arrival(stage, files, kind, acknowledged, *, in_files=False):
    """All of it, as the leader orders it. `in_files`: what is taken first does not stay in memory."""
    views = stage.views
    assert code_of(await stage.prepare()) == ""
    assert await written(stage.replica(), 5) is None
    acknowledged.add(5)
    if in_files:
        assert await flushed(stage.replica()) is None
    if views.tables.transition(1, 0).stage is not Stage.STREAMING:
        views.move()
        stage_copy(stage.disk, files, kind=kind)
    adopting = asyncio.ensure_future(stage.adopt())
    await asyncio.sleep(0)
    assert await written(stage.replica(), 6) is None
    acknowledged.add(6)
    assert code_of(await adopting) == ""
    assert await written(stage.replica(), 7) is None
    acknowledged.add(7)


async def first_life(mortal, views, files, kind, acknowledged, **options):
    """Whether it came to its end; else the disk died."""
    stage = MoveStage(mortal.disk, views)

    async def live():
        await stage.start()
        await arrival(stage, files, kind, acknowledged, **options)

    life, death = asyncio.ensure_future(live()), asyncio.ensure_future(mortal.died.wait())
    await asyncio.wait((life, death), return_when=asyncio.FIRST_COMPLETED)
    if life.done() and not mortal.died.is_set():
        await life
        stage.stop()
        return True
    life.cancel()
    await asyncio.wait((life,))
    if not life.cancelled():
        life.exception()
    if hasattr(stage, "arrivals"):
        stage.arrivals.stop()
    if hasattr(stage, "life") and hasattr(stage.life, "shelf"):
        stage.life.shelf._task.cancel()
    return False


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("kind", ["copy", "merge"])
def test_whichever_step_is_the_last_one_the_next_life_goes_on(kind, power, in_files):
    async def story():
        files = await copied_store(model_disk(), 0, [1]) if kind == "copy" else merged_run(model_disk(), [1])
        steps = 0
        for steps in range(1, 200):
            mortal, views, acknowledged = Mortal(steps, random.Random(steps) if power else None), Views(), set()
            views.move(stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
            if await first_life(mortal, views, files, kind, acknowledged, in_files=in_files):
                break
            again = await MoveStage(mortal.disk, views).start()
            await again.life.ready()
            before = set(rows(again.replica()))
            assert before >= acknowledged
            assert again.replica().readable == (1 in before), "all of the copy, or nothing of it"
            await arrival(again, files, kind, set())
            replica = again.replica()
            assert replica.readable and set(rows(replica)) - {1_000} == {1, 5, 6, 7}
            assert not mortal.disk.names("arriving")
            mortal.disk.abandon()
            third = await MoveStage(mortal.disk, views).start()
            await third.life.ready()
            assert set(rows(third.replica())) - {1_000} == {1, 5, 6, 7} and third.replica().readable
            third.stop()
        assert 10 < steps < 199, "it ended by itself at last"

    asyncio.run(story())
