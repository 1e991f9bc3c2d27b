"""`export`: a table as Parquet files and a schema.json, all of one epoch and one moment. The basis of a backup.

    <path>/schema.json                     how to make the table again, and which files there are (`table_document`)
    <path>/data/tablet-00003-0000.parquet  rows of one tablet, in the order of their tokens

Snapshots of all tablets are taken at the beginning and held to the end (`held_snapshots`). The moment is when the job
first began, by the clocks that stamp writes (`moments`), unless it is given; it is waited for until no write that was
stamped before is under way any more. So what was acknowledged before the export was asked for is in it, and what was
stamped later is not.

Files are written below `<path>.partial-<job>`, which is renamed in the end; schema.json is written last. Whatever is
found under the path itself is whole. A driver that takes over keeps the tablets that are done, if their snapshots still
are: a tablet is done when the note beside its files says so. Where all was done but telling it, schema.json says which
job it was, and that job has its result from there. What killed attempts left beside the files goes before the end.

An object store can't rename a directory, and is refused (`ExportParameters`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimtab.catalog.catalog import Catalog
from trimtab.client.errors import InvalidRequest
from trimtab.pipeline import table_document, tasks
from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.held_snapshots import Held, HeldSnapshots, hold, still_held
from trimtab.pipeline.loads import read_document
from trimtab.pipeline.moments import latest_us
from trimtab.pipeline.parameters import SETTLE_S, ExportParameters, parse
from trimtab.pipeline.running import JobContext
from trimtab.pipeline.scans import Scan, scan_of
from trimtab.pipeline.tasks import Done, attempt_number
from trimtab.spark import shared_folders
from trimtab.spark.reading import no_rows, read_partition
from trimtab.spark.rejecting import place
from trimtab.spark.scan_plan import ScanPart, ScanPartition, ScanPlan, ScanStats

FILE_BYTES = 256 << 20  # of Arrow, before it is compressed; then the next file begins
GROUP_ROWS = 131_072
_DONE = "tablet-{:05d}.done.json"
_FILE = "tablet-{:05d}-{:04d}.parquet"


@dataclass(frozen=True)
class ExportTask:
    plan: ScanPlan
    part: ScanPart
    held: Held
    folder: str
    compression: str


def export(context: JobContext, parameters: dict[str, Any]) -> dict[str, Any]:
    given = parse(ExportParameters, parameters)
    path = given.path.rstrip("/")
    folder = f"{path}.partial-{context.number}"
    if (ended := _own(path, context.load_id())) is not None:
        return _result(given, path, ended)
    _check_target(path)
    scan, name = _begin(context, given, folder)
    context.progress(total_bytes=scan.size_bytes, phase="taking snapshots")
    with hold(scan.plan, scan.parts, name) as held:
        _make(folder)
        context.progress(phase="writing files")
        made = [ExportTask(scan.plan, part, held, folder, given.compression) for part in scan.parts]
        found = tasks.run(context, made, export_tablet)
        context.check()
        if refused := [each for each in found if isinstance(each, str)]:
            raise JobFailed(refused[0])
        files = [file for some in found if not isinstance(some, str) for file in some]
        with tasks.database(context) as database:
            database.refresh()
            catalog = database.catalog
        return _finish(given, scan, catalog, folder, path, files, context.load_id())


def _begin(context: JobContext, given: ExportParameters, folder: str) -> tuple[Scan, str]:
    """What to read, at which moment, and the name of its snapshots: those of an earlier attempt, if all are there."""
    if noted_us := int(context.noted.get("as_of_us", 0)):
        # What is held is as it was, though the moment be too old by now.
        scan = _scan(context, given, 0)
        name = _name(context, scan, noted_us)
        if context.noted.get("name") == name and still_held(scan.plan, scan.parts, name):
            return _at(scan, noted_us), name
        # Copies that are taken later may have forgotten what was there then: all begins anew.
    # A moment that was asked for is checked by the plan; one of our own is never too old, nor to come.
    scan = _scan(context, given, given.as_of_us)
    now_us = scan.known.now_us if given.as_of_us else latest_us(scan)
    as_of_us = given.as_of_us or now_us
    name = _name(context, scan, as_of_us)
    context.progress(phase="waiting for writes under way")
    _await_closed(context, as_of_us, now_us)
    _remove(folder)
    context.checkpoint({"name": name, "as_of_us": as_of_us})
    return _at(scan, as_of_us), name


def _scan(context: JobContext, given: ExportParameters, as_of_us: int) -> Scan:
    return scan_of(context, given.table, columns=given.columns or (), consistency=given.consistency, as_of_us=as_of_us)


def _name(context: JobContext, scan: Scan, as_of_us: int) -> str:
    return f"export-{context.number}-{scan.plan.table.id}-{scan.plan.epoch}-{as_of_us}"


def _at(scan: Scan, as_of_us: int) -> Scan:
    return replace(scan, plan=replace(scan.plan, as_of_us=as_of_us))


def _await_closed(context: JobContext, as_of_us: int, now_us: int) -> None:
    """Until every write that was stamped by then has reached its replicas, or was given up."""
    left_s = (as_of_us - now_us) / 1_000_000 + SETTLE_S
    if left_s > 0:
        context.stopped.wait(min(left_s, 60.0))
    context.check()


def _finish(
    given: ExportParameters, scan: Scan, catalog: Catalog, folder: str, path: str, files: list[dict[str, Any]], job: str
) -> dict[str, Any]:
    system, inner = place(folder)
    _, final = place(path)
    if not files:
        # An empty table is one, too: a file without rows, so that it can be loaded like any other.
        nothing = no_rows(scan.plan)
        writer = _File(
            system, f"{inner}/{table_document.DATA}", _FILE.format(0, 0), nothing.schema, given.compression, 0
        )
        files = [writer.close(0)]
    told = {
        "job": job,
        "as_of_us": scan.plan.as_of_us,
        "epoch": scan.plan.epoch,
        "consistency": given.consistency,
        "columns": list(scan.plan.names),
        "rows": sum(file["rows"] for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "files": files,
    }
    found = table_document.document(catalog, scan.plan.table, told)
    _tidy(system, f"{inner}/{table_document.DATA}", {file["name"] for file in files})
    _write(system, f"{inner}/{table_document.NAME}", json.dumps(found, indent=2).encode())
    try:
        system.move(inner, final)
    except OSError as error:
        raise JobFailed(f"{folder} is whole, but can't be renamed to {path}: {error}") from error
    return _result(given, path, told)


def _tidy(system: Any, folder: str, listed: set[str]) -> None:
    """Away with notes, and with what attempts left that were killed while they wrote."""
    from pyarrow import fs

    for each in system.get_file_info(fs.FileSelector(folder)):
        if each.base_name not in listed:
            with contextlib.suppress(FileNotFoundError):
                system.delete_file(each.path)


def _own(path: str, job: str) -> dict[str, Any] | None:
    """What the export at this path says of itself, if it is this job's: an earlier attempt was not heard at its end."""
    try:
        found: dict[str, Any] = read_document(path)["export"]
    except InvalidRequest:
        return None
    return found if found.get("job") == job else None


