"""What deletes in a partition: the whole of it, and ranges of its rows.

A deletion covers what has no later timestamp than its own. Of all that cover a row only the latest counts. A deletion
that is nowhere the latest changes nothing, now or after any other is added, so the canonical form leaves it out: what
is left is the upper outline of all of them, whatever order they came in and whatever was left out before.

    stamp 9       ├──────── A ────────┤
    stamp 5   ├─── B ───┤   ├─ C ─┤               C is gone; of B only the beginning counts, and it stays as it is

The value of a deletion: written_ms (8), when it arrived; of a range also flags (1: the start belongs to it, 2: the end
does) and the end, encoded like the beginning of a clustering key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PARTITION_DELETE, RANGE_DELETE, TAIL, check_content, interval, stamp_of, tail
from trimtab.rows.protocol import Pairs
from trimtab.rows.values import NEVER, WRITTEN

START_INCLUSIVE, END_INCLUSIVE = 1, 2

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, order=True)
class Deletion:
    """Ordered by what counts more. `low` <= clustering key < `high` (None: to the end of the partition)."""

    stamp_us: int
    written_ms: int
    key: bytes
    value: bytes
    low: bytes = b""
    high: bytes | None = None


def deletion_value(written_ms: int) -> bytes:
    return WRITTEN.pack(written_ms)


def range_value(written_ms: int, start_inclusive: bool, end: bytes, end_inclusive: bool) -> bytes:
    flags = (START_INCLUSIVE if start_inclusive else 0) | (END_INCLUSIVE if end_inclusive else 0)
    return WRITTEN.pack(written_ms) + bytes((flags,)) + end


def written_ms_of(key: bytes, value: bytes) -> int:
    """When a deletion arrived."""
    if len(value) < 8:
        raise BadRow(f"a deletion without its time of arrival: {value.hex()} at {key[-TAIL:].hex()}")
    return int.from_bytes(value[:8], "big")


def partition_deletion(key: bytes, value: bytes) -> Deletion:
    check_content(key, value)
    if len(value) != 8 or key[-9] != PARTITION_DELETE:
        raise BadRow(f"a damaged deletion of a partition: kind {key[-9]}, value {value[:64].hex()}")
    return Deletion(stamp_of(key), written_ms_of(key, value), key, value)


def range_deletion(key: bytes, value: bytes, prefix_bytes: int) -> Deletion:
    """`prefix_bytes` is where the section byte lies in the key."""
    check_content(key, value)
    if len(value) < 9 or key[-9] != RANGE_DELETE or value[8] > 3:
        raise BadRow(f"a damaged deletion of a range: kind {key[-9]}, value {value[:64].hex()}")
    start, flags = key[prefix_bytes + 1 : -TAIL], value[8]
    low, high = interval(start, bool(flags & START_INCLUSIVE), value[9:], bool(flags & END_INCLUSIVE))
    return Deletion(stamp_of(key), written_ms_of(key, value), key, value, low, high)


@dataclass(frozen=True, slots=True)
class _Step:
    """From `low` on, this deletion is the latest; None: none covers."""

    low: bytes
    latest: Deletion | None


def _outline(ranges: Sequence[Deletion]) -> list[_Step]:
    """The latest deletion everywhere, from left to right."""
    begins = sorted((each for each in ranges if each.high is None or each.low < each.high), key=lambda each: each.low)
    edges = sorted({each.low for each in begins} | {each.high for each in begins if each.high is not None})
    steps: list[_Step] = []
    covering: list[tuple[int, int, bytes, Deletion]] = []  # a heap: the latest first
    at = 0
    for edge in edges:
        while at < len(begins) and begins[at].low <= edge:
            each = begins[at]
            heappush(covering, (-each.stamp_us, -each.written_ms, each.key, each))
            at += 1
        while covering and (high := covering[0][3].high) is not None and high <= edge:
            heappop(covering)
        latest = covering[0][3] if covering else None
        if not steps or steps[-1].latest is not latest:
            steps.append(_Step(edge, latest))
    return steps


class Covers:
    """The deletions of one partition. `ranges` covers rows; the static row only the partition's own deletion does."""

    __slots__ = ("_lows", "_steps", "partition", "ranges")

    def __init__(self, partition: Deletion | None = None, ranges: Sequence[Deletion] = ()) -> None:
        self.partition = partition
        least = self.static_us
        self._steps = _outline([each for each in ranges if each.stamp_us > least])
        self._lows = [step.low for step in self._steps]
        self.ranges = ranges

    @property
    def static_us(self) -> int:
        """Up to which stamp the static row is deleted."""
        return NEVER if self.partition is None else self.partition.stamp_us

    def covering(self, clustering: bytes) -> int:
        """Up to which stamp a row is deleted by what is not its own."""
        latest = self.covering_range(clustering)
        return self.static_us if latest is None else latest.stamp_us

    def covering_range(self, clustering: bytes) -> Deletion | None:
        if not self._lows:
            return None
        at = bisect_right(self._lows, clustering) - 1
        return self._steps[at].latest if at >= 0 else None

    def pairs(self, low: bytes = b"", high: bytes | None = None) -> Pairs:
        """Those that count between two clustering keys, in the order of their keys."""
        found: dict[bytes, bytes] = {}
        if self.partition is not None:
            found[self.partition.key] = self.partition.value
        ranges = {
            step.latest.key: step.latest.value
            for at, step in enumerate(self._steps)
            if step.latest is not None
            and (high is None or step.low < high)
            and (at + 1 == len(self._steps) or self._lows[at + 1] > low)
        }
        for key in sorted(ranges):
            found[key] = ranges[key]
        return [part for pair in found.items() for part in pair]


NO_COVERS = Covers()


def covers_of(partition: Sequence[Pair], ranges: Sequence[Pair], prefix_bytes: int, as_of_us: int = 0) -> Covers:
    """From stored pairs; with `as_of_us` only from those that were there then."""
    if as_of_us:
        partition = [pair for pair in partition if stamp_of(pair[0]) <= as_of_us]
        ranges = [pair for pair in ranges if stamp_of(pair[0]) <= as_of_us]
    if not partition and not ranges:
        return NO_COVERS
    return Covers(
        max((partition_deletion(*pair) for pair in partition), default=None),
        [range_deletion(*pair, prefix_bytes) for pair in ranges],
    )


def deletion_key(prefix: bytes, section: bytes, start: bytes, stamp_us: int, kind: int, value: bytes) -> bytes:
    return prefix + section + start + tail(stamp_us, kind, value)
