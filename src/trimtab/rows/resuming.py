"""Where a read ended, as bytes between two row keys, so that the next one can begin there.

A read may end inside a partition in which no live row was met yet, though its static row is live. Whether that
partition is one row of nulls is known only at its end, by then in another read: so the place itself says it (`bare`).

    forwards    after all versions of the last row: its key · FF 18 times; bare: 19 times
    in reverse  before all versions of the last row: its key; bare: its key · 00

No row key begins with another, so neither is a row key, and both lie between this row's versions and the next row's.
"""

from __future__ import annotations

from trimtab.rows.errors import BadRow
from trimtab.rows.keys import AFTER_ROWS, ROWS, TAIL, partition_end
from trimtab.rows.layout import RowLayout

_AFTER = b"\xff" * (TAIL + 1)
_BARE = b"\xff"
_BARE_REVERSE = b"\x00"


def stopped_at(row_key: bytes, *, bare: bool, reverse: bool) -> bytes:
    """The place behind the last row that was looked at."""
    if reverse:
        return row_key + _BARE_REVERSE if bare else row_key
    return row_key + _AFTER + (_BARE if bare else b"")


def row_before(layout: RowLayout, place: bytes) -> tuple[bytes, bytes] | None:
    """The row key that a place inside a partition was made of, and what follows it; None for any other place."""
    at = partition_end(layout, place)
    if at is None or place[at : at + 1] != ROWS:
        return None
    at += 1
    try:
        for column in layout.clustering:
            _, at = column.decode(place, at)
    except BadRow:
        return None
    return place[:at], place[at:]


def moved(layout: RowLayout, place: bytes, *, bare: bool, reverse: bool) -> bytes:
    """The same place, with what is known now. A place that is no row's (the range's own end, say) stays what it is."""
    found = row_before(layout, place)
    if found is None or found[1] not in ((b"", _BARE_REVERSE) if reverse else (_AFTER, _AFTER + _BARE)):
        return place
    return stopped_at(found[0], bare=bare, reverse=reverse)


def begins_whole(layout: RowLayout, prefix: bytes, low: bytes) -> bool:
    """Whether rows from `low` on are all of a partition, as far as live ones are concerned."""
    if low <= prefix + ROWS:
        return True
    found = row_before(layout, low) if low.startswith(prefix) else None
    return found is not None and found[1] == _AFTER + _BARE


def ends_whole(layout: RowLayout, prefix: bytes, high: bytes) -> bool:
    """Whether rows below `high` are."""
    if high >= prefix + AFTER_ROWS:
        return True
    found = row_before(layout, high) if high.startswith(prefix) else None
    return found is not None and found[1] == _BARE_REVERSE


def is_whole(layout: RowLayout, prefix: bytes, low: bytes, high: bytes) -> bool:
    return begins_whole(layout, prefix, low) and ends_whole(layout, prefix, high)
