"""Loads that are committed while a tablet moves: arriving replicas take them over, and claim nothing that they lack."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from tests.unit.node.replicas.load_stage import STAMP, asked
from tests.unit.node.replicas.move_stage import OWN, TABLE, MoveStage, Views, code_of, merged_run, stage_copy
from tests.unit.node.replicas.shelves import key, model_disk, rows, written

from trimtab.loads import protocol, records
from trimtab.loads.protocol import AdoptCall, SealRequest, StagedFile
from trimtab.loads.records import LoadKind, LoadRecord, LoadState, SessionKind, SessionRecord, load_key, session_key
from trimtab.node.replicas.adopting import Adopting
from trimtab.node.replicas.merging import Merging
from trimtab.node.replicas.replica import ReplicaState
from trimtab.node.replicas.sealing import Sealing
from trimtab.node.replicas.staging import path_of
from trimtab.storage.port import Disk
from trimtab.tablets.selectors import Stage


class LoadedStage:
    """A tablet arrives here, and loads come meanwhile."""

    def __init__(self, disk: Disk, views: Views) -> None:
        self.disk, self.views, self.loads = disk, views, views.loads

    async def start(self) -> LoadedStage:
        self.moves = await MoveStage(self.disk, self.views).start()
        group = SimpleNamespace(
            machine=SimpleNamespace(applied_index=10), raw=SimpleNamespace(raft=SimpleNamespace(term=3))
        )
        self.sealing = Sealing(OWN, self.disk, self.views.tables, self.loads, self.moves.waits, name="i4")
        self.adopting = Adopting(
            OWN,
            self.disk,
            group,
            self.views.tables,
            self.loads,
            self.moves.shelf,
            self.moves.waits,
            mend=self._mend,
            merging=Merging(
                self.disk,
                self.moves.shelf.held,
                lambda: bool(self.loads.open_loads),
                complain=self.moves.said.append,
                defect=self.moves.life.failures.append,
            ),
            name="i4",
            story=self.moves.said.append,
        )
        return self

    async def _mend(self, _replica, _epoch) -> None:
        raise AssertionError("an arriving replica is not repaired")

    def begin(self, id: str, kind: LoadKind = LoadKind.APPEND, generation: int = 1) -> LoadRecord:
        load = LoadRecord(id, TABLE, kind, LoadState.STAGING, STAMP, generation=generation)
        self._put(load)
        self.loads.change(session_key(id), records.encode(SessionRecord(SessionKind.LOAD, TABLE, 1)), 2)
        return load

    def _put(self, load: LoadRecord) -> LoadRecord:
        self.loads.change(load_key(TABLE, load.id), records.encode(load), 2)
        return load

    async def seal(self, id: str, *numbers: int, tablet: int = 0) -> None:
        path = path_of(id, tablet, "file")
        self.disk.write_table(path, [(key(number, STAMP), b"loaded") for number in numbers])
        files = [StagedFile(tablet, "file", *self.disk.digest(path))] if numbers else []
        body = protocol.encode(SealRequest(id, TABLE, files, 0, True, ""))
        assert not protocol.decode_seal_reply(await self.sealing.seal(asked(body))).missing

    def commit(self, load: LoadRecord, epoch: int) -> LoadRecord:
        known = self.loads.epoch_record(TABLE)
        self.views.epochs(committed=epoch, next_generation=max(known.next_generation, load.generation + 1))
        return self._put(replace(load, state=LoadState.COMMITTED, epoch=epoch, sealed=(OWN,)))

    def publish(self, load: LoadRecord) -> None:
        known = self.loads.epoch_record(TABLE)
        generations = known.generations
        if load.kind is LoadKind.OVERWRITE:
            generations = (*generations, (load.epoch, load.generation))[-2:]
        self.views.epochs(visible=load.epoch, generations=generations)
        self._put(replace(load, state=LoadState.PUBLISHED, published_ms=1))
        self.loads.change(session_key(load.id), None, 5)
        self.moves.shelf.look()

    async def adopt(self, id: str) -> None:
        assert await self.adopting.adopt(asked(protocol.encode(AdoptCall(3, 10, TABLE, id)))) == b""

    async def loaded(self, id: str, epoch: int, *numbers: int) -> LoadRecord:
        load = self.begin(id)
        await self.seal(id, *numbers)
        load = self.commit(load, epoch)
        await self.adopt(id)
        return load


async def arriving(views: Views) -> LoadedStage:
    views.move(stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
    stage = await LoadedStage(model_disk(), views).start()
    assert code_of(await stage.moves.prepare()) == ""
    views.move()
    return stage


def test_loads_that_are_committed_meanwhile_are_there_together_with_those_of_the_copy():
    async def story():
        views = Views()
        views.epochs(committed=2, visible=2)
        stage = await arriving(views)
        replica = stage.moves.replica()
        assert await written(replica, 5) is None
        first = await stage.loaded("a", 3, 30)
        await stage.loaded("b", 4)
        assert replica.adopted == 4 and rows(replica) == [5, 30], "without files there are no rows, but the marker"
        stage.publish(first)
        stage_copy(stage.disk, merged_run(model_disk(), [1]), kind="merge", epoch=2)
        assert code_of(await stage.moves.adopt()) == ""
        assert replica.readable and rows(replica) == [1, 5, 30] and replica.adopted == 4
        stage.disk.abandon()
        again = await MoveStage(stage.disk, views).start()
        await again.life.ready()
        assert again.replica().adopted == 4 and rows(again.replica()) == [1, 5, 30]

    asyncio.run(story())


def test_a_load_from_before_the_tablet_came_is_left_to_the_copy():
    async def story():
        views = Views()
        stage = LoadedStage(model_disk(), views)
        views.move(1, "other", Stage.ALLOW_WRITE_BOTH_READ_OLD)
        await stage.start()
        load = stage.begin("a")
        assert code_of(await stage.moves.prepare(1, session="other")) == ""
        await stage.seal("a", 10, tablet=1)
        load = stage.commit(load, 1)
        views.move(stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
        assert code_of(await stage.moves.prepare()) == ""
        await stage.adopt("a")
        assert stage.moves.replica(1).adopted == 1 and stage.moves.replica(0).adopted == 0
        stage.publish(load)
        views.move()
        stage_copy(stage.disk, merged_run(model_disk(), [1]), kind="merge", stream="old", epoch=0)
        assert code_of(await stage.moves.adopt()) == "stale_copy"
        stage_copy(stage.disk, merged_run(model_disk(), [1, 11]), kind="merge", stream="new", epoch=1)
        assert code_of(await stage.moves.adopt()) == "" and stage.moves.replica().adopted == 1

    asyncio.run(story())


@pytest.mark.parametrize("trouble", ["lost", "damaged", "list"])
def test_a_load_that_can_not_be_taken_keeps_the_marker_where_it_is_and_another_copy_brings_it(trouble):
    async def story():
        views = Views()
        stage = await arriving(views)
        load = stage.begin("a")
        await stage.seal("a", 30)
        load = stage.commit(load, 1)
        path = path_of("a", 0, "file")
        if trouble == "damaged":
            stage.disk.write_file(path, b"no table")
        else:
            stage.disk.remove(path if trouble == "lost" else "staging/a/sealed")
        await stage.adopt("a")
        replica = stage.moves.replica()
        assert replica.adopted == 0 and rows(replica) == []
        await stage.loaded("b", 2, 31)
        assert replica.adopted == 0, "not before the one that is missing"
        stage.publish(load)
        stage_copy(stage.disk, merged_run(model_disk(), [1]), kind="merge", stream="old", epoch=0)
        assert code_of(await stage.moves.adopt()) == "stale_copy"
        stage_copy(stage.disk, merged_run(model_disk(), [1, 30]), kind="merge", stream="new", epoch=1)
        assert code_of(await stage.moves.adopt()) == "" and replica.adopted == 1
        await stage.adopt("b")
        assert replica.adopted == 2 and rows(replica) == [1, 30, 31]

    asyncio.run(story())


def test_an_overwrite_that_is_seen_after_the_copy_was_taken_over_is_whole_from_its_own_files():
    async def story():
        views = Views()
        stage = await arriving(views)
        load = stage.begin("o", LoadKind.OVERWRITE, 2)
        await stage.seal("o", 30)
        load = stage.commit(load, 1)
        await stage.adopt("o")
        new = stage.moves.replica(generation=2)
        assert new.arriving and rows(new) == [30] and new.adopted == 1
        assert not stage.disk.exists(path_of("o", 0, "file")), "it was ingested: one that arrives is in memory at first"
        stage_copy(stage.disk, merged_run(model_disk(), [1]), kind="merge")
        assert code_of(await stage.moves.adopt()) == ""
        assert new.readable and stage.moves.replica().readable
        views.stage(Stage.WRITE_BOTH_READ_NEW)
        stage.publish(load)
        served = stage.moves.shelf.get(TABLE, 0)
        assert served is new and served.readable and rows(served) == [30]
        stage.disk.abandon()
        again = await MoveStage(stage.disk, views).start()
        await again.life.ready()
        assert again.replica(generation=2).state is ReplicaState.OPEN

    asyncio.run(story())


def test_an_overwrite_that_comes_between_the_copy_and_the_end_of_streaming_begins_whole():
    async def story():
        views = Views()
        stage = await arriving(views)
        stage_copy(stage.disk, merged_run(model_disk(), [1]), kind="merge")
        assert code_of(await stage.moves.adopt()) == ""
        load = stage.begin("o", LoadKind.OVERWRITE, 2)
        await stage.seal("o", 30)
        load = stage.commit(load, 1)
        await stage.adopt("o")
        assert stage.disk.exists(path_of("o", 0, "file")), "it was made of the file, which stays where it is"
        views.stage(Stage.WRITE_BOTH_READ_NEW)
        stage.publish(load)
        await stage.moves.life.ready()
        served = stage.moves.shelf.get(TABLE, 0)
        assert served is not None and served.readable and rows(served) == [30] and served.adopted == 1
        assert await written(served, 7) is None
        stage.disk.abandon()
        again = await MoveStage(stage.disk, views).start()
        await again.life.ready()
        served = again.replica(generation=2)
        assert served.readable and rows(served) == [7, 30] and served.meta.session == "s1"

    asyncio.run(story())


def test_the_copy_of_a_generation_that_was_overwritten_meanwhile_is_stale():
    async def story():
        views = Views()
        stage = await arriving(views)
        stage_copy(stage.disk, merged_run(model_disk(), [1]), kind="merge", stream="old")
        load = stage.begin("o", LoadKind.OVERWRITE, 2)
        await stage.seal("o", 30)
        load = stage.commit(load, 1)
        await stage.adopt("o")
        stage.publish(load)
        assert await written(stage.moves.replica(generation=2), 7) is None
        assert code_of(await stage.moves.adopt()) == "stale_copy"
        run = merged_run(model_disk(), [8, 30], stamp=STAMP)
        stage_copy(stage.disk, run, kind="merge", stream="new", generation=2, epoch=1)
        assert code_of(await stage.moves.adopt()) == ""
        assert rows(stage.moves.replica(generation=2)) == [7, 8, 30]

    asyncio.run(story())
