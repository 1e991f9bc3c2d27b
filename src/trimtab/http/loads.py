"""The route that looks at loads, as `trimtab loads list --json` shows them. Rolling back is the command line's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from trimtab.http import models
from trimtab.http.asking import ASKING, MAX_NAME, Local, OpenStreams, Port, StrictRoute, answer, in_time, problems
from trimtab.http.port import NOT_FOUND, Refused
from trimtab.loads import shapes

router = APIRouter(route_class=StrictRoute)


@router.get("/api/v1/loads", tags=["tables"], response_model=models.Loads, responses=problems(NOT_FOUND, *ASKING))
async def loads(
    port: Port,
    streams: OpenStreams,
    table: Annotated[str, Query(max_length=MAX_NAME, description="KEYSPACE.TABLE; left out: of all tables.")] = "",
    local: Local = False,
) -> Response:
    """Loads under way and the last that ended; as `trimtab loads list --json`."""
    shown = await in_time(streams, port.tables(not local))
    tables = shown.catalog.tables
    chosen = next((each.id for each in tables.values() if each.full_name == table), 0)
    if table and not chosen:
        raise Refused(NOT_FOUND, f"there is no table {table[:MAX_NAME]!r}", "/api/v1/tables lists them")
    found = await in_time(streams, port.loads(chosen, local))
    return answer(
        shapes.listing(found, lambda each: tables[each].full_name if each in tables else f"table {each}", shown.names)
    )
