"""Writes become pairs, or are refused with what is wrong before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.rows.cells import bigint, int_
from tests.unit.rows.tables import USER_TYPES, table

from trimtab.catalog import nested
from trimtab.catalog.schema import TableOptions
from trimtab.catalog.types import parse
from trimtab.rows import keys
from trimtab.rows.checking import check_pairs
from trimtab.rows.errors import BadRequest
from trimtab.rows.layout import MAX_CELL_BYTES, RowLayout
from trimtab.rows.merge import merge_versions
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import Bound, Cell, DeleteRequest, PutRequest, Way
from trimtab.rows.values import TTL, collection_cell, decode_row

NOW_MS = 1_700_000_000_000
# p0 bigint | c0 text, c1 int | s0 int | v0 text, v1 int, v2 set<int>, v3 map<text, int>, v4 list<int>
LAYOUT = RowLayout(
    table(["bigint"], ["text", "int desc"], ["text", "int", "set<int>", "map<text, int>", "list<int>"], ["int"])
)
P0, C0, C1, S0, V0, V1, V2, V3, V4 = range(1, 10)
KEY = [bigint(1), b"a", int_(2)]


def put(columns: list[int], row: list[Cell], **more: Any) -> list[bytes]:
    found = pairs_of_put(LAYOUT, PutRequest(7, 1, columns, [row], **more), 50, NOW_MS)
    pairs = [part for each in found.values() for part in each]
    check_pairs(LAYOUT, pairs)
    return pairs


def delete(**more: Any) -> list[bytes]:
    found = pairs_of_delete(LAYOUT, DeleteRequest(7, 1, [bigint(1)], **more), 50, NOW_MS)
    (pairs,) = found.values()
    check_pairs(LAYOUT, pairs)
    return pairs


@pytest.mark.parametrize(
    ("columns", "row", "why"),
    [
        ([C0, C1, V1], [b"a", int_(2), int_(1)], "partition key column p0 is missing"),
        ([P0, C0, V1], [bigint(1), b"a", int_(1)], "clustering column c1 is missing"),
        ([P0, V1], [bigint(1), int_(1)], "clustering column c0 is missing"),
        ([P0, C0, C1, V1, V1], [*KEY, int_(1), int_(1)], "column v1 is named twice"),
        ([P0, C0, C1, 99], [*KEY, int_(1)], "no column 99 in version 1"),
        ([P0, C0, C1, V1], [*KEY], "a row of 3 cells for 4 columns"),
        ([P0, C0, C1], [None, b"a", int_(2)], "partition key column p0 has no value"),
        ([P0, C0, C1], [bigint(1), None, int_(2)], "clustering column c0 has no value"),
        ([P0, C0, C1], [b"1", b"a", int_(2)], r"partition key column p0 \(bigint\): .* 8 bytes, not 1"),
        ([P0, C0, C1], [bigint(1), b"\xff", int_(2)], r"clustering column c0 \(text\): .* not UTF-8"),
        ([P0, C0, C1], [bigint(1), b"a" * 65_536, int_(2)], "clustering column c0 has 65536 bytes"),
        ([P0, C0, C1], [bigint(1), b"\x00" * 40_000, int_(2)], "the key of a row has 80023 bytes; it may have 65536"),
        ([P0, C0, C1], [bigint(1), "a", int_(2)], "clustering column c0 is bytes, not str"),
        ([P0, C0, C1, V1], [*KEY, b"1"], r"column v1 \(int\): a cell has 4 bytes, not 1"),
        ([P0, C0, C1, V1], [*KEY, 5], r"column v1 \(int\): a cell is bytes, not int"),
        ([P0, C0, C1, V0], [*KEY, b"\xff"], r"column v0 \(text\): .* not UTF-8"),
        ([P0, C0, C1, V0], [*KEY, b"a" * (MAX_CELL_BYTES + 1)], r"column v0 \(text\): a cell of 16777217 bytes"),
        ([P0, C0, C1, V2], [*KEY, b"\x00\x00\x00\x01"], r"column v2 \(set<int>\): .* ends too early"),
    ],
)
def test_a_put_that_the_table_cannot_take_is_refused_by_name(columns: list[int], row: list[Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        put(columns, row)
    assert str(refused.value).startswith("shop.things: ")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"ttl_s": -1}, "a TTL of -1 s"),
        ({"ttl_s": 630_720_001}, "a TTL of 630720001 s; it may be from 0 .never. to 630720000"),
        ({"ways": [Way.WHOLE]}, "1 ways of writing 4 columns"),
        ({"ways": [Way.WHOLE] * 3 + [Way.ADD]}, "column v1 is no collection"),
    ],
)
def test_other_things_that_are_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        put([P0, C0, C1, V1], [*KEY, int_(1)], **request_)


def test_stamps_that_fit_no_key_are_refused() -> None:
    for stamp in (-(1 << 63), (1 << 63) - 1):
        with pytest.raises(BadRequest, match="must fit 64 bits"):
            pairs_of_put(LAYOUT, PutRequest(7, 1, [P0, C0, C1], [KEY]), stamp, NOW_MS)


def test_an_empty_partition_key_is_refused_but_not_an_empty_part_of_one() -> None:
    alone, composite = RowLayout(table(["text"])), RowLayout(table(["text", "text"]))
    with pytest.raises(BadRequest, match="partition key column p0 is empty"):
        pairs_of_put(alone, PutRequest(7, 1, [1], [[b""]]), 1, NOW_MS)
    pairs_of_put(composite, PutRequest(7, 1, [1, 2], [[b"", b""]]), 1, NOW_MS)


def test_the_table_s_own_ttl_holds_where_none_is_said_and_0_is_never() -> None:
    layout = RowLayout(table(["int"], [], ["int"], options=TableOptions(default_ttl_s=30)))
    for ttl, expected in ((None, 30), (5, 5), (0, 0)):
        request = PutRequest(7, 1, [1, 2], [[int_(1), int_(2)]], ttl_s=ttl)
        ((_, value),) = pairs_of_put(layout, request, 1, NOW_MS).values()
        assert decode_row(layout, value, 1, static=False).cells[2].ttl_s == expected


def test_cells_that_are_only_deleted_do_not_expire() -> None:
    _, value = put([P0, C0, C1, V1], [*KEY, None], ttl_s=60, update=True)
    assert not value[0] & TTL


def test_static_cells_alone_make_no_row() -> None:
    key, _ = put([P0, S0], [bigint(1), int_(5)])
    assert key[16:17] == keys.STATIC
    sections = [each[16:17] for each in put([P0, C0, C1, S0], [*KEY, int_(5)])[::2]]
    assert sections == [keys.ROWS, keys.STATIC]


def test_rows_of_one_partition_come_together() -> None:
    rows: list[list[Cell]] = [[bigint(at % 2), b"a", int_(at)] for at in range(6)]
    found = pairs_of_put(LAYOUT, PutRequest(7, 1, [P0, C0, C1], rows), 5, NOW_MS)
    assert sorted(len(each) // 2 for each in found.values()) == [3, 3]
    assert all(key.startswith(prefix) for prefix, each in found.items() for key in each[::2])


def test_the_same_request_again_is_the_same_pairs() -> None:
    cell = parse("set<int>").serialize({1, 2})
    assert put([P0, C0, C1, V2], [*KEY, cell]) == put([P0, C0, C1, V2], [*KEY, cell])


def test_a_whole_collection_replaces_and_parts_of_it_do_not() -> None:
    cell = parse("set<int>").serialize({1, 2})
    key, value = put([P0, C0, C1, V2], [*KEY, cell])
    whole = merge_versions(LAYOUT, [(key, value)]).row.collections[V2]
    assert whole.deleted is not None
    assert whole.deleted[0] == 49
    ways = [Way.WHOLE] * 3
    key, value = put([P0, C0, C1, V2], [*KEY, cell], ways=[*ways, Way.ADD])
    added = merge_versions(LAYOUT, [(key, value)]).row.collections[V2]
    assert added.deleted is None
    assert whole.elements == added.elements
    names = parse("set<text>").serialize({"x"})
    key, value = put([P0, C0, C1, V3], [*KEY, names], ways=[*ways, Way.REMOVE], update=True)
    (gone,) = merge_versions(LAYOUT, [(key, value)]).row.collections[V3].elements.values()
    assert not gone.live(0)


def lists(*requests: tuple[list[int], Way], stamp: int = 50, **more: Any) -> list[int]:
    """What a list has after these, each a request of its own with the same stamp."""
    list_, versions = parse("list<int>"), []
    for turn, (elements, way) in enumerate(requests):
        row: list[Cell] = [*KEY, list_.serialize(elements)]
        request = PutRequest(7, 1, [P0, C0, C1, V4], [row], update=True, ways=[Way.WHOLE] * 3 + [way])
        ((key, value),) = pairs_of_put(LAYOUT, request, stamp, NOW_MS, turn=turn, **more).values()
        versions.append((key, value))
    merged = merge_versions(LAYOUT, versions).row.collections[V4]
    cell = collection_cell(LAYOUT.regular.columns[4], merged, 0)
    return [] if cell is None else list(list_.deserialize(cell))


def test_elements_that_are_added_to_a_list_with_one_stamp_do_not_take_each_other_s_place() -> None:
    assert lists(([1, 2], Way.ADD), ([3], Way.ADD), ([3], Way.ADD)) == [1, 2, 3, 3]
    assert lists(([1, 2], Way.PREPEND), ([3], Way.PREPEND)) == [3, 1, 2]
    assert lists(([4], Way.ADD), ([1, 2, 3], Way.WHOLE)) == [1, 2, 3, 4]
    assert lists(([4], Way.ADD), ([1, 2, 3], Way.WHOLE), stamp=-5) == [1, 2, 3, 4]


def test_what_was_added_piece_by_piece_is_read_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "MAX_ELEMENTS", 3)
    assert lists(([1, 2], Way.ADD), ([3, 4, 5], Way.ADD)) == [1, 2, 3, 4, 5]
    four = nested.join_elements([int_(each) for each in range(4)])
    for column, way in ((V4, Way.ADD), (V4, Way.WHOLE), (V2, Way.REMOVE), (V3, Way.REMOVE)):
        with pytest.raises(BadRequest, match="with 4 elements; at most 3 are given at once"):
            put([P0, C0, C1, column], [*KEY, four], ways=[Way.WHOLE] * 3 + [way])


def test_a_row_twice_in_one_put_is_added_to_twice() -> None:
    row: list[Cell] = [*KEY, parse("list<int>").serialize([1])]
    request = PutRequest(7, 1, [P0, C0, C1, V4], [row, row], update=True, ways=[Way.WHOLE] * 3 + [Way.ADD])
    (pairs,) = pairs_of_put(LAYOUT, request, 50, NOW_MS).values()
    merged = merge_versions(LAYOUT, zip(pairs[::2], pairs[1::2], strict=True))
    assert len(merged.row.collections[V4].elements) == 2


@pytest.mark.parametrize(
    ("column", "cell", "way", "why"),
    [
        (V4, parse("list<int>").serialize([1]), Way.REMOVE, "elements of a list have no names"),
        (V2, parse("set<int>").serialize({1}), Way.PREPEND, "only lists have a beginning"),
        (V2, None, Way.ADD, "nothing was given to add"),
        (V3, b"\x00", Way.REMOVE, "ends too early"),
        (V2, parse("set<text>").serialize({"abc"}), Way.REMOVE, "4 bytes, not 3"),
    ],
)
def test_changes_of_parts_that_make_no_sense_are_refused(column: int, cell: Cell, way: Way, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        put([P0, C0, C1, column], [*KEY, cell], ways=[Way.WHOLE] * 3 + [way])


def test_deletions_by_what_they_delete() -> None:
    kinds = {
        keys.PARTITION_DELETE: delete(),
        keys.ROW_DELETE: delete(row=KEY[1:]),
        keys.PUT: delete(row=KEY[1:], columns=[V0, V2]),
        keys.RANGE_DELETE: delete(start=Bound([b"a"]), end=Bound([b"b"], inclusive=False)),
    }
    for kind, pairs in kinds.items():
        assert [key[-9] for key in pairs[::2]] == [kind]
    both = delete(row=KEY[1:], columns=[V0, S0])
    assert [key[16:17] for key in both[::2]] == [keys.STATIC, keys.ROWS]
    assert delete(columns=[S0])[0][16:17] == keys.STATIC


def test_a_table_without_clustering_columns_deletes_rows_for_partitions() -> None:
    layout = RowLayout(table(["int"], [], ["int"]))
    ((key, _),) = pairs_of_delete(layout, DeleteRequest(7, 1, [int_(1)]), 5, NOW_MS).values()
    assert key[-9] == keys.ROW_DELETE
    assert key[: -keys.TAIL] == keys.row_key(layout, [int_(1)])
    with pytest.raises(BadRequest, match="no ranges of rows"):
        pairs_of_delete(layout, DeleteRequest(7, 1, [int_(1)], start=Bound()), 5, NOW_MS)


def test_a_range_that_holds_nothing_deletes_nothing() -> None:
    assert delete(start=Bound([b"b"]), end=Bound([b"a"])) == []
    assert delete(start=Bound([b"b"], inclusive=False), end=Bound([b"b"], inclusive=False)) == []


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"row": [b"a"]}, r"the clustering key has 2 columns \(c0, c1\), not 1"),
        ({"columns": [V0]}, "columns are deleted of one row"),
        ({"row": KEY[1:], "columns": [C0]}, "column c0 can't be deleted"),
        ({"row": KEY[1:], "columns": [99]}, "column 99 can't be deleted"),
        ({"row": KEY[1:], "start": Bound([b"a"])}, "leave row and columns out"),
        ({"start": Bound([b"a", int_(1), b"x"])}, "a bound names 3 clustering columns; there are 2"),
    ],
)
def test_deletions_that_make_no_sense_are_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        delete(**request_)


def test_a_partition_key_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"the partition key has 1 columns \(p0\), not 2"):
        pairs_of_delete(LAYOUT, DeleteRequest(7, 1, [bigint(1), bigint(2)]), 5, NOW_MS)


def test_user_types_are_checked_field_by_field() -> None:
    layout = RowLayout(table(["int"], [], ["place"]), USER_TYPES)
    with pytest.raises(BadRequest, match="field at"):
        pairs_of_put(layout, PutRequest(7, 1, [1, 2], [[int_(1), int_(1) + b"x" + int_(1) + b"y"]]), 5, NOW_MS)
