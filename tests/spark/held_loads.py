"""Loads that wait at chosen places until a test lets them go on, or kills whoever waits there.

    staging     a task has staged half of its rows
    sealing     all tasks are done, nothing is sealed yet
    committing  everything is sealed; the leader is about to be asked
    committed   the leader has answered

Whoever comes to its place leaves a file `<name>.<place>.<pid>` in the folder of the holds, and waits for `<name>.go`.

Run as a program this is a driver of Spark: it takes writes of DataFrames as files `<name>.json` of the folder, runs
each in a thread, and says how it ended in `<name>.ended`. It is a process of its own so that it can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from trimtab.spark import session
from trimtab.spark.contact import cluster_for
from trimtab.spark.load_plan import LoadPlan
from trimtab.spark.loading import LoadRun
from trimtab.spark.source import TrimtabSource
from trimtab.spark.writing import LoadWriter, PartMessage, writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "held"
DIES = "dies"  # a place like "committed", at which the driver of Spark is killed at once
PIDS = "pids"  # the file with the process ids of the driver: Python's and Java's
_HOLD_S = 240.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Hold:
    """Where one load waits; several places have commas between."""

    folder: str
    name: str
    place: str

    @classmethod
    def taken_from(cls, given: dict[str, str]) -> Hold:
        """What the options of a write say of it; they are taken out."""
        return cls(given.pop("held_folder"), given.pop("held_name"), given.pop("held_place"))

    def at(self, place: str) -> None:
        """The load has come to this place."""
        if self.place == DIES and place == "committed":
            for pid in json.loads((Path(self.folder) / PIDS).read_text()):
                os.kill(pid, signal.SIGKILL)
        if place not in self.place.split(","):
            return
        (Path(self.folder) / f"{self.name}.{place}.{os.getpid()}").touch()
        go, deadline = Path(self.folder) / f"{self.name}.go", time.monotonic() + _HOLD_S
        while not go.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was held at {place} for {_HOLD_S:g} s")
            time.sleep(_POLL_S)


class HeldDoor:
    """The cluster as a load sees it, with places to wait at."""

    def __init__(self, door: Any, hold: Hold) -> None:
        self._door, self._hold = door, hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)

    def places(self, table: int) -> Any:
        """Asked before files are sealed."""
        self._hold.at("sealing")
        return self._door.places(table)

    def commit(self, request: Any) -> Any:
        self._hold.at("committing")
        record = self._door.commit(request)
        self._hold.at("committed")
        return record


class HeldWriter(LoadWriter):
    """Of a load that is held."""

    def __init__(self, plan: LoadPlan, hold: Hold) -> None:
        super().__init__(plan)
        self.hold = hold

    def write(self, iterator: Iterator[Any]) -> PartMessage:
        return super().write(self._halved(iterator))

    def _halved(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self.hold.at("staging")
            yield batch.slice(half)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, PartMessage)]
        door: Any = HeldDoor(cluster_for(self.plan.connection), self.hold)
        LoadRun(door, self.plan).commit(parts)


class HeldSource(TrimtabSource):
    """`format("held")`, with the options held_folder, _name, _place and _rows besides those of a write."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> HeldWriter:
        given = self.given()
        hold = Hold.taken_from(given)
        chunk_rows = int(given.pop("held_rows"))
        # Smaller chunks than a write may ask for: small loads have several, too.
        return HeldWriter(replace(writer(schema, given, overwrite).plan, chunk_rows=chunk_rows), hold)


# The program


def write(folder: Path, name: str) -> None:
    spark = session()
    given = json.loads((folder / f"{name}.json").read_text())
    value = ", ".join([f"'{given['word']}'", *(f"sha2(concat(id, '-{each}'), 512)" for each in range(given["wide"]))])
    frame = spark.range(given["start"], given["stop"], 1, given["tasks"]).selectExpr("id", f"concat({value}) as value")
    options = {
        **given["options"],
        "table": given["table"],
        "peer": given["peer"],
        "held_folder": str(folder),
        "held_name": name,
        "held_place": given["place"],
    }
    said = "ok"
    try:
        frame.write.format(FORMAT).options(**options).mode(given["mode"]).save()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    aside = folder / f"{name}.ending"
    aside.write_text(said)
    aside.rename(folder / f"{name}.ended")


def note_pids(spark: SparkSession, folder: Path) -> None:
    """Say whom to kill: this process, and Java."""
    gateway: Any = spark.sparkContext._gateway
    aside = folder / "pids.new"
    aside.write_text(json.dumps([os.getpid(), gateway.proc.pid]))
    aside.rename(folder / PIDS)


def main(folder: Path, master: str) -> None:
    # Every task of every load that is held has a core of its own, as far as Spark knows.
    spark = session(
        master=master,
        **{
            "spark.driver.memory": "1g",
            "spark.trimtab.priority": "normal",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
        },
    )
    spark.dataSource.register(HeldSource)
    note_pids(spark, folder)
    begun: set[str] = set()
    while True:
        for path in folder.glob("*.json"):
            if path.stem not in begun:
                begun.add(path.stem)
                threading.Thread(target=write, args=(folder, path.stem), daemon=True).start()
        time.sleep(_POLL_S)


if __name__ == "__main__":
    # By its own name, so that Spark's workers find the classes there.
    from tests.spark import held_loads

    held_loads.main(Path(sys.argv[1]), sys.argv[2])
