"""The stored value: exactly the bytes that were agreed on, back again for any schema, and never garbage."""

from __future__ import annotations

import random
import struct

import pytest
from tests.unit.rows.cells import int_, random_cell
from tests.unit.rows.tables import USER_TYPES, VALUE_TYPES, table
from tests.unit.rows.versions import one_row, random_versions

from trimtab.catalog.types import parse
from trimtab.rows import values
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PUT, stamp_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import PutRequest
from trimtab.rows.values import CellState, Row, decode_row, encode_row


def test_a_value_is_flags_layout_presence_fixed_cells_ends_and_bytes() -> None:
    layout = RowLayout(table(["int"], [], ["text", "int", "blob", "boolean", "double"]))
    request = PutRequest(7, 1, [1, 2, 3, 4, 6], [[int_(1), b"ab", int_(5), b"xyz", None]], ttl_s=60)
    ((_, value),) = pairs_of_put(layout, request, 9, 1_700_000_000_123).values()
    flags = values.MARKER | values.TTL | values.HAS_DELETES
    presence = 1 | 1 << 2 | 1 << 4 | 0 << 6 | 2 << 8
    assert value == b"".join(
        (
            bytes((flags,)),
            struct.pack(">H", 1),
            struct.pack(">II", 60, 1_700_000_060),
            struct.pack(">Q", 1_700_000_001_000),
            presence.to_bytes(2, "little"),
            int_(5) + bytes(1) + bytes(8),
            struct.pack(">II", 2, 5),
            b"abxyz",
        )
    )


def test_cells_that_differ_in_stamps_have_them_before_the_ends() -> None:
    layout = RowLayout(table(["int"], [], ["int", "text"]))
    row = Row()
    row.marker = CellState(7)
    row.cells = {2: CellState(8, values.EXPIRING, 99, int_(1), 5), 3: CellState(6, values.DELETED, 44)}
    made = encode_row(layout.regular, row)
    assert made is not None
    stamp, value = made
    assert stamp == 7
    assert value == b"".join(
        (
            bytes((values.MARKER | values.PER_CELL | values.HAS_DELETES,)),
            struct.pack(">HQ", 1, 44_000),
            bytes((1 | 2 << 2,)),
            int_(1),
            struct.pack(">qII", 8, 5, 99),
            struct.pack(">qII", 6, 0, 44),
            struct.pack(">I", 0),
        )
    )
    back = decode_row(layout, value, stamp, static=False)
    assert (back.marker, back.cells) == (row.marker, row.cells)


@pytest.mark.parametrize("text", VALUE_TYPES)
def test_cells_of_every_type_come_back(text: str) -> None:
    rng = random.Random(text)
    given = parse(text, USER_TYPES)
    layout = RowLayout(table(["int"], ["int"], [text, text], [text]), USER_TYPES)
    for _ in range(20):
        cells = [random_cell(rng, given), random_cell(rng, given)]
        request = PutRequest(7, 1, [1, 2, 4, 5], [[int_(1), int_(2), *cells]])
        ((key, value),) = pairs_of_put(layout, request, 5, 10_000).values()
        row = decode_row(layout, value, stamp_of(key), static=False)
        for id, cell in zip((4, 5), cells, strict=True):
            if given.multicell:
                column = layout.regular.columns[id - 4]
                back = values.collection_cell(column, row.collections[id], 10)
                assert (back or bytes(4)) == cell
            else:
                assert row.cells[id].value == cell


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_value_is_refused_and_never_breaks_the_reader(seed: int) -> None:
    rng = random.Random(seed)
    layout, key = one_row(rng)
    for made, value in random_versions(rng, layout, key, 6):
        if made[-9] != PUT:
            continue
        decode_row(layout, value, 5, static=False)
        for end in range(len(value)):
            with pytest.raises(BadRow):
                decode_row(layout, value[:end], 5, static=False)
        with pytest.raises(BadRow):
            decode_row(layout, value + b"x", 5, static=False)
        for _ in range(60):
            at = rng.randrange(len(value))
            damaged = value[:at] + bytes((value[at] ^ 1 << rng.randrange(8),)) + value[at + 1 :]
            try:
                decode_row(layout, damaged, 5, static=False)
            except BadRow as error:
                assert "shop.things" in str(error)


def test_the_arrival_of_deleted_cells_is_kept_in_whole_seconds_rounded_up() -> None:
    assert [values.whole_seconds(each) for each in (0, 1, 999, 1000, 1001)] == [1, 1, 1, 1, 2]
