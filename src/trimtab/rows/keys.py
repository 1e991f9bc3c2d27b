"""Keys: token · partition key · section · clustering key · tail, so that a row's versions lie together, newest first.

    section 10  deletions of the whole partition
            20  deletions of ranges of its rows; in place of a clustering key: where the range begins
            30  the static row
            40  the rows; the only section of a table without clustering columns
    tail        inverted timestamp (8) · kind (1) · hash of the value (8)

What deletes in a partition sorts before what it deletes, so one pass forwards sees deletions first. Two writes of one
row with one timestamp have different hashes, so both are there; the same write twice is one key.

The encodings of columns are never the beginning of one another, so row keys are not either. Then a range of row keys is
a range of keys, and the keys that begin with some bytes are those from them up to their `successor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trimtab.rows.errors import BadRequest, BadRow
from trimtab.rows.hashing import content_hash, token_of_bytes
from trimtab.rows.layout import MAX_KEY_BYTES, KeyColumn, RowLayout
from trimtab.rows.protocol import Bound, Pairs
from trimtab.rows.tokens import TOKEN_BYTES, partition_bytes, token_of_key

__all__ = ["TAIL", "key_cells", "partition_prefix", "row_key", "token_of", "token_of_key"]

TAIL = 17
PARTITION_DELETED, RANGE_DELETED, STATIC, ROWS, AFTER_ROWS = b"\x10", b"\x20", b"\x30", b"\x40", b"\x41"
ROW_DELETE, PUT, PARTITION_DELETE, RANGE_DELETE = 1, 2, 3, 4

_LATEST = (1 << 63) - 1
_SIGN = 1 << 63
# Of tables whose whole key is one column; some 300 bytes each.
_MAX_LOCATED = 16_384
_SHORT = 64
_KIND = [bytes((kind,)) for kind in range(5)]


def tail(stamp_us: int, kind: int, value: bytes) -> bytes:
    return (_LATEST - stamp_us).to_bytes(8, "big") + _KIND[kind] + content_hash(value)


def check_content(key: bytes, value: bytes) -> None:
    """BadRow unless the value is the one that the key was made for."""
    if content_hash(value) != key[-8:]:
        raise BadRow(f"a value of {len(value)} bytes that is not the one its key was made for: {key[:64].hex()}")


def stamp_of(key: bytes) -> int:
    return _LATEST - int.from_bytes(key[-17:-9], "big")


def inverted(stamp_us: int) -> bytes:
    """A stamp as it stands in keys, at [-17:-9]."""
    return (_LATEST - stamp_us).to_bytes(8, "big")


def newest_stamp(pairs: Pairs) -> int:
    """The latest timestamp among the pairs of a write; 0 if there are none."""
    if len(pairs) == 2:
        return _LATEST - int.from_bytes(pairs[0][-17:-9], "big")
    return _LATEST - int.from_bytes(min(key[-17:-9] for key in pairs[::2]), "big") if pairs else 0


def successor(start: bytes) -> bytes | None:
    """The least bytes above everything that begins with `start`. None: nothing is."""
    kept = start.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


def by_row(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """Row key and versions, one row after the other, of pairs in the order of their keys or in reverse."""
    known, versions = b"", list[tuple[bytes, bytes]]()
    for pair in pairs:
        row_key = pair[0][:-TAIL]
        if row_key == known:
            versions.append(pair)
            continue
        if versions:
            yield known, versions
        known, versions = row_key, [pair]
    if versions:
        yield known, versions


def after(row_key: bytes) -> bytes:
    """The least key above all versions of a row."""
    found = successor(row_key)
    assert found is not None, "a row key holds a section byte"
    return found


def _wrong(layout: RowLayout, columns: Sequence[KeyColumn], cells: Sequence[object], what: str) -> BadRequest:
    """What is wrong with cells that can't be in a key."""
    for column, cell in zip(columns, cells, strict=False):
        if cell is None:
            return layout.refuse(f"{what} column {column.name} has no value; a key needs all of its columns")
        if cell.__class__ is not bytes:
            return layout.refuse(f"a cell of {what} column {column.name} is bytes, not {type(cell).__name__}")
        if len(cell) >= MAX_KEY_BYTES:
            most = MAX_KEY_BYTES - 1
            return layout.refuse(
                f"{what} column {column.name} has {len(cell)} bytes; a column of a key has at most {most}"
            )
        try:
            column.validate(cell)
        except ValueError as error:
            return layout.refuse(f"{what} column {column.name} ({column.type.name}): {error}")
    return layout.refuse(f"{what} columns that can't be encoded")


