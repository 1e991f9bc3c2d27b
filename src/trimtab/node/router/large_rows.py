"""Rows that have grown past what one answer can carry, by many writes that were small each: how a read refuses them.

The refusal names the row, so that a scan which stops there says where, and what to do: fewer columns make a smaller
answer. Between instances rows travel whole; of such a row only an instance that holds a replica can answer a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.rows.errors import BadRow
from trimtab.rows.keys import TAIL, key_cells
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Cell, GetRequest, RangeRows, RowsReply

AROUND_BYTES = 64 << 10  # what surrounds the rows of an answer, at most
MAX_ANSWER_BYTES = 16 << 20
_SHOWN = 200  # characters of a key


def cell_bytes(row: Sequence[Cell] | None) -> int:
    return sum(map(len, filter(None, row))) if row is not None else 0


def refusal(layout: RowLayout, key: Sequence[bytes], size_bytes: int, limit_bytes: int) -> Refused:
    """Of a row with this primary key, which makes so many bytes."""
    text = f"the row {_shown(layout, key)} of {layout.name} makes an answer of {size_bytes} bytes, the limit is"
    return Refused(refusals.TOO_LARGE, f"{text} {limit_bytes}: ask for fewer columns")


def refusal_at(layout: RowLayout, row_key: bytes, size_bytes: int, limit_bytes: int) -> Refused:
    """The same, by its row key."""
    try:
        key = key_cells(layout, row_key)
    except BadRow as error:
        return Refused(refusals.CORRUPT, str(error))
    return refusal(layout, key, size_bytes, limit_bytes)


def refusal_of_get(
    layout: RowLayout, request: GetRequest, reply: RowsReply, size_bytes: int, limit_bytes: int
) -> Refused:
    """Of a get whose rows make too large an answer: the largest of them is named."""
    place = max(range(len(reply.rows)), key=lambda each: cell_bytes(reply.rows[each]))
    if len(request.keys) == 1 or cell_bytes(reply.rows[place]) > limit_bytes:
        return refusal(layout, request.keys[place], size_bytes, limit_bytes)
    largest = f"the largest is {_shown(layout, request.keys[place])}"
    text = f"the rows of {len(request.keys)} keys of {layout.name} make {size_bytes} bytes, the limit is {limit_bytes}"
    return Refused(refusals.TOO_LARGE, f"{text}, and {largest}: ask for fewer keys or fewer columns at a time")


def refusal_of_replica(layout: RowLayout, ranges: Sequence[RangeRows], size_bytes: int, limit_bytes: int) -> Refused:
    """Of what a replica was asked for by another instance."""
    pairs = list(chain.from_iterable(each.pairs for each in ranges))
    place = max(range(0, len(pairs), 2), key=lambda each: len(pairs[each + 1]))
    found = refusal_at(layout, pairs[place][:-TAIL], size_bytes, limit_bytes)
    return Refused(found.code, f"{found.text}, at an instance that holds a replica of it")


def _shown(layout: RowLayout, key: Sequence[bytes]) -> str:
    """A primary key, or the beginning of one, as people read it."""
    columns = (*layout.partition, *layout.clustering)
    shown = []
    for column, cell in zip(columns, key, strict=False):
        try:
            shown.append(f"{column.name}={column.type.to_text(column.type.deserialize(cell))}")
        except ValueError:
            shown.append(f"{column.name}=0x{cell.hex()}")
    text = ", ".join(shown)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
