"""`load`: files into a table, all rows at once. Tasks read Parquet, CSV or JSON themselves and stage sorted runs.

The load's id follows from the job, so it is the same in every attempt and under every driver (`spark.files`): where an
earlier one has committed, nothing is repeated and only the end is waited for; where it was still staging, it goes on
under the same session, and of what was staged before nothing counts. When the job is told to stop, its load is aborted
first: what tasks still send is refused, and swept. Where that comes too late, because the load is committed, the job
has succeeded: its rows are seen, and nobody should be told otherwise.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from trimtab.client.errors import Error, InvalidRequest
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.pipeline import table_document, tasks
from trimtab.pipeline.failures import JobFailed, LeaseLost
from trimtab.pipeline.parameters import LoadParameters, parse
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.tasks import Done
from trimtab.rows.layout import RowLayout
from trimtab.spark.files import FileLoad, FileTask, stage_piece
from trimtab.spark.load_plan import StagedPart
from trimtab.spark.loading import LoadPending
from trimtab.spark.rejecting import place
from trimtab.spark.write_options import write_options

LEASE_MS = 30_000


def load(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    given = parse(LoadParameters, parameters)
    paths = [path for each in given.paths for path in data_paths(each)]
    document = read_document(given.schema_from) if given.schema_from else None
    options = write_options(
        given.options | tasks.connection_options(context) | {"table": given.table, "loadId": context.load_id()}
    )

    def make(check: Callable[[RowLayout], None]) -> None:
        if document is not None:
            with tasks.database(context) as database:
                table_document.make(database, document, given.table, check)

    context.progress(phase="looking at the files")
    cores = context.session.sparkContext.defaultParallelism
    begun = FileLoad.begin(
        paths,
        given.format,
        options,
        reading=given.reading,
        overwrite=given.mode == "overwrite",
        cores=cores,
        who=f"job {context.number}",
        lease_ms=LEASE_MS,
        make=make,
    )
    context.progress(total_bytes=begun.size_bytes, phase="staging")
    forget = context.on_stop(lambda: _fence(context, begun))
    try:
        with begun.run.renewing():
            parts = tasks.run(context, begun.tasks, stage)
            if failed := [part for part in parts if part.failed]:
                # One bad row is enough for another attempt to be in vain, though others found a full disk.
                worst = min(failed, key=lambda part: (part.again, part.failed))
                begun.run.abort(worst.failed)
                raise JobFailed(worst.failed, again=worst.again)
            context.checkpoint({"load": begun.run.id, "staged": True})
            context.progress(phase="committing")
            return _told(begun.finish(parts))
    except BaseException as error:
        if isinstance(context.stopping, LeaseLost):
            raise
        if not isinstance(error, LoadPending):
            begun.run.abort(str(error) or type(error).__name__)
        # One that could neither be committed nor aborted its lease ends, and another attempt begins it anew.
        if (record := _committed(begun)) is None:
            raise
        return _told(record)
    finally:
        forget()


def stage(task: FileTask, done: Done) -> StagedPart:
    """In a task. What it has read is counted as it goes, and in the end exactly."""
    part = stage_piece(task, done.add)
    done.add(task.size_bytes - done.bytes, part.rows - done.rows)
    return part


def _fence(context: JobContext, begun: FileLoad) -> None:
    """End the session of the load, unless another driver may be at it already; or learn that it is too late."""
    if isinstance(context.stopping, LeaseLost):
        return
    begun.run.abort(f"job {context.number} was told to stop: {context.stopping}")
    if (record := _committed(begun)) is not None:
        context.settle(_told(record))


def _committed(begun: FileLoad) -> LoadRecord | None:
    """The load, if it counts; None: it does not, or nobody can say now."""
    with contextlib.suppress(Error):
        record = begun.run.door.show(begun.run.plan.table.id, begun.run.id)
        if record is not None and record.state in (LoadState.COMMITTED, LoadState.PUBLISHED):
            return record
    return None


def _told(record: LoadRecord) -> dict[str, Any]:
    return {
        "load": record.id,
        "state": record.state.value,
        "mode": record.kind.value,
        "rows": record.rows,
        "bytes": record.size_bytes,
        "rejected": record.rejected,
        "epoch": record.epoch,
        "generation": record.generation,
        "timestamp_us": record.stamp_us,
    }


# Exports


def data_paths(path: str) -> list[str]:
    """What to load of a path: of an export the files that it names, of all else the path itself."""
    from pyarrow import fs

    try:
        system, inner = place(path)
        inner = inner.rstrip("/")
        if system.get_file_info(f"{inner}/{table_document.NAME}").type != fs.FileType.File:
            return [path]
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} can't be read: {error}") from error
    found = read_document(f"{path.rstrip('/')}/{table_document.NAME}")
    folder = f"{path.rstrip('/')}/{table_document.DATA}"
    files = found["export"].get("files", [])
    if not files:
        raise InvalidRequest(f"{path} names no files; it was made by a release that wrote none for an empty table")
    sizes = {
        each.base_name: each.size for each in system.get_file_info(fs.FileSelector(f"{inner}/{table_document.DATA}"))
    }
    for file in files:
        if sizes.get(file["name"]) != file["bytes"]:
            raise InvalidRequest(
                f"{folder}/{file['name']} should have {file['bytes']} bytes and has {sizes.get(file['name'], 'none')}: "
                "the export was changed, or not copied whole"
            )
    # Not the directory: there may be more in it than the export.
    return [f"{folder}/{file['name']}" for file in files]


def read_document(path: str) -> dict[str, Any]:
    """A schema.json; the directory of an export stands for the one in it. InvalidRequest: it can't be read."""
    from pyarrow import fs

    try:
        system, inner = place(path)
        if system.get_file_info(inner).type == fs.FileType.Directory:
            inner = f"{inner.rstrip('/')}/{table_document.NAME}"
        with system.open_input_stream(inner) as stream:
            found = json.loads(stream.readall())
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} can't be read as the schema of an export: {error}") from error
    return table_document.checked(found, path)
