"""The value of a PUT version, exactly as it is stored, and what it says: one row's marker, cells and collections.

    flags (1) · layout (2) · [TTL: ttl_s, expires_s] · [HAS_DELETES: written_ms (8)] · presence, 2 bits a column ·
    fixed-width cells · [PER_CELL: stamp_us (8), ttl_s, expires_s of every cell with presence 1 or 2] ·
    ends of the variable-width cells · their bytes

Big endian; 4 bytes where not said. Presence: 0 absent, 1 value, 2 deleted, 3 a multi-cell collection. So where a fixed
cell lies depends on layout and flags alone. A collection says for itself when its parts were written:

    1 if deleted, else 0 · [stamp_us (8), written_s] · count · elements in the order of their paths, each:
    rank (1) · stamp_us (8) · [EXPIRING: ttl_s, expires_s] · [DELETED: written_s] · path size · path ·
    [unless DELETED: value size · value]

The path of an element of a set or map is its key in ordered encoding; of a list it begins with the stamp that it was
added with (prepended: negative), says what tells its write from others of that stamp (a new value of the whole list has
nothing here: there is one at a time), and ends with its place among those added together:

    stamp_us (8) · [added: turn in the batch (4) · hash of who stamped it and of what was added (8)] · place (4)

A row has one encoding (`encode_row`): the short one, without stamps per cell, wherever marker and cells agree on stamp
and expiry. A marker's stamp is always the key's; without one the key has the latest stamp of the cells. Deletions of
cells remember when they arrived in whole seconds, rounded up: that is what fits beside a cell's stamp, and a value must
not depend on whether it was merged before.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

from trimtab.catalog.cql_type import Kind
from trimtab.rows.errors import BadRow
from trimtab.rows.layout import RowLayout, Shape, ValueColumn

MARKER, TTL, PER_CELL, HAS_DELETES = 1, 2, 4, 8
ALL_FLAGS = MARKER | TTL | PER_CELL | HAS_DELETES
HEAD = 3  # flags and layout
ABSENT, GIVEN, GONE, COMPLEX = 0, 1, 2, 3  # presence

PLAIN, EXPIRING, DELETED = 0, 1, 2  # the rank of a cell among those of one stamp

# Bytes between head and presence, by flags.
TIMES = [(8 if flags & TTL else 0) + (8 if flags & HAS_DELETES else 0) for flags in range(ALL_FLAGS + 1)]
EXPIRY = Struct(">II")  # ttl_s, expires_s
WRITTEN = Struct(">Q")  # written_ms
CELL_STAMP = Struct(">qII")  # stamp_us, ttl_s, expires_s (of a deleted cell: 0, written_s)
_COUNT = Struct(">I")
_ELEMENT = Struct(">Bq")
_DELETION = Struct(">qI")
NEVER = -(1 << 63)  # before every stamp


class CellState(NamedTuple):
    """One cell. Of two, the greater wins: the later stamp; then the deletion, then what expires; then the later
    expiry (or arrival, of deletions), then the greater value."""

    stamp_us: int
    rank: int = PLAIN
    until_s: int = 0  # EXPIRING: when it expires. DELETED: when the deletion arrived
    value: bytes = b""
    ttl_s: int = 0

    def live(self, now_s: int) -> bool:
        return self.rank == PLAIN or (self.rank == EXPIRING and self.until_s > now_s)


_new = tuple.__new__  # a named tuple's own way in takes twice as long


class Collection:
    """A multi-cell collection: when all of it was deleted (stamp, arrival), and its elements by path."""

    __slots__ = ("deleted", "elements")

    def __init__(self, deleted: tuple[int, int] | None = None) -> None:
        self.deleted = deleted
        self.elements: dict[bytes, CellState] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and self.deleted == other.deleted and self.elements == other.elements

    __hash__ = None  # type: ignore[assignment]

    def newest(self) -> int:
        return max(
            (each.stamp_us for each in self.elements.values()), default=self.deleted[0] if self.deleted else NEVER
        )


class Row:
    """What versions of a row say together. `marker`: the row exists even without cells."""

    __slots__ = ("cells", "collections", "marker")

    def __init__(self) -> None:
        self.marker: CellState | None = None
        self.cells: dict[int, CellState] = {}
        self.collections: dict[int, Collection] = {}

    def live(self, now_s: int) -> bool:
        if self.marker is not None and self.marker.live(now_s):
            return True
        if any(cell.live(now_s) for cell in self.cells.values()):
            return True
        return any(cell.live(now_s) for each in self.collections.values() for cell in each.elements.values())


def whole_seconds(at_ms: int) -> int:
    """When a deletion of cells arrived, as it is stored."""
    return max(1, -(-at_ms // 1000))


def encode_row(shape: Shape, row: Row) -> tuple[int, bytes] | None:
    """The key's stamp and the value; None if the row says nothing."""
    marker, cells, collections = row.marker, row.cells, row.collections
    if marker is None and not cells and not collections:
        return None
    one_of = next(iter(cells.values()), None) if marker is None else marker
    stamp = max((each.newest() for each in collections.values()), default=NEVER) if one_of is None else one_of.stamp_us
    if marker is None and one_of is not None:
        stamp = max(cell.stamp_us for cell in cells.values())
    uniform, expiry, arrived, presence = True, None if marker is None else (marker.ttl_s, marker.until_s), 0, 0
    fixed, stamps, ends, variable, end = list[bytes](), list[bytes](), list[int](), list[bytes](), 0
    for at, column in enumerate(shape.columns):
        found = b""
        cell = cells.get(column.id)
        if cell is not None:
            if cell.rank == DELETED:
                presence |= GONE << 2 * at
                uniform = uniform and cell.stamp_us == stamp and arrived in (0, cell.until_s)
                arrived = max(arrived, cell.until_s)
            else:
                presence |= GIVEN << 2 * at
                found = cell.value
                expires = (cell.ttl_s, cell.until_s)
                uniform = uniform and cell.stamp_us == stamp and expiry in (None, expires)
                expiry = expiry or expires
            stamps.append(CELL_STAMP.pack(cell.stamp_us, cell.ttl_s, cell.until_s))
        elif (collection := collections.get(column.id)) is not None:
            presence |= COMPLEX << 2 * at
            found = encode_collection(collection)
        if column.width is None:
            end += len(found)
            ends.append(end)
            variable.append(found)
        else:
            fixed.append(found or bytes(column.width))
    if not uniform:
        expiry = None if marker is None else (marker.ttl_s, marker.until_s)
    flags = (MARKER if marker is not None else 0) | (0 if uniform else PER_CELL) | (HAS_DELETES if arrived else 0)
    times = WRITTEN.pack(arrived * 1000) if arrived else b""
    if expiry is not None and expiry[1]:
        flags |= TTL
        times = EXPIRY.pack(*expiry) + times
    parts = [bytes((flags,)), shape.number_bytes, times, presence.to_bytes(shape.presence_bytes, "little"), *fixed]
    if not uniform:
        parts += stamps
    return stamp, b"".join([*parts, shape.ends.pack(*ends), *variable])


