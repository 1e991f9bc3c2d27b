"""Copies are taken over before anybody orders it, by instances that may have been away meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.replicas.move_stage import (
    TABLE,
    MoveStage,
    Views,
    arriving,
    code_of,
    copied_store,
    merged_run,
    stage_copy,
)
from tests.unit.node.replicas.shelves import model_disk, until

from trimtab.loads.records import session_key

# By itself


async def looked(stage, times):
    """Whoever watches for copies has looked so many times more."""
    watch, looks = stage.arrivals._watch, []
    find = watch._found
    watch._found = lambda awaited: (looks.append(1), find(awaited))[1]
    await until(lambda: len(looks) > times)


def test_a_copy_is_taken_over_as_soon_as_it_is_whole_and_the_order_finds_it_done():
    async def story():
        disk, views = model_disk(), Views()
        stage = await arriving(disk, views)
        views.move(1, "other")
        stage.shelf.look()
        await until(lambda: stage.shelf.find(TABLE, 1, 1) is not None)
        stage.arrivals.look()
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        await until(lambda: stage.arrivals.adopted == 1)
        assert stage.replica().readable and stage.replica(1).arriving, "the other one is not here yet"
        assert code_of(await stage.adopt()) == "" and stage.arrivals.adopted == 1
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge", tablet=1, session="other")
        await until(lambda: stage.replica(1).readable)
        await until(lambda: stage.arrivals._watch._task is None)

    asyncio.run(story())


def test_a_copy_of_no_use_is_tried_once_and_another_one_after_it():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage.arrivals.look()
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge", stream="old", generation=9)
        take, tried = stage.arrivals._watch._take, []
        stage.arrivals._watch._take = lambda moving: (tried.append(moving), take(moving))[1]
        await looked(stage, 4)
        assert len(tried) == 1 and stage.replica().arriving
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge", stream="new")
        await until(lambda: stage.replica().readable)

    asyncio.run(story())


def test_nothing_is_taken_by_itself_when_the_session_is_closed():
    async def story():
        disk, views = model_disk(), Views()
        stage = await arriving(disk, views)
        views.loads.change(session_key("s1"), None, 3)
        stage.arrivals.look()
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        await looked(stage, 3)
        assert stage.replica().arriving and stage.arrivals.adopted == 0
        assert code_of(await stage.adopt()) == "stale"

    asyncio.run(story())


def test_a_copy_that_is_newer_than_what_is_known_here_is_left_for_the_order():
    """Another generation is served already, and the source has told; this instance has not heard of it yet."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage.arrivals.look()
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge", generation=2)
        await looked(stage, 3)
        assert stage.replica().arriving and disk.entries("staging/s1/0")
        assert code_of(await stage.adopt()) == "stale_copy" and not disk.entries("staging/s1/0")

    asyncio.run(story())


# Away meanwhile


@pytest.mark.parametrize("away", [True, False])
def test_one_that_was_away_while_it_arrived_is_mended_when_its_copy_is_there(away):
    """The copy is of a time before, and for one that is marked nobody keeps hints."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        if away:
            disk.abandon()
            stage = await MoveStage(disk, stage.views).start()
            await stage.life.ready()
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        assert code_of(await stage.adopt()) == ""
        assert stage.mended == ([stage.replica()] if away else []) and not stage.replica().was_away

    asyncio.run(story())


def test_one_that_was_away_after_it_had_taken_its_copy_by_itself_is_mended_by_the_order():
    """Nobody reads it yet, so no other repair looks at it."""

    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        stage.arrivals.look()
        await until(lambda: stage.replica().readable)
        disk.abandon()
        stage = await MoveStage(disk, stage.views).start()
        await stage.life.ready()
        assert stage.replica().readable and stage.replica().was_away
        stage.arrivals.look()
        assert code_of(await stage.adopt()) == ""
        assert stage.mended == [stage.replica()] and not stage.replica().was_away

    asyncio.run(story())


def test_one_for_which_too_few_could_be_asked_ends_its_move_and_is_mended_when_it_is_asked_for_again():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage.replica().was_away, stage.enough_peers = True, False
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        assert code_of(await stage.adopt()) == "" and stage.replica().was_away
        stage.enough_peers = True
        assert code_of(await stage.adopt()) == "" and not stage.replica().was_away
        assert code_of(await stage.adopt()) == "" and len(stage.mended) == 2

    asyncio.run(story())


def test_what_is_missed_while_it_is_mended_is_not_forgotten():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        replica = stage.replica()
        replica.was_away = True

        async def misses_more(mended):
            mended.was_away = True
            return True

        stage.arrivals._mend = misses_more
        stage_copy(disk, await copied_store(model_disk(), 0, [1]))
        assert code_of(await stage.adopt()) == "" and replica.was_away

    asyncio.run(story())


def test_who_is_mended_keeps_no_other_copy_waiting():
    async def story():
        disk, views = model_disk(), Views()
        stage = await arriving(disk, views)
        views.move(1, "other")
        stage.shelf.look()
        await until(lambda: stage.shelf.find(TABLE, 1, 1) is not None)
        answered = asyncio.Event()

        async def slow(_replica):
            return await answered.wait()

        stage.arrivals._mend, stage.arrivals._turns = slow, asyncio.Semaphore(1)
        stage.replica().was_away = True
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge", tablet=1, session="other")
        first = asyncio.ensure_future(stage.adopt())
        await until(lambda: stage.replica().readable)
        assert code_of(await stage.adopt(1, session="other")) == "" and not first.done()
        answered.set()
        assert code_of(await first) == ""

    asyncio.run(story())


def test_no_copy_is_taken_before_this_life_knows_what_there_is():
    async def story():
        disk = model_disk()
        stage = await arriving(disk)
        stage_copy(disk, merged_run(model_disk(), [1]), kind="merge")
        stage.settled = False
        stage.arrivals.look()
        await asyncio.sleep(0.05)
        assert stage.arrivals._watch._task is None and stage.replica().arriving
        stage.settled = True
        stage.arrivals.look()
        await until(lambda: stage.replica().readable)

    asyncio.run(story())
