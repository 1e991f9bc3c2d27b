"""The driver's job `load`, which waits where a test wants it to: see `held_loads` for the places.

TRIMTAB_TEST_HOLDS names the folder; in it `<table>.place` says where the load of a table waits. The name of a hold is
that of the table without its keyspace.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.spark.held_loads import HeldDoor, Hold
from trimtab.jobs.records import JobKind
from trimtab.pipeline import loads
from trimtab.pipeline.tasks import Done
from trimtab.spark.files import FileLoad, FileTask
from trimtab.spark.load_plan import StagedPart

FOLDER = "TRIMTAB_TEST_HOLDS"
_stage = loads.stage


def hold_of(table: str) -> Hold:
    folder = os.environ[FOLDER]
    place = Path(folder) / f"{table}.place"
    return Hold(folder, table, place.read_text() if place.exists() else "")


def stage(task: FileTask, done: Done) -> StagedPart:
    part = _stage(task, done)
    hold = hold_of(task.plan.table.name)
    # Whoever stages anything leaves a trace, wherever it is held.
    (Path(hold.folder) / f"{hold.name}.staged.{os.getpid()}").touch()
    hold.at("staging")
    return part


class HeldFileLoad(FileLoad):
    """With a door that holds it."""

    @classmethod
    def begin(cls, *arguments: Any, **named: Any) -> FileLoad:
        begun = super().begin(*arguments, **named)
        begun.run.door = HeldDoor(begun.run.door, hold_of(begun.run.plan.table.name))
        return begun


def load(context: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    module: Any = loads
    module.stage, module.FileLoad = stage, HeldFileLoad
    return loads.load(context, parameters)


JOBS = {JobKind.LOAD: load}
