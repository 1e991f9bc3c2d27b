"""Keys of many rows at once, byte for byte as `keys` makes and reads them.

Numbers, times, texts and blobs (ascending or descending) are whole-column operations. Other types are encoded value by
value with the codecs of `ordered`; the rest of the key is still made by the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.catalog.cql_type import Kind
from trimtab.rows.arrow_cells import Cells
from trimtab.rows.column_hashing import hashes, tokens
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PUT, ROWS, STATIC, TAIL
from trimtab.rows.layout import MAX_KEY_BYTES, KeyColumn, RowLayout
from trimtab.rows.ragged import Ragged, copy_columns, fixed, from_arrow, from_list, join
from trimtab.rows.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Octets, Offsets

_SIGN_FLIPPED = (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.TIMESTAMP, Kind.TIME)
_FLOATING = {Kind.FLOAT: ("u4", "f4", 0x7FC00000), Kind.DOUBLE: ("u8", "f8", 0x7FF8000000000000)}
_ESCAPED = (Kind.TEXT, Kind.ASCII, Kind.BLOB, Kind.INET)
_LATEST = (1 << 63) - 1


def partition_parts(layout: RowLayout, cells: Sequence[Cells]) -> list[Ragged]:
    """What the keys of each row's partition begin with: token, then the columns of the partition key."""
    import numpy as np

    for column, each in zip(layout.partition, cells, strict=True):
        _check(layout, column, each, "partition key")
    encoded = [_encode(column, each.strings, exact=True) for column, each in zip(layout.partition, cells, strict=True)]
    strings = [each.strings for each in cells]
    if len(strings) == 1:
        if len(strings[0]) and int(strings[0].lengths.min()) == 0:
            raise layout.refuse(f"partition key column {layout.partition[0].name} is empty; it has at least one byte")
        serialised = strings[0]
    else:
        serialised = join([part for each in strings for part in (_lengths(each), each, b"\x00")])
    _check_size(layout, encoded, "partition key", MAX_KEY_BYTES)
    return [_big_endian(tokens(serialised).view(np.uint64) ^ np.uint64(1 << 63)), *encoded]


def row_keys(layout: RowLayout, partition: Sequence[Ragged], cells: Sequence[Cells]) -> Ragged:
    """The keys of rows, without their tails, from those parts and the cells of clustering columns."""
    for column, each in zip(layout.clustering, cells, strict=True):
        _check(layout, column, each, "clustering")
    encoded = [
        _encode(column, each.strings, exact=False) for column, each in zip(layout.clustering, cells, strict=True)
    ]
    if encoded:
        _check_size(layout, [*partition, *encoded], "key of a row", MAX_KEY_BYTES - 1)
    return join([*partition, ROWS, *encoded])


def static_keys(partition: Sequence[Ragged], places: NDArray[np.int64]) -> Ragged:
    """The keys of the static rows of these partitions, without their tails."""
    return join([*(part.take(places) for part in partition), STATIC])


def with_tails(rows: Ragged, stamp_us: int | NDArray[np.int64], values: Ragged) -> Ragged:
    """Whole keys of versions that were put, with one timestamp or one each."""
    return join([rows, *tails(stamp_us, values)])


def tails(
    stamp_us: int | NDArray[np.int64], values: Ragged, value_hashes: NDArray[np.uint64] | None = None
) -> list[Ragged | bytes]:
    """What follows the keys of rows in those of versions: the parts of it one after the other."""
    import numpy as np

    if isinstance(stamp_us, int):
        stamp: Ragged | bytes = (_LATEST - stamp_us).to_bytes(8, "big")
    else:
        stamp = _big_endian((np.int64(_LATEST) - stamp_us).view(np.uint64))
    if value_hashes is None:
        value_hashes = hashes(values).view(np.uint64)
    return [stamp, bytes((PUT,)), _big_endian(value_hashes)]


