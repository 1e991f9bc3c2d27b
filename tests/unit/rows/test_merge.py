"""Merging is commutative, associative and idempotent, and equal histories have one canonical form."""

from __future__ import annotations

import random

import pytest
from tests.unit.rows.cells import int_
from tests.unit.rows.tables import add_column, drop_column, table
from tests.unit.rows.versions import NOW_MS, one_row, random_versions

from trimtab.rows import keys
from trimtab.rows.errors import BadRow, UnknownLayout
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting, canonical, covered, merge_versions, pairs_of
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, Pairs, PutRequest
from trimtab.rows.values import NEVER, PER_CELL, CellState


def flat(versions: list[tuple[bytes, bytes]]) -> Pairs:
    return [part for pair in versions for part in pair]


def put(layout: RowLayout, cells: dict[int, bytes | None], stamp: int, ttl: int = 0, update: bool = False) -> Pairs:
    request = PutRequest(7, 1, [1, *cells], [[int_(1), *cells.values()]], ttl_s=ttl, update=update)
    (pairs,) = pairs_of_put(layout, request, stamp, NOW_MS).values()
    return pairs


def two_columns() -> RowLayout:
    return RowLayout(table(["int"], [], ["int", "int"]))


@pytest.mark.parametrize("block", range(6))
def test_any_order_and_any_merges_in_between_give_the_same_bytes(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        rng = random.Random(seed)
        layout, key = one_row(rng)
        versions = random_versions(rng, layout, key, rng.randint(1, 7))
        cover = rng.choice([NEVER, NEVER, 1, 2])
        whole = canonical(layout, flat(versions), cover)
        assert canonical(layout, whole, cover) == whole
        for _ in range(3):
            rng.shuffle(versions)
            cut = rng.randint(0, len(versions))
            part = canonical(layout, flat(versions[:cut]))
            assert canonical(layout, part + flat(versions[cut:]), cover) == whole
            assert canonical(layout, flat(versions) + part + whole, cover) == whole
        assert whole[::2] == sorted(whole[::2])
        assert len(whole) <= 4


@pytest.mark.parametrize("seed", range(30))
def test_a_single_version_is_its_own_canonical_form(seed: int) -> None:
    rng = random.Random(seed)
    layout, key = one_row(rng)
    for pair in random_versions(rng, layout, key, 10):
        merged = merge_versions(layout, [pair])
        assert pairs_of(layout, pair[0][: -keys.TAIL], merged) == [*pair]
        assert canonical(layout, [*pair]) == [*pair]


def test_of_equal_stamps_a_deletion_wins_then_what_expires_then_the_later_expiry_then_the_greater_bytes() -> None:
    plain, greater = CellState(5, 0, 0, b"b"), CellState(5, 0, 0, b"c")
    expiring, later = CellState(5, 1, 100, b"a", 10), CellState(5, 1, 200, b"a", 10)
    deleted, newer = CellState(5, 2, 50), CellState(6, 0, 0, b"a")
    assert sorted([newer, deleted, later, expiring, greater, plain]) == [
        plain,
        greater,
        expiring,
        later,
        deleted,
        newer,
    ]


def test_a_row_keeps_the_short_form_while_its_cells_agree() -> None:
    layout = two_columns()
    together = canonical(layout, put(layout, {2: int_(1)}, 5) + put(layout, {3: int_(2)}, 5))
    assert together == put(layout, {2: int_(1), 3: int_(2)}, 5)
    apart = canonical(layout, put(layout, {2: int_(1)}, 5) + put(layout, {3: int_(2)}, 6))
    assert apart[1][0] & PER_CELL


@pytest.mark.parametrize("seed", range(60))
def test_what_a_whole_row_replaces_is_passed_over_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    layout = RowLayout(add_column(drop_column(table(["int"], [], ["int", "set<int>", "text"]), 3), "int"))
    older = RowLayout(table(["int"], [], ["int", "set<int>", "text"]))
    versions = Pairs()
    for _ in range(rng.randint(1, 9)):
        stamp, kind = rng.randint(1, 12), rng.randrange(6)
        if kind < 3:
            versions += put(layout, {2: int_(rng.randint(0, 9)), 4: b"x" * rng.randint(0, 3), 5: int_(stamp)}, stamp)
        elif kind == 3:
            versions += put(layout, {rng.choice((2, 5)): rng.choice((int_(1), None))}, stamp, update=rng.random() < 0.5)
        elif kind == 4:
            versions += put(older, {2: int_(7), 4: b"old"}, stamp, ttl=rng.choice((0, 50)))
        else:
            part = put(layout, {2: int_(3)}, stamp) + put(layout, {5: int_(4)}, rng.randint(1, 12))
            versions += canonical(layout, part)
    pairs = list(zip(versions[::2], versions[1::2], strict=True))
    as_of = rng.choice((0, 0, 6))
    quick = merge_versions(layout, pairs, as_of_us=as_of)
    layout.regular.full = b"no value begins like this"
    slow = merge_versions(layout, pairs, as_of_us=as_of)
    assert (quick.row.marker, quick.row.cells) == (slow.row.marker, slow.row.cells)


def test_a_version_that_a_whole_row_replaces_is_not_even_looked_at() -> None:
    layout = two_columns()
    key, value = put(layout, {2: int_(1), 3: int_(2)}, 6)
    assert value.startswith(layout.regular.full)
    older, _ = put(layout, {2: int_(8)}, 5)
    damaged = layout.regular.full[:3] + b"no such value"
    assert merge_versions(layout, [(key, value), (older, damaged)]).row.cells[2].value == int_(1)
    for newer_or_partial in (put(layout, {2: int_(1), 3: int_(2)}, 4), put(layout, {2: int_(1)}, 6)):
        with pytest.raises(BadRow):
            merge_versions(layout, [(newer_or_partial[0], newer_or_partial[1]), (older, damaged)])


def test_a_version_with_columns_that_are_not_known_here_is_never_passed_over() -> None:
    before = table(["int"], [], ["int"])
    older, newer = RowLayout(before), RowLayout(add_column(before, "int"))
    pairs = put(older, {2: int_(1)}, 6) + put(newer, {2: int_(1), 3: int_(8)}, 5)
    with pytest.raises(UnknownLayout):
        canonical(older, pairs)
    assert canonical(newer, pairs) == canonical(newer, pairs[2:] + pairs[:2])
    assert merge_versions(newer, [(pairs[2], pairs[3]), (pairs[0], pairs[1])]).row.cells[3].value == int_(8)


def test_an_older_version_is_rewritten_in_the_newest_layout_without_dropped_columns() -> None:
    before = table(["int"], [], ["int", "text"])
    pairs = put(RowLayout(before), {2: int_(1), 3: b"x"}, 5)
    after = RowLayout(add_column(drop_column(before, 3), "blob"))
    merged = canonical(after, pairs)
    assert merged == put(after, {2: int_(1)}, 5)
    gone = RowLayout(drop_column(drop_column(before, 3), 2))
    assert canonical(gone, put(RowLayout(before), {2: int_(1)}, 5, update=True)) == []


def test_a_layout_that_is_not_known_here_is_named() -> None:
    newer = RowLayout(add_column(table(["int"], [], ["int"]), "text"))
    older = RowLayout(table(["int"], [], ["int"]))
    with pytest.raises(UnknownLayout, match=r"shop.things in layout 2, .* layouts up to 1"):
        canonical(older, put(newer, {2: int_(1)}, 5))


def test_deletions_and_expired_cells_are_forgotten_by_their_arrival_not_by_their_stamp() -> None:
    layout = two_columns()
    request = DeleteRequest(7, 1, [int_(1)])
    (deleted,) = pairs_of_delete(layout, request, 1, NOW_MS).values()
    pairs = deleted + put(layout, {2: None, 3: int_(1)}, 7, ttl=10, update=True)
    merged = merge_versions(layout, list(zip(pairs[::2], pairs[1::2], strict=True)))
    Forgetting(NOW_MS).row(merged)
    assert merged.deleted is not None
    assert len(merged.row.cells) == 2
    Forgetting(NOW_MS + 1).row(merged)
    assert merged.deleted is None
    assert list(merged.row.cells) == [3]
    Forgetting(NOW_MS + 10_001).row(merged)
    assert merged.row.cells == {}


def test_versions_with_cells_that_a_deletion_covers_are_told_from_others() -> None:
    layout = two_columns()
    mixed = canonical(layout, put(layout, {2: int_(1)}, 9) + put(layout, {3: int_(2)}, 4, update=True))
    versions = list(zip(mixed[::2], mixed[1::2], strict=True))
    assert keys.stamp_of(mixed[0]) == 9
    assert covered(layout, versions, 4)
    assert not covered(layout, versions, 3)


def test_a_single_version_of_cells_that_differ_is_not_canonical_under_a_deletion_of_some() -> None:
    layout = two_columns()
    mixed = canonical(layout, put(layout, {2: int_(1)}, 9, update=True) + put(layout, {3: int_(2)}, 4, update=True))
    assert canonical(layout, mixed, 5) == put(layout, {2: int_(1)}, 9, update=True)
    assert canonical(layout, mixed, 3) == mixed


def test_a_value_that_is_not_what_its_key_was_made_for_is_refused() -> None:
    layout = two_columns()
    key, value = put(layout, {2: int_(1)}, 9)
    for at in range(len(value)):
        with pytest.raises(BadRow, match="not the one its key was made for"):
            merge_versions(layout, [(key, value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :])])
    foreign = key[: -keys.TAIL] + keys.tail(9, keys.PARTITION_DELETE, bytes(8))
    with pytest.raises(BadRow, match="kind 3"):
        merge_versions(layout, [(foreign, bytes(8))])
