"""Rows that a load could not take, as Parquet files with a column `_reason`, for whoever wants to correct them.

Tasks write below `<path>/_load-<name>/`, which Spark and others pass over when they read `<path>`; the name is the
table's and the load's id. Files of the attempts that count move up BEFORE the load is committed, so that no load counts
without its rejects. The folder goes after the commit: as long as it is there, nobody has seen to what became of the
load. So whoever begins a load of the table there next finds what killed drivers left, and finishes it by the record of
the load:

    committed    the files that moved up stay, the folder goes     `settle`
    aborted      both go                                           `drop`
    open         it is somebody else's work
    forgotten    the folder goes after a week

The path may be local or a URL that Arrow knows (hdfs://, s3://, gs://); on a cluster it must be one that every machine
reaches, and where tasks are another user's than the driver one that both share (`shared_folders`).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.loads.records import LoadRecord, LoadState
from trimtab.spark import shared_folders
from trimtab.spark.load_plan import LoadFailed, NotNow

FORGOTTEN_S = 7 * 86_400.0  # no load is open for so long without a row that it rejects
MAX_SWEPT = 1000  # folders, of one beginning


def name_of(table: str, id: str) -> str:
    """What the files of a load are called here: loads of different tables may share an id, and a path."""
    return f"{table}-{id}"


class RejectFiles:
    """The rejected rows of one task attempt: a file for each form they have, made with the first row."""

    def __init__(self, path: str, load: str, attempt: str) -> None:
        self.rows = 0
        self._base, self._load, self._attempt = path, load, attempt
        self._writers: dict[Any, Any] = {}  # by schema

    def add(self, rows: Any) -> None:
        import pyarrow.parquet as pq

        rows = _storable(rows)
        writer = self._writers.get(rows.schema)
        try:
            if writer is None:
                system, base = place(self._base)
                folder = _folder(base, self._load)
                shared_folders.make(system, folder)
                path = f"{folder}/{self._name(len(self._writers))}"
                writer = self._writers[rows.schema] = pq.ParquetWriter(path, rows.schema, filesystem=system)
            writer.write_table(rows)
        except OSError as error:
            raise LoadFailed(f"rejected rows can't be written below {self._base}: {error}") from error
        self.rows += rows.num_rows

    def close(self) -> tuple[str, ...]:
        """The names of the files. LoadFailed: one of them could not be finished."""
        try:
            for writer in self._writers.values():
                writer.close()
        except OSError as error:
            raise LoadFailed(f"rejected rows can't be written below {self._base}: {error}") from error
        return tuple(self._name(number) for number in range(len(self._writers)))

    def _name(self, number: int) -> str:
        return f"{self._attempt}-{number}.parquet"


def check(path: str, load: str) -> None:
    """That rejected rows can be written there, before there are any; LoadFailed says why not."""
    try:
        system, base = place(path)
        folder = _folder(base, load)
        shared_folders.make(system, folder)
    except (OSError, ValueError) as error:
        raise LoadFailed(f"option rejected: {path!r} can't be written to: {error}") from error


def keep(path: str, load: str, names: Sequence[str]) -> list[str]:
    """Give the files of the attempts that count their last names; the others stay in the folder. Call it before the
    commit. LoadFailed: it can't be done, or a file is not there: then a task wrote to another machine's disk.
    """
    try:
        system, base = place(path)
        _check_there(system, _folder(base, load), names)
        # A driver that was killed at this very point may have left more of them than there are now.
        _delete_kept(system, base, load)
        kept = []
        for number, name in enumerate(sorted(names)):
            target = f"{base}/{load}-{number:05d}.parquet"
            system.move(f"{_folder(base, load)}/{name}", target)
            kept.append(target)
    except OSError as error:
        raise NotNow(f"rejected rows can't be kept in {path}, so nothing is loaded: {error}") from error
    return kept


def _check_there(system: Any, folder: str, names: Sequence[str]) -> None:
    from pyarrow import fs

    there = system.get_file_info([f"{folder}/{name}" for name in names])
    if gone := [info.path for info in there if info.type != fs.FileType.File]:
        raise LoadFailed(
            f"rejected rows were written to {gone[0]}, which is not there as seen from the driver; name a path in "
            "option rejected that all machines share"
        )


def settle(path: str, load: str) -> None:
    """The load counts: what its lost attempts wrote goes."""
    system, base = place(path)
    _delete_folder(system, _folder(base, load))


def drop(path: str, load: str) -> None:
    """The load does not count: nothing stays. The folder is the last to go, so that what is left is found again."""
    system, base = place(path)
    _delete_kept(system, base, load)
    _delete_folder(system, _folder(base, load))


def take_back(path: str, load: str) -> None:
    """Nothing was begun: `check` made the folder for nothing. If it is not empty, it is somebody else's."""
    from pyarrow import fs

    system, base = place(path)
    folder = _folder(base, load)
    if not system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        _delete_folder(system, folder)


