"""Writes SST files that RocksDB takes for its own, from columns: `rocksdict`'s writer wants an object for each key.

A file is what `SstFileWriter` makes with the options of tablet stores (format 6, whole keys, LZ4, checksums of XXH3),
except for where blocks end and how well they are packed. So a store ingests it, and reads and checks it, as any other.

    data blocks · index · properties · metaindex · footer          see `sst_file`

    checksum    see `sst_checksums`
    index       for each block a key that is not less than its last and less than the next one's first; offset · size

RocksDB caches blocks by the session and number in a file's properties, so no two files may have the same: the session
is drawn by chance, for each file, or follows from an `identity` that no other file has. With the same identity the same
pairs make the same file, byte by byte.

Blocks go to the file as they are made. What stays in memory is the index: some twenty bytes a block.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trimtab.rows.ragged import Ragged, fixed, from_list, join, stack, varying
from trimtab.storage.file_sums import Octets
from trimtab.storage.sst_blocks import PUT_BY_NOBODY, BlockMaker, varint_strings
from trimtab.storage.sst_checksums import XXH3, checksum, checksums, stored
from trimtab.storage.sst_file import (
    COMPARATOR,
    EXTENDED_MAGIC,
    EXTERNAL_SEQUENCE,
    EXTERNAL_VERSION,
    EXTERNAL_VERSION_2,
    FIRST_KEY,
    FOOTER_BYTES,
    FORMAT_VERSION,
    LAST_KEY,
    LZ4,
    MAGIC,
    PLAIN,
    TRAILER_BYTES,
)
from trimtab.storage.sst_packing import varint_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

BLOCK_BYTES = 8192  # of entries, before they are packed: gets are as fast as with 4096, writing is faster
# A cache of 32 MB has no room for a block of more than 512 KB. An index beyond that is read again for every get, which
# then takes forty times as long or more (measured), so large files have larger blocks.
MOST_BLOCKS = 24_000
_LARGEST_BLOCK_BYTES = 64 * 1024
_NO_COLUMN_FAMILY = (1 << 31) - 1
_SESSION_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SESSION_LENGTH = 20


class OutOfOrder(Exception):
    """Keys that do not ascend."""


def block_bytes_of(data_bytes: int) -> int:
    """How large the blocks of a file are to be that will hold about so much."""
    size = BLOCK_BYTES
    while size < _LARGEST_BLOCK_BYTES and data_bytes > size * MOST_BLOCKS:
        size *= 2
    return size


class Target(Protocol):
    """Where a file goes that does not lie on a disk. What it is given it may keep."""

    def write(self, data: Octets) -> int: ...

    def close(self) -> None: ...


class TableWriter:
    """One new file, on a disk or elsewhere: `add` pairs in order, then `finish`. Whoever leaves before removes it."""

    def __init__(self, target: Path | Target, *, block_bytes: int = BLOCK_BYTES, identity: str = "") -> None:
        self.rows = 0
        self.first = self.last = b""
        self._blocks = BlockMaker(block_bytes)
        chance = hashlib.blake2b(identity.encode(), digest_size=20).digest() if identity else os.urandom(20)
        self._file_number = int.from_bytes(chance[:4], "big") or 1
        self._session_number = int.from_bytes(chance[4:], "big")
        self._at = 0
        self._key_bytes = self._value_bytes = 0
        self._separators: list[Ragged] = []
        self._offsets: list[Numbers] = []
        self._sizes: list[Numbers] = []
        self._file: FileIO | Target = target.open("xb", buffering=0) if isinstance(target, Path) else target

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key_parts: Sequence[Ragged | bytes], values: Ragged) -> None:
        """Pairs behind those that are there already; the parts of each key follow each other."""
        import numpy as np

        if not len(values):
            return
        blocks = self._blocks.make(key_parts, values)
        keys, count = blocks.keys, len(values)
        _check_order(self.last, keys)
        starts = np.cumsum(blocks.sizes + TRAILER_BYTES) - blocks.sizes - TRAILER_BYTES
        self._seal(blocks.data, starts, blocks.sizes)
        firsts = _rows_of(keys, blocks.first_rows)
        lasts = _rows_of(keys, np.append(blocks.first_rows[1:], count) - 1)
        before = lasts.slice(0, len(lasts) - 1)
        if self.rows:
            self._separators.append(separators(stack([from_list([self.last]), before]), firsts))
        else:
            self.first = keys.bytes_at(0)
            self._separators.append(separators(before, firsts.slice(1, len(firsts))))
        self._offsets.append(starts + self._at)
        self._sizes.append(blocks.sizes)
        self._write(blocks.data)
        self.last = lasts.bytes_at(len(lasts) - 1)
        self.rows += count
        self._key_bytes += keys.size + count * len(PUT_BY_NOBODY)
        self._value_bytes += values.size

    def finish(self, *, durable: bool) -> int:
        """Write the rest, and how large the file is. `durable`: it is on the disk then; its name may not be."""
        import pyarrow as pa

        if not self.rows:
            raise ValueError("a table of no rows")
        data_bytes = self._at
        index = self._index()
        packed = varint_bytes(len(index)) + pa.Codec("lz4_raw").compress(index, asbytes=True)
        if len(packed) < len(index) * 7 // 8:
            index_handle = self._block(packed, LZ4)
        else:
            index_handle = self._block(index, PLAIN)
        properties = self._block(_entries_block(self._properties(data_bytes, len(index)), every=False), PLAIN)
        meta = _entries_block({b"rocksdb.index": index_handle, b"rocksdb.properties": properties}, every=True)
        self._block(meta, PLAIN)
        self._write(self._footer(len(meta)))
        if durable and isinstance(self._file, FileIO):
            os.fsync(self._file.fileno())
        return self._at

    def _seal(self, data: Any, starts: Numbers, sizes: Numbers) -> None:
        """Fill in the checksums of blocks."""
        stored(data)[starts + sizes + 1] = checksums(data, starts, sizes, self._file_number, self._at)

    def _block(self, contents: bytes, compression: int) -> bytes:
        """Write a block that is not of data; its handle."""
        total = checksum(contents, compression, self._file_number, self._at)
        handle = varint_bytes(self._at) + varint_bytes(len(contents))
        self._write(contents + struct.pack("<BI", compression, total))
        return handle

    def _write(self, data: Any) -> None:
        left = memoryview(data)
        self._at += len(left)
        while left:
            left = left[self._file.write(left) or 0 :]

    def _index(self) -> bytes:
        """Index of all blocks. It needs the separators no more."""
        import numpy as np

        keys = stack([*self._separators, from_list([self.last])])
        self._separators.clear()
        parts = (keys.lengths, np.concatenate(self._offsets), np.concatenate(self._sizes))
        lengths, offsets, sizes = map(varint_strings, parts)
        entries = join([b"\x00", lengths, keys, offsets, sizes])
        starts = entries.starts - entries.offsets[0]
        restarts = np.append(starts, len(entries)).astype("<u4")
        return bytes(entries.flat()) + bytes(restarts)

    def _properties(self, data_bytes: int, index_bytes: int) -> dict[bytes, bytes]:
        """What `SstFileWriter` notes of a file, but for the host's name and its compressor's settings."""
        number = self._session_number
        session = "".join(_SESSION_DIGITS[number // 36**place % 36] for place in range(_SESSION_LENGTH))
        counted = {
            "column.family.id": _NO_COLUMN_FAMILY,
            "creation.time": 0,
            "data.size": data_bytes,
            "deleted.keys": 0,
            "filter.size": 0,
            "fixed.key.length": 0,
            "format.version": FORMAT_VERSION,
            "index.key.is.user.key": 1,
            "index.size": index_bytes + TRAILER_BYTES,
            "index.value.is.delta.encoded": 1,
            "key.largest.seqno": 0,
            "merge.operands": 0,
            "num.data.blocks": sum(map(len, self._sizes)),
            "num.entries": self.rows,
            "num.filter_entries": 0,
            "num.range-deletions": 0,
            "oldest.key.time": 0,
            "original.file.number": 1,
            "raw.key.size": self._key_bytes,
            "raw.value.size": self._value_bytes,
            "tail.start.offset": data_bytes,
        }
        texts = {
            "block.based.table.index.type": bytes(4),
            "block.based.table.prefix.filtering": b"0",
            "block.based.table.whole.key.filtering": b"1",
            "comparator": COMPARATOR,
            "compression": b"LZ4",
            "creating.db.identity": b"SST Writer",
            "creating.session.identity": session.encode(),
            "merge.operator": b"nullptr",
            "prefix.extractor.name": b"nullptr",
            "property.collectors": b"[]",
        }
        every = texts | {name: varint_bytes(number) for name, number in counted.items()}
        found = {b"rocksdb." + name.encode(): value for name, value in every.items()}
        found |= {EXTERNAL_SEQUENCE: bytes(8), EXTERNAL_VERSION: EXTERNAL_VERSION_2}
        found |= {FIRST_KEY: self.first, LAST_KEY: self.last}
        return dict(sorted(found.items()))

    def _footer(self, meta_bytes: int) -> bytes:
        def footer(total: int) -> bytes:
            front = struct.pack("<B4sIII", XXH3, EXTENDED_MAGIC, total, self._file_number, meta_bytes)
            return front.ljust(FOOTER_BYTES - 12, b"\x00") + struct.pack("<IQ", FORMAT_VERSION, MAGIC)

        unsigned = footer(0)
        return footer(checksum(unsigned[:-1], unsigned[-1], self._file_number, self._at))


def separators(lasts: Ragged, firsts: Ragged) -> Ragged:
    """Between each two keys, which ascend, one that is not less than the first and less than the second.

    It is as much of the second as tells it from the first; where that is all of it, it is the first.
    """
    import numpy as np

    if lasts.width is None or lasts.width != firsts.width or not lasts.width:
        found = []
        for last, first in zip(lasts.to_list(), firsts.to_list(), strict=True):
            same = next(
                (at for at, (one, other) in enumerate(zip(last, first, strict=False)) if one != other), len(last)
            )
            found.append(first[: same + 1] if same + 1 < len(first) else last)
        return from_list(found)
    lengths = (lasts.matrix != firsts.matrix).argmax(axis=1) + 1
    keys = np.where((lengths == lasts.width)[:, None], lasts.matrix, firsts.matrix)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return varying(keys[np.arange(lasts.width) < lengths[:, None]], offsets)


def _rows_of(keys: Ragged, places: Numbers) -> Ragged:
    """A few of many keys, without making those of a matrix with gaps adjacent first."""
    return keys.take(places) if keys.width is None else fixed(keys.matrix[places])


def _check_order(last: bytes, keys: Ragged) -> None:
    import numpy as np
    import pyarrow.compute as pc

    shortest = keys.width if keys.width is not None else int(keys.lengths.min())
    if shortest >= 8:
        tokens = keys.numbers(0, ">u8").astype(np.uint64)
        ties = np.flatnonzero(tokens[1:] <= tokens[:-1])
    else:
        ties = np.arange(len(keys) - 1)
    if len(ties):
        one, other = _rows_of(keys, ties), _rows_of(keys, ties + 1)
        wrong = np.flatnonzero(~np.asarray(pc.less(one.to_arrow(), other.to_arrow())))
        if len(wrong):
            at = int(ties[wrong[0]])
            raise OutOfOrder(
                f"key {keys.bytes_at(at + 1).hex()} is not greater than {keys.bytes_at(at).hex()} before it"
            )
    if keys.bytes_at(0) <= last:
        raise OutOfOrder(f"key {keys.bytes_at(0).hex()} is not greater than {last.hex()} before it")


def _entries_block(entries: dict[bytes, bytes], *, every: bool) -> bytes:
    """A block of a few entries in order, with whole keys; `every` one a restart, or only the first."""
    found, restarts = b"", []
    for key, value in entries.items():
        restarts.append(len(found))
        found += b"\x00" + varint_bytes(len(key)) + varint_bytes(len(value)) + key + value
    if not every:
        del restarts[1:]
    return found + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
