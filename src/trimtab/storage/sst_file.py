"""What lies where in an SST file: RocksDB's block-based table, as far as one has to know it to read all rows of it.

    data blocks, one after the other · other blocks · metaindex · footer (53 bytes)

    footer      checksum type · 3e007a00 · two checksums · size of the metaindex, which ends right before · ... ·
                format version (4) · magic (8); little endian; format 6
    any block   contents · compression (1) · checksum (4); the last five are not counted in its size
    contents    entries · offsets of restarts (4 each) · how many
    entry       shared · unshared · value size (varints) · the key's unshared bytes · value; shared bytes are those of
                the key before; at a restart none are shared

Everything else than that raises `Unreadable`: whoever wanted to read the file by itself asks RocksDB instead.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trimtab.rows.ragged import Ragged
from trimtab.storage.sst_checksums import XXH3, checksum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOOTER_BYTES = 53
TRAILER_BYTES = 5
PLAIN, LZ4 = 0, 4  # compression
FORMAT_VERSION = 6
MAGIC = 0x88E241B785F4CFF7
EXTENDED_MAGIC = b"\x3e\x00\x7a\x00"
COMPARATOR = b"leveldb.BytewiseComparator"
# Properties of tables that were written elsewhere to be taken over: RocksDB's, and ours, which say what they hold.
EXTERNAL_SEQUENCE, EXTERNAL_VERSION = b"rocksdb.external_sst_file.global_seqno", b"rocksdb.external_sst_file.version"
EXTERNAL_VERSION_2 = struct.pack("<I", 2)
FIRST_KEY, LAST_KEY = b"trimtab.first.key", b"trimtab.last.key"
_BINARY_SEARCH = 0  # index type
_MOST_META_BYTES = 1 << 30


class Unreadable(Exception):
    """A file that is not of the simple kind that can be read without RocksDB. The text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """An SST file of plain puts. `offsets` and `sizes` are those of its data blocks, in order, without trailers.

    `ends` are not below the last key of each block, and below the first of the next; some have a few bytes behind.
    """

    path: Path
    rows: int
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ends: Ragged
    number: int  # in its checksums

    def between(self, low: bytes, high: bytes) -> tuple[int, int]:
        """The blocks, from one up to another, outside of which there are no keys with low <= key < high."""
        places = range(len(self.ends))
        first = bisect_left(places, low, key=self.ends.bytes_at)
        # One more than the end says, because of the few bytes behind it.
        return first, min(bisect_left(places, high, key=self.ends.bytes_at) + 2, len(places))


def open_table(path: Path) -> TableFile:
    """Find the data blocks of a file. Unreadable if it holds anything but puts, or is of another format."""
    with path.open("rb") as file:
        blocks = _Blocks(path, file)
        if b"rocksdb.range_del" in blocks.meta:
            raise Unreadable(f"{path} has deletions of ranges")
        properties, index = blocks.properties(), blocks.named(b"rocksdb.index")
    _check_properties(path, properties)
    offsets, sizes, ends = _index_handles(path, index)
    return TableFile(path, _number(properties, b"rocksdb.num.entries"), offsets, sizes, ends, blocks.file_number)


def bounds_of(path: Path) -> tuple[bytes, bytes, int]:
    """The first and the last key of a table that was written to be taken over, and its bytes.

    Unreadable: it does not say, or is no such table. Reads its end alone, and needs no numpy.
    """
    with path.open("rb") as file:
        blocks = _Blocks(path, file)
        properties = blocks.properties()
    _check_properties(path, properties)
    first, last = properties.get(FIRST_KEY), properties.get(LAST_KEY)
    if first is None or last is None or first > last:
        raise Unreadable(f"{path} does not say what its first and last key are")
    if properties.get(EXTERNAL_VERSION) != EXTERNAL_VERSION_2 or properties.get(EXTERNAL_SEQUENCE) != bytes(8):
        raise Unreadable(f"{path} was not written to be taken over")
    return first, last, blocks.size