def encode_collection(collection: Collection) -> bytes:
    deleted = collection.deleted
    parts = [b"\x00" if deleted is None else b"\x01" + _DELETION.pack(*deleted), _COUNT.pack(len(collection.elements))]
    for path in sorted(collection.elements):
        stamp, rank, until, value, ttl = collection.elements[path]
        parts.append(_ELEMENT.pack(rank, stamp))
        if rank == EXPIRING:
            parts.append(EXPIRY.pack(ttl, until))
        elif rank == DELETED:
            parts.append(_COUNT.pack(until))
        parts += (_COUNT.pack(len(path)), path)
        if rank != DELETED:
            parts += (_COUNT.pack(len(value)), value)
    return b"".join(parts)


def decode_row(layout: RowLayout, value: bytes, stamp_us: int, static: bool) -> Row:
    """What one stored value says; columns that the table no longer has are passed over."""
    if len(value) < HEAD:
        raise _damaged(layout, value, "it ends inside its head")
    shape = layout.shape(int.from_bytes(value[1:HEAD], "big"), static)
    try:
        return _decode(shape, value, stamp_us)
    except (error, IndexError, _Wrong) as wrong:
        raise _damaged(layout, value, str(wrong)) from None


class _Wrong(Exception):
    pass


def _damaged(layout: RowLayout, value: bytes, why: str) -> BadRow:
    return BadRow(f"a damaged value of {layout.name} ({len(value)} bytes, beginning with {value[:16].hex()}): {why}")


