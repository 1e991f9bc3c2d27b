"""What people and scripts are shown of tablets: the JSON of `tablets`.

Fields may be added, not renamed. Replicas are instance ids. A tablet that does not move has no stage, no session, and
neither a pending nor a planned set; null bytes mean that whoever was asked does not know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.catalog.schema import Table
from trimtab.tablets.ring import token_range
from trimtab.tablets.tablet_map import TabletMap

Shape = dict[str, Any]
NO_SIZES: Mapping[tuple[int, int], int] = {}


def tablets(
    tables: Mapping[int, Table],
    maps: Mapping[int, TabletMap],
    names: Mapping[int, str],
    *,
    only: str = "",
    sizes: Mapping[tuple[int, int], int] = NO_SIZES,
) -> list[Shape]:
    """Every tablet, by table and number. `names` are instance ids by raft id; `only` one table, as KEYSPACE.TABLE.

    `sizes` are bytes by table id and tablet, as far as they are known.
    """
    chosen = sorted(
        (table for table in tables.values() if only in ("", table.full_name)), key=lambda table: table.full_name
    )
    return [
        tablet(table, number, replicas, names, sizes.get((table.id, number)))
        for table in chosen
        for number, replicas in maps.get(table.id, TabletMap())
    ]


def tablet(
    table: Table, number: int, replicas: tuple[int, ...], names: Mapping[int, str], size_bytes: int | None
) -> Shape:
    tokens = token_range(number, table.tablets)
    return {
        "keyspace": table.keyspace,
        "table": table.name,
        "tablet": number,
        "first_token": tokens.first,
        "last_token": tokens.last,
        "replicas": [names.get(raft_id, f"raft id {raft_id}") for raft_id in replicas],
        "pending": None,
        "planned": None,
        "stage": None,
        "session": None,
        "bytes": size_bytes,
        "generation": table.generation,
    }
