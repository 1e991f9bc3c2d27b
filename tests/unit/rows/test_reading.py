"""Reads of a store's pairs, and of several replicas' answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.rows.cells import bigint, int_
from tests.unit.rows.tables import table

from trimtab.rows import keys, tokens
from trimtab.rows.digests import digest_of, digest_of_parts
from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import Bound, Cell, DeleteRequest, PutRequest, RangeRead, RangeRows
from trimtab.rows.reading import Limits, Reading, merge_answers, read_range, rows_of, scan_of

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
WIDE = RowLayout(table(["bigint"], ["int"], ["int", "text"], ["text"]))
P0, C0, S0, V0, V1 = range(1, 6)
FLAT = RowLayout(table(["bigint"], [], ["int", "text"]))


class Store:
    def __init__(self, layout: RowLayout = WIDE) -> None:
        self.layout = layout
        self.pairs: dict[bytes, bytes] = {}

    def put(self, columns: list[int], *rows: list[Cell], stamp: int = 10, **more: Any) -> Store:
        request = PutRequest(7, 1, columns, list(rows), **more)
        for pairs in pairs_of_put(self.layout, request, stamp, NOW_MS).values():
            self.pairs.update(zip(pairs[::2], pairs[1::2], strict=True))
        return self

    def delete(self, partition: int, stamp: int = 20, **more: Any) -> Store:
        request = DeleteRequest(7, 1, [bigint(partition)], **more)
        for pairs in pairs_of_delete(self.layout, request, stamp, NOW_MS).values():
            self.pairs.update(zip(pairs[::2], pairs[1::2], strict=True))
        return self

    def rows(self, partition: int, count: int) -> Store:
        return self.put([P0, C0, V0], *([bigint(partition), int_(at), int_(at)] for at in range(count)))

    def read(self, wanted: RangeRead, **more: Any) -> Reading:
        return read_range(self.layout, scan_of(sorted(self.pairs.items())), wanted, NOW_S, **more)

    def slice(self, partition: int, start: Bound | None = None, end: Bound | None = None, **more: Any) -> list[int]:
        low, high = keys.slice_bounds(self.layout, [bigint(partition)], start, end)
        wanted = RangeRead(low, high, more.pop("limit", 1000), **more)
        found = self.read(wanted)
        return [number(row[0]) for row in self.cells(found, wanted, [C0])]

    def cells(self, found: Reading, wanted: RangeRead, columns: list[int]) -> list[list[Cell]]:
        return rows_of(
            self.layout, found.pairs, columns, NOW_S, low=wanted.low, high=wanted.high, reverse=wanted.reverse
        ).cells


def number(cell: Cell) -> int:
    return -1 if cell is None else int.from_bytes(cell, "big", signed=True)


def whole(partition: int) -> RangeRead:
    return RangeRead(*keys.slice_bounds(WIDE, [bigint(partition)], None, None), 1000)


def test_a_row_of_one_version_is_passed_on_as_it_lies() -> None:
    store = Store(FLAT).put([1, 2, 3], [bigint(1), int_(5), b"x"])
    row_key = keys.row_key(FLAT, [bigint(1)])
    found = store.read(RangeRead(row_key, keys.after(row_key), point=True))
    assert found == Reading([*next(iter(store.pairs.items()))], live=1)
    assert rows_of(FLAT, found.pairs, [3, 1, 2], NOW_S).cells == [[b"x", bigint(1), int_(5)]]


def test_slices_in_both_directions_with_bounds() -> None:
    store = Store().rows(1, 6).rows(2, 3)
    assert store.slice(1) == [0, 1, 2, 3, 4, 5]
    assert store.slice(1, reverse=True) == [5, 4, 3, 2, 1, 0]
    assert store.slice(1, Bound([int_(1)], False), Bound([int_(4)])) == [2, 3, 4]
    assert store.slice(1, Bound([int_(1)], False), Bound([int_(4)]), reverse=True, limit=2) == [4, 3]
    assert store.slice(1, Bound([int_(4)]), Bound([int_(1)])) == []
    assert store.slice(3) == []


def test_a_slice_inside_a_partition_sees_the_deletions_before_it() -> None:
    store = Store().rows(1, 6).delete(1, start=Bound([int_(1)]), end=Bound([int_(3)]))
    for reverse in (False, True):
        found = store.slice(1, Bound([int_(2)]), None, reverse=reverse)
        assert sorted(found) == [4, 5]
    assert store.delete(1, stamp=30).slice(1, Bound([int_(2)])) == []


def test_only_deletions_that_count_in_the_range_are_passed_on() -> None:
    store = Store().delete(1, start=Bound([int_(1)]), end=Bound([int_(3)])).delete(1, start=Bound([int_(7)]), stamp=21)
    low, high = keys.slice_bounds(WIDE, [bigint(1)], Bound([int_(4)]), Bound([int_(5)]))
    assert store.read(RangeRead(low, high)).pairs == []
    low, high = keys.slice_bounds(WIDE, [bigint(1)], Bound([int_(3)]), Bound([int_(5)]))
    assert len(store.read(RangeRead(low, high)).pairs) == 2


def test_a_partition_of_static_cells_alone_is_one_row_without_clustering_key() -> None:
    store = Store().put([P0, S0], [bigint(1), b"s"]).rows(1, 2)
    assert store.cells(store.read(whole(1)), whole(1), [P0, C0, S0, V0]) == [
        [bigint(1), int_(0), b"s", int_(0)],
        [bigint(1), int_(1), b"s", int_(1)],
    ]
    store.delete(1, start=Bound())
    found = store.read(whole(1))
    assert found.live == 1
    assert store.cells(found, whole(1), [P0, C0, S0, V0]) == [[bigint(1), None, b"s", None]]
    assert store.slice(1, Bound([int_(0)])) == []
    row_key = keys.row_key(WIDE, [bigint(1), int_(0)])
    assert store.read(RangeRead(row_key, keys.after(row_key), point=True)).live == 0
    store.delete(1, columns=[S0])
    assert store.read(whole(1)).live == 0


def test_a_partition_of_static_cells_is_found_at_its_end_though_many_reads_met_only_dead_rows() -> None:
    store = Store().put([P0, S0], [bigint(1), b"s"]).rows(1, 30).delete(1, start=Bound([int_(0)]))
    for reverse in (False, True):
        for live in (False, True):
            if live:
                store.put([P0, C0], [bigint(1), int_(15)], stamp=40)
            wanted = RangeRead(whole(1).low, whole(1).high, 1000, reverse)
            rows, pages = list[list[Cell]](), 0
            while True:
                pages += 1
                found = store.read(wanted, limits=Limits(scanned_pairs=3))
                page = RangeRead(
                    found.end if found.more and reverse else wanted.low,
                    found.end if found.more and not reverse else wanted.high,
                    reverse=reverse,
                )
                rows += store.cells(found, page, [C0, S0])
                if not found.more:
                    break
                wanted = (
                    RangeRead(wanted.low, found.end, 1000, True) if reverse else RangeRead(found.end, wanted.high, 1000)
                )
            assert pages > 5
            assert rows == ([[int_(15), b"s"]] if live else [[None, b"s"]])
        del store.pairs[max(store.pairs, key=lambda key: (keys.stamp_of(key), key))]


def test_a_limit_says_whether_there_is_more_and_where_to_go_on() -> None:
    store = Store().rows(1, 5)
    wanted = whole(1)
    first = store.read(RangeRead(wanted.low, wanted.high, 3))
    assert (first.live, first.more) == (3, True)
    second = store.read(RangeRead(first.end, wanted.high, 3))
    assert (second.live, second.more, second.end) == (2, False, b"")
    exact = store.read(RangeRead(wanted.low, wanted.high, 5))
    assert (exact.live, exact.more) == (5, False)


@pytest.mark.parametrize("versions", [0, 50])
def test_a_limit_of_rows_is_one_of_rows_whatever_lies_before_them_in_their_partition(versions: int) -> None:
    store = Store().rows(1, 100)
    for stamp in range(versions):
        store.put([P0, S0], [bigint(1), b"x"], stamp=100 + stamp)
    wanted, reads, seen = whole(1), 0, list[int]()
    while True:
        found = store.read(wanted, limits=Limits(scanned_pairs=256, rows=20))
        seen += [number(row[0]) for row in store.cells(found, wanted, [C0])]
        reads += 1
        if not found.more:
            break
        wanted = RangeRead(found.end, wanted.high, 1000)
    assert seen == list(range(100)) and reads <= 6


def test_a_scan_goes_from_partition_to_partition_in_the_order_of_tokens() -> None:
    store = Store()
    for partition in range(20):
        store.rows(partition, 2)
    low, high = tokens.keys_between(None, None)
    found, at = list[int](), low
    for _ in range(100):
        page = store.read(RangeRead(at, high, 3))
        found += [number(row[0]) for row in store.cells(page, RangeRead(at, high), [P0])]
        if not page.more:
            break
        at = page.end
    expected = sorted(range(20), key=lambda each: keys.token_of(WIDE, [bigint(each)]))
    assert found == [each for each in expected for _ in range(2)]


def test_in_reverse_only_inside_one_partition() -> None:
    store = Store().rows(1, 2)
    with pytest.raises(BadRequest, match="in reverse inside one partition only"):
        store.read(RangeRead(*tokens.keys_between(None, None), 10, reverse=True))


def test_replicas_that_know_different_things_give_one_answer() -> None:
    one, other = Store().rows(1, 3), Store().delete(1, row=[int_(1)])
    other.put([P0, C0, V1], [bigint(1), int_(2), b"new"], stamp=30, update=True)
    wanted = whole(1)
    answers = [RangeRows(found.pairs, b"", found.more, found.end) for found in (one.read(wanted), other.read(wanted))]
    merged = merge_answers(WIDE, wanted, answers, NOW_S)
    assert one.cells(merged, wanted, [C0, V0, V1]) == [[int_(0), int_(0), None], [int_(2), int_(2), b"new"]]
    together = Store()
    together.pairs = one.pairs | other.pairs
    assert merged.pairs == together.read(wanted).pairs


def test_an_answer_that_ended_early_hides_what_lies_beyond_it() -> None:
    """The other replica's later rows may be deleted in what the first one did not send."""
    one, other = Store().rows(1, 6), Store().rows(1, 6).delete(1, row=[int_(3)])
    for reverse in (False, True):
        wanted = RangeRead(whole(1).low, whole(1).high, 2, reverse)
        short, long = one.read(wanted), other.read(RangeRead(wanted.low, wanted.high, 100, reverse))
        merged = merge_answers(WIDE, wanted, [short, long], NOW_S)
        assert (merged.live, merged.more) == (2, True)
        rest = RangeRead(wanted.low, merged.end, 100, True) if reverse else RangeRead(merged.end, wanted.high, 100)
        after = merge_answers(WIDE, rest, [one.read(rest), other.read(rest)], NOW_S)
        found = [number(row[0]) for row in one.cells(after, rest, [C0])]
        assert found == ([2, 1, 0] if reverse else [2, 4, 5])