def _decode(shape: Shape, value: bytes, stamp: int) -> Row:
    flags, at = value[0], HEAD
    if flags > ALL_FLAGS:
        raise _Wrong(f"unknown flags {flags:#04x}")
    ttl = until = written = 0
    if flags & TTL:
        ttl, until = EXPIRY.unpack_from(value, at)
        at += 8
        if not ttl or not until:
            raise _Wrong("it expires, but not when")
    if flags & HAS_DELETES:
        written_ms = WRITTEN.unpack_from(value, at)[0]
        written, rest = divmod(written_ms, 1000)
        at += 8
        if rest or not 0 < written < 1 << 32:
            raise _Wrong(f"its deletions arrived at {written_ms} ms")
    presence_end = at + shape.presence_bytes
    presence = int.from_bytes(value[at:presence_end], "little")
    if presence >> 2 * len(shape.columns):
        raise _Wrong("it has more columns than its layout")
    if not flags & PER_CELL and not shape.multicell:
        return _decode_plain(shape, value, presence_end, presence, stamp, ttl, until, written)
    fixed = shape.fixed_cells.unpack_from(value, presence_end)
    at = presence_end + shape.fixed_bytes
    row = Row()
    rank = EXPIRING if flags & TTL else PLAIN
    if flags & MARKER:
        row.marker = CellState(stamp, rank, until, b"", ttl)
    states = [presence >> 2 * each & 3 for each in range(len(shape.columns))]
    stamps = at
    if flags & PER_CELL:
        at += CELL_STAMP.size * sum(1 for state in states if state in (GIVEN, GONE))
    ends = shape.ends.unpack_from(value, at)
    begin = at = at + shape.ends.size
    if begin + (ends[-1] if ends else 0) != len(value):
        raise _Wrong(f"its cells should end at byte {begin + (ends[-1] if ends else 0)}")
    next_fixed, next_end = iter(fixed), iter(ends)
    for state, column in zip(states, shape.columns, strict=True):
        if column.width is None:
            end = begin + next(next_end)
            if end < at:
                raise _Wrong(f"column {column.name} ends before it begins")
            cell, at = value[at:end], end
        else:
            cell = next(next_fixed)
        if state == ABSENT:
            if cell.strip(b"\x00"):
                raise _Wrong(f"column {column.name} is absent, but there are bytes of it")
            continue
        if (state == COMPLEX) is not column.multicell:
            raise _Wrong(
                f"column {column.name} is {'' if column.multicell else 'no '}multi-cell, its cell says otherwise"
            )
        if state == COMPLEX:
            if column.used:
                row.collections[column.id] = decode_collection(cell)
            continue
        if flags & PER_CELL:
            cell_stamp, cell_ttl, cell_until = CELL_STAMP.unpack_from(value, stamps)
            stamps += CELL_STAMP.size
            cell_rank = DELETED if state == GONE else EXPIRING if cell_ttl else PLAIN
            if (cell_rank == PLAIN) is not (cell_until == 0):
                raise _Wrong(f"column {column.name} contradicts itself about its expiry")
        elif state == GONE:
            cell_stamp, cell_rank, cell_until, cell_ttl = stamp, DELETED, written, 0
            if not written:
                raise _Wrong(f"column {column.name} was deleted, but not when")
        else:
            cell_stamp, cell_rank, cell_until, cell_ttl = stamp, rank, until, ttl
        if column.used:
            content = b"" if state == GONE else cell
            row.cells[column.id] = _new(CellState, (cell_stamp, cell_rank, cell_until, content, cell_ttl))
    return row


