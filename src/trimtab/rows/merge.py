"""One row from all its versions, by CQL's rule; and its canonical form, which is again at most two pairs.

Every part of a row (marker, cell, element of a collection, deletion) merges on its own, and of two the greater one
stays (`CellState`), so the order and number of arrivals never matter: merging is commutative, associative and
idempotent. What a deletion covers, because its stamp is no later, is gone.

The canonical form is one row deletion and one PUT version, each if there is any, in the table's newest layout. Rows
with equal histories have equal canonical bytes, also if some of the versions were merged before. A single version in
the newest layout that nothing covers is canonical already, so that reading such a row decodes nothing.

Expiry does not depend on when one looks: an expired cell stays, as a deletion would, and covers what is older. Only
`Forgetting` takes it out, with the deletions that every replica must have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimtab.rows.deletions import Pair, written_ms_of
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import PUT, ROW_DELETE, TAIL, check_content, stamp_of, tail
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Pairs
from trimtab.rows.values import (
    DELETED,
    EXPIRING,
    HEAD,
    NEVER,
    PER_CELL,
    CellState,
    Collection,
    Row,
    decode_row,
    encode_row,
)


@dataclass(slots=True)
class Merged:
    """A row: what it says, and its own latest deletion, if it has one."""

    row: Row
    deleted: Pair | None = None
    deleted_us: int = NEVER

    def live(self, now_s: int) -> bool:
        return self.row.live(now_s)


def merge_versions(
    layout: RowLayout, versions: Iterable[Pair], *, static: bool = False, covered_us: int = NEVER, as_of_us: int = 0
) -> Merged:
    """All versions of one row, in any order. `covered_us`: up to where a deletion of more than the row covers it."""
    merged = Merged(Row())
    row = merged.row
    best = (NEVER, 0, b"")
    # A whole row replaces all that older versions say, which need no decoding then: of those with one stamp for all
    # their cells, and with no columns that are not known here. The newest usually come first.
    full = b"" if static or layout.regular.multicell else layout.regular.full
    newest_layout, replaced_us = layout.regular.number_bytes, NEVER
    for key, value in versions:
        stamp, kind = stamp_of(key), key[-9]
        if stamp < replaced_us and kind == PUT and value and not value[0] & PER_CELL and value[1:HEAD] <= newest_layout:
            continue
        check_content(key, value)
        if kind == PUT:
            _add(row, decode_row(layout, value, stamp, static), as_of_us)
            if full and stamp > replaced_us and value.startswith(full) and (not as_of_us or stamp <= as_of_us):
                replaced_us = stamp
        elif kind == ROW_DELETE and not static:
            if len(value) != 8:
                raise BadRow(f"a damaged deletion of a row of {layout.name}: value {value[:64].hex()}")
            if as_of_us and stamp > as_of_us:
                continue
            rank = (stamp, written_ms_of(key, value), key)
            if rank > best:
                best, merged.deleted, merged.deleted_us = rank, (key, value), stamp
        else:
            raise BadRow(f"a version of kind {kind} in {layout.name} where a row lies: {key[:64].hex()}")
    if merged.deleted_us <= covered_us:
        merged.deleted, merged.deleted_us = None, NEVER
    _uncover(row, max(covered_us, merged.deleted_us))
    return merged


def _add(row: Row, other: Row, as_of_us: int) -> None:
    latest = as_of_us or (1 << 63)
    marker = other.marker
    if marker is not None and marker.stamp_us <= latest and (row.marker is None or marker > row.marker):
        row.marker = marker
    cells = row.cells
    for id, cell in other.cells.items():
        if cell.stamp_us <= latest and ((known := cells.get(id)) is None or cell > known):
            cells[id] = cell
    for id, collection in other.collections.items():
        into = row.collections.get(id)
        if into is None:
            into = row.collections[id] = Collection()
        deleted = collection.deleted
        if deleted is not None and deleted[0] <= latest and (into.deleted is None or deleted > into.deleted):
            into.deleted = deleted
        elements = into.elements
        for path, cell in collection.elements.items():
            if cell.stamp_us <= latest and ((known := elements.get(path)) is None or cell > known):
                elements[path] = cell


def _uncover(row: Row, covered_us: int) -> None:
    """Take out what deletions up to this stamp cover, and what the deletions of collections do."""
    if covered_us > NEVER:
        if row.marker is not None and row.marker.stamp_us <= covered_us:
            row.marker = None
        for id in [id for id, cell in row.cells.items() if cell.stamp_us <= covered_us]:
            del row.cells[id]
    if row.collections:
        for id, collection in list(row.collections.items()):
            if collection.deleted is not None and collection.deleted[0] <= covered_us:
                collection.deleted = None
            least = max(covered_us, collection.deleted[0] if collection.deleted is not None else NEVER)
            elements = collection.elements
            for path in [path for path, cell in elements.items() if cell.stamp_us <= least]:
                del elements[path]
            if collection.deleted is None and not elements:
                del row.collections[id]


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Deletions that arrived before `before_ms` have reached every replica, with all that they could cover.

    `history_from_ms`: a cell that expired later than this stays, for reads as of a time at which it was there.
    """

    before_ms: int = 0
    history_from_ms: int = 1 << 63

    def deletion(self, written_ms: int) -> bool:
        return written_ms < self.before_ms

    def cell(self, cell: CellState) -> bool:
        """An expired cell is a deletion that arrived when it expired: certainly not before it was written."""
        if cell.rank == EXPIRING and cell.until_s * 1000 > self.history_from_ms:
            return False
        return cell.rank in (DELETED, EXPIRING) and cell.until_s * 1000 < self.before_ms

    def row(self, merged: Merged) -> None:
        row = merged.row
        if merged.deleted is not None and self.deletion(written_ms_of(*merged.deleted)):
            merged.deleted, merged.deleted_us = None, NEVER
        if row.marker is not None and self.cell(row.marker):
            row.marker = None
        for id in [id for id, cell in row.cells.items() if self.cell(cell)]:
            del row.cells[id]
        for id, collection in list(row.collections.items()):
            if collection.deleted is not None and self.deletion(collection.deleted[1] * 1000):
                collection.deleted = None
            for path in [path for path, cell in collection.elements.items() if self.cell(cell)]:
                del collection.elements[path]
            if collection.deleted is None and not collection.elements:
                del row.collections[id]