def encode_cells(layout: RowLayout, columns: Sequence[KeyColumn], cells: Sequence[bytes | None], what: str) -> bytes:
    """The first of these columns as they lie in a key."""
    encoded = b""
    try:
        for column, cell in zip(columns, cells, strict=False):
            if cell.__class__ is not bytes or len(cell) >= MAX_KEY_BYTES:
                raise _wrong(layout, columns, cells, what)
            column.validate(cell)
            encoded += column.encode(cell)
    except BadRequest:
        raise
    except ValueError:
        raise _wrong(layout, columns, cells, what) from None
    return encoded


def partition_prefix(layout: RowLayout, cells: Sequence[bytes]) -> bytes:
    """How all keys of a partition begin."""
    columns = layout.partition
    if len(cells) != len(columns):
        raise layout.refuse(f"the partition key has {len(columns)} columns ({_names(columns)}), not {len(cells)}")
    encoded = encode_cells(layout, columns, cells, "partition key")
    whole = cells[0] if len(columns) == 1 else partition_bytes(cells)
    if not whole:
        raise layout.refuse(f"partition key column {columns[0].name} is empty; a partition key has at least one byte")
    if len(encoded) > MAX_KEY_BYTES:
        raise layout.refuse(f"the partition key has {len(encoded)} bytes; it may have {MAX_KEY_BYTES}")
    return (token_of_bytes(whole) + _SIGN).to_bytes(TOKEN_BYTES, "big") + encoded


def token_of(layout: RowLayout, cells: Sequence[bytes]) -> int:
    """The token of a partition key."""
    return token_of_key(partition_prefix(layout, cells))


def row_key(layout: RowLayout, cells: Sequence[bytes]) -> bytes:
    """The key of a row, without a tail, from the cells of its whole primary key."""
    if len(cells) == 1 and not layout.clustering:
        return partition_prefix(layout, cells) + ROWS
    split = len(layout.partition)
    return row_in(layout, partition_prefix(layout, cells[:split]), cells[split:])


def locate(layout: RowLayout, cells: Sequence[bytes]) -> tuple[bytes, int]:
    """The key of a row and the tablet that it is in. Keys that are asked for again and again are encoded once."""
    known = layout.located
    single = len(cells) == 1 and len(cells[0]) <= _SHORT
    if single and (found := known.get(cells[0])) is not None:
        return found
    key = row_key(layout, cells)
    located = key, int.from_bytes(key[:TOKEN_BYTES]) >> (65 - layout.table.tablets.bit_length())
    if single:
        if len(known) >= _MAX_LOCATED:
            known.clear()
        known[cells[0]] = located
    return located


def locate_all(layout: RowLayout, keys: Sequence[Sequence[bytes]]) -> list[tuple[bytes, int]]:
    """The same of many."""
    known = layout.located
    try:
        found = [known.get(cell) for (cell,) in keys]
    except ValueError:  # keys of several columns, or wrong ones
        return [locate(layout, cells) for cells in keys]
    return [each or locate(layout, cells) for each, cells in zip(found, keys, strict=True)]


def row_in(layout: RowLayout, prefix: bytes, cells: Sequence[bytes | None]) -> bytes:
    """The key of a row of a partition."""
    columns = layout.clustering
    if len(cells) != len(columns):
        raise layout.refuse(
            f"the clustering key has {len(columns)} columns ({_names(columns)}), not {len(cells)}"
            if columns
            else f"there are no clustering columns, but {len(cells)} cells for them were given"
        )
    if not columns:
        return prefix + ROWS
    made = prefix + ROWS + encode_cells(layout, columns, cells, "clustering")
    if len(made) > MAX_KEY_BYTES:
        raise layout.refuse(f"the key of a row has {len(made)} bytes; it may have {MAX_KEY_BYTES}")
    return made


