"""Routes about the one limit of all bulk transfers, as `trimtab limit` shows and sets it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from trimtab.http import models
from trimtab.http.asking import ASKING, CHANGING, OpenStreams, Port, StrictRoute, answer, in_time, problems
from trimtab.http.port import Refused
from trimtab.loads import shapes
from trimtab.loads.bulk_settings import MIN_RATE_BYTES_S, wrong_rate

router = APIRouter(route_class=StrictRoute)
_WHAT_TO_DO = f"give a rate_bytes_s of at least {MIN_RATE_BYTES_S}, or 0 for no limit"


@router.get("/api/v1/limit", tags=["limit"], response_model=models.Limit, responses=problems(*ASKING))
async def limit(port: Port, streams: OpenStreams) -> Response:
    """How fast loads, scans and copies may go in the whole cluster; as `trimtab limit --json`."""
    return answer(shapes.limit(await in_time(streams, port.limit(None))))


@router.put("/api/v1/limit", tags=["limit"], response_model=models.Limit, responses=problems(*CHANGING))
async def set_limit(port: Port, streams: OpenStreams, body: models.SetLimit) -> Response:
    """Change that; it holds within a second, also for what is under way."""
    if wrong := wrong_rate(body.rate_bytes_s):
        raise Refused("invalid", wrong, _WHAT_TO_DO)
    return answer(shapes.limit(await in_time(streams, port.limit(body.rate_bytes_s))))