def _result(given: ExportParameters, path: str, export: Mapping[str, Any]) -> dict[str, Any]:
    """Of an export that has its last name, when that is durable."""
    system, final = place(path)
    _sync(system, final.rpartition("/")[0] or "/")
    told = {name: value for name, value in export.items() if name not in ("files", "job")}
    return {"table": given.table, "path": path, "files": len(export["files"]), **told}


def _check_target(path: str) -> None:
    from pyarrow import fs

    try:
        system, inner = place(path)
        there = system.get_file_info(inner).type
        above = system.get_file_info(inner.rpartition("/")[0] or "/").type
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} can't be written to: {error}") from error
    if there != fs.FileType.NotFound:
        raise InvalidRequest(f"{path} is there already; name a directory that is not, or remove it first")
    if above != fs.FileType.Directory:
        raise InvalidRequest(f"there is no directory {path.rpartition('/')[0]} to write {path} into")


def _make(folder: str) -> None:
    system, inner = place(folder)
    try:
        shared_folders.make(system, f"{inner}/{table_document.DATA}")
    except OSError as error:
        raise JobFailed(f"{folder} can't be made: {error}") from error


def _remove(folder: str) -> None:
    from pyarrow import fs

    system, inner = place(folder)
    if system.get_file_info(inner).type == fs.FileType.Directory:
        system.delete_dir(inner)


