"""Many byte strings in one array: how the columns of a batch lie in memory between Arrow and the store.

Where all strings are equally long (`width`), which is the usual case for keys and for rows of numbers, they are a
matrix and every operation is one numpy call. Where they are not, Arrow's kernels join and reorder them. Either way no
string becomes a Python object until RocksDB wants it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Octets = NDArray[np.uint8]
    Offsets = NDArray[np.int64]
    Mask = NDArray[np.bool_]

# Rows that are looked at together where an operation needs index arrays: those stay within a core's cache.
_BLOCK_ROWS = 16_384


class Ragged:
    """`data[offsets[i]:offsets[i + 1]]` is string i. With a `width`, offsets are not kept: i * width would be them.

    A matrix may be part of a larger one, with gaps between its rows; `data` is then made when somebody asks for it.
    """

    __slots__ = ("_data", "_matrix", "_offsets", "count", "width")

    def __init__(
        self,
        data: Octets | None,
        count: int,
        width: int | None = None,
        offsets: Offsets | None = None,
        matrix: Octets | None = None,
    ) -> None:
        self._data = data
        self.count = count
        self.width = width
        self._offsets = offsets
        self._matrix = matrix

    def __len__(self) -> int:
        return self.count

    @property
    def data(self) -> Octets:
        import numpy as np

        if self._data is None:
            assert self._matrix is not None
            found = np.empty(self._matrix.shape, dtype=np.uint8)
            copy_columns(self._matrix, found)
            self._matrix, self._data = found, found.reshape(-1)
        return self._data

    @property
    def matrix(self) -> Octets:
        """One row a string; only where they are equally long. Not to be changed."""
        if self._matrix is not None:
            return self._matrix
        assert self.width is not None
        return self.data.reshape(self.count, self.width)

    @property
    def offsets(self) -> Offsets:
        import numpy as np

        if self._offsets is not None:
            return self._offsets
        assert self.width is not None
        return np.arange(self.count + 1, dtype=np.int64) * self.width

    @property
    def starts(self) -> Offsets:
        return self.offsets[:-1]

    @property
    def lengths(self) -> Offsets:
        import numpy as np

        if self.width is not None:
            return np.full(self.count, self.width, dtype=np.int64)
        offsets = self.offsets
        return offsets[1:] - offsets[:-1]

    @property
    def size(self) -> int:
        """Bytes of all strings together."""
        if self.width is not None:
            return self.count * self.width
        return int(self.offsets[-1] - self.offsets[0])

    def flat(self) -> Octets:
        """The bytes of the strings and nothing else."""
        if self._offsets is None:
            return self.data
        return self.data[self._offsets[0] : self._offsets[-1]]

    def slice(self, start: int, stop: int) -> Ragged:
        """Some strings, on the same memory."""
        if self.width is not None:
            return fixed(self.matrix[start:stop])
        offsets = self.offsets[start : stop + 1]
        return varying(self.data, offsets)

    def take(self, order: NDArray[Any]) -> Ragged:
        """The strings at these places, in this order."""
        import numpy as np
        import pyarrow as pa

        if self.width == 0:
            return Ragged(self.data[:0], len(order), 0)
        if self.width is not None:
            # As one item a row: a row is then copied at once, and not byte by byte.
            items = self.data.view(f"V{self.width}")
            return Ragged(np.take(items, order).view(np.uint8), len(order), self.width)
        return from_arrow(self.to_arrow().take(pa.array(order)))

    def bytes_at(self, at: int) -> bytes:
        if self.width is not None:
            return bytes(self.matrix[at])
        offsets = self.offsets
        return self.data[offsets[at] : offsets[at + 1]].tobytes()

    def to_list(self) -> list[bytes]:
        if self.width == 0:
            return [b""] * self.count
        if self.width is not None:
            # A void, and not a bytes type: numpy would cut zeros off the end of those.
            found: list[bytes] = self.matrix.view(f"V{self.width}")[:, 0].tolist()
            return found
        held = self.flat().tobytes()
        places = (self.offsets - self.offsets[0]).tolist()
        return [held[start:stop] for start, stop in pairwise(places)]

    def lists(self, rows: int) -> Iterator[list[bytes]]:
        """All of them as lists of so many: few enough objects at a time that memory is used again while it is warm."""
        for start in range(0, self.count, rows):
            yield self.slice(start, min(start + rows, self.count)).to_list()

    def column(self, offset: int, width: int) -> Octets:
        """The same few bytes of every string, as a matrix that is not to be changed. Every string reaches that far."""
        if self.width is None:
            return self.gather(self.starts + offset, width)
        return self.matrix[:, offset : offset + width]

    def numbers(self, offset: int, code: str) -> NDArray[Any]:
        """The same bytes of every string as a number: `code` is numpy's (`>u4`). From the end if offset is negative."""
        size = int(code[2:])
        if self.width is None:
            places = self.starts + offset if offset >= 0 else self.offsets[1:] + offset
            return self.gather(places, size).view(code)[:, 0]
        offset += self.width if offset < 0 else 0
        return self.matrix[:, offset : offset + size].view(code)[:, 0]

    def gather(self, places: Offsets, width: int) -> Octets:
        """`width` bytes from each of these places in `data`, as a matrix."""
        import numpy as np

        if not width or not len(places):
            return np.empty((len(places), width), dtype=np.uint8)
        # Every place of `data` as the beginning of an item: one index a row instead of one a byte.
        items = np.ndarray((len(self.data) - width + 1,), f"V{width}", buffer=self.data, strides=(1,))
        return items[places].view(np.uint8).reshape(len(places), width)

    def pick(self, starts: Offsets, lengths: Offsets) -> Ragged:
        """These parts of `data` as strings of their own."""
        import numpy as np

        count = len(starts)
        if count and int(lengths.min()) == int(lengths.max()):
            return fixed(self.gather(starts, int(lengths[0])))
        ends = starts + lengths
        if bool((starts[1:] >= ends[:-1]).all()):
            return self._pick_ascending(starts, ends)
        offsets = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        for start in range(0, count, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, count)
            low, high = int(offsets[start]), int(offsets[stop])
            index = np.repeat(starts[start:stop] - offsets[start:stop], lengths[start:stop])
            index += np.arange(low, high, dtype=np.int64)
            np.take(self.data, index, out=data[low:high])
        return varying(data, offsets)

    def _pick_ascending(self, starts: Offsets, ends: Offsets) -> Ragged:
        """The same for parts that follow each other: Arrow sees parts and gaps by turns, and takes the parts."""
        import numpy as np
        import pyarrow as pa

        count = len(starts)
        turns = np.empty(2 * count, dtype=np.int64)
        turns[::2], turns[1::2] = starts, ends
        held = [None, pa.py_buffer(turns), pa.py_buffer(self.data)]
        array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2 * count - 1, held)
        return from_arrow(array.take(pa.array(np.arange(0, 2 * count - 1, 2))))

    def to_arrow(self) -> Any:
        """A large_binary array on the same memory."""
        import numpy as np
        import pyarrow as pa

        offsets = pa.py_buffer(np.ascontiguousarray(self.offsets))
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.count, [None, offsets, pa.py_buffer(self.data)])


