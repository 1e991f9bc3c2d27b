"""Files written elsewhere become rows of a replica, beside the writes that come in meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.replicas.shelves import Life, key, model_disk, rows, until, written

from trimtab.node.answering import Refused
from trimtab.node.replicas.ingesting import ingest
from trimtab.node.replicas.waiting import outcome
from trimtab.storage.model_store import ModelStore
from trimtab.storage.rocks import RocksDisk

ONE = {(1, 0): 1}


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_rows_of_files_are_there_with_those_that_were_written_meanwhile(kind, tmp_path):
    async def story():
        disk = model_disk() if kind == "model" else RocksDisk(tmp_path / "disk", reserve_bytes=0)
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        disk.write_table("staging/a", [(key(number), b"v") for number in range(100, 120)])
        disk.write_table("staging/b", [(key(number), b"v") for number in range(120, 140)])
        writing = [asyncio.ensure_future(written(replica, number)) for number in range(10)]
        await ingest(disk, replica, ["staging/a", "staging/b"])
        assert await asyncio.gather(*writing) == [None] * 10
        assert rows(replica) == [*range(10), *range(100, 140)]
        if kind == "model":
            disk.abandon()
        else:
            life.stop()
        life = await (await Life(disk, ONE).start()).ready()
        assert rows(await life.replica()) == [*range(10), *range(100, 140)]
        life.stop()
        disk.close()

    asyncio.run(story())


def test_damaged_or_missing_files_are_refused_and_the_replica_goes_on():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        disk.write_file("staging/bad", b"nothing of the kind")
        with pytest.raises(Refused, match="staging/bad"):
            await ingest(disk, replica, ["staging/bad"])
        with pytest.raises(Refused, match="no such file"):
            await ingest(disk, replica, ["staging/never"])
        assert (await written(replica, 1), rows(replica), life.shelf.quarantined) == (None, [1], 0)
        replica.close()
        with pytest.raises(Refused, match="can't take over"):
            await ingest(disk, replica, ["staging/bad"])

    asyncio.run(story())


def test_what_is_not_to_be_taken_any_more_when_its_turn_comes_is_left_alone():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        disk.write_table("staging/a", [(key(1), b"v")])
        closed = []

        def allowed():
            if closed:
                raise Refused("session_closed", "it is over")

        taking = asyncio.ensure_future(
            ingest(disk, replica, ["staging/a"], marker=("staging/marker", 7), allowed=allowed)
        )
        await asyncio.sleep(0)
        closed.append(True)
        with pytest.raises(Refused, match="it is over"):
            await taking
        assert (rows(replica), replica.adopted, replica.held) == ([], 0, False)
        assert await written(replica, 2) is None and rows(replica) == [2]
        life.stop()

    asyncio.run(story())


def test_who_flushes_a_replica_that_was_closed_meanwhile_is_told_so():
    async def story():
        life = await (await Life(model_disk(), ONE).start()).ready()
        replica = await life.replica()
        assert await written(replica, 1) is None
        under_way = asyncio.ensure_future(outcome(replica.flush))
        await asyncio.sleep(0)
        replica.close()
        for flush in (under_way, outcome(replica.flush)):
            with pytest.raises(Refused, match="was closed"):
                await asyncio.wait_for(flush, 5.0)
        life.stop()

    asyncio.run(story())


def test_a_disk_that_is_full_is_told_and_the_files_are_taken_over_when_there_is_space(monkeypatch):
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica()
        disk.write_table("staging/a", [(key(1), b"v")])
        whole = ModelStore.ingest

        def ingest_nothing(store, names):
            store._full = disk.full_error(store.name)
            raise store._full

        monkeypatch.setattr(ModelStore, "ingest", ingest_nothing)
        with pytest.raises(Refused, match="disk full") as refused:
            await ingest(disk, replica, ["staging/a"], marker=("staging/marker", 7))
        assert refused.value.code == "disk_full" and replica.adopted == 0 and replica.stalled is not None
        monkeypatch.setattr(ModelStore, "ingest", whole)
        await until(lambda: replica.stalled is None, "the store is opened again")
        await ingest(disk, replica, ["staging/a"], marker=("staging/marker", 7))
        assert (rows(replica), replica.adopted, disk.names("staging/")) == ([1], 7, [])
        life.stop()

    asyncio.run(story())
