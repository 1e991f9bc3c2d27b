"""What people and scripts are shown of tablets: the JSON of `tablets`.

Fields may be added, not renamed. Replicas are instance ids. A tablet that does not move has no stage, no session, and
neither a pending nor a planned set; null bytes mean that whoever was asked does not know them. `move` says more of one
that does (`tablets.move_shapes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.catalog.schema import Table
from trimtab.tablets import move_shapes
from trimtab.tablets.moves_shown import ShownMove
from trimtab.tablets.ring import token_range
from trimtab.tablets.tablet_map import TabletMap

Shape = dict[str, Any]
NO_SIZES: Mapping[tuple[int, int], int] = {}
NO_MOVES: Mapping[tuple[int, int], ShownMove] = {}


def tablets(
    tables: Mapping[int, Table],
    maps: Mapping[int, TabletMap],
    names: Mapping[int, str],
    *,
    only: str = "",
    sizes: Mapping[tuple[int, int], int] = NO_SIZES,
    moves: Mapping[tuple[int, int], ShownMove] = NO_MOVES,
) -> list[Shape]:
    """Every tablet, by table and number. `names` are instance ids by raft id; `only` one table, as KEYSPACE.TABLE.

    `sizes` are bytes, and `moves` the tablets under way, by table id and tablet, as far as they are known.
    """
    chosen = sorted(
        (table for table in tables.values() if only in ("", table.full_name)), key=lambda table: table.full_name
    )
    return [
        tablet(table, number, replicas, names, sizes.get((table.id, number)), moves.get((table.id, number)))
        for table in chosen
        for number, replicas in maps.get(table.id, TabletMap())
    ]


def tablet(
    table: Table,
    number: int,
    replicas: tuple[int, ...],
    names: Mapping[int, str],
    size_bytes: int | None,
    move: ShownMove | None = None,
) -> Shape:
    tokens = token_range(number, table.tablets)
    current = move.transition if move is not None else None
    return {
        "keyspace": table.keyspace,
        "table": table.name,
        "tablet": number,
        "first_token": tokens.first,
        "last_token": tokens.last,
        "replicas": move_shapes.named(replicas, names),
        "pending": move_shapes.named(current.pending, names) if current is not None else None,
        "planned": move_shapes.named(current.planned, names) if current is not None and current.planned else None,
        "stage": current.stage.value if current is not None else None,
        "session": (current.session or None) if current is not None else None,
        "bytes": size_bytes,
        "generation": table.generation,
        "move": move_shapes.move(move, names) if move is not None else None,
    }
