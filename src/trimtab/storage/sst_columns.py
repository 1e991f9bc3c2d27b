"""The rows of an SST file as columns, without RocksDB: its iterator takes twice as long as all the rest of a scan.

Several megabytes of blocks are read at once. Those that are compressed are made into one LZ4 frame, whose blocks are
just what RocksDB writes, and unpacked in one call. Then the entries are found: one after the other within a restart
interval, because each begins where the one before ends, but in all intervals at the same time. What keys share with
the key before them is filled in the same way.

Checksums of blocks are not looked at: with `verify`, every value is hashed instead and compared with the hash that
its key ends with, which also finds a value that is not the one its key was made for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.rows.column_hashing import hashes
from trimtab.rows.ragged import Ragged, copy_columns, fixed
from trimtab.storage.port import Corrupt
from trimtab.storage.sst_file import LZ4, PLAIN, TRAILER_BYTES, TableFile, Unreadable, varints

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Octets = NDArray[np.uint8]

READ_BYTES = 4 * 1024 * 1024  # of blocks, at a time
_SEQUENCE_BYTES = 8  # behind every key: the number of its write, and in the lowest byte what it was
_PUT = 1
_HASH_BYTES = 8
# Frames of LZ4 with independent blocks, no checksums: the largest block, then magic, flags, its code, their hash.
_FRAMES = ((64 * 1024, b"\x04\x22\x4d\x18\x60\x40\x82"), (4 * 1024 * 1024, b"\x04\x22\x4d\x18\x60\x70\x73"))
_NOT_COMPRESSED = 1 << 31  # in the size of a frame's block
_WHAT_TO_DO = "make another snapshot, of another replica"


def batches(table: TableFile, *, verify: bool = True) -> Iterator[tuple[Ragged, Ragged]]:
    """Keys and values in the file's order, some megabytes at a time. Corrupt names the file if something is wrong."""
    import numpy as np

    ends = table.offsets + table.sizes + TRAILER_BYTES
    first = 0
    buffer = bytearray(READ_BYTES)  # used again and again: memory that is touched for the first time is slow
    with table.path.open("rb", buffering=0) as file:
        while first < len(ends):
            begin = int(table.offsets[first])
            last = max(first + 1, int(np.searchsorted(ends, begin + READ_BYTES, side="right")))
            wanted = int(ends[last - 1]) - begin
            if wanted > len(buffer):
                buffer = bytearray(wanted)
            raw = memoryview(buffer)[:wanted]
            file.seek(begin)
            try:
                if file.readinto(raw) != wanted:
                    raise Unreadable("the file ends too early")
                data, starts = _unpack(raw, table.offsets[first:last] - begin, table.sizes[first:last])
                keys, values = _pairs(data, starts)
            except (Unreadable, IndexError, ValueError, OSError) as error:
                raise _corrupt(table.path, begin, str(error)) from None
            if verify:
                _verify(table.path, begin, keys, values)
            yield keys, values
            first = last


def _corrupt(path: Path, offset: int, what: str) -> Corrupt:
    return Corrupt(str(path), what, offset=offset, what_to_do=_WHAT_TO_DO)


def _verify(path: Path, offset: int, keys: Ragged, values: Ragged) -> None:
    import numpy as np

    wrong = np.flatnonzero(keys.numbers(-_HASH_BYTES, ">i8") != hashes(values))
    for at in wrong.tolist():
        # What a store keeps for itself has no hash; it lies in front of all rows.
        if len(keys.bytes_at(at)) > _HASH_BYTES:
            raise _corrupt(path, offset, f"the value of key {keys.bytes_at(at)[:64].hex()} is not what was written")


