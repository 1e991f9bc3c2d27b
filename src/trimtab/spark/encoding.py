"""Arrow batches to sorted rows of a load, a chunk at a time, with the load's policy for rows that can't be written.

Chunks bound the memory of a task: a partition of any size makes as many runs as it has chunks. Under the policy `fail`
the first bad row ends the load, by name; under `reject` bad rows go aside with their reasons and all others are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trimtab.rows.columns import encode_table
from trimtab.rows.errors import BadRequest
from trimtab.rows.layout import RowLayout
from trimtab.rows.sorted_rows import SortedRows
from trimtab.spark.bad_rows import Bad, WrongColumn, check_texts, describe, find_bad, find_conflicts, storable
from trimtab.spark.load_plan import FAIL, REJECT_HINT, LoadFailed, LoadPlan

REASON = "_reason"  # the column that rejected rows have beside their own


@dataclass(frozen=True)
class Encoded:
    """The rows that are `taken`, as a table and as they are stored; the others as a table with reasons, or None."""

    rows: SortedRows | None
    taken: Any
    rejected: Any = None


def chunks(batches: Iterable[Any], rows: int, size_bytes: int) -> Iterator[tuple[Any, bool]]:
    """Record batches put together to tables of up to so many rows or bytes, never an empty one; each with whether
    there is another.
    """
    import pyarrow as pa

    held: list[Any] = []
    held_rows = held_bytes = 0
    for batch in batches:
        for piece, piece_bytes in _pieces(batch, rows, size_bytes):
            if held and (held_rows + piece.num_rows > rows or held_bytes + piece_bytes > size_bytes):
                yield pa.Table.from_batches(held), True
                held, held_rows, held_bytes = [], 0, 0
            held.append(piece)
            held_rows += piece.num_rows
            held_bytes += piece_bytes
    if held:
        yield pa.Table.from_batches(held), False


def _pieces(batch: Any, rows: int, size_bytes: int) -> Iterator[tuple[Any, int]]:
    """A batch, or parts of one that is by itself larger than a chunk, each with its bytes."""
    count, whole_bytes = batch.num_rows, batch.nbytes
    some = max(1, min(rows, count * size_bytes // max(1, whole_bytes)))
    if some >= count:
        if count:
            yield batch, whole_bytes
        return
    for start in range(0, count, some):
        piece = batch.slice(start, some)
        yield piece, piece.nbytes


def encode_chunk(layout: RowLayout, chunk: Any, plan: LoadPlan, *, trusted: bool = True) -> Encoded:
    """The rows of a chunk as they are stored. LoadFailed names the row that can't be.

    `trusted`: whoever made the chunk has made sure that its texts are UTF-8.
    """
    bad: list[Bad] = []
    first = plan.on_error == FAIL
    rows = None
    try:
        if trusted or check_texts(chunk):
            rows = _encode(layout, chunk, plan)
        else:
            bad = find_bad(layout, chunk, first=first)
    except BadRequest as error:
        try:
            bad = find_bad(layout, chunk, first=first)
        except WrongColumn as wrong:
            raise LoadFailed(str(wrong)) from None
        if not bad:
            raise LoadFailed(str(error)) from None
    if bad and first:
        raise _failed(layout, chunk, bad[0])
    good, rejected = _apart(chunk, bad)
    if rows is None and good.num_rows:
        rows = _encode(layout, good, plan)
    if rows is None or not _may_conflict(layout, good, rows):
        return Encoded(rows, good, rejected)
    return without(layout, Encoded(rows, good, rejected), find_conflicts(layout, good), plan)


def without(layout: RowLayout, encoded: Encoded, bad: list[Bad], plan: LoadPlan) -> Encoded:
    """The same without some of the rows that were taken, which are bad after all. LoadFailed names the first."""
    if not bad:
        return encoded
    if plan.on_error == FAIL:
        raise _failed(layout, encoded.taken, bad[0])
    good, more = _apart(encoded.taken, bad)
    rows = _encode(layout, good, plan) if good.num_rows else None
    return Encoded(rows, good, _together(encoded.rejected, more))


def _encode(layout: RowLayout, chunk: Any, plan: LoadPlan) -> SortedRows:
    return encode_table(
        layout, storable(layout, chunk), timestamp_us=plan.stamp_us, now_ms=plan.now_ms, ttl_s=plan.ttl_s or None
    )


def _may_conflict(layout: RowLayout, chunk: Any, rows: SortedRows) -> bool:
    """Every row makes one pair, and rows of one key make one together; only static columns make more of them."""
    has_static = any(column.name in chunk.schema.names for column in layout.static.columns)
    return has_static or len(rows) != chunk.num_rows


def _failed(layout: RowLayout, chunk: Any, bad: Bad) -> LoadFailed:
    return LoadFailed(f"{layout.name}: {describe(layout, chunk, bad)}. {REJECT_HINT}")


def _apart(chunk: Any, bad: list[Bad]) -> tuple[Any, Any]:
    """The chunk without its bad rows, and those with their reasons."""
    import numpy as np
    import pyarrow as pa

    if not bad:
        return chunk, None
    keep = np.ones(chunk.num_rows, dtype=bool)
    keep[[each.row for each in bad]] = False
    aside = chunk.take(pa.array([each.row for each in bad], pa.int64()))
    return chunk.filter(pa.array(keep)), aside.append_column(REASON, pa.array([each.why for each in bad], pa.string()))


def _together(one: Any, other: Any) -> Any:
    import pyarrow as pa

    return other if one is None else pa.concat_tables([one, other])
