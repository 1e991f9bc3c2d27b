"""The rows of an SST file as columns, without RocksDB: its iterator takes twice as long as all the rest of a scan.

Several megabytes of blocks are read at once. Those that are compressed are made into one LZ4 frame, whose blocks are
just what RocksDB writes, and unpacked in one call. Then the entries are found. Tablets write whole keys and restart at
each, so all of them begin at known places. In other files they are found one after the other within a restart interval,
because each begins where the one before ends, but in all intervals at the same time; what keys share with the key
before them is filled in the same way.

With `verify`, all that is read is compared with its checksums. That costs far less than to hash every value again and
compare it with what its key ends with, and finds damage in keys as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.rows.ragged import Ragged, copy_columns, fixed
from trimtab.storage.port import Corrupt
from trimtab.storage.sst_checksums import checksums, stored
from trimtab.storage.sst_file import LZ4, PLAIN, TRAILER_BYTES, TableFile, Unreadable, varint, varints

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Octets = NDArray[np.uint8]

READ_BYTES = 4 * 1024 * 1024  # of blocks, at a time
_UNPACKED_BYTES = 32 * 1024 * 1024
_SEQUENCE_BYTES = 8  # behind every key: the number of its write, and in the lowest byte what it was
_PUT = 1
_LONGEST_HEAD = 15  # three varints of 32 bits
_ROOM = 16  # in front of what is read: for the head of a frame
# Frames of LZ4 with independent blocks, no checksums: the largest block, then magic, flags, its code, their hash.
_FRAMES = ((64 * 1024, b"\x04\x22\x4d\x18\x60\x40\x82"), (4 * 1024 * 1024, b"\x04\x22\x4d\x18\x60\x70\x73"))
_NOT_COMPRESSED = 1 << 31  # in the size of a frame's block
_WHAT_TO_DO = "make another snapshot, of another replica"


def batches(
    table: TableFile, *, verify: bool = True, part: tuple[int, int] | None = None
) -> Iterator[tuple[Ragged, Ragged]]:
    """Keys and values in the file's order, some megabytes at a time. Corrupt names the file if something is wrong.

    `part`: only its blocks from one up to another.
    """
    import numpy as np

    first, end = part or (0, len(table.offsets))
    ends = (table.offsets + table.sizes + TRAILER_BYTES)[:end]
    # Used again and again, because memory that is touched for the first time is slow.
    buffer = np.empty(_ROOM + READ_BYTES, dtype=np.uint8)
    with table.path.open("rb", buffering=0) as file:
        while first < len(ends):
            begin = int(table.offsets[first])
            last = max(first + 1, int(np.searchsorted(ends, begin + READ_BYTES, side="right")))
            wanted = int(ends[last - 1]) - begin
            if _ROOM + wanted > len(buffer):
                buffer = np.empty(_ROOM + wanted, dtype=np.uint8)
            file.seek(begin)
            try:
                if file.readinto(buffer[_ROOM : _ROOM + wanted].data) != wanted:
                    raise Unreadable("the file ends too early")
                places, sizes = table.offsets[first:last] - begin + _ROOM, table.sizes[first:last]
                if verify:
                    _verify(buffer, places, sizes, table.number, begin - _ROOM)
                blocks = _Blocks(buffer, places, sizes)
                for start, stop in blocks.groups():
                    yield _pairs(*blocks.unpack(start, stop))
            except (Unreadable, IndexError, ValueError, OSError) as error:
                raise _corrupt(table.path, begin, str(error)) from None
            first = last


def _corrupt(path: Path, offset: int, what: str) -> Corrupt:
    return Corrupt(str(path), what, offset=offset, what_to_do=_WHAT_TO_DO)


def _verify(buffer: Octets, places: Numbers, sizes: Numbers, file_number: int, at: int) -> None:
    import numpy as np

    wrong = np.flatnonzero(checksums(buffer, places, sizes, file_number, at) != stored(buffer)[places + sizes + 1])
    if len(wrong):
        offset = int(places[wrong[0]]) + at
        raise Unreadable(f"the block at byte {offset} does not fit its checksum: it is not what was written")


class _Blocks:
    """Blocks as they were read. Unpacking some changes the bytes between them, so each is unpacked once, in order."""

    def __init__(self, raw: Octets, offsets: Numbers, sizes: Numbers) -> None:
        import numpy as np

        kinds = raw[offsets + sizes]
        self._packed = kinds == LZ4
        if not np.all(self._packed | (kinds == PLAIN)):
            raise Unreadable(f"a block of compression {int(kinds.max())}")
        self._lengths, self._begins = varints(raw, offsets)
        plain = ~self._packed
        self._lengths[plain], self._begins[plain] = sizes[plain], offsets[plain]
        self._ends = offsets + sizes
        self._strings = Ragged(raw, len(raw), 1)

    def groups(self) -> Iterator[tuple[int, int]]:
        """As many blocks at a time as are not too much when they are unpacked."""
        import numpy as np

        total, start = np.cumsum(self._lengths), 0
        while start < len(total):
            most = int(total[start] - self._lengths[start]) + _UNPACKED_BYTES
            stop = max(start + 1, int(np.searchsorted(total, most, side="right")))
            yield start, stop
            start = stop

    def unpack(self, start: int, stop: int) -> tuple[Octets, Numbers]:
        """The contents of some blocks one after the other, and where each begins; the end is added."""
        import numpy as np

        lengths = self._lengths[start:stop]
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        if not self._packed[start:stop].any():
            return self._strings.pick(self._begins[start:stop], lengths).flat(), starts
        return self._unpack_frame(start, stop, lengths), starts

    def _unpack_frame(self, start: int, stop: int, lengths: Numbers) -> Octets:
        """Between two blocks in the file is room for what stands between them in a frame: it is written there."""
        import numpy as np
        import pyarrow as pa

        raw, largest = self._strings.data, int(lengths.max())
        head = next((head for most, head in _FRAMES if largest <= most), None)
        begins, ends = self._begins[start:stop], self._ends[start:stop]
        if head is None:
            return self._unpack_each(start, stop)
        marks = np.ndarray((len(raw) - 3,), "<u4", buffer=raw, strides=(1,))
        marks[begins - 4] = (ends - begins) | np.where(self._packed[start:stop], 0, _NOT_COMPRESSED)
        marks[ends[-1]] = 0
        froms, tos = begins - 4, ends.copy()
        raw[froms[0] - len(head) : froms[0]] = np.frombuffer(head, np.uint8)
        froms[0] -= len(head)
        tos[-1] += 4
        frame = self._strings.pick(froms, tos - froms).flat()
        found = pa.Codec("lz4").decompress(pa.py_buffer(frame), int(lengths.sum()))
        return np.frombuffer(found, np.uint8)

    def _unpack_each(self, start: int, stop: int) -> Octets:
        """The same for blocks that are too large for a frame: those of single large values."""
        import numpy as np
        import pyarrow as pa

        codec, raw, found = pa.Codec("lz4_raw"), self._strings.data, []
        places = zip(self._begins[start:stop].tolist(), self._ends[start:stop].tolist(), strict=True)
        for at, (begin, end) in enumerate(places, start):
            block = raw[begin:end]
            if self._packed[at]:
                unpacked = codec.decompress(pa.py_buffer(block), int(self._lengths[at]))
                block = np.frombuffer(unpacked, np.uint8)
            found.append(block)
        return np.concatenate(found)


def _pairs(data: Octets, starts: Numbers) -> tuple[Ragged, Ragged]:
    """The keys and values in these blocks."""
    import numpy as np

    octets = Ragged(data, len(data), 1)
    counts, entries_end = _restarts(octets, starts)
    alike = _alike(octets, starts[:-1], counts, entries_end)
    if alike is not None:
        return alike
    begins, ends = _intervals(octets, starts[:-1], counts, entries_end)
    shared, key_at, unshared, value_at, value_size = map(np.stack, zip(*_walk(data, begins, ends), strict=True))
    there = (unshared >= 0).T  # by interval, then by step: the order of the keys
    keys = _keys(octets, shared, key_at, unshared, there)
    if there.all():
        return keys, octets.pick(value_at.T.reshape(-1), value_size.T.reshape(-1))
    return keys, octets.pick(value_at.T[there], value_size.T[there])


def _restarts(octets: Ragged, starts: Numbers) -> tuple[Numbers, Numbers]:
    """By block: how many restarts it has, and where its entries end."""
    import numpy as np

    counts = octets.gather(starts[1:] - 4, 4).view("<u4")[:, 0].astype(np.int64)
    entries_end = starts[1:] - 4 - 4 * counts
    if np.any(counts < 1) or np.any(entries_end < starts[:-1]):
        raise Unreadable("a block with an index of its own")
    return counts, entries_end


def _alike(octets: Ragged, starts: Numbers, counts: Numbers, entries_end: Numbers) -> tuple[Ragged, Ragged] | None:
    """The pairs, if no key shares bytes with another, and all keys and all values are equally long. None: they are not.

    Tablets restart at every key, so this is how rows of a fixed width lie in their files. The first entry tells where
    the others would begin; if all of those say the same of themselves, there they are.
    """
    import numpy as np

    first = bytes(octets.data[:_LONGEST_HEAD])
    shared, at = varint(first, 0)
    unshared, at = varint(first, at)
    value_size, at = varint(first, at)
    size, key_end = at + unshared + value_size, at + unshared - _SEQUENCE_BYTES
    if shared or key_end <= at or bool((entries_end - starts != counts * size).any()):
        return None
    before = np.cumsum(counts) - counts
    begins = np.repeat(starts - size * before, counts)
    begins += np.arange(0, size * len(begins), size)
    rows = octets.gather(begins, size)
    if at == 3 and size > 3:
        heads = rows[:, :4].view("<u4")[:, 0] & np.uint32(0xFFFFFF)
        same = bool((heads == int.from_bytes(first[:3], "little")).all())
    else:
        same = all(bool((rows[:, place] == first[place]).all()) for place in range(at))
    if not same:
        return None
    if bool((rows[:, key_end] != _PUT).any()):
        raise Unreadable("an entry that is no put")
    return fixed(rows[:, at:key_end]), fixed(rows[:, at + unshared :])


def _intervals(octets: Ragged, starts: Numbers, counts: Numbers, entries_end: Numbers) -> tuple[Numbers, Numbers]:
    """Where each restart interval begins and ends."""
    import numpy as np

    blocks = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    within = np.arange(len(blocks)) - first[blocks]
    offsets = octets.gather(entries_end[blocks] + 4 * within, 4).view("<u4")[:, 0]
    begins = starts[blocks] + offsets
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
    while True:
        going = at < ends
        every = bool(going.all())
        if not every and not going.any():
            break
        if len(steps) > 1 << 16:
            raise Unreadable("an interval without end")
        place = at if every else np.where(going, at, begins[0])  # somewhere that can be looked at
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
    unshared, after = varints(data, after)
    size, after = varints(data, after)
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
