"""Values of many rows at once, byte for byte as `values` makes and reads them.

Where a fixed-width cell lies depends on layout and flags alone, so rows that share both are decoded a column at a time.
Only rows whose cells share their stamp are handled here; those with stamps per cell, or with multi-cell collections,
are left to the code for single rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.rows.arrow_cells import Cells
from trimtab.rows.errors import BadRow
from trimtab.rows.layout import MAX_CELL_BYTES, RowLayout, Shape
from trimtab.rows.ragged import Ragged, constant, fixed, join, stack
from trimtab.rows.values import (
    ALL_FLAGS,
    EXPIRY,
    GIVEN,
    GONE,
    HAS_DELETES,
    HEAD,
    MARKER,
    PER_CELL,
    TIMES,
    TTL,
    WRITTEN,
    whole_seconds,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.rows.ragged import Mask, Octets


@dataclass(frozen=True, slots=True)
class Written:
    """What all rows of a write share. `expires_s` only with a `ttl_s`; `at_ms` is when deletions of cells arrived."""

    stamp_us: int
    ttl_s: int = 0
    expires_s: int = 0
    at_ms: int = 0
    marker: bool = True
    delete_nulls: bool = False


def encode_values(
    layout: RowLayout, shape: Shape, cells: Sequence[Cells | None], count: int, written: Written
) -> tuple[NDArray[np.int64], Ragged]:
    """Rows that say anything, by place, and their values in step. `cells`: by column of the shape; None: not given."""
    import numpy as np

    for at, each in enumerate(cells):
        if each is not None:
            _check_sizes(layout, shape, at, each)
    presence, given, gone = _presence(shape, cells, count, written.delete_nulls)
    kinds = np.full(count, MARKER if written.marker else 0, dtype=np.uint8)
    if written.ttl_s:
        kinds[given | written.marker] |= TTL
    if gone is not None:
        kinds[gone] |= HAS_DELETES
    says_something = given | written.marker if gone is None else given | gone | written.marker
    if bool(says_something.all()) and bool((kinds == kinds[:1]).all()):
        return np.arange(count), _of_one_kind(shape, int(kinds[0]) if count else 0, presence, cells, count, written)
    parts, places = [], []
    for kind in np.unique(kinds[says_something]).tolist():
        chosen = np.flatnonzero(says_something & (kinds == kind))
        some = [None if each is None else Cells(each.strings.take(chosen)) for each in cells]
        parts.append(_of_one_kind(shape, kind, presence[chosen], some, len(chosen), written))
        places.append(chosen)
    if not parts:
        return np.empty(0, np.int64), Ragged(np.empty(0, np.uint8), 0, 0)
    return np.concatenate(places), stack(parts)


def _presence(
    shape: Shape, cells: Sequence[Cells | None], count: int, delete_nulls: bool
) -> tuple[Octets, Mask, Mask | None]:
    """The presence bits of each row; where a row has any cell; where it deletes any (None: nowhere)."""
    import numpy as np

    everywhere = sum(GIVEN << 2 * at for at, each in enumerate(cells) if each is not None and each.valid is None)
    template = np.frombuffer(everywhere.to_bytes(shape.presence_bytes, "little"), np.uint8)
    presence = np.broadcast_to(template, (count, shape.presence_bytes)).copy()
    given, gone = np.full(count, everywhere > 0), None
    for at, each in enumerate(cells):
        if each is None or each.valid is None:
            continue
        byte, shift = at // 4, 2 * (at % 4)
        presence[:, byte] |= each.valid * np.uint8(GIVEN << shift)
        given |= each.valid
        if delete_nulls:
            presence[:, byte] |= ~each.valid * np.uint8(GONE << shift)
            gone = ~each.valid if gone is None else gone | ~each.valid
    return presence, given, gone


def _check_sizes(layout: RowLayout, shape: Shape, at: int, cells: Cells) -> None:
    if shape.columns[at].width is None and len(cells) and int(cells.strings.lengths.max()) > MAX_CELL_BYTES:
        raise layout.refuse(
            f"column {shape.columns[at].name}: a cell of {int(cells.strings.lengths.max())} bytes; "
            f"it may have {MAX_CELL_BYTES}"
        )


def _of_one_kind(
    shape: Shape, flags: int, presence: Octets, cells: Sequence[Cells | None], count: int, written: Written
) -> Ragged:

    head = bytes((flags,)) + shape.number_bytes
    if flags & TTL:
        head += EXPIRY.pack(written.ttl_s, written.expires_s)
    if flags & HAS_DELETES:
        head += WRITTEN.pack(whole_seconds(written.at_ms) * 1000)
    parts: list[Ragged | bytes] = [head, fixed(presence)]
    for at in shape.fixed:
        each = cells[at]
        parts.append(bytes(shape.columns[at].width or 0) if each is None else each.strings)
    variable: list[Ragged] = []
    end: NDArray[np.int64] | int = 0
    for at in shape.variable:
        each = cells[at]
        if each is not None:
            width = each.strings.width
            end = end + (each.strings.lengths if width is None else width)
            variable.append(each.strings)
        parts.append(end.to_bytes(4, "big") if isinstance(end, int) else _big_endian(end))
    return join([*parts, *variable]) if count else constant(b"", 0)


def _big_endian(numbers: NDArray[np.int64]) -> Ragged:
    import numpy as np

    return fixed(numbers.astype(">u4").view(np.uint8).reshape(len(numbers), 4))


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Rows of one layout and one set of flags. `cells`: by id of the columns asked for that the layout has."""

    cells: dict[int, Cells]
    live: Mask | None  # None: all are


