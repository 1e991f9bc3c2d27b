"""Random versions of one row: what a replica may hold of it, made through the write path and by merging."""

from __future__ import annotations

import random

from tests.unit.rows import cells, tables

from trimtab.catalog.schema import ColumnKind
from trimtab.catalog.types import parse
from trimtab.rows.deletions import Pair
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, PutRequest, Way

NOW_MS = 1_700_000_000_000


def one_row(rng: random.Random) -> tuple[RowLayout, list[bytes]]:
    """A table, and the key of a row in it."""
    regular = [rng.choice(tables.VALUE_TYPES) for _ in range(rng.randint(0, 4))]
    layout = RowLayout(tables.table(["int"], ["int desc"], regular), tables.USER_TYPES)
    return layout, [cells.int_(1), cells.int_(2)]


def random_versions(rng: random.Random, layout: RowLayout, key: list[bytes], count: int) -> list[Pair]:
    table = layout.table
    found: list[bytes] = []
    for _ in range(count):
        stamp, now_ms = rng.randint(1, 4), NOW_MS + rng.choice([0, 1, 999, 5000])
        columns = [each for each in table.of_kind(ColumnKind.REGULAR) if rng.random() < 0.6]
        if rng.random() < 0.2:
            request = DeleteRequest(table.id, 1, key[:1], row=key[1:])
            pairs = pairs_of_delete(layout, request, stamp, now_ms)
        else:
            types = [parse(each.type, tables.USER_TYPES) for each in columns]
            put = PutRequest(
                table.id,
                1,
                [1, 2, *(each.id for each in columns)],
                [[*key, *(None if rng.random() < 0.2 else cells.random_cell(rng, each) for each in types)]],
                ttl_s=rng.choice([0, 0, 1, 10]),
                update=rng.random() < 0.5,
            )
            if rng.random() < 0.5:
                ways = [Way.ADD if given.multicell else Way.WHOLE for given in types]
                full = [cells.random_cell(rng, each) for each in types]
                put = PutRequest(
                    table.id, 1, put.columns, [[*key, *full]], ttl_s=put.ttl_s, update=True, ways=[Way.WHOLE] * 2 + ways
                )
            pairs = pairs_of_put(layout, put, stamp, now_ms)
        for each in pairs.values():
            found += each
    return list(zip(found[::2], found[1::2], strict=True))
