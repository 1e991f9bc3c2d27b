"""Murmur3 of many byte strings at once: bit for bit what `hashing` computes one by one.

Strings of one length go through the rounds together, a few thousand at a time so that the words stay in a core's cache.
Strings of many lengths are done length by length. Where few have a length, or where they are long, the driver's C is
faster, one by one: numpy takes its time for every 16 bytes of the length, however many strings there are.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from trimtab.rows.hashing import MAX_TOKEN, MIN_TOKEN, murmur3_of
from trimtab.rows.ragged import Ragged, copy_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Octets

    Words = NDArray[np.uint64]

_BLOCK_ROWS = 8192
_FEW = 15  # strings, times the square of their blocks and two more: below, one by one is faster
_LONG_BYTES = 400  # from here on it always is
_PIECE_BYTES = 1 << 20  # are taken apart at a time
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK_BYTES = 16


def hashes(strings: Ragged) -> NDArray[np.int64]:
    """The Murmur3 of each."""
    import numpy as np

    if strings.width is not None:
        return _of_matrix(strings.matrix) if _side_by_side(len(strings), strings.width) else _one_by_one(strings)
    found = np.empty(len(strings), dtype=np.int64)
    lengths = strings.lengths
    order = np.argsort(lengths, kind="stable")
    distinct, first = np.unique(lengths[order], return_index=True)
    ends = [*first[1:].tolist(), len(order)]
    left = []
    for length, start, stop in zip(distinct.tolist(), first.tolist(), ends, strict=True):
        places = order[start:stop]
        if _side_by_side(len(places), length):
            found[places] = _of_matrix(strings.gather(strings.starts[places], length))
        else:
            left.append(places)
    if len(left) == len(distinct):
        return _one_by_one(strings)
    if left:
        places = np.sort(np.concatenate(left))
        found[places] = _one_by_one(strings.take(places))
    return found


def _side_by_side(count: int, width: int) -> bool:
    return width < _LONG_BYTES and count >= _FEW * (width // _BLOCK_BYTES + 2) ** 2


def _one_by_one(strings: Ragged) -> NDArray[np.int64]:
    import numpy as np

    single = murmur3_of()
    together = max(1, _PIECE_BYTES * len(strings) // max(1, strings.size))
    return np.fromiter(
        chain.from_iterable(map(single, part) for part in strings.lists(together)), np.int64, len(strings)
    )


def tokens(partition_keys: Ragged) -> NDArray[np.int64]:
    """The tokens of serialised partition keys."""
    found = hashes(partition_keys)
    found[found == MIN_TOKEN] = MAX_TOKEN
    return found


def _of_matrix(matrix: Octets) -> NDArray[np.int64]:
    import numpy as np

    count, width = matrix.shape
    found = np.empty(count, dtype=np.uint64)
    # One array a word, so that every operation runs over adjacent memory.
    words = np.zeros((2 * (width // _BLOCK_BYTES) + 2, min(count, _BLOCK_ROWS)), dtype=np.uint64)
    whole, left = width // 8, width % 8
    for start in range(0, count, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, count)
        rows, used = matrix[start:stop], words[:, : stop - start]
        for at in range(whole):
            used[at] = rows[:, 8 * at : 8 * at + 8].view("<u8")[:, 0]
        if left:
            used[whole] = 0
            copy_columns(rows[:, 8 * whole :], used[whole].view(np.uint8).reshape(-1, 8)[:, :left])
        found[start:stop] = _of_words(used, width)
    return found.view(np.int64)


@cache
def _constant(number: int) -> NDArray[np.uint64]:
    """An operand that numpy need not make anew for every operation."""
    import numpy as np

    return np.array(number, dtype=np.uint64)


def _of_words(words: Words, width: int) -> Words:
    """The hash of strings of `width` bytes, padded with zeros to whole blocks; the words are used up."""
    import numpy as np

    count = words.shape[1]
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    spare = np.empty(count, np.uint64)

    def rotate(array: Words, bits: int) -> None:
        np.right_shift(array, _constant(64 - bits), out=spare)
        np.left_shift(array, _constant(bits), out=array)
        np.bitwise_or(array, spare, out=array)

    def mix(into: Words, word: Words, before: int, bits: int, after: int) -> None:
        np.multiply(word, _constant(before), out=word)
        rotate(word, bits)
        np.multiply(word, _constant(after), out=word)
        np.bitwise_xor(into, word, out=into)

    def step(into: Words, bits: int, other: Words, plus: int) -> None:
        rotate(into, bits)
        np.add(into, other, out=into)
        np.multiply(into, _constant(5), out=into)
        np.add(into, _constant(plus), out=into)

    whole = width // _BLOCK_BYTES
    for block in range(whole):
        mix(first, words[2 * block], _C1, 31, _C2)
        step(first, 27, second, 0x52DCE729)
        mix(second, words[2 * block + 1], _C2, 33, _C1)
        step(second, 31, first, 0x38495AB5)
    left = width % _BLOCK_BYTES
    if left > 8:
        word = words[2 * whole + 1]
        _as_signed_bytes(word, spare)
        mix(second, word, _C2, 33, _C1)
    if left:
        word = words[2 * whole]
        _as_signed_bytes(word, spare)
        mix(first, word, _C1, 31, _C2)
    for half in (first, second):
        np.bitwise_xor(half, _constant(width), out=half)
    np.add(first, second, out=first)
    np.add(second, first, out=second)
    for half in (first, second):
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            np.right_shift(half, _constant(33), out=spare)
            np.bitwise_xor(half, spare, out=half)
            np.multiply(half, _constant(factor), out=half)
        np.right_shift(half, _constant(33), out=spare)
        np.bitwise_xor(half, spare, out=half)
    np.add(first, second, out=first)
    return first


def _as_signed_bytes(word: Words, spare: Words) -> None:
    """What CQL's Murmur3 makes of the last bytes: it takes them for signed, so each negative one flips all above it.

    Byte i is flipped if an odd number of the bytes below are negative, which is a running xor of their signs.
    """
    import numpy as np

    np.right_shift(word, _constant(7), out=spare)
    np.bitwise_and(spare, _constant(0x0101010101010101), out=spare)
    # Their product with ones in every byte adds up the signs below each byte, and its own: the lowest bit is the xor.
    np.multiply(spare, _constant(0x0101010101010100), out=spare)
    np.bitwise_and(spare, _constant(0x0101010101010101), out=spare)
    np.multiply(spare, _constant(0xFF), out=spare)
    np.bitwise_xor(word, spare, out=word)
