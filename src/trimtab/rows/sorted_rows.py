"""Rows ready to be stored: keys and values in step, in the order of their keys, each key once.

The order is found by the tokens, which come first in every key and hardly ever tie: as many of their bits as there is
room for are sorted together with each row's place in one machine word, which is several times faster than any sort that
carries an index beside. Only rows that tie are compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.rows.column_keys import ordered_tokens, with_tails
from trimtab.rows.ragged import Ragged, copy_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Mask

BLOCK_ROWS = 16_384  # that are looked at together
BLOCK_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 2048  # that become Python objects at a time: few enough to stay in a core's cache
_FEW_TIES = 1 / 64  # of all rows: up to here ties are sorted one by one


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """What `columns.encode_table` makes: row keys and values as they came, and the order they are to have.

    Whole keys are made, and rows put in order, block by block as they are asked for: doing it for all of them at once
    would mostly be waiting for memory.
    """

    rows: Ragged
    values: Ragged
    order: NDArray[np.int64]
    stamp_us: int | NDArray[np.int64]  # of all, or of each

    def __len__(self) -> int:
        return len(self.order)

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[Ragged, Ragged]]:
        """Keys and values in order, so many at a time; fewer where they are large."""
        size_bytes = self.rows.size + self.values.size
        rows = max(1, min(rows, BLOCK_BYTES * len(self.rows) // max(1, size_bytes)))
        for start in range(0, len(self), rows):
            places = self.order[start : start + rows]
            values = self.values.take(places)
            stamps = self.stamp_us if isinstance(self.stamp_us, int) else self.stamp_us[places]
            yield with_tails(self.rows.take(places), stamps, values), values

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same as lists of bytes."""
        for keys, values in self.blocks():
            yield from zip(keys.lists(rows), values.lists(rows), strict=True)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self.batches():
            yield from zip(keys, values, strict=True)

    def slice(self, start: int, stop: int) -> SortedRows:
        return SortedRows(self.rows, self.values, self.order[start:stop], self.stamp_us)

    def by_tablet(self, tablets: int) -> Iterator[tuple[int, SortedRows]]:
        """The rows of each tablet that has any. Tablets are equal parts of the tokens, so they are runs of rows."""
        import numpy as np

        if tablets < 1 or tablets & (tablets - 1):
            raise ValueError(f"a table has a power of two of tablets, not {tablets}")
        if tablets == 1 and len(self):
            yield 0, self
        if tablets == 1 or not len(self):
            return
        of_row = (ordered_tokens(self.rows) >> np.uint64(65 - tablets.bit_length()))[self.order]
        firsts = np.flatnonzero(np.concatenate(([True], of_row[1:] != of_row[:-1]))).tolist()
        for start, stop in zip(firsts, [*firsts[1:], len(self)], strict=True):
            yield int(of_row[start]), self.slice(start, stop)


def order_of(keys: Ragged) -> tuple[NDArray[np.int64], bool]:
    """The places of keys in ascending order, and whether any could be equal. Those stay in the order they have."""
    import numpy as np
    import pyarrow.compute as pc

    count = len(keys)
    if count < 2:
        return np.arange(count), False
    bits = np.uint64((count - 1).bit_length())
    packed = ordered_tokens(keys) >> bits << bits
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << int(bits)) - 1)).view(np.int64)
    packed >>= bits
    ties = packed[1:] == packed[:-1]
    tied = int(np.count_nonzero(ties))
    if not tied:
        return order, False
    if tied <= count * _FEW_TIES:
        for start, stop in _runs(ties):
            run = order[start:stop].tolist()
            order[start:stop] = sorted(run, key=lambda at: (keys.bytes_at(at), at))
        return order, True
    if keys.width is None:
        found: NDArray[np.int64] = pc.array_sort_indices(keys.to_arrow()).to_numpy().astype(np.int64)
        return found, True
    padded = np.zeros((count, -(-keys.width // 8) * 8), dtype=np.uint8)
    copy_columns(keys.matrix, padded[:, : keys.width])
    words = padded.view(">u8").astype(np.uint64)
    return np.lexsort([words[:, at] for at in reversed(range(words.shape[1]))]), True


def repeats(keys: Ragged, order: NDArray[np.int64]) -> Mask:
    """For each key but the first, in this order: whether it equals the one before."""
    import numpy as np
    import pyarrow.compute as pc

    tokens = ordered_tokens(keys)[order]
    same: Mask = tokens[1:] == tokens[:-1]
    places = np.flatnonzero(same)
    for start in range(0, len(places), BLOCK_ROWS):
        some = places[start : start + BLOCK_ROWS]
        one, other = keys.take(order[some]), keys.take(order[some + 1])
        same[some] = np.asarray(pc.equal(one.to_arrow(), other.to_arrow()))
    return same


def _runs(ties: Mask) -> Iterator[tuple[int, int]]:
    """Start and end of the rows that tie, where ties[i] says that rows i and i + 1 do."""
    import numpy as np

    edges = np.diff(np.concatenate(([0], ties.view(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    for start, end in zip(starts, ends, strict=True):
        yield start, end + 1


def runs(ties: Mask) -> list[tuple[int, int]]:
    return list(_runs(ties))
