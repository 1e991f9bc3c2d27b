"""Keys: where rows and their versions lie, and back."""

from __future__ import annotations

import random

import pytest
from tests.unit.rows.cells import bigint, int_, random_cell
from tests.unit.rows.tables import KEY_TYPES, USER_TYPES, table

from trimtab.rows import keys
from trimtab.rows.checking import check_pairs
from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import PutRequest

LAYOUT = RowLayout(table(["bigint", "text"], ["text", "int desc"], ["int"]))
KEY = [bigint(1), b"p", b"c", int_(3)]


@pytest.mark.parametrize("text", KEY_TYPES)
def test_a_row_key_gives_its_cells_back(text: str) -> None:
    rng = random.Random(text)
    layout = RowLayout(table([text, text], [text, f"{text} desc", text]), USER_TYPES)
    exact = layout.clustering[0].codec
    for _ in range(20):
        cells = [random_cell(rng, column.type) for column in (*layout.partition, *layout.clustering)]
        found = keys.key_cells(layout, keys.row_key(layout, cells))
        assert found[:2] == cells[:2]
        assert [exact.encode(each) for each in found[2:]] == [exact.encode(each) for each in cells[2:]]
        prefix = keys.partition_prefix(layout, cells[:2])
        assert keys.prefix_of(layout, keys.row_key(layout, cells)) == prefix
        assert keys.partition_end(layout, prefix) == len(prefix)


def test_newer_versions_sort_first_and_one_stamp_holds_two_writes() -> None:
    made = [keys.tail(stamp, keys.PUT, value) for stamp, value in ((9, b"a"), (9, b"b"), (-5, b"a"), (1 << 62, b"a"))]
    assert len(set(made)) == 4
    assert [keys.stamp_of(each) for each in sorted(made)] == [1 << 62, 9, 9, -5]
    assert all(len(each) == keys.TAIL for each in made)
    assert keys.newest_stamp([made[0], b"", made[3], b""]) == 1 << 62
    assert keys.newest_stamp([]) == 0


def test_everything_that_begins_alike_lies_below_the_successor() -> None:
    assert keys.successor(b"ab") == b"ac"
    assert keys.successor(b"a\xff\xff") == b"b"
    assert keys.successor(b"\xff") is None
    row = keys.row_key(LAYOUT, KEY)
    assert row < row + b"\xff" * keys.TAIL < keys.after(row)


def test_bytes_between_partitions_belong_to_none() -> None:
    row = keys.row_key(LAYOUT, KEY)
    end = keys.partition_end(LAYOUT, row)
    assert end is not None
    for cut in range(end):
        assert keys.partition_end(LAYOUT, row[:cut]) is None
    fixed = RowLayout(table(["bigint"], ["int"]))
    assert keys.partition_end(fixed, bytes(15)) is None
    assert keys.partition_end(fixed, bytes(16)) == 16


def test_damaged_keys_are_refused() -> None:
    row = keys.row_key(LAYOUT, KEY)
    for damaged in (row[:-1], row + b"\x00", row[:10]):
        with pytest.raises(BadRow):
            keys.key_cells(LAYOUT, damaged)
    with pytest.raises(BadRow, match="ends inside its partition key"):
        keys.prefix_of(LAYOUT, row[:12])


def test_pairs_from_elsewhere_are_checked_to_the_last_byte_of_their_values_and_tokens() -> None:
    rng = random.Random(3)
    request = PutRequest(7, 1, [1, 2, 3, 4, 5], [[*KEY, int_(7)]])
    (pairs,) = pairs_of_put(LAYOUT, request, 5, 10_000).values()
    check_pairs(LAYOUT, pairs)
    key, value = pairs
    for at in range(len(value)):
        with pytest.raises(BadRow):
            check_pairs(LAYOUT, [key, value[:at] + bytes((value[at] ^ 1 << rng.randrange(8),)) + value[at + 1 :]])
    for at in range(20):
        with pytest.raises(BadRow):
            check_pairs(LAYOUT, [key[:at] + bytes((key[at] ^ 1,)) + key[at + 1 :], value])
    for cut in range(len(key)):
        with pytest.raises(BadRow):
            check_pairs(LAYOUT, [key[:cut], value])
    with pytest.raises(BadRow, match="a key has no value"):
        check_pairs(LAYOUT, [key])


def test_primary_keys_of_the_wrong_length_are_refused() -> None:
    for wrong in (KEY[:3], [*KEY, b"x"], KEY[:1]):
        with pytest.raises(BadRequest, match="columns"):
            keys.row_key(LAYOUT, wrong)
    with pytest.raises(BadRequest, match="no clustering columns"):
        keys.row_key(RowLayout(table(["bigint"])), [bigint(1), b"x"])
