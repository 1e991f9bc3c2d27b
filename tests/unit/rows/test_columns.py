"""Tables encoded by the column, beside the same rows put one by one: the same pairs, byte for byte."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows import tables
from tests.unit.rows.arrow_rows import array_of, random_rows, types_of

from trimtab.catalog.schema import ColumnKind, TableOptions
from trimtab.rows import columns
from trimtab.rows.column_reading import decode_pairs
from trimtab.rows.columns import encode_table
from trimtab.rows.errors import BadRequest
from trimtab.rows.keys import ROWS, STATIC, TAIL, prefix_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import canonical
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import Cell, PutRequest

NOW_MS = 1_700_000_000_123
STAMP_US = 1_700_000_000_000_000


OF_ROWS = (ColumnKind.CLUSTERING, ColumnKind.REGULAR)


def is_static(kinds: dict[int, ColumnKind], ids: list[int], row: list[Cell]) -> bool:
    return ColumnKind.CLUSTERING in kinds.values() and all(
        cell is None for id, cell in zip(ids, row, strict=True) if kinds[id] in OF_ROWS
    )


def without_row(rng: random.Random, layout: RowLayout, ids: list[int], row: list[Cell]) -> list[Cell]:
    """The same as it is read of a partition that has static values and no rows; now and then, where it has any."""
    kinds = [layout.columns[id].kind for id in ids]
    static = any(cell is not None for kind, cell in zip(kinds, row, strict=True) if kind is ColumnKind.STATIC)
    if not static or rng.random() < 0.7:
        return row
    return [None if kind in OF_ROWS else cell for kind, cell in zip(kinds, row, strict=True)]


def one_by_one(
    layout: RowLayout, ids: list[int], rows: list[list[Cell]], *, ttl_s: int, update: bool, delete_nulls: bool
) -> list[tuple[bytes, bytes]]:
    """What `pairs_of_put` makes of the rows, those of one key merged; of one that `is_static` it is told no more."""
    kinds = {id: layout.columns[id].kind for id in ids}
    by_row: dict[bytes, list[bytes]] = {}
    for row in rows:
        keys = (ColumnKind.PARTITION, ColumnKind.CLUSTERING)
        alone = is_static(kinds, ids, row)
        given = [
            (id, cell)
            for id, cell in zip(ids, row, strict=True)
            if (cell is not None or delete_nulls or kinds[id] in keys) and not (alone and kinds[id] in OF_ROWS)
        ]
        request = PutRequest(
            layout.table.id,
            layout.table.version,
            [id for id, _ in given],
            [[cell for _, cell in given]],
            ttl_s=ttl_s,
            update=update,
        )
        for pairs in pairs_of_put(layout, request, STAMP_US, NOW_MS).values():
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                by_row.setdefault(key[:-TAIL], []).extend((key, value))
    found: list[tuple[bytes, bytes]] = []
    for row_key, pairs in by_row.items():
        static = row_key[len(prefix_of(layout, row_key)) :] == STATIC and bool(layout.clustering)
        merged = canonical(layout, pairs, static=static) if len(pairs) > 2 else pairs
        found += zip(merged[::2], merged[1::2], strict=True)
    return sorted(found)


def arrow_table(layout: RowLayout, ids: list[int], rows: list[list[Cell]]) -> pa.Table:
    types = types_of(layout)
    arrays = [array_of(types[id], [row[at] for row in rows]) for at, id in enumerate(ids)]
    return pa.Table.from_arrays(arrays, names=[layout.columns[id].name for id in ids])


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_table_is_encoded_as_its_rows_are(seed: int) -> None:
    rng = random.Random(seed)
    made = tables.random_table(rng)
    for _ in range(rng.choice([0, 0, 1])):
        made = tables.add_column(made, rng.choice(tables.VALUE_TYPES))
    layout = RowLayout(made, tables.USER_TYPES)
    keys = [each.id for each in (*layout.partition, *layout.clustering)]
    others = [id for id in layout.columns if id not in keys and rng.random() < 0.8]
    ids = keys + others
    rng.shuffle(ids)
    rows = [without_row(rng, layout, ids, row) for row in random_rows(rng, layout, ids, rng.choice([0, 1, 2, 30]))]
    how = {"ttl_s": rng.choice([0, 60]), "update": rng.random() < 0.4, "delete_nulls": rng.random() < 0.4}
    found = encode_table(layout, arrow_table(layout, ids, rows), timestamp_us=STAMP_US, now_ms=NOW_MS, **how)
    assert list(found.pairs()) == one_by_one(layout, ids, rows, **how)


@pytest.mark.parametrize("key", tables.KEY_TYPES)
@pytest.mark.parametrize("direction", ["", " desc"])
def test_keys_of_every_type_in_both_directions(key: str, direction: str) -> None:
    rng = random.Random(1)
    layout = RowLayout(tables.table([key], [key + direction, "int"], ["text"]), tables.USER_TYPES)
    ids = [*layout.columns]
    rows = random_rows(rng, layout, ids, 200)
    found = encode_table(layout, arrow_table(layout, ids, rows), timestamp_us=STAMP_US, now_ms=NOW_MS)
    assert list(found.pairs()) == one_by_one(layout, ids, rows, ttl_s=0, update=False, delete_nulls=False)


def numbers(count: int, *, seed: int = 0) -> tuple[RowLayout, pa.Table]:
    layout = RowLayout(tables.table(["bigint"], [], ["double", "text", "int"]))
    rng = np.random.default_rng(seed)
    return layout, pa.table(
        {
            "p0": rng.permutation(count),
            "v0": rng.random(count),
            "v1": [f"{n:020}" for n in range(count)],
            "v2": rng.integers(-5, 5, count, dtype=np.int32),
        }
    )


def plain_rows(table: pa.Table) -> list[list[Cell]]:
    return [
        [struct.pack(">q", p), struct.pack(">d", d), t.encode(), struct.pack(">i", i)]
        for p, d, t, i in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]


@pytest.mark.parametrize("limit", [("BLOCK_ROWS", 100), ("_BLOCK_BYTES", 5000)])
def test_many_rows_in_several_blocks_and_chunks(monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]) -> None:
    monkeypatch.setattr(columns, *limit)
    layout, table = numbers(1000)
    chunked = pa.concat_tables([table.slice(0, 333), table.slice(333, 1), table.slice(334)])
    small = pa.Table.from_batches(table.to_batches(max_chunksize=7))
    pieces = {name: pa.chunked_array(table[name].slice(at, 90) for at in range(0, 1000, 90)) for name in ("v0", "v2")}
    uneven = pa.table({"p0": table["p0"], "v0": pieces["v0"], "v1": small["v1"], "v2": pieces["v2"]})
    expected = one_by_one(layout, [1, 2, 3, 4], plain_rows(table), ttl_s=0, update=False, delete_nulls=False)
    for given_table in (table, chunked, small, uneven, table.combine_chunks().to_batches()[0]):
        found = encode_table(layout, given_table, timestamp_us=STAMP_US, now_ms=NOW_MS)
        assert list(found.pairs()) == expected


def test_dictionaries_that_cannot_be_one_are_taken_as_they_come() -> None:
    layout, table = numbers(300)
    chunks = [table["v1"].slice(at, 100).combine_chunks() for at in range(0, 300, 100)]
    small = pa.dictionary(pa.int8(), pa.string())
    coded = pa.chunked_array([chunk.dictionary_encode().cast(small) for chunk in chunks])
    given_table = table.set_column(2, "v1", coded)
    found, plain = (encode_table(layout, each, timestamp_us=STAMP_US, now_ms=NOW_MS) for each in (given_table, table))
    assert list(found.pairs()) == list(plain.pairs())


def test_rows_of_one_key_become_one_and_the_greater_cells_win() -> None:
    layout = RowLayout(tables.table(["int"], [], ["int", "text"]))
    table = pa.table(
        {
            "p0": pa.array([1, 2, 1, 1], pa.int32()),
            "v0": pa.array([5, 1, 9, None], pa.int32()),
            "v1": ["b", "x", "a", "c"],
        }
    )
    found = list(encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS).pairs())
    assert len(found) == 2
    merged = next(value for key, value in found if key[8:12] == b"\x80\x00\x00\x01")
    assert merged.endswith(struct.pack(">iI", 9, 1) + b"c")


def test_every_tablet_gets_its_own_rows() -> None:
    layout, table = numbers(1000)
    whole = encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS)
    parts = dict(whole.by_tablet(8))
    assert [*parts] == [*range(8)]
    assert [pair for part in parts.values() for pair in part.pairs()] == list(whole.pairs())
    for tablet, part in parts.items():
        assert {key[0] >> 5 for key, _ in part.pairs()} == {tablet}
    assert [tablet for tablet, _ in whole.by_tablet(1)] == [0]
    with pytest.raises(ValueError, match="power of two"):
        next(whole.by_tablet(6))


def test_a_table_of_no_rows_is_no_rows() -> None:
    layout, table = numbers(0)
    found = encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS)
    assert len(found) == 0 and list(found.pairs()) == [] and list(found.by_tablet(4)) == []


def test_rows_of_a_few_large_partitions_are_sorted_too() -> None:
    layout = RowLayout(tables.table(["int"], ["text desc", "int"], ["int"]))
    rng = random.Random(2)
    ids = [*layout.columns]
    rows: list[list[Cell]] = [
        [struct.pack(">i", rng.randrange(3)), rng.choice([b"a", b"bb", b"a\x00"]), struct.pack(">i", n), b"\x00" * 4]
        for n in range(500)
    ]
    found = encode_table(layout, arrow_table(layout, ids, rows), timestamp_us=STAMP_US, now_ms=NOW_MS)
    assert list(found.pairs()) == one_by_one(layout, ids, rows, ttl_s=0, update=False, delete_nulls=False)


def test_the_default_ttl_of_the_table_counts() -> None:
    layout = RowLayout(tables.table(["int"], [], ["int"], options=TableOptions(default_ttl_s=90)))
    table = pa.table({"p0": pa.array([1], pa.int32()), "v0": pa.array([1], pa.int32())})
    ((_, value),) = encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS).pairs()
    assert value[0] & 2 and value[3:11] == struct.pack(">II", 90, NOW_MS // 1000 + 90)
    ((_, value),) = encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS, ttl_s=0).pairs()
    assert not value[0] & 2


INT = pa.array([1], pa.int32())


@pytest.mark.parametrize(
    ("given_columns", "message"),
    [
        ({"p0": INT, "c0": ["a"], "nope": [1]}, "no column nope; there are: c0, p0, v0"),
        ({"p0": INT, "v0": INT}, "key column c0 is missing"),
        ({"c0": ["a"]}, "key column p0 is missing"),
        ({"p0": pa.array([None], pa.int32()), "c0": ["a"]}, "p0 has no value in row 0"),
        ({"p0": INT, "c0": pa.array([None], pa.string())}, "c0 has no value in row 0"),
        ({"p0": ["x"], "c0": ["a"]}, r"column p0 \(int\): string can't be int"),
        ({"p0": pa.array([1 << 40]), "c0": ["a"]}, r"column p0 \(int\)"),
        ({"p0": pa.array([1.5]), "c0": ["a"]}, r"column p0 \(int\)"),
        ({"p0": INT, "c0": [7]}, r"column c0 \(text\): int64 can't be text"),
        ({"p0": INT, "c0": ["x" * 70_000]}, "c0 has 70000 bytes; a column of a key has at most 65535"),
    ],
)
def test_what_a_table_cannot_take_is_refused_by_name(given_columns: dict[str, object], message: str) -> None:
    layout = RowLayout(tables.table(["int"], ["text"], ["int"]))
    with pytest.raises(BadRequest, match=message):
        encode_table(layout, pa.table(given_columns), timestamp_us=STAMP_US, now_ms=NOW_MS)


@pytest.mark.parametrize("static", ["text", "set<text>"])
def test_what_is_read_of_a_partition_without_rows_makes_its_static_row_and_no_other(static: str) -> None:
    layout = RowLayout(tables.table(["int"], ["int", "text"], ["int"], [static]))
    values = ["x", "y"] if static == "text" else [["x"], ["y"]]
    table = pa.table(
        {
            "p0": pa.array([1, 2], pa.int32()),
            "c0": pa.array([None, 7], pa.int32()),
            "c1": pa.array([None, "c"], pa.string()),
            "v0": pa.array([None, 5], pa.int32()),
            "s0": values,
        }
    )
    stored = list(encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS).pairs())
    assert sorted(key[12:13] for key, _ in stored) == sorted([STATIC, STATIC, ROWS])
    read = decode_pairs(layout, *zip(*stored, strict=True), now_s=NOW_MS // 1000).select(table.schema.names)
    assert sorted(read.to_pylist(), key=str) == sorted(table.to_pylist(), key=str)
    alone = [pair for pair in stored if pair[0][8:12] == b"\x80\x00\x00\x01"]
    of_one = table.slice(0, 1)
    for again in (of_one, of_one.to_batches()[0], of_one.select(["p0", "s0"])):
        assert list(encode_table(layout, again, timestamp_us=STAMP_US, now_ms=NOW_MS).pairs()) == alone


@pytest.mark.parametrize(
    "row",
    [
        {"c0": 1, "c1": None, "v0": None, "s0": "x"},
        {"c0": None, "c1": "c", "v0": None, "s0": "x"},
        {"c0": None, "c1": None, "v0": 1, "s0": "x"},
        {"c0": None, "c1": None, "v0": None, "s0": None},
    ],
)
def test_only_a_row_of_nothing_but_static_values_lacks_its_clustering_key(row: dict[str, object]) -> None:
    layout = RowLayout(tables.table(["int"], ["int", "text"], ["int"], ["text"]))
    kinds = {"p0": pa.int32(), "c0": pa.int32(), "c1": pa.string(), "v0": pa.int32(), "s0": pa.string()}
    table = pa.Table.from_pylist([{"p0": 1} | row], pa.schema(list(kinds.items())))
    with pytest.raises(BadRequest, match=r"clustering column c\d has no value in row 0"):
        encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS)


def test_bad_times_are_refused() -> None:
    layout, table = numbers(1)
    with pytest.raises(BadRequest, match="TTL"):
        encode_table(layout, table, timestamp_us=STAMP_US, now_ms=NOW_MS, ttl_s=-1)
    with pytest.raises(BadRequest, match="timestamp"):
        encode_table(layout, table, timestamp_us=1 << 63, now_ms=NOW_MS)


def test_an_empty_partition_key_is_refused() -> None:
    layout = RowLayout(tables.table(["text"], [], ["int"]))
    with pytest.raises(BadRequest, match="p0 is empty"):
        encode_table(layout, pa.table({"p0": ["a", ""]}), timestamp_us=STAMP_US, now_ms=NOW_MS)


@pytest.mark.parametrize("seed", range(40))
def test_what_partitions_say_again_with_each_row_is_stored_once_and_differences_are_merged(seed: int) -> None:
    rng = random.Random(seed)
    layout = RowLayout(tables.table(["int"], ["int"], ["int"], ["text", "int"]))
    count = rng.choice([1, 2, 5, 60])
    given = [
        (rng.randrange(4), number, rng.choice(["same", "same", "same", "other", None]), rng.choice([1, None]), number)
        for number in range(count)
    ]
    names = ["p0", "c0", "s0", "s1", "v0"]
    kinds = [pa.int32(), pa.int32(), pa.string(), pa.int32(), pa.int32()]
    columns_ = [pa.array(values, kind) for values, kind in zip(zip(*given, strict=True), kinds, strict=True)]
    rows = encode_table(layout, pa.table(columns_, names=names), timestamp_us=STAMP_US, now_ms=NOW_MS)
    id_of = {column.name: id for id, column in layout.columns.items()}
    ids = [id_of[name] for name in names]

    def cell(value: int | str | None) -> Cell:
        return struct.pack(">i", value) if isinstance(value, int) else value.encode() if value is not None else None

    cells = [[cell(value) for value in row] for row in given]
    assert list(rows.pairs()) == one_by_one(layout, ids, cells, ttl_s=0, update=False, delete_nulls=False)
