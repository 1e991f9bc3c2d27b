"""A batch of stored pairs, looked at by the column: which rows are plain enough to be decoded that way.

A row is *special* if more than its own value says what it is: it has several versions, or a version that deletes, or
stamps per cell, or a multi-cell collection; or its partition has deletions or a static row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trimtab.rows.column_keys import ordered_tokens, section_places
from trimtab.rows.deletions import Pair
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PUT, ROWS, TAIL
from trimtab.rows.layout import RowLayout
from trimtab.rows.ragged import Ragged
from trimtab.rows.tokens import TOKEN_BYTES
from trimtab.rows.values import ALL_FLAGS, HEAD, PER_CELL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Mask, Octets

_SHORTEST_KEY = TOKEN_BYTES + 1 + TAIL
_LATEST = (1 << 63) - 1
_KIND_FROM_END = 9


class BatchView:
    """Keys and values in step, sorted by key."""

    def __init__(self, layout: RowLayout, keys: Ragged, values: Ragged) -> None:
        import numpy as np

        for strings, least, what in ((keys, _SHORTEST_KEY, "key"), (values, HEAD, "value")):
            shortest = strings.width if strings.width is not None else int(strings.lengths.min())
            if shortest < least:
                raise BadRow(f"a {what} of {layout.name} of {shortest} bytes; none has fewer than {least}")
        self.layout = layout
        self.keys = keys
        self.values = values
        # Flags and layout, as one number.
        if values.width is not None and values.width > HEAD:
            self.heads: NDArray[np.int64] = values.numbers(0, ">u4") >> 8
        else:
            head = values.column(0, HEAD).astype(np.int64)
            self.heads = head[:, 0] << 16 | head[:, 1] << 8 | head[:, 2]

    def stamps(self) -> NDArray[np.int64]:
        import numpy as np

        inverted = self.keys.numbers(-TAIL, ">u8").astype(np.uint64)
        return np.int64(_LATEST) - inverted.view(np.int64)

    def sections(self) -> Octets:
        places = section_places(self.layout, self.keys)
        if isinstance(places, int):
            return self.keys.column(places, 1)[:, 0]
        return self.keys.gather(self.keys.starts + places, 1).reshape(-1)

    def pairs(self, places: Iterable[int]) -> list[Pair]:
        keys, values = self.keys, self.values
        return [(keys.bytes_at(at), values.bytes_at(at)) for at in places]

    def start_of_row(self, at: int) -> int:
        """Where the versions of the row begin that this one belongs to."""
        row = self.keys.bytes_at(at)[:-TAIL]
        while at and self.keys.bytes_at(at - 1)[:-TAIL] == row:
            at -= 1
        return at

    def preamble(self, prefix: bytes, end: int) -> list[Pair]:
        """What comes before the rows of this partition, if it is the one in which the first `end` pairs end."""
        import numpy as np

        token = np.uint64(int.from_bytes(prefix[:TOKEN_BYTES], "big"))
        found = []
        for at in range(int(np.searchsorted(ordered_tokens(self.keys)[:end], token)), end):
            key = self.keys.bytes_at(at)
            if key[: len(prefix)] == prefix:
                if key[len(prefix)] >= ROWS[0]:
                    break
                found.append((key, self.values.bytes_at(at)))
        return found

    def special(self) -> Mask:
        import numpy as np

        found: Mask = self.keys.numbers(-_KIND_FROM_END, "|u1") != PUT
        for head in (
            [int(self.heads[0])] if bool((self.heads == self.heads[0]).all()) else np.unique(self.heads).tolist()
        ):
            flags, number = head >> 16, head & 0xFFFF
            if flags > ALL_FLAGS or flags & PER_CELL or self._by_the_row(number):
                found |= self.heads == head
        # Whether tokens are equal does not depend on the order of their bytes.
        tokens = self.keys.numbers(0, "=u8")
        same: Mask = tokens[1:] == tokens[:-1]
        if same.any():
            again = self._repeats(same)
            found[1:] |= again
            found[:-1] |= again
        if self.layout.clustering:
            before = self.sections() != ROWS[0]
            if before.any():
                partitions = np.concatenate(([0], np.cumsum(~same)))
                marked = np.zeros(int(partitions[-1]) + 1, dtype=bool)
                marked[partitions[before]] = True
                found |= marked[partitions]
        return found

    def _by_the_row(self, number: int) -> bool:
        """Whether values of this layout, known or not, are left to the code for single rows."""
        try:
            return self.layout.shape(number, static=False).multicell
        except BadRow:
            return True  # unless it is no row's value at all, that code says what is wrong

    def _repeats(self, same: Mask) -> Mask:
        """Where a row key equals the one before; `same`: where the token does."""
        import numpy as np
        import pyarrow.compute as pc

        keys, ends = self.keys, self.keys.offsets[1:] - TAIL
        starts = keys.starts
        lengths = ends - starts
        places = np.flatnonzero(same & (lengths[1:] == lengths[:-1]))
        again = np.zeros(len(same), dtype=bool)
        if len(places):
            one = keys.pick(starts[places], lengths[places]).to_arrow()
            other = keys.pick(starts[places + 1], lengths[places + 1]).to_arrow()
            again[places] = np.asarray(pc.equal(one, other))
        return again
