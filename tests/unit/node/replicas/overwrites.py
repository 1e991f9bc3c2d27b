"""Overwrites of a table of four tablets, with rows for two of them, for stories about what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.replicas.load_stage import TABLETS, Stage
from tests.unit.node.replicas.shelves import model_disk, rows

from trimtab.loads.protocol import StagedFile
from trimtab.loads.records import LoadKind, LoadRecord
from trimtab.node.replicas.replica import Replica
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Disk
from trimtab.storage.rocks import RocksDisk

NEW = 2
LOADED = [[0, 1], [], [20, 21], []]  # by tablet
KINDS = pytest.mark.parametrize("kind", ["model", "rocks"])


def disk_of(kind: str, folder: Path) -> ModelDisk | RocksDisk:
    return model_disk() if kind == "model" else RocksDisk(folder / "disk", reserve_bytes=0)


async def sealed(
    stage: Stage,
    id: str = "a",
    generation: int = NEW,
    epoch: int = 1,
    *,
    older: bool = False,
) -> tuple[LoadRecord, list[StagedFile]]:
    """A committed load with two rows in each of two tablets."""
    load = stage.begin(id, LoadKind.OVERWRITE, generation)
    files = [stage.stage(id, tablet, 10 * tablet, 10 * tablet + 1, name=f"{id}-file", older=older) for tablet in (0, 2)]
    assert not (await stage.seal(id, *files)).missing
    return stage.commit(load, epoch), files


def made(stage: Stage, generation: int = NEW) -> list[Replica]:
    return [stage.replica(tablet, generation) for tablet in range(TABLETS)]


def has_all_of_it(stage: Stage, generation: int = NEW) -> bool:
    found = made(stage, generation)
    return [rows(each) for each in found] == LOADED and [each.adopted for each in found] == [1] * TABLETS


async def next_life(stage: Stage, disk: Disk | None = None) -> Stage:
    again = await Stage(disk or stage.disk, stage).start()
    await again.life.ready()
    return again


def over(*stages: Stage) -> None:
    """The end of these lives, and of their disks."""
    for stage in stages:
        stage.stop()
        disk: Any = stage.disk
        disk.close()
