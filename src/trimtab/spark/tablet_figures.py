"""What a tablet is made of: rows, partitions and bytes, where in its tokens they lie, and which partitions are large.

Taken in one pass over the stored pairs, whole columns at a time. Partitions are told apart by their tokens: two that
share one count as one, which among 2^64 hardly ever happens. Bytes are those of keys and values as they are stored,
before compression; of every version, because that is what reading such a partition costs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trimtab.rows.column_keys import ordered_tokens
from trimtab.rows.key_shapes import partition_as_json
from trimtab.rows.keys import PUT, TAIL
from trimtab.rows.layout import RowLayout
from trimtab.tablets.ring import token_range

if TYPE_CHECKING:
    from trimtab.rows.ragged import Ragged

BINS = 32
TOP = 10
_KIND_AT = -9
_TOKENS = 1 << 64


@dataclass(frozen=True, order=True)
class LargePartition:
    """`first` is the key of its first pair, without its tail."""

    size_bytes: int
    pairs: int
    first: bytes

    def told(self, layout: RowLayout) -> dict[str, Any]:
        key = partition_as_json(layout, self.first)
        return {"key": key, "bytes": self.size_bytes, "versions": self.pairs}


@dataclass
class TabletFigures:
    """Of one replica of a tablet. `histogram` counts partitions in equal parts of the tablet's tokens."""

    tablet: int
    tablets: int
    bins: int = BINS
    top: int = TOP
    pairs: int = 0
    rows: int = 0  # that a read would find; counted by whoever decodes them
    partitions: int = 0
    size_bytes: int = 0
    deletions: int = 0
    histogram: list[int] = field(default_factory=list)
    _largest: list[LargePartition] = field(default_factory=list)
    _open: tuple[int, int, int, bytes] | None = None  # token, bytes, pairs and first key of the last partition

    def __post_init__(self) -> None:
        self.histogram = [0] * self.bins
        first, last = token_range(self.tablet, self.tablets)
        self._low = 0 if self.tablet == 0 else first + 1 + _TOKENS // 2
        self._width = max(1, -(-(last + 1 + _TOKENS // 2 - self._low) // self.bins))

    def add(self, keys: Ragged, values: Ragged) -> None:
        """The next pairs, in the order of keys."""
        import numpy as np

        if not len(keys):
            return
        sizes = _lengths(keys) + _lengths(values)
        tokens = ordered_tokens(keys)
        self.pairs += len(keys)
        self.size_bytes += int(sizes.sum())
        self.deletions += int((keys.numbers(_KIND_AT, "|u1") != PUT).sum())
        starts = np.flatnonzero(np.concatenate(([True], tokens[1:] != tokens[:-1])))
        totals = np.add.reduceat(sizes, starts)
        counts = np.diff(np.concatenate((starts, [len(keys)])))
        begun = self._open
        if begun is not None and begun[0] == int(tokens[0]):
            self._open = (begun[0], begun[1] + int(totals[0]), begun[2] + int(counts[0]), begun[3])
            starts, totals, counts = starts[1:], totals[1:], counts[1:]
        if not len(starts):
            return
        self._close()
        self._note(keys, tokens, starts[:-1], totals[:-1], counts[:-1])
        at = int(starts[-1])
        self._open = (int(tokens[at]), int(totals[-1]), int(counts[-1]), keys.bytes_at(at))

    def finish(self) -> TabletFigures:
        """When all pairs were added."""
        self._close()
        return self

    @property
    def largest(self) -> list[LargePartition]:
        return sorted(self._largest, reverse=True)

    def _close(self) -> None:
        if self._open is None:
            return
        token, size_bytes, pairs, first = self._open
        self._open = None
        self.partitions += 1
        self.histogram[self._bin(token)] += 1
        self._consider(LargePartition(size_bytes, pairs, first[:-TAIL]))

    def _note(self, keys: Ragged, tokens: Any, starts: Any, totals: Any, counts: Any) -> None:
        """Partitions that lie whole in a batch."""
        import numpy as np

        if not len(starts):
            return
        self.partitions += len(starts)
        places = (tokens[starts] - np.uint64(self._low)) // np.uint64(self._width)
        for place, count in enumerate(np.bincount(places.astype(np.int64), minlength=self.bins).tolist()):
            self.histogram[min(place, self.bins - 1)] += count
        few = np.argsort(totals, kind="stable")[::-1][: self.top]
        for at in few.tolist():
            first = keys.bytes_at(int(starts[at]))
            self._consider(LargePartition(int(totals[at]), int(counts[at]), first[:-TAIL]))

    def _bin(self, token: int) -> int:
        return min((token - self._low) // self._width, self.bins - 1)

    def _consider(self, partition: LargePartition) -> None:
        if len(self._largest) < self.top:
            heapq.heappush(self._largest, partition)
        else:
            heapq.heappushpop(self._largest, partition)


def _lengths(strings: Ragged) -> Any:
    import numpy as np

    if strings.width is not None:
        return np.full(len(strings), strings.width, dtype=np.int64)
    return np.asarray(strings.lengths, dtype=np.int64)
