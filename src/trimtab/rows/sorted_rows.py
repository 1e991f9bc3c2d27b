"""Rows ready to be stored: keys and values in step, in the order of their keys, each key once.

The order is found by the tokens, which come first in every key and hardly ever tie: as many of their bits as there is
room for are sorted together with each row's place in one machine word, which is several times faster than any sort that
carries an index beside. Only rows that tie are compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.rows.column_hashing import hashes
from trimtab.rows.column_keys import ordered_tokens, tails
from trimtab.rows.ragged import Ragged, copy_columns, join, room

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    _hashes: list[NDArray[np.uint64]] = field(default_factory=list, repr=False)  # of values, once somebody has asked

    def __len__(self) -> int:
        return len(self.order)

    @property
    def size(self) -> int:
        """Bytes of keys without tails and of values, about: these may be some rows of many, and all are alike then."""
        return (self.rows.size + self.values.size) * len(self) // max(1, len(self.rows))

    def value_hashes(self) -> NDArray[np.uint64]:
        """Of the values as they came. They become part of the keys, so they are not computed a second time for that."""
        import numpy as np

        if not self._hashes:
            self._hashes.append(hashes(self.values).view(np.uint64))
        return self._hashes[0]

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[Ragged, Ragged]]:
        """Keys and values in order, so many at a time; fewer where they are large."""
        for parts, values in self.parts(rows):
            yield join(parts), values

    def parts(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[list[Ragged | bytes], Ragged]]:
        """The same with the parts of keys that are still to be joined."""
        size_bytes = self.rows.size + self.values.size
        rows = max(1, min(rows, BLOCK_BYTES * len(self.rows) // max(1, size_bytes)))
        for start in range(0, len(self), rows):
            places = self.order[start : start + rows]
            values = self.values.take(places)
            stamps = self.stamp_us if isinstance(self.stamp_us, int) else self.stamp_us[places]
            known = self._hashes[0][places] if self._hashes else None
            yield [self.rows.take(places), *tails(stamps, values, known)], values

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The same as lists of bytes."""
        for keys, values in self.blocks():
            yield from zip(keys.lists(rows), values.lists(rows), strict=True)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self.batches():
            yield from zip(keys, values, strict=True)

    def slice(self, start: int, stop: int) -> SortedRows:
        return SortedRows(self.rows, self.values, self.order[start:stop], self.stamp_us, self._hashes)

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


def order_of(keys: Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of keys in ascending order; equal ones stay in the order they have.

    And where two neighbours in this order might be equal: i means the keys at i and i + 1. Nowhere else they are.
    """
    import numpy as np
    import pyarrow.compute as pc

    count = len(keys)
    if count < 2:
        return np.arange(count), np.empty(0, np.int64)
    bits = (count - 1).bit_length()
    packed = room(count, np.uint64)
    packed[:] = keys.numbers(0, ">u8")
    packed >>= np.uint64(bits)
    packed <<= np.uint64(bits)
    for start in range(0, count, BLOCK_ROWS):
        some = packed[start : start + BLOCK_ROWS]
        some |= np.arange(start, start + len(some), dtype=np.uint64)
    packed.sort()
    order = room(count, np.int64)
    np.bitwise_and(packed, np.uint64((1 << bits) - 1), out=order.view(np.uint64))
    packed >>= np.uint64(bits)
    ties = np.flatnonzero(packed[1:] == packed[:-1])
    if len(ties) <= count * _FEW_TIES:
        for start, stop in runs(ties):
            run = order[start:stop].tolist()
            order[start:stop] = sorted(run, key=lambda at: (keys.bytes_at(at), at))
        return order, ties
    if keys.width is None:
        found: NDArray[np.int64] = pc.array_sort_indices(keys.to_arrow()).to_numpy().astype(np.int64)
        return found, ties
    padded = np.zeros((count, -(-keys.width // 8) * 8), dtype=np.uint8)
    copy_columns(keys.matrix, padded[:, : keys.width])
    words = padded.view(">u8").astype(np.uint64)
    return np.lexsort([words[:, at] for at in reversed(range(words.shape[1]))]), ties


def repeats(keys: Ragged, order: NDArray[np.int64], ties: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the ties that are equal."""
    import numpy as np
    import pyarrow.compute as pc

    found = [np.empty(0, np.int64)]
    for start in range(0, len(ties), BLOCK_ROWS):
        some = ties[start : start + BLOCK_ROWS]
        one, other = keys.take(order[some]), keys.take(order[some + 1])
        found.append(some[np.asarray(pc.equal(one.to_arrow(), other.to_arrow()))])
    return np.concatenate(found)


def runs(ties: NDArray[np.int64]) -> list[tuple[int, int]]:
    """From where to where rows tie with each other, where i among the ties says that rows i and i + 1 do."""
    import numpy as np

    if not len(ties):
        return []
    breaks = np.flatnonzero(ties[1:] != ties[:-1] + 1) + 1
    starts = ties[np.concatenate(([0], breaks))].tolist()
    ends = ties[np.concatenate((breaks - 1, [len(ties) - 1]))].tolist()
    return [(start, end + 2) for start, end in zip(starts, ends, strict=True)]