def sweep(path: str, table: str, load: str, find: Callable[[str], LoadRecord | None]) -> list[str]:
    """Finish what other loads of the table have left here; the names of those. `find`: the record of a load by its id.

    A load whose record is gone ended long ago, or is being begun just now; so only age tells.
    """
    from pyarrow import fs

    system, base = place(path)
    prefix = f"_load-{name_of(table, '')}"
    found = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    left = [each for each in found if each.type == fs.FileType.Directory and each.base_name.startswith(prefix)]
    finished = []
    for folder in left[:MAX_SWEPT]:
        other = folder.base_name.removeprefix("_load-")
        if other == load:
            continue
        record = find(folder.base_name.removeprefix(prefix))
        if record is None:
            if not _forgotten(system, folder):
                continue
            settle(path, other)
        elif record.state is LoadState.STAGING:
            continue
        elif record.state is LoadState.ABORTED:
            drop(path, other)
        else:
            settle(path, other)
        finished.append(other)
    return finished


def _forgotten(system: Any, folder: Any) -> bool:
    from pyarrow import fs

    times = [each.mtime for each in (folder, *system.get_file_info(fs.FileSelector(folder.path)))]
    return None not in times and max(each.timestamp() for each in times) < time.time() - FORGOTTEN_S


def _delete_kept(system: Any, base: str, load: str) -> None:
    from pyarrow import fs

    kept = re.compile(re.escape(load) + r"-\d{5,}\.parquet")
    for each in system.get_file_info(fs.FileSelector(base, allow_not_found=True)):
        if each.type == fs.FileType.File and kept.fullmatch(each.base_name):
            _remove(system.delete_file, each.path)


def _delete_folder(system: Any, folder: str) -> None:
    from pyarrow import fs

    if system.get_file_info(folder).type == fs.FileType.Directory:
        _remove(system.delete_dir, folder)


def _remove(delete: Callable[[str], None], path: str) -> None:
    """Two may finish the same load at the same time."""
    with contextlib.suppress(FileNotFoundError):
        delete(path)


def place(path: str) -> tuple[Any, str]:
    """File system and path of a URL, or of a path on this machine; ValueError where it is neither."""
    import os

    import pyarrow as pa
    from pyarrow import fs

    try:
        if "://" in path or path.startswith("file:"):
            system, found = fs.FileSystem.from_uri(path)
            return system, found.rstrip("/")
        return fs.LocalFileSystem(), os.path.abspath(path).rstrip("/")  # noqa: PTH100 Arrow wants text
    except (pa.ArrowInvalid, ImportError) as error:
        raise ValueError(str(error)) from error


def _folder(base: str, load: str) -> str:
    return f"{base}/_load-{load}"


def _storable(rows: Any) -> Any:
    """Parquet has no intervals of months; they are written as text."""
    import pyarrow as pa

    for at, field in enumerate(rows.schema):
        if pa.types.is_interval(field.type) or pa.types.is_null(field.type):
            texts = pa.array([None if each is None else str(each) for each in rows.column(at).to_pylist()], pa.string())
            rows = rows.set_column(at, field.name, texts)
    return rows
