"""When cells were written, and how long they will live, as columns beside the cells themselves.

    writetime_<column>   int64: microseconds since 1970       ttl_<column>   int32: seconds that are left

Both are null where the cell is; a cell that does not expire has no ttl. Key columns have neither, and of multi-cell
collections every element has its own, so those are not asked for here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.rows.arrow_cells import Cells
from trimtab.rows.projection import Metas
from trimtab.rows.ragged import Ragged
from trimtab.rows.values import HEAD, TTL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WRITETIME, TTL_LEFT = "writetime_", "ttl_"


def fields_of(names: Sequence[str]) -> list[tuple[str, Any]]:
    """The names and types of the columns, for cells of these."""
    import pyarrow as pa

    return [each for name in names for each in ((WRITETIME + name, pa.int64()), (TTL_LEFT + name, pa.int32()))]


def of_values(
    flags: int, values: Ragged, stamps: NDArray[np.int64], cells: Sequence[Cells | None], now_s: int
) -> list[Any]:
    """For values whose cells share their stamp: two arrays for each of the `cells`. None: such values have no such."""
    import numpy as np
    import pyarrow as pa

    count = len(values)
    left: NDArray[np.int32] | None = None
    if flags & TTL:
        left = (values.numbers(HEAD + 4, ">u4").astype(np.int64) - now_s).astype(np.int32)
    found: list[Any] = []
    for each in cells:
        if each is None:
            found += [pa.nulls(count, pa.int64()), pa.nulls(count, pa.int32())]
            continue
        absent = None if each.valid is None else ~each.valid
        found.append(pa.array(stamps, mask=absent))
        found.append(pa.nulls(count, pa.int32()) if left is None else pa.array(left, mask=absent))
    return found


def of_rows(metas: Sequence[Metas], places: Sequence[int]) -> list[Any]:
    """For rows that were merged one by one: two arrays for each of these places in a row's metas."""
    import pyarrow as pa

    found: list[Any] = []
    for place in places:
        column = [row[place] for row in metas]
        found.append(pa.array([None if each is None else each.writetime_us for each in column], pa.int64()))
        found.append(pa.array([None if each is None else each.ttl_s for each in column], pa.int32()))
    return found
