"""Pairs read by the column, beside the code that reads them one by one: the same rows, in the same order."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows import tables
from tests.unit.rows.arrow_rows import WIDE, array_of, cells_of, random_rows, types_of
from tests.unit.rows.world import World

from trimtab.rows import keys
from trimtab.rows.column_reading import ColumnReader, decode_pairs
from trimtab.rows.columns import encode_table
from trimtab.rows.errors import BadRequest, BadRow, DoesNotFit
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import Cell, DeleteRequest, PutRequest, RangeRead
from trimtab.rows.ragged import from_list
from trimtab.rows.reading import NO_LIMITS, judged_s, read_range, rows_of, scan_of
from trimtab.rows.tokens import AFTER_ALL

NOW_MS = 1_700_000_000_000
Pairs = list[tuple[bytes, bytes]]


def in_batches(rng: random.Random, pairs: Pairs) -> Any:
    """Batches that end anywhere, some of them empty."""
    at = 0
    while at < len(pairs):
        size = rng.choice([0, 1, 1, 2, 3, 7, 50])
        some, at = pairs[at : at + size], at + size
        yield from_list([key for key, _ in some]), from_list([value for _, value in some])


def by_the_column(layout: RowLayout, batches: Any, ids: list[int], now_s: int, as_of_us: int = 0) -> list[list[Cell]]:
    reader = ColumnReader(layout, ids, now_s=now_s, as_of_us=as_of_us)
    found = pa.Table.from_batches(list(reader.read(batches)), schema=reader.schema)
    types = types_of(layout)
    columns = [cells_of(types[id], found.column(at)) for at, id in enumerate(ids)]
    return [list(row) for row in zip(*columns, strict=True)] if ids else [[]] * found.num_rows


def one_by_one(layout: RowLayout, pairs: Pairs, ids: list[int], now_s: int, as_of_us: int = 0) -> list[list[Cell]]:
    low, high = bytes(8), AFTER_ALL
    wanted = RangeRead(low, high, 1 << 60)
    now_s = judged_s(now_s, as_of_us)
    found = read_range(layout, scan_of(pairs), wanted, now_s, as_of_us, limits=NO_LIMITS)
    return rows_of(layout, found.pairs, ids, now_s, low=low, high=high).cells


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_life_of_a_table_reads_alike(seed: int) -> None:
    rng = random.Random(seed)
    world = World(random.Random(seed))
    for _ in range(rng.choice([5, 25, 60])):
        world.step()
    union = {key: value for replica in world.replicas for key, value in replica.items()}
    pairs = sorted(union.items())
    types = types_of(world.layout)
    ids = [id for id in world.columns() if not types[id].kinds & WIDE]
    if not ids:
        return
    as_of = world.as_of()
    expected = one_by_one(world.layout, pairs, ids, world.now_s, as_of)
    for _ in range(3):
        found = by_the_column(world.layout, in_batches(rng, pairs), ids, world.now_s, as_of)
        assert found == expected


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_was_encoded_by_the_column_is_decoded_by_it(seed: int) -> None:
    rng = random.Random(seed)
    layout = RowLayout(tables.random_table(rng), tables.USER_TYPES)
    types = types_of(layout)
    ids = [id for id in layout.columns if not types[id].kinds & WIDE]
    keys_ = [each.id for each in (*layout.partition, *layout.clustering)]
    if not set(keys_) <= set(ids):
        return
    rows = random_rows(rng, layout, ids, 40)
    arrays = [array_of(types[id], [row[at] for row in rows]) for at, id in enumerate(ids)]
    table = pa.Table.from_arrays(arrays, names=[layout.columns[id].name for id in ids])
    stored = encode_table(layout, table, timestamp_us=NOW_MS * 1000, now_ms=NOW_MS)
    pairs = list(stored.pairs())
    now_s = NOW_MS // 1000
    assert by_the_column(layout, stored.blocks(7), ids, now_s) == one_by_one(layout, pairs, ids, now_s)


def layout_of(*, clustering: tuple[str, ...] = (), static: tuple[str, ...] = ()) -> RowLayout:
    return RowLayout(tables.table(["int"], clustering, ["int", "text"], static))


def int_(value: int) -> bytes:
    return struct.pack(">i", value)


def put(layout: RowLayout, ids: list[int], *rows: list[Cell], stamp: int = 1, ttl_s: int = 0) -> Pairs:
    request = PutRequest(layout.table.id, layout.table.version, ids, list(rows), ttl_s=ttl_s)
    made = pairs_of_put(layout, request, stamp, NOW_MS)
    return sorted(pair for each in made.values() for pair in zip(each[::2], each[1::2], strict=True))


def read(layout: RowLayout, pairs: Pairs, **how: Any) -> list[dict[str, Any]]:
    pairs = sorted(pairs)
    found = decode_pairs(layout, [key for key, _ in pairs], [value for _, value in pairs], now_s=NOW_MS // 1000, **how)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_a_column_added_later_reads_null_and_a_dropped_one_is_gone() -> None:
    before = layout_of()
    old = put(before, [1, 2, 3], [int_(1), int_(10), b"old"])
    changed = tables.drop_column(tables.add_column(before.table, "bigint"), 2)
    layout = RowLayout(changed)
    new = put(layout, [1, 3, 4], [int_(2), b"new", struct.pack(">q", 7)])
    found = sorted(read(layout, old + new), key=lambda row: row["p0"])
    assert found == [{"p0": 1, "v1": "old", "n4": None}, {"p0": 2, "v1": "new", "n4": 7}]


def test_a_dropped_column_keeps_no_row_alive() -> None:
    before = layout_of()
    request = PutRequest(7, 1, [1, 2], [[int_(1), int_(10)]], update=True)
    made = pairs_of_put(before, request, 1, NOW_MS)
    old = [pair for each in made.values() for pair in zip(each[::2], each[1::2], strict=True)]
    assert len(read(before, old)) == 1
    assert read(RowLayout(tables.drop_column(before.table, 2)), old) == []


def test_expired_rows_and_rows_that_are_newer_than_asked_for_are_not_there() -> None:
    layout = layout_of()
    pairs = put(layout, [1, 2], [int_(1), int_(1)], [int_(2), int_(2)], stamp=5, ttl_s=10)
    pairs += put(layout, [1, 2], [int_(3), int_(3)], stamp=9)
    assert {row["p0"] for row in read(layout, pairs)} == {1, 2, 3}
    assert {row["p0"] for row in read(layout, pairs, as_of_us=5)} == {1, 2}
    later = decode_pairs(layout, *zip(*sorted(pairs), strict=True), now_s=NOW_MS // 1000 + 10)
    assert later.column("p0").to_pylist() == [3]


def test_what_has_expired_since_is_there_in_a_read_as_of_a_time_before() -> None:
    layout, now_us = layout_of(), NOW_MS * 1000
    pairs = put(layout, [1, 2], [int_(1), int_(1)], stamp=now_us, ttl_s=10)
    for as_of_us, rows in ((now_us + 9_999_999, 1), (now_us + 10_000_000, 0), (0, 0)):
        found = decode_pairs(layout, *zip(*pairs, strict=True), now_s=NOW_MS // 1000 + 60, as_of_us=as_of_us)
        assert found.num_rows == rows


def test_a_row_whose_versions_lie_in_several_batches_is_one_row() -> None:
    layout = layout_of()
    pairs = sorted(pair for stamp in range(1, 6) for pair in put(layout, [1, 2], [int_(1), int_(stamp)], stamp=stamp))
    single = [(from_list([key]), from_list([value])) for key, value in pairs]
    assert by_the_column(layout, single, [1, 2], NOW_MS // 1000) == [[int_(1), int_(5)]]


def test_a_deletion_in_one_batch_covers_rows_in_the_next() -> None:
    layout = layout_of(clustering=("int",))
    pairs = put(layout, [1, 2, 3], *[[int_(1), int_(n), int_(n)] for n in range(10)], stamp=5)
    pairs += put(layout, [1, 2, 3], [int_(1), int_(20), int_(20)], stamp=9)
    delete = pairs_of_delete(layout, DeleteRequest(7, 1, [int_(1)]), 6, NOW_MS)
    for each in delete.values():
        pairs += zip(each[::2], each[1::2], strict=True)
    single = [(from_list([key]), from_list([value])) for key, value in sorted(pairs)]
    assert by_the_column(layout, single, [2], NOW_MS // 1000) == [[int_(20)]]


def test_a_partition_of_which_only_the_static_row_lives_is_one_row_though_it_spans_batches() -> None:
    layout = layout_of(clustering=("int",), static=("text",))
    pairs = put(layout, [1, 3], [int_(1), b"static"])
    for n in range(5):
        row = [int_(1), int_(n)]
        pairs += put(layout, [1, 2, 4], [*row, int_(n)], stamp=5)
        gone = pairs_of_delete(layout, DeleteRequest(7, 1, [int_(1)], row[1:]), 6, NOW_MS)
        pairs += [pair for each in gone.values() for pair in zip(each[::2], each[1::2], strict=True)]
    pairs += put(layout, [1, 2, 4], [int_(2), int_(0), int_(0)])
    single = [(from_list([key]), from_list([value])) for key, value in sorted(pairs)]
    found = by_the_column(layout, single, [1, 2, 3], NOW_MS // 1000)
    assert sorted(found, key=str) == sorted([[int_(1), None, b"static"], [int_(2), int_(0), None]], key=str)


def test_no_pairs_are_no_rows() -> None:
    layout = layout_of()
    found = decode_pairs(layout, [], [], now_s=0)
    assert found.num_rows == 0 and found.schema.names == ["p0", "v0", "v1"]


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(BadRequest, match="no column 99"):
        ColumnReader(layout_of(), [99], now_s=0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda key, value: (key[:20], value),
        lambda key, value: (key, b""),
        lambda key, value: (key, value[:-1]),
        lambda key, value: (key, value[:6]),
        lambda key, value: (key, b"\x40" + value[1:]),
        lambda key, value: (key, value[:1] + b"\x00\x63" + value[3:]),
        lambda key, value: (key[:-9] + b"\x09" + key[-8:], value),
    ],
)
def test_damaged_pairs_are_named_and_not_read(damage: Any) -> None:
    layout = layout_of()
    pairs = put(layout, [1, 2, 3], [int_(1), int_(2), b"text"], [int_(2), int_(2), b"other"])
    with pytest.raises(BadRow):
        read(layout, [damage(*pairs[0]), pairs[1]])


def test_keys_module_and_columns_agree_on_where_a_row_key_ends() -> None:
    layout = layout_of()
    ((key, _),) = put(layout, [1, 2], [int_(1), int_(2)])
    assert key[: -keys.TAIL] == keys.row_key(layout, [int_(1)])


@pytest.mark.parametrize("kind", ["decimal", "list<decimal>"])
def test_a_value_that_arrow_can_not_hold_is_told_with_its_table_and_column(kind: str) -> None:
    layout = RowLayout(tables.table(["int"], [], ["text", kind]), {})
    digits = Decimal("0.12345678901234567890")
    cell = types_of(layout)[3].serialize(digits if kind == "decimal" else [digits])
    with pytest.raises(DoesNotFit, match=rf"^{layout.name}: column v1: a value of {kind} that .*0\.12345678901234567"):
        read(layout, put(layout, [1, 3], [int_(1), cell]))