def ordered_tokens(keys: Ragged) -> NDArray[np.uint64]:
    """The tokens in front of keys, as numbers that sort like the keys do."""
    import numpy as np

    return keys.numbers(0, ">u8").astype(np.uint64)


def section_places(layout: RowLayout, keys: Ragged) -> int | Offsets:
    """Where in each key its section lies."""
    if layout.partition_end is not None:
        return layout.partition_end
    at: int | Offsets = TOKEN_BYTES
    for column in layout.partition:
        if column.codec.width is not None:
            at = at + column.codec.width
        else:
            _, at = _decode_varying(layout, column, keys, at, _tails(keys))
    return at


def _tails(keys: Ragged) -> int | Offsets:
    return keys.width - TAIL if keys.width is not None else keys.lengths - TAIL


def key_columns(layout: RowLayout, keys: Ragged) -> list[Cells]:
    """The cells of the primary key of rows (keys with tails, in the section of rows)."""
    import numpy as np

    found: list[Cells] = []
    at: int | Offsets = TOKEN_BYTES
    tails = _tails(keys)
    for place, column in enumerate((*layout.partition, *layout.clustering)):
        if place == len(layout.partition):
            at = at + 1  # the section
        exact = place < len(layout.partition)
        width = column.codec.width
        if width is not None:
            if np.any(at + width > tails):
                raise BadRow(f"a key of {layout.name} ends inside column {column.name}")
            matrix = keys.column(at, width) if isinstance(at, int) else keys.gather(keys.starts + at, width)
            found.append(Cells(_decode_fixed(column, matrix, exact)))
            at = at + width
        else:
            strings, at = _decode_varying(layout, column, keys, at, tails)
            found.append(Cells(strings))
    return found


def _check(layout: RowLayout, column: KeyColumn, cells: Cells, what: str) -> None:
    if cells.valid is not None:
        at = int(cells.valid.argmin())
        raise layout.refuse(f"{what} column {column.name} has no value in row {at}; a key needs all of its columns")
    strings = cells.strings
    if len(strings) and int(strings.lengths.max()) > MAX_KEY_BYTES - 1:
        raise layout.refuse(
            f"{what} column {column.name} has {int(strings.lengths.max())} bytes; "
            f"a column of a key has at most {MAX_KEY_BYTES - 1}"
        )


def _check_size(layout: RowLayout, parts: Sequence[Ragged], what: str, most: int) -> None:
    if not len(parts[0]):
        return
    longest: Any = sum(part.lengths if part.width is None else part.width for part in parts)
    longest = longest if isinstance(longest, int) else int(longest.max())
    if longest > most:
        raise layout.refuse(f"the {what} has {longest} bytes; it may have {most}")


def _big_endian(numbers: NDArray[np.uint64]) -> Ragged:
    import numpy as np

    return fixed(numbers.astype(">u8").view(np.uint8).reshape(len(numbers), 8))


def _lengths(strings: Ragged) -> Ragged | bytes:
    import numpy as np

    if strings.width is not None:
        return strings.width.to_bytes(2, "big")
    return fixed(strings.lengths.astype(">u2").view(np.uint8).reshape(len(strings), 2))


def _encode(column: KeyColumn, strings: Ragged, *, exact: bool) -> Ragged:
    """A column's cells in ordered encoding."""
    import pyarrow.compute as pc

    kind = column.type.kind
    if kind in _SIGN_FLIPPED:
        return _directed(column, fixed(_sign_flipped(strings.matrix)))
    if kind in (Kind.DATE, Kind.BOOLEAN):
        return _directed(column, strings)
    if kind in _FLOATING:
        return _directed(column, fixed(_encode_floating(kind, strings.data, exact)))
    if kind in _ESCAPED:
        if not strings.flat().all():
            escaped = pc.replace_substring(strings.to_arrow(), pattern=b"\x00", replacement=b"\x00\xff")
            strings = from_arrow(escaped)
        return _directed(column, join([strings, b"\x00\x00"]))
    encode = column.codec.encode
    return from_list([encode(cell) for cell in strings.to_list()])


