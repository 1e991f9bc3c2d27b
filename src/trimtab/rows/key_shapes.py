"""Primary keys of stored rows as JSON, for whoever has to tell people which row it is about."""

from __future__ import annotations

from typing import Any

from trimtab.rows.keys import key_cells
from trimtab.rows.layout import RowLayout


def key_as_json(layout: RowLayout, row_key: bytes) -> dict[str, Any]:
    """The primary key of a row, or as much of one as there is: a deletion may have the partition key alone."""
    columns = [*layout.partition, *layout.clustering]
    return {
        column.name: column.type.to_json(column.type.deserialize(cell))
        for column, cell in zip(columns, key_cells(layout, row_key), strict=False)
    }


def partition_as_json(layout: RowLayout, row_key: bytes) -> dict[str, Any]:
    """The partition key of a row."""
    names = {column.name for column in layout.partition}
    return {name: value for name, value in key_as_json(layout, row_key).items() if name in names}
