"""Times of writing and of expiry by the column, beside the code that tells them row by row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows import tables
from tests.unit.rows.arrow_rows import WIDE, types_of
from tests.unit.rows.test_column_reading import NOW_MS, Pairs, in_batches
from tests.unit.rows.world import World

from trimtab.catalog.schema import ColumnKind
from trimtab.rows.column_reading import ColumnReader
from trimtab.rows.columns import encode_table
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import CellMeta, RangeRead
from trimtab.rows.reading import NO_LIMITS, read_range, rows_of, scan_of
from trimtab.rows.tokens import AFTER_ALL

Found = list[list[CellMeta | None]]


def by_the_column(layout: RowLayout, batches: Any, ids: list[int], meta: list[int], now_s: int) -> Found:
    reader = ColumnReader(layout, ids, now_s=now_s, meta=meta)
    found = pa.Table.from_batches(list(reader.read(batches)), schema=reader.schema)
    assert found.column_names[: len(ids)] == [layout.columns[id].name for id in ids]
    columns = [each.to_pylist() for each in found.columns[len(ids) :]]
    stamps, lefts = columns[::2], columns[1::2]
    return [
        [None if stamps[at][row] is None else CellMeta(stamps[at][row], lefts[at][row]) for at in range(len(meta))]
        for row in range(found.num_rows)
    ]


def one_by_one(layout: RowLayout, pairs: Pairs, meta: list[int], now_s: int) -> Found:
    wanted = RangeRead(bytes(8), AFTER_ALL, 1 << 60)
    found = read_range(layout, scan_of(pairs), wanted, now_s, 0, limits=NO_LIMITS)
    return rows_of(layout, found.pairs, meta, now_s, low=bytes(8), high=AFTER_ALL, with_meta=True).metas


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_life_of_a_table_tells_the_same_times(seed: int) -> None:
    rng = random.Random(seed)
    world = World(random.Random(seed))
    for _ in range(rng.choice([5, 25, 60])):
        world.step()
    layout = world.layout
    types = types_of(layout)
    ids = [id for id in world.columns() if not types[id].kinds & WIDE]
    meta = [
        id
        for id in ids
        if layout.columns[id].kind in (ColumnKind.REGULAR, ColumnKind.STATIC) and not types[id].multicell
    ]
    if not meta:
        return
    pairs = sorted({key: value for replica in world.replicas for key, value in replica.items()}.items())
    shown = rng.sample(ids, rng.randrange(len(ids) + 1))
    found = by_the_column(layout, in_batches(rng, pairs), shown, meta, world.now_s)
    assert found == one_by_one(layout, pairs, meta, world.now_s)


def test_rows_of_a_load_tell_its_stamp_and_what_is_left_of_their_life() -> None:
    layout = RowLayout(tables.table(["int"], (), ["int", "text"]))
    table = pa.table({"p0": [1, 2], "v0": [7, None], "v1": ["a", "b"]})
    stored = encode_table(layout, table, timestamp_us=NOW_MS * 1000, now_ms=NOW_MS, ttl_s=100)
    ids = {column.name: column.id for column in layout.table.columns}
    reader = ColumnReader(layout, [ids["p0"]], now_s=NOW_MS // 1000 + 30, meta=[ids["v0"]])
    found = pa.Table.from_batches(list(reader.read(stored.blocks(10)))).sort_by("p0").to_pylist()
    assert found == [
        {"p0": 1, "writetime_v0": NOW_MS * 1000, "ttl_v0": 70},
        {"p0": 2, "writetime_v0": None, "ttl_v0": None},
    ]
