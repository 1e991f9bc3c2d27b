"""Hundreds of replicas in one process: they fit into its memory, and opening them does not hold the loop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.node.replicas.shelves import Life, flushed, model_disk, rows, until, written

from trimtab.storage.rocks import RocksDisk

COUNT = 100


def test_three_hundred_replicas_take_writes_and_come_back():
    async def story():
        disk = model_disk()
        wanted = {(1, tablet): 1 for tablet in range(300)}
        life = await (await Life(disk, wanted).start()).ready()
        replicas = [await life.replica(1, tablet) for tablet in range(300)]
        assert await asyncio.gather(*(written(each, each.tablet) for each in replicas)) == [None] * 300
        assert await flushed(replicas[7]) is None
        disk.abandon()
        life = await (await Life(disk, wanted).start()).ready()
        assert life.shelf.replayed == 299
        assert all(rows(each) == [each.tablet] for each in life.shelf.held())
        life.wanted = {}
        life.shelf.look()
        await until(lambda: not disk.names("tablets/"))

    asyncio.run(story())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def measured(path: str) -> dict[str, float]:
    disk = RocksDisk(path, reserve_bytes=0)
    before = resident_bytes()
    life = await (await Life(disk, {(1, tablet): 1 for tablet in range(COUNT)}).start()).ready(120)
    replicas = [await life.replica(1, tablet) for tablet in range(COUNT)]
    for number in range(20):
        outcomes = await asyncio.gather(*(written(each, number, value=bytes(100)) for each in replicas))
        assert outcomes == [None] * COUNT
    after = resident_bytes()
    life.stop()
    disk.close()
    return {"bytes_per_replica": (after - before) / COUNT}


def test_a_real_replica_costs_a_fraction_of_a_megabyte(tmp_path):
    """300 replicas have to be open in less than 400 MB a process, of which the program itself takes a hundred."""
    # A process of its own, because memory that earlier tests freed would hide what is used here.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, __file__, str(tmp_path / "disk")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["bytes_per_replica"] < 700_000


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(sys.argv[1]))))
