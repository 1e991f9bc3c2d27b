"""Checksums of ranges of tokens, over what a replica stores: the first look of a comparison.

A key ends with the hash of its value, so the keys stand for the pairs. Each range has their number, and sum and
exclusive or of their hashes: whole columns at a time, in any order, in any pieces. Ranges with equal sums hold equal
pairs. Ranges with other sums need not mean other rows: one replica may have folded what another still has in pieces.
That is what `differences` looks at, row by row, in those ranges alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.rows.column_hashing import hashes
from trimtab.rows.column_keys import ordered_tokens
from trimtab.rows.tokens import TOKEN_BYTES
from trimtab.tablets.missed import cut_range, tablet_keys
from trimtab.tablets.ring import token_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Ragged

RANGE_BYTES = 1 << 20  # about so much of a tablet is in one range: what is looked at row by row when it differs
MIN_RANGES = 16
MAX_RANGES = 4096
_FULL = 1 << 64


def ranges_for(tablet: int, tablets: int, size_bytes: int) -> list[bytes]:
    """Cuts of a tablet into ranges of about one size: cuts[i] <= key < cuts[i+1]; the last may be empty, the end."""
    parts = max(MIN_RANGES, min(MAX_RANGES, size_bytes // RANGE_BYTES))
    return cut_range(*tablet_keys(*token_range(tablet, tablets)), parts)


class RangeSums:
    """Of the ranges between some cuts. `add` takes keys in any order, `sums` is one row for each range."""

    def __init__(self, cuts: Sequence[bytes]) -> None:
        import numpy as np

        if len(cuts) < 2:
            raise ValueError("a range has two ends")
        self._starts = np.asarray([_number(cut) for cut in cuts[:-1]], dtype=np.uint64)
        self._first, self._end = _number(cuts[0]), _number(cuts[-1]) or _FULL
        self._counts = np.zeros(len(cuts) - 1, dtype=np.uint64)
        self._totals = np.zeros(len(cuts) - 1, dtype=np.uint64)
        self._mixes = np.zeros(len(cuts) - 1, dtype=np.uint64)
        self.foreign = 0  # keys outside of all ranges: there should be none

    def add(self, keys: Ragged) -> None:
        import numpy as np

        if not len(keys):
            return
        tokens = ordered_tokens(keys)
        hashed = hashes(keys).view(np.uint64)
        inside = tokens >= np.uint64(self._first)
        if self._end < _FULL:
            inside &= tokens < np.uint64(self._end)
        if not bool(inside.all()):
            self.foreign += int((~inside).sum())
            tokens, hashed = tokens[inside], hashed[inside]
        places = np.searchsorted(self._starts, tokens, side="right") - 1
        np.add.at(self._counts, places, np.uint64(1))
        np.add.at(self._totals, places, hashed)
        np.bitwise_xor.at(self._mixes, places, hashed)

    @property
    def sums(self) -> NDArray[np.uint64]:
        import numpy as np

        return np.stack([self._counts, self._totals, self._mixes], axis=1)

    @property
    def pairs(self) -> int:
        return int(self._counts.sum())


def differing(sums: Sequence[Any]) -> list[int]:
    """The ranges whose sums are not the same in all of these."""
    import numpy as np

    if len(sums) < 2:
        return []
    unequal = np.zeros(len(sums[0]), dtype=bool)
    for other in sums[1:]:
        unequal |= np.any(other != sums[0], axis=1)
    return [int(at) for at in np.flatnonzero(unequal)]


def spans(cuts: Sequence[bytes], ranges: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """These ranges as spans of keys, low <= key < high (empty: to the end). Each stays by itself, to bound memory."""
    return [(cuts[at], cuts[at + 1]) for at in ranges]


def _number(cut: bytes) -> int:
    return int.from_bytes(cut[:TOKEN_BYTES].ljust(TOKEN_BYTES, b"\x00"), "big")