def room(count: int, kind: Any) -> NDArray[Any]:
    """An array for a lot of data, from Arrow's memory: that stays with the process and is warm the next time.

    What the system gives was seen to take longer to touch than all that is then done with it.
    """
    import numpy as np
    import pyarrow as pa

    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), dtype=kind)


def copy_columns(source: Octets, target: Octets) -> None:
    """Copy some columns of bytes between matrices; a source of one row goes to every row."""
    width = target.shape[1]
    if width:
        # As one item a row: numpy takes longer for the same bytes one by one, or in pieces.
        target.view(f"V{width}")[...] = source.view(f"V{width}")


def fixed(matrix: Octets) -> Ragged:
    """One string a row of the matrix."""
    count, width = matrix.shape
    if matrix.flags.c_contiguous:
        return Ragged(matrix.reshape(-1), count, width)
    return Ragged(None, count, width, matrix=matrix)


def varying(data: Octets, offsets: Offsets) -> Ragged:
    """Strings between offsets; those that turn out equally long become a matrix."""
    count = len(offsets) - 1
    if count <= 0:
        return Ragged(data[:0], 0, 0)
    lengths = offsets[1:] - offsets[:-1]
    width = int(lengths[0])
    if int(lengths.min()) == width == int(lengths.max()):
        return Ragged(data[int(offsets[0]) : int(offsets[-1])], count, width)
    return Ragged(data, count, None, offsets)


