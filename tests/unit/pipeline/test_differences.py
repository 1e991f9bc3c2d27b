"""Exact differences: who lacks what; after it is sent, nobody lacks anything; other pieces are no difference."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rows import cells, tables
from tests.unit.rows.versions import NOW_MS, one_row, random_versions

from trimtab.pipeline.differences import differences, told
from trimtab.rows.deletions import Pair
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import canonical
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, PutRequest

LAYOUT = RowLayout(tables.table(["int"], ["int"], ["text"]), tables.USER_TYPES)
FLAT = RowLayout(tables.table(["int"], [], ["text"]), tables.USER_TYPES)


def put(layout: RowLayout, key: list[int], text: str, stamp: int) -> list[Pair]:
    columns = [*range(1, len(key) + 2)]
    request = PutRequest(layout.table.id, 1, columns, [[*map(cells.int_, key), text.encode()]])
    return flat(pairs_of_put(layout, request, stamp, NOW_MS))


def delete_partition(key: int, stamp: int) -> list[Pair]:
    request = DeleteRequest(LAYOUT.table.id, 1, [cells.int_(key)])
    return flat(pairs_of_delete(LAYOUT, request, stamp, NOW_MS))


def flat(made: dict[int, list[bytes]]) -> list[Pair]:
    found = [part for each in made.values() for part in each]
    return list(zip(found[::2], found[1::2], strict=True))


def test_a_row_that_one_replica_lacks_is_named_with_its_key() -> None:
    one, two = put(LAYOUT, [1, 2], "a", 5), put(LAYOUT, [1, 3], "b", 6)
    found = list(differences(LAYOUT, {1: sorted(one + two), 2: one, 3: sorted(one + two)}))
    assert [(each.lacking, each.pairs) for each in found] == [((2,), tuple(two))]
    shown = told(LAYOUT, 4, found[0], {2: "i2"})
    assert shown["key"] == {"p0": 1, "c0": 3}
    assert (shown["tablet"], shown["writetime_us"], shown["lacking"]) == (4, 6, ["i2"])


def test_an_older_version_is_a_difference_of_whoever_has_only_that() -> None:
    old, new = put(FLAT, [1], "a", 5), put(FLAT, [1], "b", 6)
    found = list(differences(FLAT, {1: old, 2: new}))
    assert [each.lacking for each in found] == [(1,)]
    assert not list(differences(FLAT, {1: sorted(old + new), 2: new})), "what is covered is not lacked"


def test_rows_of_a_load_are_sent_apart_from_what_was_written_since() -> None:
    wide = RowLayout(tables.table(["int"], [], ["text", "text"]), tables.USER_TYPES)
    loaded = put(wide, [1], "load", 1999)
    update = PutRequest(wide.table.id, 1, [1, 3], [[cells.int_(1), b"since"]], update=True)
    since = flat(pairs_of_put(wide, update, 3000, NOW_MS))
    (found,) = differences(wide, {1: sorted(loaded + since), 2: []})
    assert sorted(found.pairs) == sorted(loaded + since), "what is merged can't be left out by a read before the load"


def test_whoever_lacks_a_deletion_lacks_that_and_not_the_rows_it_covers() -> None:
    rows = put(LAYOUT, [1, 2], "a", 5) + put(LAYOUT, [1, 3], "b", 5)
    deletion = delete_partition(1, 9)
    found = list(differences(LAYOUT, {1: sorted(rows), 2: deletion}))
    assert [(each.lacking, each.pairs) for each in found] == [((1,), tuple(deletion))]


def test_deletions_that_may_be_forgotten_are_no_difference() -> None:
    rows, deletion = put(LAYOUT, [1, 2], "a", 5), delete_partition(1, 9)
    kept = {1: sorted(rows + deletion), 2: []}
    assert [each.lacking for each in differences(LAYOUT, kept)] == [(2,)]
    assert not list(differences(LAYOUT, kept, forget_ms=NOW_MS + 1))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_when_what_is_lacking_was_sent_nobody_lacks_anything(seed: int) -> None:
    rng = random.Random(seed)
    layout, key = one_row(rng)
    versions = random_versions(rng, layout, key, rng.randint(1, 8))
    replicas = {raft_id: dict(each for each in versions if rng.random() < 0.7) for raft_id in (1, 2, 3)}
    for difference in list(differences(layout, {each: sorted(held.items()) for each, held in replicas.items()})):
        for raft_id in difference.lacking:
            replicas[raft_id].update(difference.pairs)
    assert not list(differences(layout, {each: sorted(held.items()) for each, held in replicas.items()}))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_replica_that_has_folded_its_row_differs_from_nobody(seed: int) -> None:
    rng = random.Random(seed)
    layout, key = one_row(rng)
    versions = sorted(dict(random_versions(rng, layout, key, rng.randint(1, 6))).items())
    folded = canonical(layout, [part for pair in versions for part in pair])
    other = list(zip(folded[::2], folded[1::2], strict=True))
    assert not list(differences(layout, {1: versions, 2: other}))
