"""Routes that steer moving: how balancing is set, and an operator's own moves. Tablets under way are `tasks`.

As with other changes nothing here waits until it is done: a move is written down, and its task shows how far it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from trimtab.client.errors import InvalidRequest
from trimtab.client.moves import read_window
from trimtab.http import models
from trimtab.http.asking import (
    ASKING,
    CHANGING,
    OpenStreams,
    Port,
    StrictRoute,
    TableName,
    TabletNumber,
    answer,
    in_time,
    problems,
)
from trimtab.http.port import NOT_FOUND, Refused, TablesShown
from trimtab.tablets import move_shapes
from trimtab.tablets.move_protocol import MoveRequest, SettingsReply
from trimtab.tablets.rebalance_settings import wrong_settings

router = APIRouter(route_class=StrictRoute)
_post = partial(
    router.post,
    tags=["moves"],
    status_code=202,
    response_model=models.Moved,
    responses=problems("not_found", *CHANGING),
)


@router.get("/api/v1/rebalance", tags=["moves"], response_model=models.Rebalance, responses=problems(*ASKING))
async def rebalance(port: Port, streams: OpenStreams) -> Response:
    """How balancing is set, and whether it may begin anything now; as `trimtab rebalance status --json`."""
    return _told(await in_time(streams, port.rebalance(None)))


@router.put("/api/v1/rebalance", tags=["moves"], response_model=models.Rebalance, responses=problems(*CHANGING))
async def set_rebalance(port: Port, streams: OpenStreams, body: models.SetRebalance) -> Response:
    """Change how balancing is set. Healing, draining and what is under way go on whatever it is."""
    before = (await in_time(streams, port.rebalance(None))).settings
    changes: dict[str, Any] = {}
    if body.enabled is not None:
        changes["enabled"] = body.enabled
    if body.window is not None:
        changes["window"] = _window(body.window)
    if body.heal_after_s is not None:
        changes["heal_after_ms"] = round(body.heal_after_s * 1000)
    if body.moving is not None:
        changes["moving"] = body.moving
    if body.moving_bytes is not None:
        changes["moving_bytes"] = body.moving_bytes
    wanted = msgspec.structs.replace(before, **changes)
    if wrong := wrong_settings(wanted):
        raise Refused("invalid", wrong)
    return _told(await in_time(streams, port.rebalance(wanted)))


@_post("/api/v1/tablets/{full_name}/{tablet}/move")
async def move(
    port: Port, streams: OpenStreams, full_name: TableName, tablet: TabletNumber, body: models.Move
) -> Response:
    """Move a replica of a tablet from one instance to another; what would be unwise has to be forced."""
    shown = await in_time(streams, port.tables(False))
    request = MoveRequest(
        _table(shown, full_name),
        _tablet(tablet),
        _instance(shown, body.source),
        _instance(shown, body.to),
        body.force,
        body.why,
    )
    return await _asked(port, streams, full_name, request, shown)


@_post("/api/v1/tablets/{full_name}/{tablet}/undo")
async def undo(
    port: Port, streams: OpenStreams, full_name: TableName, tablet: TabletNumber, body: models.Undo
) -> Response:
    """Give up on what is under way with a tablet, where that is still possible: it goes back to where it was."""
    shown = await in_time(streams, port.tables(False))
    request = MoveRequest(_table(shown, full_name), _tablet(tablet), why=body.why)
    return await _asked(port, streams, full_name, request, shown)


async def _asked(port: Port, streams: OpenStreams, table: str, request: MoveRequest, shown: TablesShown) -> Response:
    reply = await in_time(streams, port.move(request))
    task = move_shapes.task_id(table, request.tablet)
    shape = {"id": task, "outcome": reply.outcome, "replicas": move_shapes.named(reply.replicas, shown.names)}
    return answer(shape, 202, {"location": f"/api/v1/tasks/{task}"})


def _told(reply: SettingsReply) -> Response:
    return answer(move_shapes.rebalance(reply.settings, reply.still, reply.problems))


def _window(text: str) -> tuple[int, ...]:
    try:
        return read_window(text)
    except InvalidRequest as error:
        raise Refused("invalid", str(error)) from error


def _table(shown: TablesShown, name: str) -> int:
    for table in shown.catalog.tables.values():
        if table.full_name == name:
            return table.id
    raise Refused(NOT_FOUND, f"there is no table {name!r}", "/api/v1/tables lists them")


def _tablet(number: int) -> int:
    if number >= 1 << 31:
        raise Refused(NOT_FOUND, f"no table has a tablet {number}", "/api/v1/tablets lists them")
    return number


def _instance(shown: TablesShown, name: str) -> int:
    for raft_id, each in shown.names.items():
        if each == name:
            return raft_id
    raise Refused(NOT_FOUND, f"no instance is called {name!r}", "/api/v1/status lists them")