def _names(columns: Sequence[KeyColumn]) -> str:
    return ", ".join(column.name for column in columns)


def bound_bytes(layout: RowLayout, bound: Bound | None) -> bytes:
    """The beginning of clustering keys that a bound names; empty for the partition's own end."""
    if bound is None or not bound.cells:
        return b""
    if len(bound.cells) > len(layout.clustering):
        raise layout.refuse(
            f"a bound names {len(bound.cells)} clustering columns; there are {len(layout.clustering)}"
            f"{f' ({_names(layout.clustering)})' if layout.clustering else ''}"
        )
    made = encode_cells(layout, layout.clustering, bound.cells, "clustering")
    if len(made) > MAX_KEY_BYTES:
        raise layout.refuse(f"a bound has {len(made)} bytes; it may have {MAX_KEY_BYTES}")
    return made


def interval(start: bytes, start_inclusive: bool, end: bytes, end_inclusive: bool) -> tuple[bytes, bytes | None]:
    """low <= clustering key < high (None: no end) for two bounds: everything that begins like one is on its side."""
    low: bytes | None = start
    if start and not start_inclusive:
        low = successor(start)
    high = (successor(end) if end_inclusive else end) if end else None
    # A start beyond all keys leaves nothing; so does an end that is not after it.
    return (low, high) if low is not None else (b"\xff", b"")


def slice_bounds(
    layout: RowLayout, partition: Sequence[bytes], start: Bound | None, end: Bound | None
) -> tuple[bytes, bytes]:
    """low <= row key < high for the rows of a partition from one bound to another, in the table's own order.

    A bound that excludes nothing is a bound all the same: only where there is none may the static row stand alone. So
    then the range begins with the least row key there can be, not with the section.
    """
    prefix = partition_prefix(layout, partition)
    low, high = interval(
        bound_bytes(layout, start),
        start is None or start.inclusive,
        bound_bytes(layout, end),
        end is None or end.inclusive,
    )
    rows = prefix + ROWS
    if not low and end is not None and end.cells:
        low = b"\x00"
    return rows + low, prefix + AFTER_ROWS if high is None else rows + high


def partition_end(layout: RowLayout, key: bytes) -> int | None:
    """Where a partition's prefix ends in a key. None: the bytes end before that, so they lie between partitions."""
    end = layout.partition_end
    if end is not None:
        return end if len(key) >= end else None
    end = TOKEN_BYTES
    try:
        for column in layout.partition:
            _, end = column.decode(key, end)
    except BadRow:
        return None
    return end if end <= len(key) else None


def prefix_of(layout: RowLayout, key: bytes) -> bytes:
    """The partition's prefix of a stored key."""
    end = partition_end(layout, key)
    if end is None or len(key) <= end:
        raise BadRow(f"a key of {layout.name} that ends inside its partition key: {key[:64].hex()}")
    return key[:end]


def key_cells(layout: RowLayout, row_key: bytes) -> list[bytes]:
    """The cells of the primary key; of the static row, or of a deletion, those of the partition key alone."""
    cells, at = [], TOKEN_BYTES
    for column in layout.partition:
        cell, at = column.decode(row_key, at)
        cells.append(cell)
    section, at = row_key[at : at + 1], at + 1
    if section == ROWS:
        for column in layout.clustering:
            cell, at = column.decode(row_key, at)
            cells.append(cell)
        if at != len(row_key):
            raise BadRow(
                f"a key of {layout.name} with {len(row_key) - at} bytes after its columns: {row_key[:64].hex()}"
            )
    elif section not in (PARTITION_DELETED, RANGE_DELETED, STATIC):
        raise BadRow(f"a key of {layout.name} in section {section.hex() or 'none'}: {row_key[:64].hex()}")
    return cells
