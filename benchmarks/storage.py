"""How fast rows become files and files become rows, beside Parquet: 5 million of (bigint, double, 20 characters, int).

    ours                                         beside
    Arrow table -> sorted rows -> one SST file   pyarrow writing Parquet, LZ4 as in our files
    the file, ingested by a tablet's store       -
    a snapshot of the store -> Arrow table       pyarrow reading Parquet, with one thread and with all cores; and
                                                 both with what was read compared with its checksums
    one row by its key, in process               a goal of 15 µs

Ours does more: it sorts by token, and merges versions while it reads. Nothing waits for a disk on either side: neither
syncs, and files are read out of the page cache. Each round does all of it once, so that a slow minute meets both;
figures are medians over the rounds. Our side runs in one thread.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load import BenchmarkFailed
from benchmarks.report import Options, Report, Row, describe_machine, percentile
from trimtab.catalog.schema import Column, ColumnKind, Layout, Table
from trimtab.node.router.replica_reads import read_cells
from trimtab.rows.column_reading import ColumnReader
from trimtab.rows.columns import encode_table
from trimtab.rows.keys import row_key
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Cell
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_options import RocksOptions
from trimtab.storage.rocks_store import RocksStore
from trimtab.storage.sst import Snapshot, write_run

ROWS = 5_000_000
GETS = 20_000
GET_GOAL_US = 15.0
_CACHE_BYTES = 256 * 1024 * 1024  # more than the rows that are asked for need
_TEXT_BYTES = 20
_STAMP_US = 1_700_000_000_000_000
_NOW_S = 1_700_000_001


class Stopwatch:
    """Seconds by what was done, once a round: as they passed, and of a processor's time.

    The first is what a person waits for, the second does not count what others do on the machine meanwhile.
    """

    def __init__(self) -> None:
        self.passed: dict[str, list[float]] = {}
        self.used: dict[str, list[float]] = {}

    def twice(self, name: str, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Only the second time counts: memory that a process touches for the first time is slow, whoever needs it."""
        work(*arguments, **named)
        return self(name, work, *arguments, **named)

    def __call__(self, name: str, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        started, used = time.perf_counter(), time.process_time()
        result = work(*arguments, **named)
        self.used.setdefault(name, []).append(time.process_time() - used)
        self.passed.setdefault(name, []).append(time.perf_counter() - started)
        return result

    def row(self, case: str, metric: str, ours: Sequence[str], peer: str = "-", theirs: str | None = None) -> list[Row]:
        """Medians over the rounds, of ours added up within a round: of seconds, and of seconds of a processor."""
        return [
            Row(
                case,
                f"{metric}, {unit}",
                statistics.median(map(sum, zip(*(seconds[name] for name in ours), strict=True))),
                peer,
                None if theirs is None else statistics.median(seconds[theirs]),
                "lower",
            )
            for unit, seconds in (("s", self.passed), ("CPU s", self.used))
            if theirs is not None or unit == "s"
        ]


def run(options: Options, say: Callable[[str], None]) -> Report:
    rows = options.rows or ROWS
    report = Report("storage", describe_machine(options.folder))
    say(f"making {rows:,} rows")
    table = _table(rows)
    took, latencies_us, sizes = Stopwatch(), list[float](), dict[str, int]()
    for number in range(1, options.rounds + 1):
        say(f"round {number} of {options.rounds}")
        sizes, some_us = _round(options.folder, table, took)
        latencies_us += some_us
    _add_rows(report, rows, took, sizes, sorted(latencies_us))
    return report


def _round(parent: Path, table: Any, timed: Stopwatch) -> tuple[dict[str, int], list[float]]:
    """Everything once. Bytes of both files, and microseconds of every get."""
    import pyarrow.parquet as pq

    layout, folder = _layout(), parent / "round"
    disk = RocksDisk(folder, options=RocksOptions(block_cache_bytes=_CACHE_BYTES))
    run_path, parquet = folder / "run.sst", folder / "rows.parquet"
    encoded = timed.twice("encode", encode_table, layout, table, timestamp_us=_STAMP_US, now_ms=_NOW_S * 1000)
    made = timed("sst", write_run, run_path, encoded, durable=False)
    del encoded
    timed.twice("parquet write", pq.write_table, table, parquet, compression="lz4")
    checked = folder / "checked.parquet"
    pq.write_table(table, checked, compression="lz4", write_page_checksum=True)
    store = disk.open("tablet", wal=False, small=True)
    timed("ingest", store.ingest, ["run.sst"])
    store.checkpoint("snapshot")
    for verify, name in ((False, "read"), (True, "verified read")):
        _check(timed.twice(name, _read, folder / "snapshot", layout, verify), table)
    timed.twice("parquet read", pq.read_table, parquet, use_threads=False)
    timed.twice("verified parquet read", pq.read_table, checked, use_threads=False, page_checksum_verification=True)
    timed.twice("parquet read, all cores", pq.read_table, parquet)
    sizes = {"sst": made.file_bytes, "parquet": parquet.stat().st_size}
    latencies_us = _gets(store, layout, table.num_rows)
    disk.close()
    shutil.rmtree(folder)
    return sizes, latencies_us


def _layout() -> RowLayout:
    columns = (
        Column(1, "id", "bigint", ColumnKind.PARTITION, 0),
        Column(2, "amount", "double", ColumnKind.REGULAR, 0),
        Column(3, "name", "text", ColumnKind.REGULAR, 1),
        Column(4, "count", "int", ColumnKind.REGULAR, 2),
    )
    return RowLayout(Table(1, "bench", "rows", 1, columns, (Layout(1, (2, 3, 4)),), tablets=1))


def _table(rows: int) -> Any:
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z") + 1, rows * _TEXT_BYTES, dtype=np.uint8)
    ends = (np.arange(rows + 1, dtype=np.int64) * _TEXT_BYTES).astype(np.int32)
    names = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(letters)])
    return pa.table(
        {
            "id": rng.permutation(rows),
            "amount": rng.random(rows),
            "name": names,
            "count": rng.integers(0, 1 << 31, rows, dtype=np.int32),
        }
    )


