"""Rows of a load, and what becomes of those that can't be written."""

from __future__ import annotations

import decimal
import re
import struct
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.rows import tables
from tests.unit.spark.plans import STAMP_US, plan, users
from tests.unit.spark.read_files import batches

from trimtab.rows.keys import ROWS, STATIC, stamp_of
from trimtab.rows.layout import RowLayout
from trimtab.spark.checking import types_of
from trimtab.spark.encoding import REASON, chunks, encode_chunk
from trimtab.spark.file_splits import FileOptions
from trimtab.spark.load_plan import FAIL, REJECT, LoadFailed

LAYOUT = RowLayout(users())


def frame(rows: list[tuple[object, ...]]) -> pa.Table:
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.int64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.table(columns, names=["p0", "v0", "v1", "v2"])


GOOD = [(n, n / 2, f"row {n}", n) for n in range(100)]


def test_good_rows_are_all_taken() -> None:
    encoded = encode_chunk(LAYOUT, frame(GOOD), plan())
    assert (encoded.taken.num_rows, encoded.rejected) == (100, None)
    assert encoded.rows is not None and len(encoded.rows) == 100


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((None, 0.5, "x", 1), "p0=None: key column p0 is null"),
        ((7_000, 0.5, "x", 3_000_000_000), "p0=7000: column v2 (int): .*3000000000"),
    ],
)
def test_the_first_bad_row_is_named(bad: tuple[object, ...], why: str) -> None:
    with pytest.raises(LoadFailed, match=f"the row with {why.replace('(', '[(]').replace(')', '[)]')}.*onError=reject"):
        encode_chunk(LAYOUT, frame([*GOOD, bad, (None, None, None, None)]), plan())


def test_bad_rows_go_aside_with_their_reasons() -> None:
    rows = [*GOOD, (None, 0.5, "no key", 1), (200, 0.5, "too large", 1 << 40), (201, 0.5, "good", 1)]
    encoded = encode_chunk(LAYOUT, frame(rows), plan(on_error=REJECT))
    assert encoded.taken.num_rows == 101
    assert encoded.rejected.column("v1").to_pylist() == ["no key", "too large"]
    first, second = encoded.rejected.column(REASON).to_pylist()
    assert first == "key column p0 is null"
    assert "column v2 (int)" in second and "1099511627776" in second


def test_rows_of_one_key_that_differ_are_bad_and_equal_ones_are_one() -> None:
    rows = [*GOOD, (5, 2.5, "row 5", 5), (6, 3.0, "another six", 6)]
    with pytest.raises(LoadFailed, match="2 rows of the load have the key p0=6 and are not the same"):
        encode_chunk(LAYOUT, frame(rows), plan())
    encoded = encode_chunk(LAYOUT, frame(rows), plan(on_error=REJECT))
    assert encoded.taken.num_rows == 100  # 99 keys, one of them twice
    assert encoded.rows is not None and len(encoded.rows) == 99
    assert sorted(encoded.rejected.column("v1").to_pylist()) == ["another six", "row 6"]


def test_a_key_that_is_too_long_is_a_bad_row() -> None:
    layout = RowLayout(tables.table(["text"], [], ["int"]))
    chunk = pa.table({"p0": ["a", "b" * 70_000, "c", ""], "v0": pa.array([1, 2, 3, 4], pa.int32())})
    encoded = encode_chunk(layout, chunk, plan(on_error=REJECT))
    assert encoded.taken.num_rows == 2
    long, empty = encoded.rejected.column(REASON).to_pylist()
    assert "65535" in long and "empty" in empty
    with pytest.raises(LoadFailed, match=r"p0='bbbbb.*…: "):
        encode_chunk(layout, chunk, plan())


def test_a_column_of_a_wrong_type_is_no_matter_of_rows() -> None:
    chunk = pa.table({"p0": [1, 2], "v2": ["one", "two"]})
    with pytest.raises(LoadFailed, match=r"column v2 .int.: string can't be int"):
        encode_chunk(LAYOUT, chunk, plan(on_error=REJECT))


def test_texts_of_files_that_are_no_utf8_are_bad_rows() -> None:
    texts = pa.array([b"fine", b"\xff\xfe"]).view(pa.string())
    chunk = pa.table({"p0": [1, 2], "v1": texts})
    encoded = encode_chunk(LAYOUT, chunk, plan(on_error=REJECT), trusted=False)
    assert encoded.taken.num_rows == 1
    assert encoded.rejected.column(REASON).to_pylist() == ["column v1 (text): a text that is not UTF-8"]


def test_what_spark_has_no_type_for_comes_as_text_and_structs() -> None:
    table = msgspec.structs.replace(tables.table(["uuid"], [], ["duration", "varint"]), tablets=2)
    layout = RowLayout(table)
    good = "123e4567-e89b-12d3-a456-426614174000"
    chunk = pa.table(
        {
            "p0": [good, "no uuid"],
            "v0": [{"months": 1, "days": 2, "nanoseconds": 3}, None],
            "v1": [decimal.Decimal(5), decimal.Decimal(6)],
        }
    )
    encoded = encode_chunk(layout, chunk, plan(table=table, on_error=REJECT))
    assert encoded.taken.num_rows == 1
    assert "no uuid" in encoded.rejected.column(REASON).to_pylist()[0]


