"""Rows of one key in different chunks of one task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.rows import tables
from tests.unit.spark.plans import FakeServers, plan

from trimtab.catalog.schema import Table
from trimtab.rows.layout import RowLayout
from trimtab.spark.encoding import encode_chunk, without
from trimtab.spark.known_rows import KnownRows
from trimtab.spark.load_plan import REJECT, LoadPlan, StagedPart
from trimtab.spark.staging import stage

TABLE = tables.table(["text"], ["int"], ["text"], ["int"])  # p0, c0, v0 and the static s0
REJECTING = plan(table=TABLE, on_error=REJECT)


def chunk(rows: Sequence[tuple[str, int | None, str | None]], static: int | None = None) -> pa.Table:
    found = {"p0": [p for p, _, _ in rows], "c0": pa.array([c for _, c, _ in rows], pa.int32())}
    if static is not None:
        found["s0"] = pa.array([static] * len(rows), pa.int32())
    return pa.table(found | {"v0": pa.array([v for _, _, v in rows], pa.string())})


def rejected(*parts: pa.Table, **options: int) -> list[tuple[str, int, str]]:
    """What is rejected of chunks that come one after the other."""
    layout = RowLayout(TABLE)
    known = KnownRows(layout, **options)
    found = []
    for number, part in enumerate(parts):
        encoded = encode_chunk(layout, part, REJECTING)
        encoded = without(layout, encoded, known.conflicts(encoded), REJECTING)
        if number + 1 < len(parts):
            known.remember(encoded)
        if encoded.rejected is not None:
            found += [(row["p0"], row["c0"], row["v0"]) for row in encoded.rejected.to_pylist()]
    return found


def test_a_row_that_differs_from_one_of_an_earlier_chunk_is_found_and_equal_ones_are_not() -> None:
    first = chunk([("a", 1, "x"), ("a", 2, "x"), ("b", 1, "x")])
    assert rejected(first, chunk([("c", 1, "x")]), chunk([("a", 2, "y"), ("b", 1, "x"), ("b", 2, "y")])) == [
        ("a", 2, "y")
    ]


def test_what_partitions_have_in_common_is_no_row() -> None:
    assert rejected(chunk([("a", 1, "x")], static=1), chunk([("a", 2, "x")], static=2)) == []
    assert rejected(chunk([("a", 1, "x")], static=1), chunk([("a", 1, "y")], static=1)) == [("a", 1, "y")]


def test_a_chunk_that_makes_no_row_at_all_differs_from_nothing() -> None:
    nothing = pa.table({"p0": ["a", "b"], "s0": pa.array([None, None], pa.int32())})
    assert rejected(nothing, chunk([("a", 1, "x")]), nothing) == []


def test_partitions_without_rows_have_none_that_could_differ() -> None:
    alone = ("b", None, None)
    assert rejected(chunk([alone], static=1), chunk([alone], static=2), chunk([("b", 1, "x")], static=3)) == []
    later = chunk([alone, ("a", 1, "y"), alone], static=1)
    assert rejected(chunk([alone, ("a", 1, "x")], static=1), later) == [("a", 1, "y")]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_row_of_each_key_decides_however_many_chunks_there_are(seed: int) -> None:
    rng = random.Random(seed)
    first: dict[tuple[str, int], str] = {}
    parts, expected = [], []
    for _ in range(rng.randint(2, 30)):
        keys = {(rng.choice("abcdef" * 3), rng.randint(0, 30)) for _ in range(rng.randint(1, 20))}
        rows = [(p, c, rng.choice("xy")) for p, c in sorted(keys)]
        expected += [row for row in rows if first.setdefault(row[:2], row[2]) != row[2]]
        parts.append(chunk(rows))
    assert rejected(*parts) == expected


def conflicts_of(of: Table, parts: Sequence[pa.Table]) -> list[set[object]]:
    """The partition keys of rows that are in conflict with earlier chunks, of each chunk."""
    layout, of_load = RowLayout(of), plan(table=of, on_error=REJECT)
    known, found = KnownRows(layout), []
    for part in parts:
        encoded = encode_chunk(layout, part, of_load)
        bad = known.conflicts(encoded)
        found.append({part["p0"][each.row].as_py() for each in bad})
        known.remember(without(layout, encoded, bad, of_load))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_keys_that_are_one_number_are_known_by_it(seed: int) -> None:
    rng = random.Random(seed)
    # Some are alike in all bytes but the first.
    ids = [low + (high << 56) for low in rng.sample(range(1000), 20) for high in (-3, 0, 1)]
    first: dict[int, str] = {}
    parts, expected = [], []
    for _ in range(10):
        rows = {id: rng.choice("xy") for id in rng.sample(ids, 15)}
        expected.append({id for id, value in rows.items() if first.setdefault(id, value) != value})
        parts.append(pa.table({"p0": pa.array(rows, pa.int64()), "v0": list(rows.values())}))
    assert conflicts_of(tables.table(["bigint"], [], ["text"]), parts) == expected


def test_a_text_of_eight_bytes_is_the_same_key_beside_longer_ones_and_alone() -> None:
    # A text of six letters takes eight bytes in a key.
    parts = [pa.table({"p0": keys, "v0": ["x"] * len(keys)}) for keys in (["aaaaaa"], ["bbbbbb", "c"])]
    parts += [pa.table({"p0": ["aaaaaa", "c"], "v0": ["y", "x"]}), pa.table({"p0": ["bbbbbb"], "v0": ["y"]})]
    assert conflicts_of(tables.table(["text"], [], ["text"]), parts) == [set(), set(), {"aaaaaa"}, {"bbbbbb"}]


def test_in_a_partition_of_many_rows_each_conflict_is_found_and_no_other() -> None:
    wide, rows = tables.table(["int"], ["int"], ["int"]), 60_000
    layout, known = RowLayout(wide), KnownRows(RowLayout(wide))
    of_load = plan(table=wide, on_error=REJECT)

    def part(keys: range, value: int) -> pa.Table:
        columns = {"p0": [1] * len(keys), "c0": list(keys), "v0": [value] * len(keys)}
        return pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()})

    known.remember(encode_chunk(layout, part(range(rows), 1), of_load))
    again = part(range(rows - 1000, 2 * rows), 2)
    assert sorted(each.row for each in known.conflicts(encode_chunk(layout, again, of_load))) == list(range(1000))


def test_hashes_that_were_computed_before_are_those_in_the_keys() -> None:
    batch = pa.table({"p0": pa.array([5, 3, 9], pa.int64()), "v0": ["a", "b", "c"]})
    numbered = tables.table(["bigint"], [], ["text"])
    layout = RowLayout(numbered)
    plain, asked = (encode_chunk(layout, batch, plan(table=numbered)).rows for _ in range(2))
    assert plain is not None and asked is not None
    asked.value_hashes()
    assert list(asked.pairs()) == list(plain.pairs())
    parts = {tablet: list(part.pairs()) for tablet, part in asked.by_tablet(8)}
    assert parts == {tablet: list(part.pairs()) for tablet, part in plain.by_tablet(8)}


def test_so_many_rows_are_remembered_and_no_more() -> None:
    parts = [chunk([("a", 1, "x"), ("a", 2, "x")]), chunk([("b", 1, "x"), ("b", 2, "x")])]
    again = chunk([("a", 1, "y"), ("b", 1, "y")])
    assert rejected(*parts, again, max_rows=3) == [("a", 1, "y")]


def staged(tmp_path: Path, of: LoadPlan, attempt: str) -> StagedPart:
    servers = FakeServers(tmp_path / "servers")
    batches = [pa.record_batch({"p0": [n, n + 1], "v1": [f"of {n}", f"of {n}"]}) for n in (10, 20, 11)]
    return stage(of, lambda _: batches, attempt, connect=servers.connect)


def test_a_task_finds_rows_of_one_key_in_all_that_it_reads(tmp_path: Path) -> None:
    part = staged(tmp_path, plan(chunk_rows=2), "a0")
    assert "the row with p0=11: an earlier row of the load has the key p0=11 and is not the same" in part.failed
    of = plan(chunk_rows=2, on_error=REJECT, rejected=str(tmp_path / "aside"))
    part = staged(tmp_path, of, "a1")
    assert (part.failed, part.rows, part.rejected) == ("", 5, 1)
    (path,) = (tmp_path / "aside").rglob("*.parquet")
    assert pq.read_table(path).column("v1").to_pylist() == ["of 11"]