def _write(system: Any, path: str, data: bytes) -> None:
    """Whole or not at all, and durable where the file system is this machine's."""
    aside = f"{path}.{attempt_number()}.tmp"
    with system.open_output_stream(aside) as stream:
        stream.write(data)
    _sync(system, aside)
    system.move(aside, path)


def _sync(system: Any, path: str) -> None:
    if system.type_name == "local":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# In a task


def export_tablet(task: ExportTask, done: Done) -> list[dict[str, Any]] | str:
    """The files of one tablet; those that an earlier attempt has finished stay. A text: they can't be written here."""
    from pyarrow import fs

    system, inner = place(task.folder)
    folder = f"{inner}/{table_document.DATA}"
    if system.type_name == "local" and not os.access(folder, os.W_OK | os.X_OK):
        return (
            f"a task on {socket.gethostname()}, of user {os.getuid()}, can't write to {folder}: export to a directory "
            "that all machines share; where tasks are another user's, to one of a group that both are in (mode 2775)"
        )
    note = f"{folder}/{_DONE.format(task.part.tablet)}"
    if system.get_file_info(note).type == fs.FileType.File:
        with system.open_input_stream(note) as stream:
            files: list[dict[str, Any]] = json.loads(stream.readall())
    else:
        files = _write_tablet(task, system, folder)
        _write(system, note, json.dumps(files).encode())
    done.add(task.part.size_bytes, sum(file["rows"] for file in files))
    return files


def _write_tablet(task: ExportTask, system: Any, folder: str) -> list[dict[str, Any]]:
    partition = ScanPartition(task.plan, (task.part,))
    stats, attempt = ScanStats(), attempt_number()
    copies = HeldSnapshots(task.plan, (task.part,), attempt, stats, task.held)
    files: list[dict[str, Any]] = []
    writer: _File | None = None
    for batch in read_partition(partition, attempt, stats, copies):
        if writer is not None and writer.size_bytes > FILE_BYTES:
            files.append(writer.close(task.part.tablet))
            writer = None
        if writer is None:
            name = _FILE.format(task.part.tablet, len(files))
            writer = _File(system, folder, name, batch.schema, task.compression, attempt)
        writer.add(batch)
    if writer is not None:
        files.append(writer.close(task.part.tablet))
    return files


class _File:
    """One Parquet file, under a name of the attempt's own until it is whole."""

    def __init__(self, system: Any, folder: str, name: str, schema: Any, compression: str, attempt: int) -> None:
        import pyarrow.parquet as pq

        self._system, self._folder, self._name = system, folder, name
        self._aside = f"{folder}/{name}.{attempt}.tmp"
        self._writer = pq.ParquetWriter(self._aside, schema, filesystem=system, compression=compression)
        self._held: list[Any] = []
        self._held_rows = 0
        self.size_bytes = 0
        self._rows = 0

    def add(self, batch: Any) -> None:
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self.size_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
            self._rows += self._held_rows
            self._held, self._held_rows = [], 0

    def close(self, tablet: int) -> dict[str, Any]:
        self._flush()
        self._writer.close()
        _sync(self._system, self._aside)
        path = f"{self._folder}/{self._name}"
        self._system.move(self._aside, path)
        size_bytes = self._system.get_file_info(path).size
        return {"name": self._name, "tablet": tablet, "rows": self._rows, "bytes": size_bytes}