def decode_values(
    layout: RowLayout, number: int, flags: int, values: Ragged, wanted: Sequence[int], now_s: int
) -> Decoded:
    """The cells of rows (of the regular section) whose values begin with this layout and these flags."""
    import numpy as np

    shape = layout.shape(number, static=False)
    if flags > ALL_FLAGS or flags & PER_CELL or shape.multicell:
        raise ValueError(f"rows with flags {flags:#04x} in layout {number} are not decoded by the column")
    count, at = len(values), HEAD + TIMES[flags]
    begin = at + shape.presence_bytes + shape.fixed_bytes + shape.ends.size
    if count and int(values.width if values.width is not None else values.lengths.min()) < begin:
        raise _damaged(layout, f"one ends before its {begin}th byte, where its layout has fixed cells")
    presence = values.column(at, shape.presence_bytes)
    states = _states(shape, presence)
    live: Mask | None = None
    if flags & TTL:
        live = np.asarray(values.numbers(HEAD + 4, ">u4") > now_s)
    if not flags & MARKER:
        any_given = np.zeros(count, dtype=bool)
        for column, state in zip(shape.columns, states, strict=True):
            if column.used:  # a dropped column keeps no row alive
                any_given |= True if state is None else state
        live = any_given if live is None else live & any_given
    cells = {}
    fixed_at = at + shape.presence_bytes
    ends_at = fixed_at + shape.fixed_bytes
    for place, column in enumerate(shape.columns):
        width = column.width
        if width is not None:
            if column.used and column.id in wanted:
                cells[column.id] = Cells(fixed(values.column(fixed_at, width)), states[place])
            fixed_at += width
    if shape.variable:
        strings = _variable(layout, shape, values, ends_at, begin, {*wanted})
        for place, found in strings.items():
            cells[shape.columns[place].id] = Cells(found, states[place])
    elif count and (values.width != begin):
        raise _damaged(layout, f"one should end at byte {begin}")
    return Decoded(cells, None if live is None or bool(live.all()) else live)


def _states(shape: Shape, presence: Octets) -> list[Mask | None]:
    """By column: where it has a value; None: everywhere."""
    import numpy as np

    columns = len(shape.columns)
    first = presence[0] if len(presence) else np.zeros(shape.presence_bytes, np.uint8)
    bits = int.from_bytes(first.tobytes(), "little")
    if bits == shape.all_given and bool((presence == first).all()):
        return [None] * columns
    return [np.asarray((presence[:, at // 4] >> 2 * (at % 4) & 3) == GIVEN) for at in range(columns)]


def _variable(
    layout: RowLayout, shape: Shape, values: Ragged, ends_at: int, begin: int, wanted: set[int]
) -> dict[int, Ragged]:
    import numpy as np

    count = len(values)
    ends = values.column(ends_at, 4 * len(shape.variable)).view(">u4")
    if not count:
        return {}
    same = bool((ends == ends[0]).all())
    found: dict[int, Ragged] = {}
    if same and values.width is not None:
        places = ends[0].astype(np.int64).tolist()
        if places[-1] + begin != values.width or sorted(places) != places:
            raise _damaged(layout, f"its cells should end at byte {places[-1] + begin}")
        for at, start, stop in zip(shape.variable, [0, *places], places, strict=False):
            if shape.columns[at].used and shape.columns[at].id in wanted:
                found[at] = fixed(values.column(begin + start, stop - start))
        return found
    table = np.zeros((len(shape.variable) + 1, count), dtype=np.int64)
    table[1:] = ends.T
    if np.any(table[1:] < table[:-1]) or np.any(table[-1] + begin != values.lengths):
        raise _damaged(layout, "its cells do not end where its value does")
    base = values.starts + begin
    for row, at in enumerate(shape.variable):
        if shape.columns[at].used and shape.columns[at].id in wanted:
            found[at] = values.pick(base + table[row], table[row + 1] - table[row])
    return found


def _damaged(layout: RowLayout, why: str) -> BadRow:
    return BadRow(f"damaged values of {layout.name}: {why}")