class _Blocks:
    """What there is beside data in an open file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self.size = size = file.seek(0, 2)
        if size < FOOTER_BYTES:
            raise Unreadable(f"{path} has {size} bytes; a table has more")
        file.seek(size - FOOTER_BYTES)
        footer = file.read(FOOTER_BYTES)
        version, magic = struct.unpack_from("<IQ", footer, FOOTER_BYTES - 12)
        if magic != MAGIC or version != FORMAT_VERSION or footer[1:5] != EXTENDED_MAGIC:
            raise Unreadable(f"{path} is no table of format {FORMAT_VERSION}")
        if footer[0] != XXH3:
            raise Unreadable(f"{path} has checksums of type {footer[0]}")
        self.file_number, meta_size = struct.unpack_from("<II", footer, 9)
        self.meta = dict(_entries(self._read(size - FOOTER_BYTES - TRAILER_BYTES - meta_size, meta_size)))

    def named(self, name: bytes) -> bytes:
        handle = self.meta.get(name)
        if handle is None:
            raise Unreadable(f"{self._path} has no block {name!r}")
        return self._read(*_handle(handle))

    def properties(self) -> dict[bytes, bytes]:
        return dict(_entries(self.named(b"rocksdb.properties")))

    def _read(self, offset: int, length: int) -> bytes:
        if offset < 0 or not 0 < length <= min(self.size, _MOST_META_BYTES):
            raise Unreadable(f"{self._path}: a block of {length} bytes at {offset}")
        self._file.seek(offset)
        raw = self._file.read(length + TRAILER_BYTES)
        if len(raw) != length + TRAILER_BYTES:
            raise Unreadable(f"{self._path} ends inside a block")
        if checksum(raw[:length], raw[length], self.file_number, offset) != int.from_bytes(raw[-4:], "little"):
            raise Unreadable(f"{self._path} has a block at {offset} that does not fit its checksum")
        return _contents(self._path, raw, length)


def varints(data: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of seven bits a byte, one from each place; and the places after them."""
    found = data[at].astype("i8")
    after = at + 1
    more = found >= 0x80
    shift = 7
    found &= 0x7F
    while more.any():
        if shift > 56:
            raise Unreadable("a number of more than nine bytes")
        byte = data[after].astype("i8")
        found += ((byte & 0x7F) << shift) * more
        after += more
        more &= byte >= 0x80
        shift += 7
    return found, after


def varint(data: bytes, at: int) -> tuple[int, int]:
    """One such number, and the place after it."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7


def _handle(data: bytes) -> tuple[int, int]:
    offset, at = varint(data, 0)
    return offset, varint(data, at)[0]


def _contents(path: Path, raw: bytes, size: int) -> bytes:
    kind = raw[size]
    if kind == PLAIN:
        return raw[:size]
    if kind != LZ4:
        raise Unreadable(f"{path} has blocks of compression {kind}")
    import pyarrow as pa

    length, at = varint(raw, 0)
    found: bytes = pa.Codec("lz4_raw").decompress(raw[at:size], length, asbytes=True)
    return found


def _restarts(contents: bytes) -> tuple[int, int]:
    """How many there are, and where they begin."""
    (count,) = struct.unpack_from("<I", contents, len(contents) - 4)
    begin = len(contents) - 4 - 4 * count
    if begin < 0:
        raise Unreadable("a block with an index of its own, or damaged")
    return count, begin


def _entries(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The few entries of a block that is not of data."""
    _, end = _restarts(contents)
    at, key = 0, b""
    while at < end:
        shared, at = varint(contents, at)
        unshared, at = varint(contents, at)
        size, at = varint(contents, at)
        key = key[:shared] + contents[at : at + unshared]
        at += unshared
        yield key, contents[at : at + size]
        at += size


def _number(properties: dict[bytes, bytes], name: bytes) -> int:
    return varint(properties[name], 0)[0] if properties.get(name) else 0


def _check_properties(path: Path, properties: dict[bytes, bytes]) -> None:
    for name in (b"rocksdb.deleted.keys", b"rocksdb.merge.operands", b"rocksdb.num.range-deletions"):
        if _number(properties, name):
            raise Unreadable(f"{path} holds more than puts: {name.decode()} is {_number(properties, name)}")
    if properties.get(b"rocksdb.comparator") != COMPARATOR:
        raise Unreadable(f"{path} is sorted by {properties.get(b'rocksdb.comparator')!r}")
    kind = properties.get(b"rocksdb.block.based.table.index.type", b"\xff" * 4)
    if int.from_bytes(kind, "little") != _BINARY_SEARCH or not _number(
        properties, b"rocksdb.index.value.is.delta.encoded"
    ):
        raise Unreadable(f"{path} has another kind of index")


def _index_handles(path: Path, index: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64], Ragged]:
    """Offsets, sizes and ends of data blocks: an entry each, without a value size, every one of them a restart."""
    import numpy as np

    data = np.frombuffer(index, np.uint8)
    count, begin = _restarts(index)
    at = np.frombuffer(index, "<u4", count, begin).astype(np.int64)
    if not count or int(at.max()) >= begin:
        raise Unreadable(f"{path} has no index")
    shared, at = varints(data, at)
    unshared, at = varints(data, at)
    if shared.any():
        raise Unreadable(f"{path} has an index whose keys share bytes")
    keys = Ragged(data, len(data), 1).pick(at, unshared)
    offsets, at = varints(data, at + unshared)
    sizes, at = varints(data, at)
    ends = np.append(np.frombuffer(index, "<u4", count, begin).astype(np.int64)[1:], begin)
    if np.any(at != ends) or np.any(offsets[1:] != offsets[:-1] + sizes[:-1] + TRAILER_BYTES):
        raise Unreadable(f"{path} has an index that does not name all of its blocks")
    return offsets, sizes, keys
