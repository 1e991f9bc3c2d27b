"""Pairs as data blocks of an SST file, many at once. What lies in a block is told in `sst_file`.

Every entry is a restart, so keys are whole and no entry depends on the one before. Rows of a fixed width are a matrix,
whose blocks are packed by copying columns where that is nearly as good as LZ4 (`sst_packing`); one block in some
hundred is tried to find out. All others are joined by Arrow and packed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trimtab.rows.ragged import Ragged, fixed, join, varying
from trimtab.storage.sst_file import LZ4, PLAIN, TRAILER_BYTES
from trimtab.storage.sst_packing import Shape, narrowed, shape_of, varint_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Octets

    Numbers = NDArray[np.int64]
    Form = list[tuple[int, bool]]  # the parts of an entry: how wide, and whether the same in all by how they are made

PUT_BY_NOBODY = b"\x01" + bytes(7)  # behind every key: a put, with sequence number 0
_WORTH = 7 / 8  # of the size: blocks that do not become smaller than that stay as they are, as RocksDB has it
_NEARLY = 1.08  # times what LZ4 would make of it


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks one after the other, with room for their checksums."""

    keys: Ragged  # of all entries
    data: Octets
    sizes: Numbers  # without trailers
    first_rows: Numbers


class BlockMaker:
    """Makes blocks of about `block_bytes` before they are packed. It learns what the rows of a file look like."""

    def __init__(self, block_bytes: int) -> None:
        import pyarrow as pa

        self._block_bytes = block_bytes
        self._codec: Any = pa.Codec("lz4_raw")
        self._form: Form = []
        self._known: NDArray[np.bool_]
        self._shape: Shape | None = None

    def make(self, key_parts: Sequence[Ragged | bytes], values: Ragged) -> Blocks:
        """At least one pair. The parts of a key are joined here, because they are copied here anyway."""
        if values.width is None or any(isinstance(part, Ragged) and part.width is None for part in key_parts):
            return self._varying(join(key_parts), values)
        widths = [part.width or 0 if isinstance(part, Ragged) else len(part) for part in key_parts]
        key_bytes = sum(widths)
        head = b"\x00" + varint_bytes(key_bytes + len(PUT_BY_NOBODY)) + varint_bytes(values.width)
        parts = [head, *key_parts, PUT_BY_NOBODY, values]
        form = [(len(head), True)]
        form += [(width, isinstance(part, bytes)) for width, part in zip(widths, key_parts, strict=True)]
        form += [(len(PUT_BY_NOBODY), True), (values.width, False)]
        entries = join(parts).matrix
        return self._alike(entries, fixed(entries[:, len(head) : len(head) + key_bytes]), form)

    def _alike(self, entries: Octets, keys: Ragged, form: Form) -> Blocks:
        """Equally long entries: blocks of as many each, and one with what is left."""
        import numpy as np

        count, width = entries.shape
        rows = min(count, max(1, self._block_bytes // (width + 4)))
        whole = count // rows
        shape = self._shape_of(entries, rows, form)
        parts = [(0, whole, rows)]
        if count % rows:
            parts.append((whole * rows, 1, count % rows))
        data, sizes = [], []
        for start, blocks, each in parts:
            some = entries[start : start + blocks * each].reshape(blocks, each * width)
            made, made_sizes = self._pack(some, _restarts(each, width), shape if each > 1 else None)
            data.append(made)
            sizes.append(made_sizes)
        first_rows = np.arange(0, count, rows)
        if len(data) == 1:
            return Blocks(keys, data[0], sizes[0], first_rows)
        return Blocks(keys, np.concatenate(data), np.concatenate(sizes), first_rows)

    def _shape_of(self, entries: Octets, rows: int, form: Form) -> Shape | None:
        import numpy as np

        if form != self._form:
            self._form = form
            self._known = np.repeat([same for _, same in form], [width for width, _ in form])
            self._shape = shape_of(entries, rows, self._known)
        elif self._shape is not None and not self._shape.holds(entries):
            # Never widened again: that would cost more than it brings.
            self._shape = narrowed(self._shape, entries, self._known)
        return self._shape

    def _pack(self, entries: Octets, restarts: bytes, shape: Shape | None) -> tuple[Octets, Numbers]:
        """Blocks of the entries in each row, whichever way is best for the one in the middle."""
        import numpy as np

        blocks, block_bytes = entries.shape
        size = block_bytes + len(restarts)
        tried = len(self._codec.compress(entries[blocks // 2].tobytes() + restarts, asbytes=True))
        if tried > size * _WORTH:
            plain = np.empty((blocks, size + TRAILER_BYTES), np.uint8)
            plain[:, :block_bytes] = entries
            plain[:, block_bytes:] = np.frombuffer(restarts + bytes((PLAIN, 0, 0, 0, 0)), np.uint8)
            return plain.reshape(-1), np.full(blocks, size)
        if shape is not None:
            packed = shape.pack(entries, restarts)
            packed_size = packed.shape[1] - TRAILER_BYTES
            if packed_size <= tried * _NEARLY:
                return packed.reshape(-1), np.full(blocks, packed_size)
        return self._compress(join([fixed(entries), restarts]))

    def _varying(self, keys: Ragged, values: Ragged) -> Blocks:
        """Entries of different lengths: a block begins with each that begins in the next `block_bytes` of all."""
        import numpy as np

        count = len(keys)
        key_sizes = varint_strings(keys.lengths + len(PUT_BY_NOBODY))
        entries = join([b"\x00", key_sizes, varint_strings(values.lengths), keys, PUT_BY_NOBODY, values])
        offsets = entries.offsets - entries.offsets[0]
        windows = (offsets[:-1] + 4 * np.arange(count)) // self._block_bytes
        first_rows = np.flatnonzero(np.concatenate(([True], windows[1:] != windows[:-1])))
        counts = np.diff(first_rows, append=count)
        # Where each entry begins in its block; behind those of a block, how many there are.
        restarts = np.insert(offsets[:-1] - np.repeat(offsets[first_rows], counts), first_rows + counts, counts)
        ends = 4 * (np.cumsum(counts) + np.arange(1, len(counts) + 1))
        contents = join(
            [
                varying(entries.flat(), np.append(offsets[first_rows], offsets[-1])),
                varying(restarts.astype("<u4").view(np.uint8), np.concatenate(([0], ends))),
            ]
        )
        data, sizes = self._compress(contents)
        return Blocks(keys, data, sizes, first_rows)

    def _compress(self, contents: Ragged) -> tuple[Octets, Numbers]:
        import numpy as np

        pieces: list[bytes | memoryview] = []
        sizes: list[int] = []
        held, compress = contents.flat().data, self._codec.compress
        starts = (contents.offsets - contents.offsets[0]).tolist()
        room = bytes(TRAILER_BYTES - 1)
        for start, stop in pairwise(starts):
            content = held[start:stop]
            prefix, packed = varint_bytes(stop - start), compress(content, asbytes=True)
            size = len(prefix) + len(packed)
            if size <= (stop - start) * _WORTH:
                pieces += (prefix, packed, bytes((LZ4,)), room)
            else:
                size = stop - start
                pieces += (content, bytes((PLAIN,)), room)
            sizes.append(size)
        data = bytearray().join(pieces)
        return np.frombuffer(data, np.uint8), np.asarray(sizes)


def varint_strings(numbers: Numbers) -> Ragged:
    """Each as `varint_bytes` writes it."""
    import numpy as np

    most = int(numbers.max()) if len(numbers) else 0
    digits = numbers[:, None] >> np.arange(0, max(1, most.bit_length()), 7)
    lengths = np.maximum(1, np.count_nonzero(digits, axis=1))
    octets = (digits & 0x7F).astype(np.uint8)
    octets[:, :-1] |= np.where(digits[:, 1:] > 0, 0x80, 0).astype(np.uint8)
    if octets.shape[1] == 1:
        return fixed(octets)
    offsets = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return varying(octets[np.arange(octets.shape[1]) < lengths[:, None]], offsets)


def _restarts(rows: int, width: int) -> bytes:
    """Of a block of so many entries: where each begins, and how many there are."""
    import numpy as np

    return (np.arange(rows, dtype="<u4") * np.uint32(width)).tobytes() + rows.to_bytes(4, "little")