def _decode_plain(
    shape: Shape, value: bytes, at: int, presence: int, stamp: int, ttl: int, until: int, written: int
) -> Row:
    """A value whose cells share their stamp, as those of all writes do: from its fixed cells on."""
    found = shape.cells.unpack_from(value, at)
    begin = at + shape.cells.size
    if begin + (found[-1] if shape.variable else 0) != len(value):
        raise _Wrong("it does not end where its last cell does")
    row, rank = Row(), EXPIRING if ttl else PLAIN
    if value[0] & MARKER:
        row.marker = CellState(stamp, rank, until, b"", ttl)
    cells = row.cells
    for id, bits, place, before in shape.places:
        state = presence >> bits & 3
        if state == GIVEN:
            if before == -2:
                cell = found[place]
            else:
                start, end = begin + found[before] if before >= 0 else begin, begin + found[place]
                if start > end:
                    raise _Wrong("a cell ends before it begins")
                cell = value[start:end]
            cells[id] = _new(CellState, (stamp, rank, until, cell, ttl))
        elif state == GONE:
            if not written:
                raise _Wrong("a cell was deleted, but not when")
            cells[id] = _new(CellState, (stamp, DELETED, written, b"", 0))
        elif state == COMPLEX:
            raise _Wrong("a collection where the layout has none")
    return row


def decode_collection(cell: bytes) -> Collection:
    deleted, at = None, 1
    if cell[0]:
        deleted, at = _DELETION.unpack_from(cell, at), 1 + _DELETION.size
    (count,) = _COUNT.unpack_from(cell, at)
    at += 4
    found = Collection(deleted)
    for _ in range(min(count, len(cell))):
        rank, stamp = _ELEMENT.unpack_from(cell, at)
        at += _ELEMENT.size
        ttl = until = 0
        if rank == EXPIRING:
            ttl, until = EXPIRY.unpack_from(cell, at)
            at += 8
        elif rank == DELETED:
            (until,) = _COUNT.unpack_from(cell, at)
            at += 4
        elif rank != PLAIN:
            raise _Wrong(f"an element of rank {rank} in a collection")
        path, at = _sized(cell, at)
        value = b""
        if rank != DELETED:
            value, at = _sized(cell, at)
        found.elements[path] = _new(CellState, (stamp, rank, until, value, ttl))
    if at != len(cell) or len(found.elements) != count:
        raise _Wrong(f"a collection of {count} elements that ends at byte {at} of {len(cell)}")
    return found


def _sized(cell: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _COUNT.unpack_from(cell, at)
    end = at + 4 + size
    if end > len(cell):
        raise _Wrong("a collection that ends inside an element")
    return cell[at + 4 : end], end


def collection_cell(column: ValueColumn, collection: Collection, now_s: int) -> bytes | None:
    """The collection as CQL serialises it: its live elements. None if there are none: CQL has no empty ones."""
    live = [(path, collection.elements[path]) for path in sorted(collection.elements)]
    live = [(path, cell) for path, cell in live if cell.live(now_s)]
    if not live:
        return None
    parts = [_COUNT.pack(len(live))]
    if column.path is None:
        for _, cell in live:
            parts += (_COUNT.pack(len(cell.value)), cell.value)
        return b"".join(parts)
    is_map = column.type.kind is Kind.MAP
    for path, cell in live:
        key, end = column.path.decode(path, 0)
        if end != len(path):
            raise BadRow(f"an element of column {column.name} whose key has bytes left over")
        parts += (_COUNT.pack(len(key)), key)
        if is_map:
            parts += (_COUNT.pack(len(cell.value)), cell.value)
    return b"".join(parts)
