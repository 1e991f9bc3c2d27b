"""What a replica answers to a read: its rows, merged, range after range; or their digests.

An answer is bounded, in bytes and in what may be looked at for it, so that none holds the loop for long or is too large
for a message. A range that ended early says where to go on; ranges that were not begun say so too. Where a range ends
depends on its rows alone, so replicas that agree give equal digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from trimtab.rows.digests import digest_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import RangeRows, ReplicaRead
from trimtab.rows.reading import Limits, Scan, read_range

ANSWER_BYTES = 256 << 10  # of one message; a row more may exceed it
SCANNED_BYTES = 2 << 20
SCANNED_PAIRS = 4_000
_ALL_VERSIONS = 1 << 20

Pair = tuple[bytes, bytes]


class Readable(Protocol):
    """A replica, as its readers see it."""

    @property
    def readable(self) -> bool: ...

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[Pair]: ...

    def read(self, low: bytes, high: bytes, limit: int) -> list[Pair]: ...


def read_ranges(replica: Readable, layout: RowLayout, read: ReplicaRead) -> list[RangeRows]:
    """The answer to each range of a read, in step."""
    answers: list[RangeRows] = []
    left_bytes, left_pairs = ANSWER_BYTES, SCANNED_PAIRS
    at_once: Scan | None = None
    for wanted in read.ranges:
        if left_bytes <= 0 or left_pairs <= 0:
            # An empty digest is no digest of anything: whoever compares finds a difference and asks for the rows.
            answers.append(RangeRows(more=True, end=wanted.high if wanted.reverse else wanted.low))
            continue
        scan: Scan = replica.scan
        if wanted.point:
            scan = at_once = at_once or _at_once(replica)
        limits = Limits(left_bytes, SCANNED_BYTES, left_pairs)
        found = read_range(layout, scan, wanted, read.now_s, read.as_of_us, limits=limits)
        left_bytes -= sum(map(len, found.pairs))
        left_pairs -= max(len(found.pairs) // 2, 1)
        if read.digest:
            answers.append(RangeRows([], digest_of(found.pairs, found.end), found.more, found.end))
        else:
            answers.append(RangeRows(found.pairs, b"", found.more, found.end))
    return answers


def _at_once(replica: Readable) -> Scan:
    """A row has few versions: one call into the store is cheaper than an iterator over it."""

    def scan(low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterable[Pair]:
        if high is None or reverse:
            return replica.scan(low, high, reverse=reverse)
        return replica.read(low, high, _ALL_VERSIONS)

    return scan
