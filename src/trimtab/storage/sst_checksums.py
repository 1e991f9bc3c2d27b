"""Checksums of the blocks of SST files, as RocksDB has them since format 6.

The lower half of XXH3 of a block's contents; xor how it is compressed times a prime; plus a number of the file, xor the
block's place in it. So a block that was moved, or is of another file, does not fit either. Files without such a number
(0) lack the last part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Octets

    Numbers = NDArray[np.int64]

XXH3 = 4  # the type of checksum, in a file's footer
_OF_COMPRESSION = 0x6B9083D9
_LOWER = (1 << 32) - 1


def checksum(contents: bytes, compression: int, file_number: int, at: int) -> int:
    """Of one block, which lies `at` this place in its file."""
    from xxhash import xxh3_64_intdigest as digest

    place = (at & _LOWER) + (at >> 32)
    context = file_number ^ place if file_number else 0
    return (digest(contents) ^ compression * _OF_COMPRESSION) + context & _LOWER


def checksums(data: Octets, starts: Numbers, sizes: Numbers, file_number: int, at: int) -> NDArray[np.uint32]:
    """Of many, whose contents and compression lie in `data`; the beginning of that is `at` this place in their file."""
    import numpy as np
    from xxhash import xxh3_64_intdigest as digest

    held, ends = data.data, starts + sizes
    hashed = [digest(held[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    sums = np.asarray(hashed, np.uint64)
    sums ^= data[ends].astype(np.uint64) * np.uint64(_OF_COMPRESSION)
    if file_number:
        places = (starts + at).astype(np.uint64)
        sums += ((places & np.uint64(_LOWER)) + (places >> np.uint64(32))) ^ np.uint64(file_number)
    return sums.astype(np.uint32)


def stored(data: Octets) -> NDArray[np.uint32]:
    """Every place of `data` as the beginning of a checksum: index it with those behind the compressions of blocks."""
    import numpy as np

    return np.ndarray((len(data) - 3,), "<u4", buffer=data, strides=(1,))