def _read(snapshot: Path, layout: RowLayout, verify: bool) -> Any:
    import pyarrow as pa

    with Snapshot(snapshot) as opened:
        reader = ColumnReader(layout, now_s=_NOW_S)
        return pa.Table.from_batches(list(reader.read(opened.batches(verify=verify))), schema=reader.schema)


def _check(found: Any, table: Any) -> None:
    """What was measured must have been the whole of it."""
    import pyarrow.compute as pc

    for name in ("id", "count"):
        ours, theirs = pc.sum(found.column(name)).as_py(), pc.sum(table.column(name)).as_py()
        if found.num_rows != table.num_rows or ours != theirs:
            raise BenchmarkFailed(
                f"{found.num_rows} rows were read and {table.num_rows} written; {name} adds up to {ours}, not {theirs}"
            )


class NothingKnown:
    """Rows read lately: none, so that every get goes to the store."""

    def find(self, row_keys: Sequence[bytes], asked: object) -> list[tuple[Cell, ...] | None]:
        return [None] * len(row_keys)

    def keep(self, row_key: bytes, asked: object, cells: tuple[Cell, ...], size_bytes: int) -> None:
        pass


class StoredRows:
    """A store as the code sees it with which a replica reads rows."""

    readable = True
    rows = NothingKnown()

    def __init__(self, store: RocksStore) -> None:
        self.scan = store.scan
        self.read = store.read


def _gets(store: RocksStore, layout: RowLayout, rows: int) -> list[float]:
    """Microseconds of gets by key as a replica does them, from the key's cell to the row's; the block cache is warm."""
    rng = random.Random(0)
    cells = [rng.randrange(rows).to_bytes(8, "big", signed=True) for _ in range(GETS)]
    columns, replica = [2, 3, 4], StoredRows(store)
    latencies_us = []
    clock = time.perf_counter
    for timed in (False, True):
        for cell in cells:
            started = clock()
            (row,) = read_cells(replica, layout, [row_key(layout, [cell])], columns, _NOW_S)
            if timed:
                latencies_us.append((clock() - started) * 1e6)
            if row is None:
                raise BenchmarkFailed(f"row {int.from_bytes(cell, 'big')} was not found")
    return latencies_us


def _add_rows(report: Report, rows: int, took: Stopwatch, sizes: dict[str, int], latencies_us: list[float]) -> None:
    write, read, parquet = f"write {rows:,} rows", f"read {rows:,} rows", "Parquet"
    report.rows += [
        *took.row(write, "encode and sort", ["encode"]),
        *took.row(write, "SST file", ["sst"]),
        *took.row(write, "encode + SST", ["encode", "sst"], parquet, "parquet write"),
        Row(write, "file, MB", sizes["sst"] / 1e6, parquet, sizes["parquet"] / 1e6, "lower"),
        *took.row(write, "ingest", ["ingest"]),
        *took.row(read, "scan + decode", ["read"], parquet, "parquet read"),
        *took.row(read, "every value verified", ["verified read"], "Parquet, verified", "verified parquet read"),
        *took.row(read, "scan + decode", ["read"], "Parquet, all cores", "parquet read, all cores")[:1],
        Row("get by key", "p50 µs", statistics.median(latencies_us), "goal", GET_GOAL_US, "lower"),
        Row("get by key", "p99 µs", percentile(latencies_us, 0.99), "-", None, "lower"),
    ]
    report.notes += [
        "neither side syncs, and files are read out of the page cache",
        "goals: encode + SST and scan + decode within 3× of Parquet; our side runs in one thread",
    ]
