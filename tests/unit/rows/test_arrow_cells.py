"""Columns of Arrow as cells of CQL and back: every way in which Arrow says the same is understood, the rest refused."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.rows import tables
from tests.unit.rows.arrow_rows import cells_of

from trimtab.catalog.types import parse
from trimtab.rows import arrow_cells
from trimtab.rows.arrow_cells import Cells
from trimtab.rows.arrow_types import arrow_type
from trimtab.rows.ragged import from_list

AT = datetime(2024, 2, 29, 12, 30, 15, 678_000, tzinfo=UTC)
SOME = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")


def cell(name: str, value: Any) -> bytes:
    return parse(name, tables.USER_TYPES).serialize(value)


@pytest.mark.parametrize(
    ("name", "array", "value"),
    [
        ("timestamp", pa.array([AT], pa.timestamp("ms", "UTC")), AT),
        ("timestamp", pa.array([AT], pa.timestamp("us", "Europe/Berlin")), AT),
        ("timestamp", pa.array([AT], pa.timestamp("ns")), AT),
        ("timestamp", pa.array([AT.replace(microsecond=0)], pa.timestamp("s")), AT.replace(microsecond=0)),
        ("timestamp", pa.array([-1_500], pa.timestamp("us")), -1),
        ("timestamp", pa.array([date(1970, 1, 2)], pa.date32()), 86_400_000),
        ("timestamp", pa.array([7]), 7),
        ("date", pa.array([date(1969, 12, 31)], pa.date32()), date(1969, 12, 31)),
        ("date", pa.array([date(2024, 2, 29)], pa.date64()), date(2024, 2, 29)),
        ("time", pa.array([time(1, 2, 3)], pa.time32("s")), time(1, 2, 3)),
        ("time", pa.array([time(1, 2, 3, 4)], pa.time64("us")), time(1, 2, 3, 4)),
        ("time", pa.array([5]), 5),
        ("int", pa.array([7], pa.int64()), 7),
        ("bigint", pa.array([7], pa.uint8()), 7),
        ("int", pa.array([7.0]), 7),
        ("double", pa.array([7], pa.int32()), 7.0),
        ("double", pa.array([1.5], pa.float32()), 1.5),
        ("float", pa.array([1.5]), 1.5),
        ("boolean", pa.array([True]), True),
        ("text", pa.array(["ä"], pa.large_string()), "ä"),
        ("text", pa.array(["ä"], pa.string_view()), "ä"),
        ("text", pa.array(["ä"]).dictionary_encode(), "ä"),
        ("ascii", pa.array(["a"]), "a"),
        ("blob", pa.array([b"\x00\xff"]), b"\x00\xff"),
        ("blob", pa.array([b"ab"], pa.binary(2)), b"ab"),
        ("uuid", pa.array([SOME.bytes], pa.binary(16)), SOME),
        ("uuid", pa.array([str(SOME)]), SOME),
        ("uuid", pa.array([SOME], pa.uuid()), SOME),
        ("timeuuid", pa.array([SOME.bytes]), SOME),
        ("inet", pa.array(["10.0.0.1"]), "10.0.0.1"),
        ("varint", pa.array([Decimal(5)], pa.decimal128(38, 0)), 5),
        ("varint", pa.array([5]), 5),
        ("decimal", pa.array([Decimal("1.50")]), Decimal("1.50")),
        ("frozen<list<int>>", pa.array([[1, 2]]), [1, 2]),
        ("frozen<set<text>>", pa.array([["b", "a"]]), {"a", "b"}),
        (
            "frozen<map<int, text>>",
            pa.array([[(2, "b"), (1, "a")]], pa.map_(pa.int32(), pa.string())),
            {1: "a", 2: "b"},
        ),
        ("frozen<tuple<int, text>>", pa.array([{"0": 1, "1": None}]), (1, None)),
        ("frozen<place>", pa.array([{"name": "home", "at": 1.5}]), {"name": "home", "at": 1.5}),
        ("frozen<place>", pa.array([{"name": "home"}]), {"name": "home"}),
    ],
)
def test_what_arrow_says_is_the_cell_that_the_value_has(name: str, array: Any, value: Any) -> None:
    given = parse(name, tables.USER_TYPES)
    assert cells_of(given, array) == [cell(name, value)]
    with_null = pa.concat_arrays([array, pa.nulls(1, array.type)])
    assert cells_of(given, with_null.slice(1)) == [None]
    assert cells_of(given, with_null) == [cell(name, value), None]


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("int", pa.array([1 << 31]), "int"),
        ("int", pa.array([1.5]), "int"),
        ("int", pa.array([True]), "bool can't be int"),
        ("int", pa.array(["1"]), "string can't be int; cast it to int32"),
        ("float", pa.array([1e300]), "does not fit float"),
        ("text", pa.array([b"x"]), "binary can't be text"),
        ("blob", pa.array(["x"]), "string can't be blob"),
        ("ascii", pa.array(["ä"]), "ascii can't hold characters above 127"),
        ("date", pa.array([5]), "int64 can't be date"),
        ("time", pa.array([86_400 * 10**9]), "less than a day"),
        ("time", pa.array([-1]), "less than a day"),
        ("timestamp", pa.array(["2024"]), "string can't be timestamp"),
        ("boolean", pa.array([1]), "int64 can't be boolean"),
        ("uuid", pa.array(["nope"]), "a uuid such as"),
        ("timeuuid", pa.array([bytes(16)], pa.binary(16)), "version 1"),
        ("inet", pa.array(["nope"]), "an address"),
        ("varint", pa.array([Decimal("1.5")]), "whole number"),
        ("varint", pa.array([b""]), "varint"),
        ("frozen<list<int>>", pa.array([5]), "a list for"),
        ("frozen<list<int>>", pa.array([["x"]]), "int"),
        ("frozen<list<int>>", pa.array([[1, None]]), "an element of frozen<list<int>> is null, and those of a coll"),
        ("list<duration>", pa.array([[None]]), "an element of list<duration> is null"),
        ("map<text, int>", pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32())), "of map<text, int> is null"),
        ("frozen<place>", pa.array([{"nope": 1}]), "a struct of name, at"),
    ],
)
def test_what_is_no_value_of_the_type_is_refused(name: str, array: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arrow_cells.encode(parse(name, tables.USER_TYPES), array)


@pytest.mark.parametrize("name", [*tables.SIMPLE, "duration", *tables.NESTED])
def test_no_cells_have_the_type_that_cells_have(name: str) -> None:
    given = parse(name, tables.USER_TYPES)
    found = arrow_cells.decode(given, Cells(from_list([])))
    assert len(found) == 0 and found.type == arrow_type(given)


def test_a_number_that_arrow_can_not_hold_is_named() -> None:
    given = parse("varint", {})
    with pytest.raises(ValueError, match=r"a value of varint that does not fit decimal128\(38, 0\)"):
        arrow_cells.decode(given, Cells(from_list([given.serialize(10**40)])))


def test_cells_of_the_wrong_width_are_refused() -> None:
    with pytest.raises(ValueError, match="cells of int have 4 bytes, not 3"):
        arrow_cells.decode(parse("int", {}), Cells(from_list([b"abc"])))


def test_a_slice_of_an_array_is_only_that_slice() -> None:
    whole = pa.array(["a", "bb", None, "dddd"])
    assert cells_of(parse("text", {}), whole.slice(1, 2)) == [b"bb", None]
    numbers = pa.array(np.arange(10, dtype=np.int32))
    assert cells_of(parse("int", {}), numbers.slice(3, 2)) == [cell("int", 3), cell("int", 4)]
    assert cells_of(parse("boolean", {}), pa.array([True, False, True]).slice(1)) == [b"\x00", b"\x01"]