def _sign_flipped(matrix: Octets) -> Octets:
    import numpy as np

    flipped = np.empty(matrix.shape, dtype=np.uint8)
    copy_columns(matrix, flipped)
    flipped[:, 0] ^= 0x80
    return flipped


def _directed(column: KeyColumn, encoded: Ragged) -> Ragged:
    if not column.descending:
        return encoded
    return Ragged(~encoded.data, encoded.count, encoded.width, None if encoded.width is not None else encoded.offsets)


def _encode_floating(kind: Kind, data: Octets, exact: bool) -> Octets:
    import numpy as np

    word, number, not_a_number = _FLOATING[kind]
    bits = data.view(f">{word}").astype(f"={word}")
    if not exact:
        bits[np.isnan(bits.view(f"={number}"))] = not_a_number
    sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
    flipped = np.where(bits & sign, ~bits, bits | sign)
    return flipped.astype(f">{word}").view(np.uint8).reshape(len(bits), bits.itemsize)


def _decode_fixed(column: KeyColumn, matrix: Octets, exact: bool) -> Ragged:
    import numpy as np

    kind = column.type.kind
    if kind in _SIGN_FLIPPED or kind in (Kind.DATE, Kind.BOOLEAN):
        plain = ~matrix if column.descending else matrix
        return fixed(_sign_flipped(plain) if kind in _SIGN_FLIPPED else plain)
    if kind in _FLOATING:
        word, _, _ = _FLOATING[kind]
        plain = ~matrix if column.descending else matrix
        bits = plain.view(f">{word}")[:, 0].astype(f"={word}")
        sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
        cells = np.where(bits & sign, bits ^ sign, ~bits).astype(f">{word}")
        return fixed(cells.view(np.uint8).reshape(matrix.shape))
    decode = column.codec.decode
    return from_list([decode(encoded, 0)[0] for encoded in fixed(matrix).to_list()])


def _decode_varying(
    layout: RowLayout, column: KeyColumn, keys: Ragged, at: int | Offsets, tails: int | Offsets
) -> tuple[Ragged, Offsets]:
    """A column without a fixed width that begins `at` bytes into each key, and where it ends."""
    import numpy as np

    count = len(keys)
    begins = keys.starts + at
    limits = keys.starts + tails
    if column.type.kind in _ESCAPED:
        ends = _ends_of_escaped(keys, begins, limits, 0xFF if column.descending else 0x00)
        if ends is None:
            raise BadRow(f"a key of {layout.name} ends inside column {column.name}: there is no end of its bytes")
        strings = keys.pick(begins, ends - begins)
        if column.descending:
            strings = _directed(column, strings)
        if not strings.flat().all():
            strings = from_list([each.replace(b"\x00\xff", b"\x00") for each in strings.to_list()])
        return strings, ends + 2 - keys.starts
    decode, found, after = column.codec.decode, [], np.empty(count, np.int64)
    starts = np.broadcast_to(np.asarray(at), (count,)).tolist()
    for row, (key, start) in enumerate(zip(keys.to_list(), starts, strict=True)):
        cell, after[row] = decode(key, start)
        found.append(cell)
    return from_list(found), after


def _ends_of_escaped(keys: Ragged, begins: Offsets, limits: Offsets, zero: int) -> Offsets | None:
    """Where the two zeros lie that end each string; None if one has no end.

    They are looked for in all keys at once. Within a string a zero is followed by 255, so the first two in a row, from
    the string's beginning on, are its end.
    """
    import numpy as np

    data = keys.data
    is_zero = data == zero
    pairs = np.flatnonzero(is_zero[:-1] & is_zero[1:])
    if not len(begins):
        return begins
    at = np.searchsorted(pairs, begins)
    if len(pairs) == 0 or int(at.max()) >= len(pairs):
        return None
    ends: Offsets = pairs[at]
    return None if np.any(ends + 2 > limits) else ends