def test_every_version_has_the_stamp_of_the_load() -> None:
    layout = RowLayout(tables.table(["bigint"], ["int"], ["set<int>"], ["set<int>", "map<text, bigint>"]))
    lists = pa.list_(pa.int32())
    chunk = pa.table(
        {
            "p0": [1, 2, 3],
            "c0": pa.array([1, 2, 3], pa.int32()),
            "v0": pa.array([[], [1], None], lists),
            "s0": pa.array([[], [2], None], lists),
            "s1": pa.array([[], [("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    encoded = encode_chunk(layout, chunk, plan())
    assert encoded.rows is not None
    assert [stamp_of(key) for key, _ in encoded.rows.pairs()] == [STAMP_US] * 4


EVENTS = RowLayout(tables.table(["int"], ["int", "text"], ["int"], ["text"]))  # p0, c0, c1, v0 and the static s0
LACKS = "is null; only a row with static values, and none in any clustering or regular column, may lack it"


def events(*rows: tuple[object, ...]) -> pa.Table:
    kinds = [pa.int32(), pa.int32(), pa.string(), pa.int32(), pa.string()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.table(columns, names=["p0", "c0", "c1", "v0", "s0"])


@pytest.mark.parametrize("on_error", [FAIL, REJECT])
def test_a_partition_without_rows_is_written_back_as_it_was_read(on_error: str) -> None:
    chunk = events((1, 1, "a", 5, "x"), (99, None, None, None, "st"), (99, None, None, None, "st"), (2, 1, "a", 5, "y"))
    encoded = encode_chunk(EVENTS, chunk, plan(table=EVENTS.table, on_error=on_error))
    assert (encoded.taken.num_rows, encoded.rejected) == (4, None)
    assert encoded.rows is not None
    stored = [(key[8:12], key[12:13]) for key, _ in encoded.rows.pairs()]
    assert sorted(section for _, section in stored) == sorted([STATIC] * 3 + [ROWS] * 2)
    assert [section for partition, section in stored if partition == struct.pack(">I", 99 | 1 << 31)] == [STATIC]


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_files_of_partitions_without_rows_are_written_back(format: str, tmp_path: Path) -> None:
    chunk, path = events((99, None, None, None, "st"), (98, None, None, None, "")), tmp_path / f"events.{format}"
    if format == "csv":
        path.write_text('p0,c0,c1,v0,s0\n99,,,,st\n98,,,,""\n')
    elif format == "json":
        path.write_text('{"p0": 99, "s0": "st"}\n{"p0": 98, "c0": null, "s0": ""}\n')
    else:
        pq.write_table(chunk, path)
    columns = {name: kind.name for name, kind in types_of(EVENTS).items()}
    read = pa.Table.from_batches(batches(path, FileOptions(format), columns=columns))
    rows = [encode_chunk(EVENTS, each, plan(table=EVENTS.table)).rows for each in (read, chunk)]
    first, second = (list(each.pairs()) for each in rows if each is not None)
    assert first == second
    assert [key[12:13] for key, _ in first] == [STATIC] * 2


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((99, 1, None, None, "st"), f"p0=99, c0=1, c1=None: key column c1 {LACKS}"),
        ((99, None, "a", None, "st"), f"p0=99, c0=None, c1='a': key column c0 {LACKS}"),
        ((99, None, None, 5, "st"), f"p0=99, c0=None, c1=None: key column c0 {LACKS}"),
        ((99, None, None, None, None), f"p0=99, c0=None, c1=None: key column c0 {LACKS}"),
        ((None, None, None, None, "st"), "p0=None, c0=None, c1=None: key column p0 is null"),
    ],
)
def test_any_other_row_without_its_whole_key_is_bad(bad: tuple[object, ...], why: str) -> None:
    chunk = events((98, None, None, None, "st"), bad, (1, 1, "a", 5, "x"))
    with pytest.raises(LoadFailed, match=re.escape(f"the row with {why}. ")):
        encode_chunk(EVENTS, chunk, plan(table=EVENTS.table))
    encoded = encode_chunk(EVENTS, chunk, plan(table=EVENTS.table, on_error=REJECT))
    assert encoded.taken.num_rows == 2
    assert encoded.rejected.to_pylist()[0] == dict(zip(chunk.schema.names, bad, strict=True)) | {
        REASON: why.split(": ")[1]
    }


def test_rows_of_one_key_are_named_though_static_rows_lie_between_them() -> None:
    chunk = events((7, None, None, None, "s"), (1, 1, "a", 5, "x"), (8, None, None, None, "s"), (1, 1, "a", 6, "x"))
    encoded = encode_chunk(EVENTS, chunk, plan(table=EVENTS.table, on_error=REJECT))
    assert encoded.rejected.column("v0").to_pylist() == [5, 6]
    assert encoded.taken.column("p0").to_pylist() == [7, 8]


def test_a_null_in_a_collection_is_a_bad_row_and_told_as_such() -> None:
    layout = RowLayout(tables.table(["int"], [], ["list<int>"]))
    chunk = pa.table({"p0": pa.array([1, 2], pa.int32()), "v0": pa.array([[1], [1, None]], pa.list_(pa.int32()))})
    with pytest.raises(LoadFailed, match=r"p0=2: column v0 .list<int>.: an element of list<int> is null"):
        encode_chunk(layout, chunk, plan(table=layout.table))


def test_batches_are_put_together_up_to_a_size_and_no_further() -> None:
    batches = [pa.record_batch({"a": list(range(n))}) for n in (10, 0, 10, 35, 3)]
    cut = list(chunks(batches, rows=20, size_bytes=1 << 20))
    found = [each for each, _ in cut]
    assert [more for _, more in cut] == [True, True, False]
    assert [each.num_rows for each in found] == [20, 20, 18]
    assert [n for each in found for n in each.column("a").to_pylist()] == [
        *range(10),
        *range(10),
        *range(35),
        *range(3),
    ]
    assert max(each.num_rows for each, _ in chunks(batches, rows=1000, size_bytes=80)) <= 10