def test_an_answer_that_never_began_leaves_everything_to_the_next_read() -> None:
    store = Store().rows(1, 3)
    row_key = keys.row_key(WIDE, [bigint(1), int_(1)])
    for wanted in (whole(1), RangeRead(row_key, keys.after(row_key), point=True)):
        for reverse in (False, True):
            asked = RangeRead(wanted.low, wanted.high, 10, reverse)
            nothing = RangeRows(more=True, end=asked.high if reverse else asked.low)
            merged = merge_answers(WIDE, asked, [store.read(asked), nothing], NOW_S)
            assert (merged.live, merged.more, merged.end) == (0, True, nothing.end)


def test_reads_as_of_a_time_see_what_was_there_then() -> None:
    store = Store().put([P0, C0, V0], [bigint(1), int_(1), int_(1)], stamp=10)
    store.put([P0, C0, V0], [bigint(1), int_(1), int_(2)], stamp=20).delete(1, stamp=30)
    wanted = whole(1)
    for as_of, expected in ((5, []), (10, [1]), (19, [1]), (20, [2]), (29, [2]), (30, []), (0, [])):
        found = store.read(wanted, as_of_us=as_of)
        assert [number(row[0]) for row in store.cells(found, wanted, [V0])] == expected


def test_expired_cells_are_not_read_but_still_cover_what_is_older() -> None:
    store = Store(FLAT).put([1, 2, 3], [bigint(1), int_(5), b"old"])
    store.put([1, 3], [bigint(1), b"new"], stamp=20, ttl_s=5, update=True)
    wanted = RangeRead(*tokens.keys_between(None, None), 10)
    found = store.read(wanted)
    assert rows_of(FLAT, found.pairs, [2, 3], NOW_S).cells == [[int_(5), b"new"]]
    assert rows_of(FLAT, found.pairs, [2, 3], NOW_S + 5).cells == [[int_(5), None]]


