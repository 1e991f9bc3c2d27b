"""LZ4 of rows of one shape, without looking for matches: where rows repeat each other is known before.

Rows of a fixed width differ in some places and are the same in others: sizes, stamps, the upper bytes of numbers. Each
of them can be packed in the same way: the bytes that differ as they are, and for every run that does not differ "the
same as one row before". So all packed rows are equally long, all blocks of as many rows too, and they are made by
copying columns. What comes out is plain LZ4, which anybody unpacks; a real compressor takes five times as long for it
and finds a few percent more in rows like these. In rows where it finds a lot more it is asked instead (`sst_blocks`).

    block    size of what is packed · sequence of the first row · sequences of each further row · rest
    sequence sizes of both (1, and more where one does not fit) · bytes as they are · how far back (2) · see sizes

The first row has nothing to refer to, so it lies in front of the bytes that the second row's first sequence brings.
A row is counted from the end of its last run to that of the next row's, so that it ends with a match.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.storage.sst_file import LZ4, TRAILER_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Octets = NDArray[np.uint8]

_SHORTEST = 4  # bytes of a match
_FEWEST_ROWS = 4  # in a block: below, the first of them is too much of it
_FARTHEST_BACK = 65_535
_NIBBLE = 15


def varint_bytes(number: int) -> bytes:
    """A number of seven bits a byte, the lowest first."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _sizes(literals: int, match: int) -> tuple[bytes, bytes]:
    """What stands in front of a sequence's bytes, and what behind how far back it refers. No match: 0."""
    rest = match - _SHORTEST if match else 0
    token = min(literals, _NIBBLE) << 4 | min(rest, _NIBBLE)
    return bytes((token,)) + _more(literals), _more(rest)


def _more(size: int) -> bytes:
    if size < _NIBBLE:
        return b""
    size -= _NIBBLE
    return b"\xff" * (size // 255) + bytes((size % 255,))


@dataclass(frozen=True, slots=True, eq=False)
class _Image:
    """A block of so many rows with everything in place that does not depend on the rows."""

    content: Octets
    first_at: int  # the first row up to the end of its last run
    rows_at: int  # the further rows
    rest_at: int  # the last row from the end of its last run


@dataclass(slots=True, eq=False)
class Shape:
    """Where rows of `width` bytes are the same: `runs` from here to there, at least one, in order.

    `doubtful` are the parts of runs that may be different in other rows; the rest is the same by how rows are made.
    """

    width: int
    runs: list[tuple[int, int]]
    doubtful: list[tuple[int, int]]
    _images: dict[int, _Image] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Of the last run."""
        return self.runs[-1][1]

    def holds(self, entries: Octets) -> bool:
        """Whether these rows are the same there."""
        first = entries[0]
        for begin, end in self.doubtful:
            for at, size in _steps(end - begin, 8):
                column = entries[:, begin + at : begin + at + size].view(f"u{size}")[:, 0]
                if not bool((column == first[begin + at : begin + at + size].view(f"u{size}")[0]).all()):
                    return False
        return True

    def literals(self) -> list[tuple[int, int, int]]:
        """Of a row, counted from the end of its last run: where bytes begin, how many, and how many match then."""
        found, at = [], 0
        for begin, end in self.runs:
            begin, end = begin + self.width - self.end, end + self.width - self.end
            found.append((at, begin - at, end - begin))
            at = end
        return found

    def row_bytes(self) -> int:
        """Of a packed row."""
        return sum(sum(map(len, _sizes(count, match))) + count + 2 for _, count, match in self.literals())

    def pack(self, entries: Octets, restarts: bytes) -> Octets:
        """Blocks, one a row: of `rows` entries each, which lie in a row of `entries`; with room for their checksums.

        The entries are followed by `restarts` in every block.
        """
        import numpy as np

        blocks, block_bytes = entries.shape
        rows = block_bytes // self.width
        if rows not in self._images:
            self._images[rows] = self._image(rows, restarts)
        image = self._images[rows]
        packed = np.empty((blocks, len(image.content)), np.uint8)
        packed[:] = image.content
        packed[:, image.first_at : image.first_at + self.end] = entries[:, : self.end]
        packed[:, image.rest_at : image.rest_at + self.width - self.end] = entries[
            :, block_bytes - self.width + self.end :
        ]
        row_bytes, to, shape = self.row_bytes(), image.rows_at, (blocks, rows - 1)
        for at, count, match in self.literals():
            front, behind = _sizes(count, match)
            to += len(front)
            for step, size in _steps(count, 16):
                # One item of so many bytes for each row but the first of a block.
                kind = f"V{size}"
                source = np.ndarray(shape, kind, entries.data, self.end + at + step, (block_bytes, self.width))
                target = np.ndarray(shape, kind, packed.data, to + step, (packed.shape[1], row_bytes))
                target[...] = source
            to += count + 2 + len(behind)
        return packed

    def _image(self, rows: int, restarts: bytes) -> _Image:
        import numpy as np

        row, first_front = b"", b""
        for _, count, match in self.literals():
            front, behind = _sizes(count, match)
            first_front = first_front or front
            row += front + bytes(count) + self.width.to_bytes(2, "little") + behind
        _, count, match = self.literals()[0]
        head = varint_bytes(rows * self.width + len(restarts)) + _sizes(self.end + count, match)[0]
        rest = self.width - self.end
        rest_front = _sizes(rest + len(restarts), 0)[0]
        # The sizes of the second row stand in front of the first already.
        body = row[len(first_front) :] + row * (rows - 2)
        before = head + bytes(self.end)
        content = before + body + rest_front + bytes(rest) + restarts + bytes((LZ4,)) + bytes(TRAILER_BYTES - 1)
        return _Image(
            np.frombuffer(content, np.uint8),
            len(head),
            len(before) - len(first_front),
            len(before) + len(body) + len(rest_front),
        )


def shape_of(entries: Octets, rows: int, known: NDArray[np.bool_]) -> Shape | None:
    """Where these entries are all the same. None: nowhere that would help, or too few of them go to a block.

    `known`: where they always are.
    """
    width = entries.shape[1]
    if rows < _FEWEST_ROWS or width > _FARTHEST_BACK:
        return None
    same = known.copy()
    for start, stop in _runs(~known):
        same[start:stop] = (entries[:, start:stop] == entries[0, start:stop]).all(axis=0)
    return _shape(same, known)


def narrowed(shape: Shape, entries: Octets, known: NDArray[np.bool_]) -> Shape | None:
    """The same shape without what does not hold for these entries."""
    same = known.copy()
    for start, stop in shape.doubtful:
        same[start:stop] = (entries[:, start:stop] == entries[0, start:stop]).all(axis=0)
    return _shape(same, known)


def _shape(same: NDArray[np.bool_], known: NDArray[np.bool_]) -> Shape | None:
    runs = [(begin, end) for begin, end in _runs(same) if end - begin >= _SHORTEST]
    if not runs:
        return None
    doubtful = [(begin + at, begin + to) for begin, end in runs for at, to in _runs(~known[begin:end])]
    return Shape(len(same), runs, doubtful)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """From where to where it is true."""
    import numpy as np

    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _steps(count: int, most: int) -> list[tuple[int, int]]:
    """So many bytes in pieces that numpy handles at once: the last may overlap the one before."""
    if not count:
        return []
    size = min(most, 1 << count.bit_length() - 1)
    return [(min(at, count - size), size) for at in range(0, count, size)]
