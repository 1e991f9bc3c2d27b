"""Routes that look at tables: keyspaces, tables and tablets, as the command line shows them with `--json`.

There may be very many tablets, so these come in pages: a door must not keep the loop busy with one answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from trimtab.catalog import describe
from trimtab.catalog.schema import Table
from trimtab.http import models
from trimtab.http.asking import (
    ASKING,
    MAX_NAME,
    MAX_PAGE,
    Local,
    Number,
    OpenStreams,
    PageSize,
    Port,
    StrictRoute,
    answer,
    in_time,
    problems,
)
from trimtab.http.port import NOT_FOUND, Refused, TablesShown
from trimtab.tablets import shapes
from trimtab.tablets.moves_shown import ShownMove, by_place

Place = tuple[int, int]
router = APIRouter(route_class=StrictRoute)
_NO_MAP: tuple[tuple[int, tuple[int, ...]], ...] = ()


@router.get("/api/v1/keyspaces", tags=["tables"], response_model=list[models.Keyspace], responses=problems(*ASKING))
async def keyspaces(port: Port, streams: OpenStreams, local: Local = False) -> Response:
    """All keyspaces; as `trimtab keyspaces list --json`."""
    catalog = (await in_time(streams, port.tables(not local))).catalog
    return answer([describe.keyspace_shape(catalog, name) for name in sorted(catalog.keyspaces)])


@router.get(
    "/api/v1/tables",
    tags=["tables"],
    response_model=list[models.Table],
    responses=problems(NOT_FOUND, *ASKING),
)
async def tables(
    port: Port,
    streams: OpenStreams,
    keyspace: Annotated[str, Query(max_length=MAX_NAME, description="Only those of this keyspace.")] = "",
    local: Local = False,
) -> Response:
    """All tables; as `trimtab tables list --json`."""
    catalog = (await in_time(streams, port.tables(not local))).catalog
    if keyspace and keyspace not in catalog.keyspaces:
        raise Refused(NOT_FOUND, f"there is no keyspace {keyspace[:MAX_NAME]!r}", "/api/v1/keyspaces lists them")
    found = (table for table in catalog.tables.values() if keyspace in ("", table.keyspace))
    return answer([describe.table_shape(table) for table in sorted(found, key=lambda table: table.full_name)])


@router.get(
    "/api/v1/tablets",
    tags=["tables"],
    response_model=list[models.Tablet],
    responses=problems(NOT_FOUND, *ASKING),
)
async def tablets(
    port: Port,
    streams: OpenStreams,
    table: Annotated[str, Query(max_length=MAX_NAME, description="KEYSPACE.TABLE; left out: of all tables.")] = "",
    first: Annotated[Number, Query(description="The first on the page, counted over the tables by their names.")] = 0,
    limit: Annotated[PageSize, Query(description="At most so many tablets.")] = MAX_PAGE,
    local: Local = False,
) -> Response:
    """Tablets with their tokens, replicas and bytes, and where those go that are under way; a page at a time.

    As `trimtab tablets --json`. Bytes are null with `local`: only the leader knows them.
    """
    shown = await in_time(streams, port.tables(not local))
    every = sorted(shown.catalog.tables.values(), key=lambda each: each.full_name)
    chosen = [_named(shown, table)] if table else every
    sizes = {} if local else await in_time(streams, port.sizes(chosen[0].id if table else 0))
    moves = by_place(await in_time(streams, port.moves(chosen[0].id if table else 0, local)))
    page: list[shapes.Shape] = []
    for each in chosen:
        page += _tablets(shown, sizes, moves, each, first, limit - len(page))
        first = max(first - each.tablets, 0)
    return answer(page)


def _named(shown: TablesShown, name: str) -> Table:
    for table in shown.catalog.tables.values():
        if table.full_name == name:
            return table
    raise Refused(NOT_FOUND, f"there is no table {name[:MAX_NAME]!r}", "/api/v1/tables lists them")


def _tablets(
    shown: TablesShown,
    sizes: Mapping[Place, int],
    moves: Mapping[Place, ShownMove],
    table: Table,
    first: int,
    limit: int,
) -> list[shapes.Shape]:
    chosen = ((number, replicas) for number, replicas in shown.maps.get(table.id, _NO_MAP) if number >= first)
    return [
        shapes.tablet(
            table, number, replicas, shown.names, sizes.get((table.id, number)), moves.get((table.id, number))
        )
        for number, replicas in islice(chosen, limit)
    ]