def test_a_replica_that_may_forget_answers_as_if_it_had() -> None:
    store = Store().rows(1, 2).delete(1, row=[int_(0)]).delete(1, start=Bound([int_(5)]), stamp=21)
    kept = store.read(whole(1))
    forgotten = store.read(whole(1), forgetting=Forgetting(NOW_MS + 1))
    assert len(kept.pairs) == 6
    assert len(forgotten.pairs) == 2
    assert forgotten.live == kept.live == 1


def test_meta_tells_when_cells_were_written_and_what_is_left_of_them() -> None:
    store = Store(FLAT).put([1, 2], [bigint(1), int_(5)]).put([1, 3], [bigint(1), b"x"], stamp=20, ttl_s=9, update=True)
    found = store.read(RangeRead(*tokens.keys_between(None, None), 10))
    rows = rows_of(FLAT, found.pairs, [1, 2, 3], NOW_S + 2, with_meta=True)
    assert [each and (each.writetime_us, each.ttl_s) for each in rows.metas[0]] == [None, (10, None), (20, 7)]


def test_columns_that_are_not_there_are_refused() -> None:
    with pytest.raises(BadRequest, match="there is no column 9"):
        rows_of(FLAT, [], [1, 9], NOW_S)


def test_damaged_pairs_are_named_and_not_read() -> None:
    store = Store(FLAT).put([1, 2, 3], [bigint(1), int_(5), b"abc"])
    ((key, value),) = store.pairs.items()
    for at in range(len(value)):
        damaged = value[:at] + bytes((value[at] ^ 0x10,)) + value[at + 1 :]
        with pytest.raises(BadRow):
            rows_of(FLAT, [key, damaged], [1, 2, 3], NOW_S)
        with pytest.raises(BadRow):
            rows_of(FLAT, [key, value[:at]], [1, 2, 3], NOW_S)
    wide = Store().rows(1, 1)
    ((key, value),) = wide.pairs.items()
    for section in (b"\x00", b"\x50"):
        wide.pairs = {key[:16] + section + key[17:]: value}
        with pytest.raises(BadRow, match="section"):
            wide.read(RangeRead(*tokens.keys_between(None, None), 10))


