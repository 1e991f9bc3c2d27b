"""What a task makes of the pairs of replicas: stamps left out, replicas merged, columns decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rocksdict
from tests.unit.rows import tables

from trimtab.rows.columns import encode_table
from trimtab.rows.layout import RowLayout
from trimtab.rows.ragged import from_list
from trimtab.spark.options import Connection
from trimtab.spark.reading import _Decoder, pairs, without
from trimtab.spark.scan_plan import ScanPart, ScanPlan
from trimtab.storage.sst import Snapshot, table_options, write_run
from trimtab.tablets.consistency import Level

NOW_MS = 1_700_000_000_000
TABLE = tables.table(["int"], [], ["text"])
LAYOUT = RowLayout(TABLE)
PART = ScanPart(0, ((bytes(8), b"\xff" * 32),), (1, 2))


class Replicas:
    """Stands for copies of replicas that are open."""

    def __init__(self, *snapshots: tuple[Snapshot, frozenset[int]]) -> None:
        self._snapshots = list(snapshots)

    def of(self, part: ScanPart) -> list[tuple[Snapshot, frozenset[int]]]:
        return self._snapshots


def replica(folder: Path, *writes: tuple[int, dict[int, str]]) -> Snapshot:
    """A copy of a replica that got these writes: a stamp, and texts by key."""
    database = rocksdict.Rdict(str(folder), table_options())
    for number, (stamp_us, rows) in enumerate(writes):
        table = pa.table({"p0": pa.array(rows, pa.int32()), "v0": list(rows.values())})
        stored = encode_table(LAYOUT, table, timestamp_us=stamp_us, now_ms=NOW_MS)
        run = write_run(folder.with_name(f"{folder.name}-{number}.sst"), stored, durable=False)
        database.ingest_external_file([str(run.path)])
    database.close()
    return Snapshot(folder)


def read(replicas: Any, as_of_us: int = 0) -> dict[int, str]:
    plan = ScanPlan(
        Connection("127.0.0.1:1"),
        TABLE,
        {},
        ("v0", "p0"),
        ("v0", "p0"),
        0,
        NOW_MS // 1000,
        Level.QUORUM,
        "",
        {},
        as_of_us,
    )
    batches = list(_Decoder(plan).decode(pairs(plan, PART, replicas)))
    return {row["p0"]: row["v0"] for batch in batches for row in batch.to_pylist()}


@pytest.fixture
def old() -> tuple[int, dict[int, str]]:
    return 1000, dict.fromkeys(range(3000), "old")


def test_what_one_replica_lacks_another_has(tmp_path: Path, old: tuple[int, dict[int, str]]) -> None:
    behind = replica(tmp_path / "behind", old)
    ahead = replica(tmp_path / "ahead", old, (2000, {7: "new", 9999: "new"}))
    other = replica(tmp_path / "other", old, (1500, {8: "other"}))
    expected = old[1] | {7: "new", 9999: "new", 8: "other"}
    for order in ((behind, ahead, other), (other, ahead, behind)):
        assert read(Replicas(*((each, frozenset()) for each in order))) == expected
    assert read(Replicas((behind, frozenset()))) == old[1]


def test_replicas_that_are_alike_read_as_one(tmp_path: Path, old: tuple[int, dict[int, str]]) -> None:
    copies = [replica(tmp_path / name, old) for name in ("one", "two")]
    assert read(Replicas(*((each, frozenset()) for each in copies))) == old[1]


def test_rows_of_a_load_that_is_not_seen_yet_are_left_out(tmp_path: Path, old: tuple[int, dict[int, str]]) -> None:
    stamp_us = 1_999
    taken = replica(tmp_path / "taken", old, (stamp_us, {1: "load", 5000: "load"}))
    waiting = replica(tmp_path / "waiting", old)
    hidden = frozenset({stamp_us})
    assert read(Replicas((taken, hidden))) == old[1]
    assert read(Replicas((taken, hidden), (waiting, hidden))) == old[1]
    assert read(Replicas((taken, frozenset())))[5000] == "load"


def test_only_pairs_of_hidden_stamps_are_left_out() -> None:
    stored = encode_table(LAYOUT, pa.table({"p0": [1, 2], "v0": ["a", "b"]}), timestamp_us=999, now_ms=NOW_MS)
    keys, values = zip(*stored.pairs(), strict=True)
    batch = from_list(list(keys)), from_list(list(values))
    assert [len(some) for some, _ in without(iter([batch]), frozenset({998, 1000}))] == [2]
    assert list(without(iter([batch]), frozenset({999}))) == []


def test_a_read_at_a_time_sees_the_versions_of_then(tmp_path: Path, old: tuple[int, dict[int, str]]) -> None:
    found = replica(tmp_path / "one", old, (2000, {7: "new", 9999: "new"}))
    assert read(Replicas((found, frozenset())), as_of_us=1999) == old[1]
