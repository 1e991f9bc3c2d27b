"""Deletions of ranges: what is covered where, and which of them count."""

from __future__ import annotations

import random

import pytest
from tests.unit.rows.versions import NOW_MS

from trimtab.rows.deletions import NO_COVERS, Covers, Pair, covers_of, deletion_value, range_value
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PARTITION_DELETE, PARTITION_DELETED, RANGE_DELETE, RANGE_DELETED, interval, tail
from trimtab.rows.values import NEVER

PREFIX = b"tokenpkey"


def range_pair(start: bytes, end: bytes, stamp: int, first: bool = True, last: bool = True, at: int = NOW_MS) -> Pair:
    value = range_value(at, first, end, last)
    return PREFIX + RANGE_DELETED + start + tail(stamp, RANGE_DELETE, value), value


def partition_pair(stamp: int, at: int = NOW_MS) -> Pair:
    value = deletion_value(at)
    return PREFIX + PARTITION_DELETED + tail(stamp, PARTITION_DELETE, value), value


def covers(ranges: list[Pair], partition: list[Pair] | None = None, as_of: int = 0) -> Covers:
    return covers_of(partition or [], ranges, len(PREFIX), as_of)


def test_no_deletions_cover_nothing() -> None:
    assert covers([]) is NO_COVERS
    assert NO_COVERS.covering(b"x") == NEVER


@pytest.mark.parametrize("seed", range(40))
def test_the_latest_deletion_counts_everywhere_and_only_those_that_do_are_kept(seed: int) -> None:
    rng = random.Random(seed)
    letters = [bytes((each,)) for each in range(97, 105)]

    def bound() -> bytes:
        return b"".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 1, 2])))

    def some() -> list[Pair]:
        return [
            range_pair(bound(), bound(), rng.randint(1, 6), rng.random() < 0.5, rng.random() < 0.5, rng.choice([1, 2]))
            for _ in range(rng.randint(0, 8))
        ]

    ranges, others = some(), some()
    partition = [partition_pair(rng.randint(1, 4)) for _ in range(rng.choice([0, 0, 1, 2]))]
    made = covers(ranges, partition)
    least = max((stamp for stamp in map(_stamp, partition)), default=NEVER)
    points = [one + other for one in letters for other in letters]
    for point in points:
        expected = max([least, *(_stamp(pair) for pair in ranges if _inside(pair, point))])
        assert made.covering(point) == expected
    # Leaving out what does not count changes nothing, now or when others come.
    kept = made.pairs()
    slim = covers(_of(kept, RANGE_DELETED), _of(kept, PARTITION_DELETED))
    assert slim.pairs() == kept
    more = covers(_of(kept, RANGE_DELETED) + others, _of(kept, PARTITION_DELETED))
    assert more.pairs() == covers(ranges + others, partition).pairs()
    # Those that count in a part of the partition are enough for that part.
    low, high = sorted(rng.sample(points, 2))
    inside = made.pairs(low, high)
    part = covers(_of(inside, RANGE_DELETED), _of(inside, PARTITION_DELETED))
    for point in points:
        if low <= point < high:
            assert part.covering(point) == made.covering(point)


def _stamp(pair: Pair) -> int:
    return (1 << 63) - 1 - int.from_bytes(pair[0][-17:-9], "big")


def _inside(pair: Pair, point: bytes) -> bool:
    key, value = pair
    low, high = interval(key[len(PREFIX) + 1 : -17], bool(value[8] & 1), value[9:], bool(value[8] & 2))
    return low <= point and (high is None or point < high)


def _of(pairs: list[bytes], section: bytes) -> list[Pair]:
    return [
        (key, value)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True)
        if key[len(PREFIX) : len(PREFIX) + 1] == section
    ]


def test_bounds_hold_everything_that_begins_like_them_or_nothing_of_it() -> None:
    assert interval(b"b", True, b"d", True) == (b"b", b"e")
    assert interval(b"b", False, b"d", False) == (b"c", b"d")
    assert interval(b"", True, b"", True) == (b"", None)
    assert interval(b"", False, b"", False) == (b"", None)
    assert interval(b"a\xff", False, b"\xff\xff", True) == (b"b", None)
    low, high = interval(b"\xff", False, b"", True)
    assert high is not None
    assert low >= high


def test_later_deletions_are_not_there_yet_for_an_earlier_time() -> None:
    made = covers([range_pair(b"a", b"c", 5), range_pair(b"a", b"c", 9)], [partition_pair(7)], as_of=6)
    assert made.covering(b"b") == 5
    assert made.static_us == NEVER


def test_damaged_deletions_are_refused() -> None:
    key, value = range_pair(b"a", b"c", 5)
    for damaged in (value[:5], value[:8], value[:8] + b"\x09" + value[9:], b""):
        with pytest.raises(BadRow):
            covers([(key, damaged)])
        remade = key[:-17] + tail(5, RANGE_DELETE, damaged)
        if damaged != value[:8] + b"\x00":
            with pytest.raises(BadRow):
                covers([(remade, damaged)])
    with pytest.raises(BadRow):
        covers([], [(partition_pair(5)[0], b"x")])
