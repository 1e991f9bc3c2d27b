"""Figures of a tablet: partitions, bytes and the largest, however the pairs are cut into batches."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pipeline.test_differences import LAYOUT, delete_partition, put

from trimtab.rows.deletions import Pair
from trimtab.rows.keys import PUT
from trimtab.rows.ragged import from_list
from trimtab.rows.tokens import token_of_key
from trimtab.spark.tablet_figures import TabletFigures
from trimtab.tablets.ring import tablet_of


def some_rows(rng: random.Random) -> list[Pair]:
    found: list[Pair] = []
    for partition in range(rng.randint(1, 20)):
        for row in range(rng.choice((1, 1, 2, 30))):
            found += put(LAYOUT, [partition, row], "x" * rng.randrange(50), rng.randrange(1, 9))
        if rng.random() < 0.2:
            found += delete_partition(partition, 3)
    return sorted(dict(found).items())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 70))
def test_the_figures_are_those_of_the_pairs(seed: int, batch: int) -> None:
    rng = random.Random(seed)
    pairs = some_rows(rng)
    figures = TabletFigures(0, 1, top=3)
    for start in range(0, len(pairs), batch):
        some = pairs[start : start + batch]
        figures.add(from_list([key for key, _ in some]), from_list([value for _, value in some]))
    figures.finish()
    sizes: dict[int, list[int]] = {}
    for key, value in pairs:
        sizes.setdefault(token_of_key(key), []).append(len(key) + len(value))
    assert figures.pairs == len(pairs)
    assert figures.partitions == len(sizes) == sum(figures.histogram)
    assert figures.size_bytes == sum(map(sum, sizes.values()))
    assert figures.deletions == sum(key[-9] != PUT for key, _ in pairs)
    expected = sorted(((sum(each), len(each)) for each in sizes.values()), reverse=True)[:3]
    assert sorted((each.size_bytes for each in figures.largest), reverse=True) == [size for size, _ in expected]


def test_partitions_lie_in_the_part_of_the_tablet_where_their_token_is() -> None:
    pairs = sorted(pair for number in range(200) for pair in put(LAYOUT, [number, 0], "a", 1))
    for tablet in range(4):
        own = [pair for pair in pairs if tablet_of(token_of_key(pair[0]), 4) == tablet]
        figures = TabletFigures(tablet, 4, bins=2)
        figures.add(from_list([key for key, _ in own]), from_list([value for _, value in own]))
        figures.finish()
        halves = [tablet_of(token_of_key(key), 8) - 2 * tablet for key, _ in own]
        assert figures.histogram == [halves.count(0), halves.count(1)]


def test_the_largest_are_told_by_their_partition_key() -> None:
    pairs = sorted(put(LAYOUT, [1, 0], "a", 1) + put(LAYOUT, [2, 0], "b" * 100, 1))
    figures = TabletFigures(0, 1, top=1)
    figures.add(from_list([key for key, _ in pairs]), from_list([value for _, value in pairs]))
    (largest,) = figures.finish().largest
    assert largest.told(LAYOUT)["key"] == {"p0": 2}
    assert largest.told(LAYOUT)["versions"] == 1