def test_digests_differ_where_pairs_or_their_end_do() -> None:
    pairs = [b"a", b"bc"]
    assert digest_of(pairs) == digest_of([b"a", b"bc"])
    assert len({digest_of(pairs), digest_of([b"ab", b"c"]), digest_of([]), digest_of(pairs, b"end")}) == 4
    assert digest_of_parts([[b"a", b"b"], [b"c", b"d"]]) == digest_of_parts([[b"a", b"b", b"c", b"d"]])
    assert digest_of_parts([]) == b""


LOADED = 25


def some_rows(seed: int, layout: RowLayout) -> Store:
    """Whole and partial rows, deletions of all kinds, before and after a load with the stamp LOADED; and its rows."""
    rng, store = random.Random(seed), Store(layout)
    key = [P0, C0] if layout is WIDE else [P0]

    def row(*cells: Cell) -> list[Cell]:
        return [bigint(rng.randrange(2)), *([int_(rng.randrange(3))] if layout is WIDE else []), *cells]

    values = [V0, V1] if layout is WIDE else [2, 3]
    for _ in range(rng.randrange(1, 15)):
        stamp = rng.choice([at for at in range(10, 40) if at != LOADED])
        what = rng.randrange(6)
        if what < 3:
            columns = rng.sample(values, rng.randrange(1, 3))
            cells = [rng.choice((None, int_(stamp) if id == values[0] else b"text")) for id in columns]
            store.put([*key, *columns], row(*cells), stamp=stamp, update=rng.random() < 0.5)
        elif what == 3:
            store.delete(rng.randrange(2), stamp=stamp, row=[int_(rng.randrange(3))] if layout is WIDE else [])
        elif what == 4 and layout is WIDE:
            store.delete(rng.randrange(2), stamp=stamp, start=Bound([int_(1)]))
        elif layout is WIDE:
            store.delete(rng.randrange(2), stamp=stamp)
    for _ in range(rng.randrange(1, 4)):
        store.put([*key, *values], row(int_(LOADED), b"loaded"), stamp=LOADED)
    return store


def without_load(store: Store) -> Store:
    hidden = Store(store.layout)
    hidden.pairs = {key: value for key, value in store.pairs.items() if keys.stamp_of(key) != LOADED}
    return hidden


def everything(store: Store) -> Reading:
    """All rows, as any set of pairs with the same meaning gives them."""
    return store.read(RangeRead(bytes(8), b"\xff" * 100, 1 << 30))


@pytest.mark.parametrize("layout", [FLAT, WIDE], ids=["flat", "wide"])
@pytest.mark.parametrize("seed", range(40))
def test_rows_of_a_load_that_are_kept_apart_can_be_left_out_of_what_was_read(seed: int, layout: RowLayout) -> None:
    store = some_rows(seed, layout)
    apart = frozenset((keys.inverted(LOADED),))
    found = store.read(RangeRead(bytes(8), b"\xff" * 100, 1 << 30), apart=apart)
    copied = Store(layout)
    copied.pairs = dict(zip(found.pairs[::2], found.pairs[1::2], strict=True))
    assert found.pairs[::2] == sorted(found.pairs[::2]) and found.live == everything(store).live
    assert everything(copied) == everything(store)
    shown = rows_of(layout, found.pairs, [P0], NOW_S, low=bytes(8), high=b"\xff" * 100)
    assert shown == rows_of(layout, everything(store).pairs, [P0], NOW_S, low=bytes(8), high=b"\xff" * 100)
    # Put beside what another replica has of the rest, nothing of the load shows where it is left out.
    merged = without_load(store)
    merged.pairs |= without_load(copied).pairs
    assert everything(merged) == everything(without_load(store))
