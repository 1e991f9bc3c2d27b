"""Whether a frame's columns can be written to a table."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.rows import tables

from trimtab.catalog.types import parse
from trimtab.rows.layout import RowLayout
from trimtab.spark.checking import wrong_columns, wrong_type

STRUCT = pa.struct([("name", pa.string()), ("at", pa.float64())])
DURATION = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ("int", pa.int64()),
        ("bigint", pa.null()),
        ("double", pa.float32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp", pa.timestamp("us")),
        ("date", pa.date32()),
        ("time", pa.int64()),
        ("text", pa.large_string()),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("blob", pa.binary()),
        ("uuid", pa.string()),
        ("timeuuid", pa.binary(16)),
        ("inet", pa.string()),
        ("varint", pa.decimal128(10, 0)),
        ("decimal", pa.decimal128(10, 2)),
        ("duration", DURATION),
        ("list<int>", pa.list_(pa.int64())),
        ("set<uuid>", pa.list_(pa.string())),
        ("map<text, bigint>", pa.map_(pa.string(), pa.int32())),
        ("frozen<tuple<int, text>>", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("frozen<place>", STRUCT),
        ("frozen<place>", pa.struct([("at", pa.float64())])),
    ],
)
def test_what_fits(column: str, given: pa.DataType) -> None:
    assert wrong_type(parse(column, tables.USER_TYPES), given) == ""


@pytest.mark.parametrize(
    ("column", "given", "why"),
    [
        ("int", pa.string(), "string can't be int"),
        ("boolean", pa.int32(), "int32 can't be boolean"),
        ("text", pa.int64(), "int64 can't be text"),
        ("blob", pa.string(), "string can't be blob"),
        ("uuid", pa.int64(), "int64 can't be uuid"),
        ("varint", pa.float64(), "double can't be varint"),
        ("list<int>", pa.int32(), "int32 can't be list<int>"),
        ("list<int>", pa.list_(pa.string()), "string can't be int"),
        ("map<text, int>", pa.list_(pa.int32()), "can't be map<text, int>"),
        ("frozen<place>", pa.struct([("nme", pa.string())]), "can't be"),
        ("frozen<place>", pa.struct([("name", pa.string()), ("name", pa.string())]), "can't be"),
        ("frozen<tuple<int, text>>", pa.struct([("x", pa.int32()), ("y", pa.int32())]), "int32 can't be text"),
        ("counter", pa.int64(), "counters can't be loaded"),
    ],
)
def test_what_does_not_fit(column: str, given: pa.DataType, why: str) -> None:
    assert why in wrong_type(parse(column, tables.USER_TYPES), given)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    layout = RowLayout(tables.table(["bigint", "int"], ["text"], ["int"], ["text"]))
    schema = pa.schema([("p0", pa.string()), ("v0", pa.int32()), ("v0", pa.int32()), ("odd", pa.int32())])
    assert wrong_columns(layout, schema) == [
        "column v0 is there twice",
        "the table has no column odd; it has p0, p1, c0, v0, s0",
        "key column p1, c0 is missing; a row is written with its whole key",
        "column p0 (bigint): string can't be bigint; cast it to int64",
    ]


def test_static_columns_alone_need_no_clustering_key() -> None:
    layout = RowLayout(tables.table(["bigint"], ["text"], ["int"], ["text"]))
    assert wrong_columns(layout, pa.schema([("p0", pa.int64()), ("s0", pa.string())])) == []