def _unpack(raw: memoryview, offsets: Numbers, sizes: Numbers) -> tuple[Octets, Numbers]:
    """The contents of blocks one after the other, and where each begins; the end is added."""
    import numpy as np

    octets = np.frombuffer(raw, np.uint8)
    kinds = octets[offsets + sizes]
    if not np.all((kinds == LZ4) | (kinds == PLAIN)):
        raise Unreadable(f"a block of compression {int(kinds.max())}")
    packed = kinds == LZ4
    lengths, begins = varints(octets, offsets)
    lengths[~packed], begins[~packed] = sizes[~packed], offsets[~packed]
    ends = offsets + sizes
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    if not packed.any():
        parts = [raw[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        return np.frombuffer(b"".join(parts), np.uint8), starts
    return np.frombuffer(_unpack_frame(raw, begins, ends, packed, lengths), np.uint8), starts


def _unpack_frame(raw: memoryview, begins: Numbers, ends: Numbers, packed: NDArray[np.bool_], lengths: Numbers) -> Any:
    import numpy as np
    import pyarrow as pa

    largest = int(lengths.max())
    head = next((head for most, head in _FRAMES if largest <= most), None)
    if head is None:
        raise Unreadable(f"a block of {largest} bytes")
    sizes = (ends - begins) | np.where(packed, 0, _NOT_COMPRESSED)
    marks = sizes.astype("<u4").tobytes()
    parts: list[bytes | memoryview] = [head]
    for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        parts.append(marks[4 * at : 4 * at + 4])
        parts.append(raw[begin:end])
    parts.append(struct.pack("<I", 0))
    return pa.Codec("lz4").decompress(b"".join(parts), int(lengths.sum()))


def _pairs(data: Octets, starts: Numbers) -> tuple[Ragged, Ragged]:
    """The keys and values in these blocks."""
    import numpy as np

    octets = Ragged(data, len(data), 1)
    shared, key_at, unshared, value_at, value_size = map(
        np.stack, zip(*_walk(data, *_intervals(data, starts)), strict=True)
    )
    there = (unshared >= 0).T  # by interval, then by step: the order of the keys
    keys = _keys(octets, shared, key_at, unshared, there)
    if there.all():
        return keys, octets.pick(value_at.T.reshape(-1), value_size.T.reshape(-1))
    return keys, octets.pick(value_at.T[there], value_size.T[there])


def _intervals(data: Octets, starts: Numbers) -> tuple[Numbers, Numbers]:
    """Where each restart interval begins and ends."""
    import numpy as np

    block_ends = starts[1:]
    counts = Ragged(data, len(data), 1).gather(block_ends - 4, 4).reshape(-1).view("<u4").astype(np.int64)
    entries_end = block_ends - 4 - 4 * counts
    if np.any(counts < 1) or np.any(entries_end < starts[:-1]):
        raise Unreadable("a block with an index of its own")
    blocks = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    within = np.arange(len(blocks)) - first[blocks]
    offsets = Ragged(data, len(data), 1).gather(entries_end[blocks] + 4 * within, 4).reshape(-1).view("<u4")
    begins = starts[:-1][blocks] + offsets
    ends = np.append(begins[1:], 0)
    ends[first + counts - 1] = entries_end
    if np.any(ends < begins):
        raise Unreadable("restarts that do not ascend")
    return begins, ends


def _walk(data: Octets, begins: Numbers, ends: Numbers) -> list[tuple[Numbers, ...]]:
    """Step by step the next entry of every interval: shared, key's place and unshared size, value's place and size.

    Where an interval has no more entries the size of the key is -1.
    """
    import numpy as np

    at = begins.copy()
    steps: list[tuple[Numbers, ...]] = []
    nothing = len(data) - 3  # somewhere that can be looked at
    while True:
        going = at < ends
        every = bool(going.all())
        if not every and not going.any():
            break
        if len(steps) > 1 << 16:
            raise Unreadable("an interval without end")
        place = at if every else np.where(going, at, nothing)
        shared, unshared, size, after = _heads(data, place)
        value_at = after + unshared
        next_at = value_at + size
        if not every:
            shared, unshared, size = shared * going, np.where(going, unshared, -1), size * going
            next_at = np.where(going, next_at, at)
        if np.any(next_at > ends) and np.any((next_at > ends) & going):
            raise Unreadable("an entry that does not end inside its block")
        steps.append((shared, after, unshared, value_at, size))
        at = next_at
    if not np.array_equal(at, ends):
        raise Unreadable("entries that do not end where their block does")
    return steps


def _heads(data: Octets, at: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The three sizes in front of an entry, and where its key begins."""
    import numpy as np

    one, two, three = data[at], data[at + 1], data[at + 2]
    if int(max(one.max(), two.max(), three.max())) < 0x80:
        return one.astype(np.int64), two.astype(np.int64), three.astype(np.int64), at + 3
    shared, after = varints(data, at)
    unshared, after = varints(data, np.minimum(after, len(data) - 1))
    size, after = varints(data, np.minimum(after, len(data) - 1))
    return shared, unshared, size, after


def _keys(octets: Ragged, shared: Numbers, at: Numbers, unshared: Numbers, there: NDArray[np.bool_]) -> Ragged:
    """Whole keys, without their sequence numbers. The numbers have a row a step and a column an interval."""
    import numpy as np

    lengths = np.where(there.T, shared + unshared - _SEQUENCE_BYTES, 0)
    longest, shortest = int(lengths.max()), int(lengths.T[there].min())
    if shortest < 1 or np.any(shared[0]) or np.any(shared[1:] > lengths[:-1] + _SEQUENCE_BYTES):
        raise Unreadable("a key that is shorter than its sequence number, or shares bytes that there are none of")
    kinds = octets.data[np.where(there.T, at + unshared - _SEQUENCE_BYTES, at[0, 0] + unshared[0, 0] - _SEQUENCE_BYTES)]
    if np.any(kinds != _PUT):
        raise Unreadable("an entry that is no put")
    # The bytes that a key does not share, and before them as many as it does, which are others: put right below.
    places = np.where(there.T, at - shared, 0)
    if longest != shortest or longest < 8:
        octets = Ragged(np.concatenate([octets.data, np.zeros(longest + 8, np.uint8)]), octets.count + longest + 8, 1)
    width = max(longest, 8)
    order = places.T.reshape(-1) if there.all() else places.T[there]
    whole = octets.gather(order, width)
    for word in range(-(-int(shared.max()) // 8)):
        begin = min(8 * word, width - 8)
        first = _shared_word(octets, places + begin, shared - begin)
        found = first.T.reshape(-1) if there.all() else first.T[there]
        copy_columns(found.view(np.uint8).reshape(-1, 8), whole[:, begin : begin + 8])
    if longest == shortest == width:
        return fixed(whole)
    final = lengths.T.reshape(-1) if there.all() else lengths.T[there]
    return fixed(whole).pick(np.arange(len(whole)) * width, final)


def _shared_word(octets: Ragged, places: Numbers, shared: Numbers) -> NDArray[np.uint64]:
    """Eight bytes of every key, those that it shares taken from the key before."""
    import numpy as np

    words = octets.gather(places.reshape(-1), 8).view("<u8").reshape(places.shape)
    masks = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
    for step in range(1, len(words)):
        own = words[step]
        own ^= (own ^ words[step - 1]) & masks[np.clip(shared[step], 0, 8)]
    return words


__all__ = ["READ_BYTES", "batches"]
