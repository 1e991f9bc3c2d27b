"""Rows of an Arrow table that are nothing but the static row of their partition.

A partition without rows whose static columns have values is read as one row with nulls in all clustering and regular
columns. Written back, such a row is the static row again and no other: so what was read makes the same table. Any other
row with a null in its key is none of these, and is left for `column_keys` to refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.rows.layout import RowLayout

if TYPE_CHECKING:
    from trimtab.rows.ragged import Mask


def static_alone(layout: RowLayout, table: Any) -> Mask | None:
    """Which rows of an Arrow table or record batch are static ones alone; None: none of them."""
    import numpy as np

    names = set(table.schema.names)
    static = [column.name for column in layout.static.columns if column.name in names]
    clustering = [column.name for column in layout.clustering]
    if not static or not names.issuperset(clustering):
        return None
    if not all(table.column(name).null_count for name in clustering):
        return None  # the usual case, known without a look at any row
    found = np.zeros(table.num_rows, dtype=bool)
    for name in static:
        found |= ~_nulls(table.column(name))
    for name in (*clustering, *(column.name for column in layout.regular.columns if column.name in names)):
        found &= _nulls(table.column(name))
    return found if found.any() else None


def apart(layout: RowLayout, block: Any) -> list[Any]:
    """A record batch as one of whole rows and one of static rows alone, which has the columns of these and no other."""
    import pyarrow as pa

    alone = static_alone(layout, block)
    if alone is None:
        return [block]
    kept = {column.name for column in layout.partition} | {column.name for column in layout.static.columns}
    of_partitions = block.select([name for name in block.schema.names if name in kept])
    parts = [block.filter(pa.array(~alone)), of_partitions.filter(pa.array(alone))]
    return [part for part in parts if part.num_rows]


def _nulls(column: Any) -> Mask:
    import numpy as np
    import pyarrow.compute as pc

    found: Mask = np.asarray(pc.is_null(column))
    return found
