"""Filters narrow what is read, and never leave out a row that they let through."""

from __future__ import annotations

import datetime as dt
import random
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from tests.unit.rows import tables

from trimtab.rows.keys import row_key, tail
from trimtab.rows.layout import RowLayout
from trimtab.spark.narrowing import MAX_KEYS, key_ranges

COMPARED = {
    EqualTo: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
}


def int_(value: int) -> bytes:
    return struct.pack(">i", value)


def lets_through(each: Filter, row: dict[str, Any]) -> bool:
    value = row[each.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(each, In):
        return value in each.value
    return bool(COMPARED[type(each)](value, each.value))  # type: ignore[index, attr-defined]


def covered(layout: RowLayout, filters: list[Filter], cells: list[bytes]) -> bool:
    ranges = key_ranges(layout, filters)
    key = row_key(layout, cells) + tail(5, 2, b"")
    return ranges is None or any(low <= key < high for low, high in ranges)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_every_row_that_filters_let_through_lies_in_their_ranges(seed: int) -> None:
    rng = random.Random(seed)
    clustering = [rng.choice(["int", "int desc"]) for _ in range(rng.randrange(3))]
    layout = RowLayout(tables.table(["int"] * rng.randint(1, 2), clustering, ["int"]))
    names = [each.name for each in (*layout.partition, *layout.clustering)]
    filters: list[Filter] = []
    for name in names:
        for _ in range(rng.randrange(3)):
            kind = rng.choice([*COMPARED, In])
            value: Any = rng.randrange(-3, 4)
            filters.append(kind((name,), (value, rng.randrange(-3, 4)) if kind is In else value))
    ranges = key_ranges(layout, filters)
    assert ranges is None or ranges == sorted(ranges)
    for _ in range(60):
        row = {name: rng.randrange(-4, 5) for name in names}
        if all(lets_through(each, row) for each in filters):
            assert covered(layout, filters, [int_(row[name]) for name in names])


def test_a_partition_is_read_alone_with_what_deletes_in_it() -> None:
    layout = RowLayout(tables.table(["int"], ["int desc"], ["int"]))
    ranges = key_ranges(layout, [EqualTo(("p0",), 1), GreaterThan(("c0",), 5)])
    assert ranges is not None
    before, rows = ranges
    assert before[1] <= rows[0]
    assert covered(layout, [EqualTo(("p0",), 1), GreaterThan(("c0",), 5)], [int_(1), int_(6)])
    assert not covered(layout, [EqualTo(("p0",), 1), GreaterThan(("c0",), 5)], [int_(1), int_(4)])
    assert not covered(layout, [EqualTo(("p0",), 1)], [int_(2), int_(6)])


def test_what_says_nothing_certain_narrows_nothing() -> None:
    layout = RowLayout(tables.table(["int", "int"], ["decimal"], ["int"]))
    assert key_ranges(layout, []) is None
    assert key_ranges(layout, [EqualTo(("p0",), 1)]) is None
    assert key_ranges(layout, [EqualTo(("p0",), 1), GreaterThan(("p1",), 1)]) is None
    assert key_ranges(layout, [EqualTo(("v0",), 1)]) is None
    assert key_ranges(layout, [Not(EqualTo(("p0",), 1)), EqualTo(("p1",), 1)]) is None
    both: list[Filter] = [EqualTo(("p0",), 1), EqualTo(("p1",), 1)]
    assert key_ranges(layout, [*both, EqualTo(("c0",), 1)]) == key_ranges(layout, both)
    many = tuple(range(MAX_KEYS))
    assert key_ranges(layout, [In(("p0",), many), In(("p1",), (1, 2))]) is None


def test_filters_that_exclude_one_another_leave_nothing() -> None:
    layout = RowLayout(tables.table(["int"], [], ["int"]))
    assert key_ranges(layout, [EqualTo(("p0",), 1), EqualTo(("p0",), 2)]) == []


def test_a_time_that_is_finer_than_cqls_still_finds_its_row() -> None:
    layout = RowLayout(tables.table(["int"], ["timestamp"], ["int"]))
    moment = dt.datetime(2025, 1, 1, 0, 0, 0, 1500, tzinfo=dt.UTC)
    at_ms = int(dt.datetime(2025, 1, 1, tzinfo=dt.UTC).timestamp() * 1000)
    filters: list[Filter] = [EqualTo(("p0",), 1), LessThan(("c0",), moment)]
    assert covered(layout, filters, [int_(1), struct.pack(">q", at_ms + 1)])
    assert not covered(layout, filters, [int_(1), struct.pack(">q", at_ms + 2)])


def test_a_text_that_is_no_uuid_narrows_nothing() -> None:
    layout = RowLayout(tables.table(["uuid"], [], ["int"]))
    assert key_ranges(layout, [EqualTo(("p0",), "no uuid")]) is None
    ranges = key_ranges(layout, [EqualTo(("p0",), "123e4567-e89b-42d3-a456-426614174000")])
    assert ranges is not None
    assert len(ranges) == 1
