"""Single rows of a replica: what is not asked for is not merged, and the cells are the same."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.router.test_reads import Store
from tests.unit.rows import cells, tables

from trimtab.node.router.replica_reads import narrowed, read_cells
from trimtab.rows import values
from trimtab.rows.keys import after, locate
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, PutRequest, RangeRead, Way
from trimtab.rows.reading import read_range, rows_of

NOW_S = 1_700_000_000
LAYOUT = RowLayout(tables.table(["int"], [], ["map<text, text>", "text", "set<text>", "int"]), tables.USER_TYPES)
MAP, TEXT, SET, INT = 2, 3, 4, 5
KEY = cells.int_(7)


def collection(*elements: bytes, of: int = 1) -> bytes:
    found = [(len(elements) // of).to_bytes(4, "big")]
    return b"".join([*found, *(len(each).to_bytes(4, "big") + each for each in elements)])


class Replica(Store):
    """Nothing that was read is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Any = SimpleNamespace(find=lambda keys, _asked: [None] * len(keys), keep=lambda *_: None)
        self.stamp = 0

    def write(self, columns: dict[int, bytes | None], *, ways: dict[int, Way] | None = None, **fields: Any) -> None:
        self.stamp += 1
        ways_ = [Way.WHOLE, *((ways or {}).get(column, Way.WHOLE) for column in columns)]
        request = PutRequest(1, 1, [1, *columns], [[KEY, *columns.values()]], ways=ways_, **fields)
        for pairs in pairs_of_put(LAYOUT, request, self.stamp, NOW_S * 1000).values():
            self.put(pairs)

    def delete(self, *columns: int) -> None:
        self.stamp += 1
        request = DeleteRequest(1, 1, [KEY], columns=list(columns))
        for pairs in pairs_of_delete(LAYOUT, request, self.stamp, NOW_S * 1000).values():
            self.put(pairs)

    def cells(self, *columns: int, now_s: int = NOW_S) -> list[Any] | None:
        (row,) = read_cells(self, LAYOUT, [locate(LAYOUT, [KEY])[0]], columns, now_s)
        return None if row is None else list(row)

    def merged(self, *columns: int, now_s: int = NOW_S) -> list[Any] | None:
        """The same by way of whole rows, as replicas compare them."""
        key, _ = locate(LAYOUT, [KEY])
        pairs = read_range(LAYOUT, self.scan, RangeRead(key, after(key), 1, False, True), now_s).pairs
        found = rows_of(LAYOUT, pairs, columns, now_s).cells
        return found[0] if found else None


def test_a_collection_that_is_not_asked_for_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A get of one text cell merged the sixty thousand elements of the map beside it."""
    replica = Replica()
    replica.write({TEXT: b"p", MAP: collection(b"a", b"1", of=2)})
    replica.write({MAP: collection(b"b", b"2", of=2)}, ways={MAP: Way.ADD})
    decoded: list[bytes] = []
    real = values.decode_collection

    def counted(cell: bytes) -> Any:
        decoded.append(cell)
        return real(cell)

    monkeypatch.setattr(values, "decode_collection", counted)
    assert replica.cells(TEXT) == [b"p"] and decoded == []
    assert replica.cells(MAP, TEXT) == [collection(b"a", b"1", b"b", b"2", of=2), b"p"] and len(decoded) == 2


def test_a_row_of_which_only_something_else_is_left_is_there_all_the_same() -> None:
    replica = Replica()
    replica.write({MAP: collection(b"a", b"1", of=2)}, ways={MAP: Way.ADD}, update=True)
    assert replica.cells(TEXT) == [None] and replica.cells(1, SET) == [KEY, None]
    replica.delete(MAP)
    assert replica.cells(TEXT) is None and replica.cells(MAP) is None


@pytest.mark.parametrize("seed", range(30))
def test_the_cells_are_those_of_the_whole_row_whatever_is_asked_for(seed: int) -> None:
    rng, replica = random.Random(seed), Replica()
    whole = {
        MAP: lambda: collection(rng.choice([b"a", b"b"]), rng.choice([b"1", b"2"]), of=2),
        TEXT: lambda: rng.choice([b"x", b"y"]),
        SET: lambda: collection(rng.choice([b"a", b"b", b"c"])),
        INT: lambda: cells.int_(rng.randrange(3)),
    }
    for _ in range(rng.randrange(1, 6)):
        if rng.random() < 0.25:
            replica.delete(*rng.sample(list(whole), rng.randrange(3)))
            continue
        columns = rng.sample(list(whole), rng.randrange(1, 4))
        given = {each: whole[each]() for each in columns}
        ways = {each: Way.ADD for each in columns if each in (MAP, SET) and rng.random() < 0.6}
        replica.write(given, ways=ways, update=rng.random() < 0.7, ttl_s=rng.choice([0, 0, 10]))
    for now_s in (NOW_S, NOW_S + 20):
        for count in range(1, 6):
            asked = rng.sample([1, *whole], count)
            assert replica.cells(*asked, now_s=now_s) == replica.merged(*asked, now_s=now_s), asked


def test_a_layout_is_narrowed_only_where_something_is_left_out() -> None:
    plain = RowLayout(tables.table(["int"], [], ["text"]), tables.USER_TYPES)
    assert narrowed(plain, [1]) is plain and narrowed(LAYOUT, [SET, MAP]) is LAYOUT
    assert narrowed(LAYOUT, [MAP]) is narrowed(LAYOUT, [MAP])
    assert set(narrowed(LAYOUT, [MAP]).columns) == {1, MAP, TEXT, INT}
