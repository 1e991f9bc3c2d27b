"""SST files outside of a node: sorted runs that a tablet can ingest, and snapshots that can be read in batches.

A bulk task writes one run per tablet and never opens a database for it; the file has the options of tablet stores, so
that a node takes it over as it is. A snapshot is a checkpoint's directory: closed, complete and never changed, so it is
opened read-only, by as many readers as there are.

Keys and values come and go as columns (`Ragged`). RocksDB wants an object each, so files are written without it
(`sst_writing`); where it reads a snapshot, objects are made a few thousand at a time, in memory that is still warm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import rocksdict

from trimtab.rows.ragged import Ragged, from_list, stack
from trimtab.rows.sorted_rows import SortedRows
from trimtab.rows.tokens import AFTER_ALL, TOKEN_BYTES
from trimtab.storage import sst_columns
from trimtab.storage.port import Corrupt, StorageError
from trimtab.storage.rocks_options import RocksOptions, opened
from trimtab.storage.sorted_streams import merged
from trimtab.storage.sst_file import TableFile, Unreadable, open_table
from trimtab.storage.sst_writing import TableWriter, Target, block_bytes_of
from trimtab.storage.store_files import sync_path

READ_ROWS = 65_536  # in one batch of columns
_BATCH_BYTES = 32 * 1024 * 1024  # or so many bytes
_FETCH_PAIRS = 4096  # that are objects at a time
_FETCH_BYTES = 4 * 1024 * 1024
_FIRST_PAIRS = 64
_READAHEAD_BYTES = 2 * 1024 * 1024
_CACHE_BYTES = 8 * 1024 * 1024
_FROM = bytes(TOKEN_BYTES)  # what a store keeps for itself lies below every row


@dataclass(frozen=True, slots=True)
class Run:
    """A file of sorted rows."""

    path: Path
    rows: int
    file_bytes: int
    first: bytes
    last: bytes


def table_options(options: RocksOptions | None = None) -> rocksdict.Options:
    """The options of tablet stores, for files and databases that no node has open."""
    cache = rocksdict.Cache(_CACHE_BYTES)
    return (options or RocksOptions()).build_small(cache, rocksdict.WriteBufferManager(_CACHE_BYTES, False))


def write_run(path: Path | str, rows: SortedRows, *, durable: bool = True) -> Run:
    """Write rows to a new file. `durable`: it is on the disk when this returns, its name included."""
    target = Path(path)
    if not len(rows):
        raise StorageError(f"can't write {target}: there are no rows, and an SST file has at least one")
    if target.exists():
        raise StorageError(f"can't write {target}: the name is taken")
    try:
        writer, file_bytes = write_table(target, rows, durable=durable)
        if durable:
            sync_path(target.parent)
    except Exception as error:
        target.unlink(missing_ok=True)
        raise StorageError(f"writing {target}: {error}") from error
    return Run(target, writer.rows, file_bytes, writer.first, writer.last)


def write_table(target: Path | Target, rows: SortedRows, *, durable: bool = False) -> tuple[TableWriter, int]:
    """Write rows to a new file; what it was written with, and its bytes."""
    with TableWriter(target, block_bytes=block_bytes_of(rows.size)) as writer:
        for key_parts, values in rows.parts():
            writer.add(key_parts, values)
        return writer, writer.finish(durable=durable)


def write_runs(
    folder: Path | str, rows: SortedRows, tablets: int, name: str, *, durable: bool = True
) -> dict[int, Run]:
    """One run for each tablet that has rows, as `<tablet>.<name>.sst`."""
    return {
        tablet: write_run(Path(folder) / f"{tablet}.{name}.sst", part, durable=durable)
        for tablet, part in rows.by_tablet(tablets)
    }


def small_batches(path: Path) -> Iterator[tuple[Ragged, Ragged]] | None:
    """All keys and values of a small checkpoint, in order, without RocksDB: opening that takes longer than reading it.

    A checkpoint has the files that are alive and no others. None: RocksDB has to read it.
    """
    if not (path / "CURRENT").is_file() or any(log.stat().st_size for log in path.glob("*.log")):
        return None
    try:
        tables = [open_table(file) for file in sorted(path.glob("*.sst"))]
    except (Unreadable, OSError):
        return None
    return merged(_between([table], _FROM, AFTER_ALL, verify=True) for table in tables)


def _between(files: list[TableFile], low: bytes, high: bytes, *, verify: bool) -> Iterator[tuple[Ragged, Ragged]]:
    for file in files:
        for keys, values in sst_columns.batches(file, verify=verify, part=file.between(low, high)):
            places = range(len(keys))
            start = bisect_left(places, low, key=keys.bytes_at)
            stop = bisect_left(places, high, key=keys.bytes_at)
            whole = start == 0 and stop == len(keys)
            yield (keys, values) if whole else (keys.slice(start, stop), values.slice(start, stop))


class Snapshot:
    """A checkpoint of a tablet store, open for reading. Reading it costs the node that made it nothing."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "CURRENT").is_file():
            raise StorageError(f"{self.path} is no snapshot: there is no file CURRENT in it")
        try:
            read_only = rocksdict.AccessType.read_only()
            self._db: rocksdict.Rdict | None = opened(self.path, table_options(), access_type=read_only)
        except Exception as error:
            raise _explain(error, self.path) from error
        self._tables: dict[str, TableFile] = {}

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def batches(
        self, low: bytes = _FROM, high: bytes = AFTER_ALL, *, rows: int = READ_ROWS, verify: bool = True
    ) -> Iterator[tuple[Ragged, Ragged]]:
        """Keys and values with low <= key < high, in order, some at a time.

        A snapshot whose files hold nothing but puts is read without RocksDB, which is several times faster; `verify`
        then compares all that is read with its checksums. Everything else, and what lies within one token, RocksDB
        reads, `rows` at a time.
        """
        if self._db is None:
            raise StorageError(f"{self.path} was closed")
        low = max(low, _FROM)
        wide = low[:TOKEN_BYTES] != high[:TOKEN_BYTES]
        streams = self._files(low, high) if wide else None
        if streams is None:
            return self._iterate(low, high, rows, _READAHEAD_BYTES if wide else 0)
        return merged(_between(files, low, high, verify=verify) for files in streams)

    def _files(self, low: bytes = _FROM, high: bytes = AFTER_ALL) -> list[list[TableFile]] | None:
        """The files of each level below the first, and each of the first by itself. None: RocksDB has to read them."""
        assert self._db is not None
        if any(path.stat().st_size for path in self.path.glob("*.log")):
            return None  # what is there was not in files yet
        levels: dict[int, list[dict[str, Any]]] = {}
        for place, found in enumerate(self._db.live_files()):
            if found["end_key"] >= low and found["start_key"] < high:
                levels.setdefault(found["level"] or -1 - place, []).append(found)
        try:
            return [
                [self._table(each["name"].lstrip("/")) for each in sorted(level, key=itemgetter("start_key"))]
                for level in levels.values()
            ]
        except Unreadable:
            return None
        except OSError as error:
            raise _explain(error, self.path) from error

    def _table(self, name: str) -> TableFile:
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = open_table(self.path / name)
        return found

    def _iterate(
        self, low: bytes, high: bytes, rows: int, readahead_bytes: int = _READAHEAD_BYTES
    ) -> Iterator[tuple[Ragged, Ragged]]:
        assert self._db is not None
        read = rocksdict.ReadOptions()
        read.set_iterate_upper_bound(high)
        read.set_readahead_size(readahead_bytes)
        read.fill_cache(False)  # type: ignore[call-arg]  # the stub lacks the argument
        pairs: Iterator[Any] = self._db.items(False, low, read)
        last = low
        try:
            while True:
                keys, values = _fetch(pairs, rows)
                if not len(keys):
                    break
                last = keys.bytes_at(len(keys) - 1)
                yield keys, values
        except Exception as error:
            raise _explain(error, self.path) from error
        self._check_end(last)

    def _check_end(self, last: bytes) -> None:
        """An iterator that meets damage ends as if the data did; only a second look tells."""
        assert self._db is not None
        probe = self._db.iter()
        try:
            probe.seek(last)
            if probe.valid():
                probe.next()
            probe.status()
        except Exception as error:
            raise _explain(error, self.path) from error