def from_list(strings: Sequence[bytes]) -> Ragged:
    import numpy as np

    data = np.frombuffer(b"".join(strings), dtype=np.uint8)
    lengths = list(map(len, strings))
    if len(set(lengths)) <= 1:
        return Ragged(data, len(strings), lengths[0] if lengths else 0)
    return Ragged(data, len(strings), None, np.fromiter(accumulate(lengths, initial=0), np.int64, len(strings) + 1))


def from_arrow(array: Any) -> Ragged:
    """An Arrow array of (large) binaries or texts; null reads as empty."""
    import numpy as np
    import pyarrow as pa

    if array.null_count:
        array = array.fill_null(b"" if pa.types.is_large_binary(array.type) or pa.types.is_binary(array.type) else "")
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, places, held = array.buffers()
    count = len(array)
    if not count:
        return Ragged(np.empty(0, np.uint8), 0, 0)
    offsets = np.frombuffer(places, dtype=np.int64 if large else np.int32)[array.offset : array.offset + count + 1]
    data = np.frombuffer(held, dtype=np.uint8) if held is not None else np.empty(0, np.uint8)
    return varying(data, offsets.astype(np.int64, copy=False))


def constant(content: bytes, count: int) -> Ragged:
    """The same string over and over."""
    import numpy as np

    return fixed(np.broadcast_to(np.frombuffer(content, np.uint8), (count, len(content))))


def join(parts: Sequence[Ragged | bytes]) -> Ragged:
    """The parts of each row one after the other; bytes are the same in every row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = next(len(part) for part in parts if isinstance(part, Ragged))
    # Neighbours of a fixed width become one before Arrow sees them: it copies string by string.
    arrays = []
    for is_fixed, group in groupby(parts, lambda part: isinstance(part, bytes) or part.width is not None):
        members = list(group)
        if is_fixed:
            members = [_join_fixed(members, count)]
        arrays += [member for member in members if isinstance(member, Ragged)]
    if len(arrays) == 1:
        return arrays[0]
    empty = pa.scalar(b"", pa.large_binary())
    return from_arrow(pc.binary_join_element_wise(*[each.to_arrow() for each in arrays], empty))


def _join_fixed(parts: Sequence[Ragged | bytes], count: int) -> Ragged:
    import numpy as np

    widths = [len(part) if isinstance(part, bytes) else part.width or 0 for part in parts]
    matrix = np.empty((count, sum(widths)), dtype=np.uint8)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        whole = np.frombuffer(part, np.uint8).reshape(1, width) if isinstance(part, bytes) else part.matrix
        copy_columns(whole, matrix[:, at : at + width])
        at += width
    return Ragged(matrix.reshape(-1), count, matrix.shape[1])


def stack(blocks: Sequence[Ragged]) -> Ragged:
    """The strings of all blocks, one block after the other."""
    import numpy as np

    if len(blocks) == 1:
        return blocks[0]
    data = np.concatenate([block.flat() for block in blocks])
    widths = {block.width for block in blocks if block.count}
    count = sum(block.count for block in blocks)
    if len(widths) <= 1 and None not in widths:
        return Ragged(data, count, widths.pop() if widths else 0)
    lengths = np.concatenate([block.lengths for block in blocks])
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return varying(data, offsets)


class Pile:
    """Blocks that become one, where about how many strings there will be is known before.

    As long as the blocks are equally wide, each goes to its final place at once: memory that is touched for the first
    time costs more than all the rest of a copy.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._data: Octets | None = None
        self._width: int | None = None
        self._count = 0
        self._blocks: list[Ragged] = []

    def add(self, block: Ragged, order: NDArray[Any]) -> None:
        """The strings of a block at these places, in this order."""
        import numpy as np

        count, width = len(order), block.width
        if not count:
            return
        if self._data is None and not self._blocks and width:
            self._width = width
            self._data = room(max(self._expected, count) * width, np.uint8)
        start, end = self._count * (self._width or 0), (self._count + count) * (self._width or 0)
        if self._data is None or not width or width != self._width or self._blocks or end > len(self._data):
            self._blocks.append(block.take(order))
            return
        np.take(block.data.view(f"V{width}"), order, out=self._data[start:end].view(f"V{width}"), mode="clip")
        self._count += count

    def whole(self) -> Ragged:
        piled = []
        if self._data is not None and self._width is not None:
            piled = [Ragged(self._data[: self._count * self._width], self._count, self._width)]
        blocks = [*piled, *self._blocks]
        return stack(blocks) if blocks else from_list([])
