"""A row that was merged from many writes may be larger than any one of them, and than a message may be: so it is sent
in parts, each a version of its own that says something of the row. Merged they are the row again, byte for byte.

No part is larger than `limit_bytes` unless it is a single cell, or a single element of a collection.
"""

from __future__ import annotations

from trimtab.rows.keys import PUT, STATIC, TAIL, partition_end, stamp_of, tail
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Pairs
from trimtab.rows.values import Collection, Row, decode_row, encode_row

_OVERHEAD_BYTES = 32


def parts_of(layout: RowLayout, key: bytes, value: bytes, limit_bytes: int) -> Pairs:
    """One stored pair as pairs that fit; most are one already."""
    if len(value) <= limit_bytes or key[-9] != PUT:
        return [key, value]
    at = partition_end(layout, key)
    static = at is not None and bool(layout.clustering) and key[at : at + 1] == STATIC
    shape = layout.static if static else layout.regular
    pairs: Pairs = []
    for part in _rows(decode_row(layout, value, stamp_of(key), static), limit_bytes):
        made = encode_row(shape, part)
        if made is not None:
            stamp_us, content = made
            pairs += (key[:-TAIL] + tail(stamp_us, PUT, content), content)
    return pairs


def _rows(row: Row, limit_bytes: int) -> list[Row]:
    part, size = Row(), 0
    part.marker = row.marker
    parts = [part]

    def room_for(more_bytes: int) -> Row:
        nonlocal part, size
        if size and size + more_bytes > limit_bytes:
            part, size = Row(), 0
            parts.append(part)
        size += more_bytes + _OVERHEAD_BYTES
        return part

    for id, cell in row.cells.items():
        room_for(len(cell.value)).cells[id] = cell
    for id, collection in row.collections.items():
        room_for(0).collections[id] = Collection(collection.deleted)
        for path in sorted(collection.elements):
            element = collection.elements[path]
            into = room_for(len(path) + len(element.value)).collections
            if id not in into:
                into[id] = Collection()
            into[id].elements[path] = element
    return parts
