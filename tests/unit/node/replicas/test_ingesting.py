"""Files written elsewhere become rows of a replica, beside the writes that come in meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.node.replicas.shelves import Life, key, model_disk, rows, written

from trimtab.node.answering import Refused
from trimtab.node.replicas.ingesting import ingest
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
