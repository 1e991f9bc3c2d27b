"""Rows of cells as Arrow tables, and back, for tests that compare columns with single rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.rows import cells

from trimtab.catalog.cql_type import Kind, Type
from trimtab.rows import arrow_cells
from trimtab.rows.arrow_cells import Cells
from trimtab.rows.layout import RowLayout
from trimtab.rows.protocol import Cell
from trimtab.rows.ragged import from_list

# Arrow's numbers end where Spark's do; these are given, and compared, as cells.
WIDE = frozenset((Kind.VARINT, Kind.DECIMAL))


def types_of(layout: RowLayout) -> dict[int, Type]:
    found = {each.id: each.type for each in (*layout.partition, *layout.clustering)}
    return found | {each.id: each.type for shape in (layout.regular, layout.static) for each in shape.columns}


def array_of(given: Type, column: Sequence[Cell]) -> Any:
    """An Arrow array of these cells: in the type that reads them, or as they are."""
    if given.kinds & WIDE:
        return pa.array(column, pa.binary())
    valid = np.asarray([cell is not None for cell in column], dtype=bool)
    strings = from_list([bytes(given.fixed_width or 0) if cell is None else cell for cell in column])
    return arrow_cells.decode(given, Cells(strings, None if valid.all() else valid))


def cells_of(given: Type, array: Any) -> list[Cell]:
    found = arrow_cells.encode(given, array)
    valid = [True] * len(found) if found.valid is None else found.valid.tolist()
    return [cell if there else None for cell, there in zip(found.strings.to_list(), valid, strict=True)]


def random_rows(rng: random.Random, layout: RowLayout, ids: Sequence[int], count: int) -> list[list[Cell]]:
    """Rows with few different keys, so that some have the same."""
    types, keys = types_of(layout), {each.id for each in (*layout.partition, *layout.clustering)}
    alone = layout.partition[0].id if len(layout.partition) == 1 else None
    rows: list[list[Cell]] = []
    for _ in range(count):
        row: list[Cell] = []
        for id in ids:
            cell: Cell = cells.random_cell(rng, types[id])
            if id == alone and not cell:
                cell = types[id].serialize("x") if types[id].kind is not Kind.BLOB else b"x"
            row.append(None if id not in keys and rng.random() < 0.2 else cell)
        rows.append(row)
    return rows
