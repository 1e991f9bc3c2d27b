"""Queries of Structured Streaming from a directory of files, until all have been read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.spark.source import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

RUN_S = 300


@dataclass
class Stream:
    """A query to a table; so many `files` make a batch, each of them a task. `folder` has them, and the checkpoint."""

    spark: SparkSession
    table: str
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    files: int = 1
    schema: str = "id long, name string"

    def add(self, number: int, start: int, stop: int) -> None:
        self.add_lines(number, "".join(f'{{"id": {n}, "name": "n{n}"}}\n' for n in range(start, stop)))

    def add_lines(self, number: int, lines: str) -> None:
        path = self.folder / "in" / f"{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines)
        # Spark takes files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self, format: str = FORMAT) -> StreamingQuery:
        reading = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", self.files)
        writing = reading.json(str(self.folder / "in")).writeStream.format(format).option("table", self.table)
        writing = writing.options(**self.options).option("checkpointLocation", str(self.folder / "checkpoint"))
        return writing.trigger(availableNow=True).start()

    def run(self) -> None:
        assert self.start().awaitTermination(RUN_S)

    def forget_last(self) -> None:
        """As if Spark had died after the sink's commit and before it noted that the batch was done."""
        done = max((self.folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        done.unlink()
        done.with_name(f".{done.name}.crc").unlink(missing_ok=True)
