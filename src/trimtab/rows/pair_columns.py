"""Keys and values in step, as columns that can be put into any order.

Where all keys and all values are equally long, a pair is one string, key then value, and all of them are one matrix: to
put a pair in its place is then one copy from one place of memory, and not two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.rows.ragged import Ragged, fixed, from_list, room, stack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Octets


class PairColumns:
    """`keys` and `values`; both may be parts of one matrix, `both`."""

    __slots__ = ("both", "keys", "values")

    def __init__(self, keys: Ragged, values: Ragged, both: Ragged | None = None) -> None:
        self.keys = keys
        self.values = values
        self.both = both

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> int:
        return self.keys.size + self.values.size

    def take(self, order: NDArray[Any]) -> PairColumns:
        """The pairs at these places, in this order."""
        if self.both is None or self.keys.width is None:
            return PairColumns(self.keys.take(order), self.values.take(order))
        return beside(self.both.take(order), self.keys.width)


def beside(both: Ragged, key_width: int) -> PairColumns:
    """Pairs that lie in one matrix."""
    matrix = both.matrix
    return PairColumns(fixed(matrix[:, :key_width]), fixed(matrix[:, key_width:]), both)


class Pile:
    """Blocks of pairs that become one, where about how many there will be is known before.

    As long as the blocks are equally wide, each goes to its final place at once: memory that is touched for the first
    time costs more than all the rest of a copy.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._data: Octets | None = None
        self._widths = (0, 0)  # of keys, and of pairs
        self._count = 0
        self._blocks: list[PairColumns] = []

    def add(self, block: PairColumns, order: NDArray[Any]) -> None:
        """The pairs of a block at these places, in this order."""
        import numpy as np

        count = len(order)
        if not count:
            return
        widths = (block.keys.width or 0, block.both.width or 0) if block.both is not None else (0, 0)
        if self._data is None and not self._blocks and block.both is not None:
            self._widths = widths
            self._data = room(max(self._expected, count) * widths[1], np.uint8)
        start, end = self._count * self._widths[1], (self._count + count) * self._widths[1]
        if self._data is None or block.both is None or self._blocks or widths != self._widths or end > len(self._data):
            self._blocks.append(block.take(order))
            return
        item = f"V{widths[1]}"
        np.take(block.both.data.view(item), order, out=self._data[start:end].view(item), mode="clip")
        self._count += count

    def whole(self) -> PairColumns:
        blocks = list(self._blocks)
        if self._data is not None:
            key_width, width = self._widths
            piled = beside(Ragged(self._data[: self._count * width], self._count, width), key_width)
            if not blocks:
                return piled
            blocks.insert(0, piled)
        if not blocks:
            return PairColumns(from_list([]), from_list([]))
        return PairColumns(stack([each.keys for each in blocks]), stack([each.values for each in blocks]))