def pairs_of(layout: RowLayout, row_key: bytes, merged: Merged, *, static: bool = False) -> Pairs:
    """A merged row as pairs, in the order of their keys."""
    made = encode_row(layout.static if static else layout.regular, merged.row)
    if made is None:
        return [] if merged.deleted is None else [*merged.deleted]
    stamp, value = made
    key = row_key + tail(stamp, PUT, value)
    # What is left of the row is later than its deletion, and the latest sorts first.
    return [key, value] if merged.deleted is None else [key, value, *merged.deleted]


def is_canonical(layout: RowLayout, key: bytes, value: bytes, covered_us: int, *, static: bool = False) -> bool:
    """Whether a row that consists of this one version is its canonical form. A `False` proves nothing."""
    if key[-9] == ROW_DELETE:
        return not static and stamp_of(key) > covered_us
    shape = layout.static if static else layout.regular
    if key[-9] != PUT or value[1:3] != shape.number_bytes:
        return False
    if covered_us == NEVER:
        return True
    # Parts with stamps of their own can be covered where the key's stamp is not.
    return not value[0] & PER_CELL and not shape.multicell and stamp_of(key) > covered_us


def canonical(layout: RowLayout, pairs: Pairs, covered_us: int = NEVER, *, static: bool = False) -> Pairs:
    """The canonical form of one row's versions (pairs with one row key, in any order)."""
    if not pairs:
        return []
    versions = list(zip(pairs[::2], pairs[1::2], strict=True))
    if len(versions) == 1 and is_canonical(layout, *versions[0], covered_us, static=static):
        return list(pairs)
    merged = merge_versions(layout, versions, static=static, covered_us=covered_us)
    return pairs_of(layout, versions[0][0][:-TAIL], merged, static=static)


def covered(layout: RowLayout, versions: Sequence[Pair], covered_us: int, *, static: bool = False) -> bool:
    """Whether a deletion up to this stamp covers any part of these versions."""
    for key, value in versions:
        if stamp_of(key) <= covered_us:
            return True
        if key[-9] == PUT and (
            value[0] & PER_CELL or layout.shape(int.from_bytes(value[1:3], "big"), static).multicell
        ):
            row = decode_row(layout, value, stamp_of(key), static)
            if any(cell.stamp_us <= covered_us for cell in row.cells.values()):
                return True
            for each in row.collections.values():
                if each.deleted is not None and each.deleted[0] <= covered_us:
                    return True
                if any(cell.stamp_us <= covered_us for cell in each.elements.values()):
                    return True
    return False
