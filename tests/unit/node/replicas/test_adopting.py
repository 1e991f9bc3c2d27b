"""A committed load becomes rows of the replicas: once, in order, all of a tablet or nothing, and never too late."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.replicas.load_stage import OWN, TABLE, TABLETS, Stage
from tests.unit.node.replicas.shelves import model_disk, rows, until, written

from trimtab.loads.records import LoadKind
from trimtab.node import failpoints
from trimtab.node.answering import Refused
from trimtab.storage.rocks import RocksDisk
from trimtab.tablets.records import chunk_key, pack


async def sealed(stage, id="a", kind=LoadKind.APPEND, generation=1, epoch=1, tablets=(0, 2)):
    """A committed load with two rows in each of these tablets."""
    load = stage.begin(id, kind, generation)
    files = [stage.stage(id, tablet, 10 * tablet, 10 * tablet + 1, name=f"{id}-file") for tablet in tablets]
    assert not (await stage.seal(id, *files)).missing
    return stage.commit(load, epoch)


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_files_become_rows_and_every_replica_is_marked(kind, tmp_path):
    async def story():
        disk = model_disk() if kind == "model" else RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        assert await written(stage.replica(0), 5) is None
        await sealed(stage)
        await stage.adopt("a")
        await stage.adopt("a")
        assert [rows(stage.replica(tablet)) for tablet in range(TABLETS)] == [[0, 1, 5], [], [20, 21], []]
        assert [stage.replica(tablet).adopted for tablet in range(TABLETS)] == [1] * 4
        assert stage.adopting.adopted_files == 2 and not stage.mended
        if kind == "model":
            disk.abandon()
        else:
            stage.stop()
        again = await Stage(disk, stage).start()
        assert [rows(again.replica(tablet)) for tablet in range(TABLETS)] == [[0, 1, 5], [], [20, 21], []]
        assert [again.replica(tablet).adopted for tablet in range(TABLETS)] == [1] * 4
        again.stop()
        disk.close()

    asyncio.run(story())


PLACES = ("load.adopt.before", "load.adopt.tablet", "load.adopt.ingested", "load.adopt.rest", "load.adopt.after")


OF_OVERWRITES = ("load.adopt.composed", "load.adopt.prepared")


@pytest.mark.parametrize("place", [*PLACES, *OF_OVERWRITES])
def test_a_life_that_ends_anywhere_in_between_is_continued_by_the_next(place):
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        overwrite = place in OF_OVERWRITES
        kind, generation = (LoadKind.OVERWRITE, 2) if overwrite else (LoadKind.APPEND, 1)
        await sealed(stage, kind=kind, generation=generation)

        def fail(_name, _who):
            disk.abandon()
            raise failpoints.FailpointError("the process is killed here")

        failpoints.arm(place, fail)
        try:
            with pytest.raises(failpoints.FailpointError):
                await stage.adopt("a")
        finally:
            failpoints.disarm(place)
        again = await Stage(disk, stage).start()
        await again.adopt("a")
        replicas = [again.replica(tablet, generation) for tablet in range(TABLETS)]
        assert [rows(each) for each in replicas] == [[0, 1], [], [20, 21], []]
        assert [each.adopted for each in replicas] == [1] * 4 and not again.mended
        again.stop()

    asyncio.run(story())


def test_nothing_is_taken_over_before_the_commit_after_the_session_or_by_a_stale_order():
    async def story():
        stage = await Stage(model_disk()).start()
        load = stage.begin("a")
        assert not (await stage.seal("a", stage.stage("a", 0, 1))).missing
        assert (await stage.refused(stage.adopt("a"))).code == "not_committed"
        stage.commit(load, sealed=(2, 3))
        assert (await stage.refused(stage.adopt("a"))).code == "not_sealed"
        stage.commit(load)
        assert (await stage.refused(stage.adopt("a", term=2))).code == "stale_term"
        assert (await stage.refused(stage.adopt("other"))).code == "not_found"
        stage.close_session("a")
        assert (await stage.refused(stage.adopt("a"))).code == "session_closed"
        assert [rows(stage.replica(tablet)) for tablet in range(TABLETS)] == [[]] * 4
        assert [stage.replica(tablet).adopted for tablet in range(TABLETS)] == [0] * 4

    asyncio.run(story())


def test_a_session_that_closes_while_tablets_are_taken_over_stops_it():
    async def story():
        stage = await Stage(model_disk()).start()
        await sealed(stage)
        failpoints.arm("load.adopt.ingested", lambda _name, _who: stage.close_session("a"))
        try:
            assert (await stage.refused(stage.adopt("a"))).code == "session_closed"
        finally:
            failpoints.disarm("load.adopt.ingested")
        assert [stage.replica(tablet).adopted for tablet in range(TABLETS)] == [1, 0, 0, 0]

    asyncio.run(story())


def test_who_asks_while_it_is_under_way_joins_it_and_asks_again_if_it_takes_long():
    async def story():
        disk = model_disk(work_latency=lambda: 0.05)
        stage = await Stage(disk).start()
        await sealed(stage)
        first = asyncio.ensure_future(stage.adopt("a"))
        await asyncio.sleep(0)
        refused = await stage.refused(stage.adopt("a", within_s=0.1))
        assert refused.code == "adopting" and "ask again" in refused.text
        assert stage.adopting.busy("a")
        await asyncio.gather(first, stage.adopt("a"))
        assert stage.adopting.adopted_loads == 1
        await until(lambda: not stage.adopting.busy("a"))

    asyncio.run(story())


def test_loads_are_taken_over_in_order_and_a_replica_that_lacks_one_catches_up_first():
    async def story():
        stage = await Stage(model_disk()).start()
        first = await sealed(stage, "a")
        stage.publish(first)
        await sealed(stage, "b", epoch=2)
        refused = await stage.refused(stage.adopt("b"))
        assert refused.code == "not_ready" and "lacks an earlier load" in refused.text
        for tablet in range(TABLETS):
            stage.replica(tablet).set_adopted(1, lambda _error: None)
        await until(lambda: all(stage.replica(tablet).adopted == 1 for tablet in range(TABLETS)))
        await stage.adopt("b")
        assert [stage.replica(tablet).adopted for tablet in range(TABLETS)] == [2] * 4

    asyncio.run(story())


@pytest.mark.parametrize("kind", list(LoadKind))
def test_a_tablet_that_came_after_the_load_was_sealed_is_no_tablet_without_rows_of_it(kind):
    async def story():
        stage = await Stage(model_disk()).start()
        generation = 2 if kind is LoadKind.OVERWRITE else 1
        stage.tables.change(chunk_key(TABLE, 0), pack([(OWN,)] * 3 + [(2,)]), 2)
        await sealed(stage, kind=kind, generation=generation)
        stage.tables.change(chunk_key(TABLE, 0), pack([(OWN,)] * TABLETS), 3)
        lacking = []

        async def nobody_has_it(replica, _epoch):
            lacking.append(replica.tablet)
            raise Refused("lost", "nobody has it yet")

        stage.adopting._mend = nobody_has_it
        assert (await stage.refused(stage.adopt("a"))).code == "lost"
        assert lacking == [3] and stage.replica(3, generation).adopted == 0
        stage.adopting._mend = stage._mend
        await stage.adopt("a")
        assert stage.mended == [(3, 1)] and stage.replica(3, generation).adopted == 1

    asyncio.run(story())


def test_files_that_were_lost_since_they_were_sealed_are_taken_from_other_replicas():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        await sealed(stage)
        disk.remove("staging/a/2/a-file")
        await stage.adopt("a")
        assert stage.mended == [(2, 1)] and stage.replica(2).adopted == 1 and rows(stage.replica(0)) == [0, 1]
        await sealed(stage, "b", epoch=2)
        disk.write_file("staging/b/0/b-file", b"nothing of the kind")
        await stage.adopt("b")
        assert stage.mended == [(2, 1), (0, 2)]
        await sealed(stage, "c", epoch=3)
        disk.remove("staging/c/sealed")
        await stage.adopt("c")
        assert stage.mended[2:] == [(tablet, 3) for tablet in range(TABLETS)]

    asyncio.run(story())


def test_an_overwrite_makes_replicas_beside_those_that_serve_and_publishing_swaps_them():
    async def story():
        disk = model_disk()
        stage = await Stage(disk).start()
        assert await written(stage.replica(0), 5) is None
        load = await sealed(stage, kind=LoadKind.OVERWRITE, generation=2)
        await stage.adopt("a")
        assert rows(stage.replica(0)) == [5] and stage.shelf.get(1, 0) is stage.replica(0)
        assert rows(stage.replica(0, 2)) == [0, 1] and stage.replica(1, 2).adopted == 1
        assert await written(stage.replica(0), 6) is None
        stage.publish(load)
        assert stage.shelf.get(1, 0) is stage.replica(0, 2) and not stage.shelf.missing()
        assert rows(stage.replica(0, 1)) == [5, 6], "scans that began before still read it"
        assert await written(stage.replica(0, 2), 7) is None
        disk.abandon()
        again = await Stage(disk, stage).start()
        assert rows(again.shelf.get(1, 0)) == [0, 1, 7] and rows(again.replica(0, 1)) == [5, 6]
        # The next overwrite lets the oldest go.
        second = await sealed(again, "b", LoadKind.OVERWRITE, 3, epoch=2)
        await again.adopt("b")
        again.publish(second)
        await until(lambda: again.shelf.find(1, 0, 1) is None and not disk.exists("tablets/1/0.1"))
        assert rows(again.replica(0, 2)) == [0, 1, 7] and rows(again.shelf.get(1, 0)) == [0, 1]
        again.stop()

    asyncio.run(story())


@pytest.mark.parametrize("older", [False, True], ids=["composed", "ingested"])
def test_replicas_that_an_overwrite_brings_many_files_to_are_made_unmerged_and_noted_and_others_are_not(
    older, tmp_path
):
    async def story():
        disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
        stage = await Stage(disk).start()
        load = stage.begin("a", LoadKind.OVERWRITE, 2)
        many = [stage.stage("a", 0, number, name=f"file-{number}", older=older) for number in range(5)]
        one = stage.stage("a", 1, 10, name="single", older=older)
        assert not (await stage.seal("a", *many, one)).missing
        stage.commit(load, 1)
        await stage.adopt("a")
        made = [stage.replica(tablet, 2) for tablet in range(TABLETS)]
        assert [replica.store._merging for replica in made] == [False, True, True, True]
        assert set(stage.adopting._merging._since) == {made[0], made[1]}
        assert rows(made[0]) == [0, 1, 2, 3, 4]
        stage.stop()
        disk.close()

    asyncio.run(story())


def test_a_replica_that_is_being_copied_takes_its_files_over_a_moment_later():
    async def story():
        stage = await Stage(model_disk()).start()
        await sealed(stage)
        stage.replica(0).hold()
        adopting = asyncio.ensure_future(stage.adopt("a"))
        await asyncio.sleep(0.08)
        assert not adopting.done()
        stage.replica(0).release()
        await adopting
        assert rows(stage.replica(0)) == [0, 1]

    asyncio.run(story())
