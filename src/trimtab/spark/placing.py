"""Which tablet each row of a frame belongs to, so that Spark can bring the rows of a tablet together before a write:

    df.repartitionById(64, trimtab.spark.tablet_of("shop.users")).write.format("trimtab")…

Tokens are those that the load computes, by whole columns. A row whose key can't be one (null, no UUID, …) has no
tablet; what is wrong with it the load tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trimtab.client.errors import InvalidRequest
from trimtab.rows import arrow_cells
from trimtab.rows.column_keys import ordered_tokens, partition_parts
from trimtab.rows.errors import BadRequest
from trimtab.rows.layout import RowLayout
from trimtab.spark.checking import wrong_type
from trimtab.spark.options import PEER, read_options
from trimtab.spark.types import from_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def tablet_of(
    table: str, *, spark: SparkSession | None = None, peer: str = "", options: Mapping[str, str] | None = None
) -> Column:
    """The number of the tablet (int, from 0) that a row belongs to, by the frame's columns that are the partition key
    of the table, which has to be there.

    `spark`: the session to use, else the one that runs. `peer` and `options` as for reading.
    """
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf

    from trimtab.spark import planning

    given = dict(options or {}) | {"table": table}
    if default := peer or (spark or SparkSession.active()).conf.get(PEER, ""):
        given.setdefault("peer", default)
    known = planning.look(read_options(given))
    schema, types = known.table, known.types

    def tablets(*columns: Any) -> Any:
        return tablets_of(RowLayout(schema, types), columns)

    # Spark reads off these what kind of function it is.
    tablets.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    vectorised: Any = arrow_udf
    names = [column.name.replace("`", "``") for column in RowLayout(schema, types).partition]
    found: Column = vectorised(tablets, "int")(*(f.col(f"`{name}`") for name in names))
    return found


def tablets_of(layout: RowLayout, columns: tuple[Any, ...]) -> Any:
    """The tablets of rows with these columns (Arrow's) of the partition key; null where the key can't be one."""
    import numpy as np
    import pyarrow as pa

    for column, array in zip(layout.partition, columns, strict=True):
        if why := wrong_type(column.type, array.type):
            raise InvalidRequest(f"column {column.name} ({column.type.name}) of {layout.name}: {why}")
    found = np.full(len(columns[0]), -1, dtype=np.int32)
    # Halves of what can't be encoded as a whole, until each bad row is alone.
    open_ = [(0, len(found))]
    while open_:
        start, stop = open_.pop()
        try:
            found[start:stop] = _tablets(layout, [array.slice(start, stop - start) for array in columns])
        except (BadRequest, ValueError):
            if stop - start > 1:
                half = (start + stop) // 2
                open_ += [(start, half), (half, stop)]
    return pa.array(found, mask=found < 0)


def _tablets(layout: RowLayout, columns: list[Any]) -> Any:
    import numpy as np

    kinds = [column.type for column in layout.partition]
    cells = [arrow_cells.encode(kind, from_spark(kind, array)) for kind, array in zip(kinds, columns, strict=True)]
    tokens = ordered_tokens(partition_parts(layout, cells)[0])
    # In two steps: a table of one tablet keeps none of the 64 bits.
    return (tokens >> np.uint64(1)) >> np.uint64(64 - layout.table.tablets.bit_length())