def _fetch(pairs: Iterable[Any], rows: int) -> tuple[Ragged, Ragged]:
    """The next pairs as columns, up to so many rows or bytes; the pairs themselves live only for a moment."""
    keys: list[Ragged] = []
    values: list[Ragged] = []
    size_bytes, some = 0, _FIRST_PAIRS
    while rows > 0 and size_bytes < _BATCH_BYTES:
        flat = list(chain.from_iterable(islice(pairs, min(rows, some))))
        if not flat:
            break
        keys.append(from_list(flat[::2]))
        values.append(from_list(flat[1::2]))
        rows -= len(keys[-1])
        fetched_bytes = keys[-1].size + values[-1].size
        size_bytes += fetched_bytes
        # Rows of a megabyte are fetched a few at a time.
        some = max(1, min(_FETCH_PAIRS, len(keys[-1]) * _FETCH_BYTES // max(1, fetched_bytes)))
    return (stack(keys), stack(values)) if keys else (from_list([]), from_list([]))


def _explain(error: Exception, path: Path) -> Exception:
    if isinstance(error, StorageError):
        return error
    text = str(error)
    if any(word in text for word in ("Corruption", "checksum mismatch", "No such file")):
        return Corrupt(str(path), text, what_to_do="make another snapshot, of another replica")
    return StorageError(f"reading {path}: {text}")
