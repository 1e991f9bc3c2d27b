"""Files to tables: tasks read Parquet, CSV and JSON themselves, so that no row ever goes through the JVM.

Spark only says which task reads what. That is more than twice as fast as writing a DataFrame of the same files, where
every row passes from Java to Python. `load_files` does all of it; a job that wants its own way of running tasks makes a
`FileLoad`, has `stage_piece` run for each of its `tasks`, and gives the parts to `finish`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trimtab.client.errors import Error, InvalidRequest
from trimtab.loads.records import LoadKind, LoadRecord
from trimtab.rows.layout import RowLayout
from trimtab.spark import file_columns, file_splits
from trimtab.spark.checking import types_of
from trimtab.spark.contact import Cluster, cluster_for
from trimtab.spark.file_splits import CSV, FORMATS, JSON, PARQUET, FileOptions, Found, Looked, Piece
from trimtab.spark.known_rows import MAX_ROWS, Differing, differing, key_of
from trimtab.spark.load_plan import REJECT, LoadFailed, LoadPlan, StagedPart
from trimtab.spark.loading import LEASE_MS, MAX_FILES, LoadRun, Progress
from trimtab.spark.options import READING_FILES, Options
from trimtab.spark.write_options import WriteOptions, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 * 1024 * 1024  # of files, for one task, where there are more than the cores need
LEAST_TASK_BYTES = 4 * 1024 * 1024  # of less it is not worth while to make another task
TASKS_PER_CORE = 2
MAX_TASKS = 10_000
MAX_COMPARED_ROWS = 20_000_000  # of all tasks: half a gigabyte, which the driver gets at once
_IN_TASKS, _CHECK = "task", "check"
_FILES_TOLD = 4
_ENDINGS = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".csv": CSV,
    ".tsv": CSV,
    ".json": JSON,
    ".jsonl": JSON,
    ".ndjson": JSON,
}

Heard = Callable[[int, int], None]  # bytes and rows that were read since it was called last
Make = Callable[[Callable[[RowLayout], None]], object]
RunTasks = Callable[[Sequence["FileTask"], Callable[["FileTask"], StagedPart]], Iterable[StagedPart]]


@dataclass(frozen=True)
class FileTask:
    """What one task reads, and how; it can be sent anywhere."""

    plan: LoadPlan
    pieces: tuple[tuple[str, Piece], ...]  # with the URLs they were found with
    schema: bytes  # Arrow's, the same for all of them
    options: FileOptions

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for _, piece in self.pieces)


@dataclass
class FileLoad:
    """A load of files that was begun: run `stage_piece` for each task, then `finish`."""

    run: LoadRun
    tasks: list[FileTask]
    size_bytes: int

    @classmethod
    def begin(
        cls,
        paths: Sequence[str],
        format: str,
        options: WriteOptions,
        *,
        reading: Mapping[str, str] | None = None,
        overwrite: bool = False,
        cores: int = 2,
        who: str = "",
        lease_ms: int = LEASE_MS,
        cluster: Cluster | None = None,
        make: Make | None = None,
    ) -> FileLoad:
        """Look at the files and the table, and begin. Whatever is wrong is told here, and then nothing was begun.

        `make` may make the table, when the files were looked at and what it is given finds that they go into it.
        """
        cluster = cluster or cluster_for(options.connection)
        found = file_splits.find(paths)
        how, wanted = reading_options(found, format, reading or {})
        given = Options(reading or {}, READING_FILES, "reading files")
        compares = given.one_of("duplicates", (_IN_TASKS, _CHECK), _IN_TASKS) == _CHECK
        looked = file_columns.look(found, how)
        layout = _table(cluster, options, looked, how, make)
        schemas = file_columns.schemas(looked, how, layout)
        size_bytes = sum(each.file.size_bytes for each in looked)
        count = wanted or min(
            max(TASKS_PER_CORE * cores, -(-size_bytes // TASK_BYTES)), max(1, size_bytes // LEAST_TASK_BYTES)
        )
        # Each task writes a file for each tablet.
        most = max(1, min(MAX_TASKS, MAX_FILES // 2 // layout.table.tablets))
        cut = _together(looked, schemas, how, size_bytes // min(count, most))
        from trimtab.spark.requests import request_of

        kind = LoadKind.OVERWRITE if overwrite else LoadKind.APPEND
        request = request_of(options, options.load_id or secrets.token_hex(12), kind, who or "load of files", lease_ms)
        run = LoadRun.begin_again(cluster, request)
        plan = run.plan
        if compares and len(cut) > 1:
            plan = replace(plan, compare_rows=min(MAX_ROWS, 2 * MAX_COMPARED_ROWS // len(cut)))
        tasks = [] if plan.done else [FileTask(plan, pieces, schema, how) for pieces, schema in cut]
        return cls(run, tasks, size_bytes)

    def finish(self, parts: Sequence[StagedPart]) -> LoadRecord:
        """Commit what the tasks staged, in their order; the load as it is when its rows can be seen."""
        whole = not any(part.failed for part in parts)
        if whole and (found := differing([part.prints for part in parts])) is not None:
            why = self._told(found)
            self.run.abort(why)
            raise LoadFailed(why)
        return self.run.commit([replace(part, prints=b"") for part in parts])

    def _told(self, found: Differing) -> str:
        """The files are read once more, up to the first row of the key."""
        tasks = [self.tasks[number] for number in found.tasks]
        files = sorted({piece.path for task in tasks for _, piece in task.pieces})
        layout = RowLayout(self.run.plan.table, self.run.plan.types)
        keys = (key_of(layout, batch, found.one) for batch in _read(tasks[0], lambda _: None))
        try:
            key = next((key for key in keys if key), "")
        except (Error, ValueError):
            key = ""  # another row is bad
        return (
            f"{layout.name}: {'a key has' if found.keys == 1 else f'{found.keys} keys have'} different rows in the load"
            f"{f', {key},' if key else ''} in {', '.join(files[:_FILES_TOLD])}"
            f"{' and others' if len(files) > _FILES_TOLD else ''}. Correct them, or let Spark choose one of each: read "
            "the files with spark.read, and write what dropDuplicates leaves"
        )


def load_files(
    spark: SparkSession,
    paths: Sequence[str],
    format: str,
    table: str,
    options: Mapping[str, str],
    *,
    reading: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    run_tasks: RunTasks | None = None,
) -> LoadRecord:
    """Load files into a table with the options of a write (`peer`, `primaryKey`, `onError`, …), and of reading:
    `columns`, `delimiter`, `quote`, `header`, `null`, `tasks`, `duplicates`. `format` empty: by the names of the files.
    """
    given = {name: value for name, value in options.items() if name.lower() != "table"} | {"table": table}
    cores = spark.sparkContext.defaultParallelism
    load = FileLoad.begin(paths, format, write_options(given), reading=reading, overwrite=overwrite, cores=cores)
    load.run.progress = progress
    with load.run.renewing():
        try:
            parts = list((run_tasks or _runner(spark, progress))(load.tasks, stage_piece))
        except BaseException as error:
            load.run.abort(f"its tasks failed: {type(error).__name__}")
            raise
        return load.finish(parts)


def _together(
    looked: Sequence[Looked], schemas: Sequence[Any], how: FileOptions, target_bytes: int
) -> list[tuple[tuple[tuple[str, Piece], ...], bytes]]:
    """What each task reads, and with which schema: a piece, or many small ones. So rows that have a key in common meet
    in one task, and are found, unless there is work for several.
    """
    found: list[tuple[tuple[tuple[str, Piece], ...], bytes]] = []
    by_schema: dict[Any, list[Looked]] = {}
    for each, schema in zip(looked, schemas, strict=True):
        by_schema.setdefault(schema, []).append(each)
    for schema, files in by_schema.items():
        packed = schema.serialize().to_pybytes()
        held: list[tuple[str, Piece]] = []
        size = 0
        for each, piece in file_splits.pieces(files, how, target_bytes):
            if held and size + piece.size_bytes / 2 > target_bytes:
                found.append((tuple(held), packed))
                held, size = [], 0
            held.append((each.url, piece))
            size += piece.size_bytes
        if held:
            found.append((tuple(held), packed))
    return found


def stage_piece(task: FileTask, heard: Heard = lambda _bytes, _rows: None) -> StagedPart:
    """In a task: read its pieces, and stage their rows. `heard` is told of bytes of files and rows as they are read."""
    from trimtab.spark.tasks import run_task

    trusted = task.options.format == CSV
    return run_task(task.plan, lambda aside: _read(task, aside, heard), trusted=trusted, renews=False)


def _read(task: FileTask, aside: Callable[[Any], None], heard: Heard = lambda _bytes, _rows: None) -> Iterable[Any]:
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    kinds = types_of(RowLayout(task.plan.table, task.plan.types))
    keeps = aside if task.plan.on_error == REJECT else None
    for url, piece in task.pieces:
        for batch in file_splits.read_piece(
            url, piece, schema, task.options, kinds, keeps, lambda size_bytes: heard(size_bytes, 0)
        ):
            heard(0, batch.num_rows)
            yield batch


def _runner(spark: SparkSession, progress: Progress | None) -> RunTasks:
    def run(tasks: Sequence[FileTask], work: Callable[[FileTask], StagedPart]) -> Iterable[StagedPart]:
        if not tasks:
            return []
        if progress is not None:
            progress("stage", 0, len(tasks))
        parts: list[StagedPart] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        if progress is not None:
            progress("stage", len(tasks), len(tasks))
        return parts

    return run


def reading_options(found: Sequence[Found], format: str, given: Mapping[str, str]) -> tuple[FileOptions, int]:
    """How to read the files, and into how many tasks to cut them (0: as many as are good)."""
    options = Options(given, READING_FILES, "reading files")
    path = found[0].files[0].path
    kind = format.lower() or _by_name(path)
    if kind not in FORMATS:
        raise InvalidRequest(
            f"{path}: the format is not known by the name of the file; it is one of {', '.join(FORMATS)}"
            if not format
            else f"there is no format {format!r}; it is one of {', '.join(FORMATS)}"
        )
    paths = (each.path for one in found for each in one.files if not format)
    others = (each for each in paths if _by_name(each) not in (kind, ""))
    if (other := next(others, None)) is not None:
        raise InvalidRequest(
            f"{path} is {kind} and {other} is {_by_name(other)}, by their names; load them one after the other, or "
            "name the format that all of them have"
        )
    delimiter = given.get("delimiter") or ("\t" if file_splits.unpacked_name(path).endswith(".tsv") else ",")
    quote = options.text("quote", '"')
    for option, text in (("delimiter", delimiter), ("quote", quote)):
        if len(text) != 1 or not text.isascii() or text in "\r\n":
            raise InvalidRequest(f"option {option}: one ASCII character is expected that ends no line, not {text!r}")
    if delimiter == quote:
        raise InvalidRequest(f"options delimiter and quote are both {quote!r}; two characters are expected that differ")
    header = options.flag("header") if options.text("header") else True
    how = FileOptions(kind, options.names("columns") or (), delimiter, quote, header, given.get("null", ""))
    return how, options.whole("tasks", 0, 1, MAX_TASKS)


def _by_name(path: str) -> str:
    name = file_splits.unpacked_name(path)
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), "")


def _table(
    cluster: Cluster, options: WriteOptions, looked: Sequence[Looked], how: FileOptions, make: Make | None
) -> RowLayout:
    """The table, made from what the files hold if it is missing and the options say how; and if they go into it."""

    def check(layout: RowLayout) -> None:
        file_columns.schemas(looked, how, layout)

    if make is not None:
        make(check)
    if options.create is not None:
        from pyspark.sql.pandas.types import from_arrow_schema

        from trimtab.spark.creating import ensure_table

        ensure_table(
            cluster.db, options, lambda: from_arrow_schema(file_columns.guessed(looked, how)), cluster.instances, check
        )
    table, types = cluster.table(options.table)
    return RowLayout(table, types)
