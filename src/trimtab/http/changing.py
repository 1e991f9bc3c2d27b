"""Routes that change something: requests to the topology. Second thoughts about them are in `tasks`.

Nothing here waits for the change. The answer is 202 with the task that was made of the request (or that is the same
request, asked before), and where to look at it.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.responses import Response

from trimtab.http import models
from trimtab.http.asking import (
    CHANGING,
    InstanceId,
    OpenStreams,
    Port,
    StrictRoute,
    answer,
    in_time,
    look,
    problems,
)
from trimtab.topology import shapes
from trimtab.topology.protocol import CreateRequest, RequestReply
from trimtab.topology.records import RequestKind

router = APIRouter(route_class=StrictRoute)
_post = partial(
    router.post,
    tags=["changes"],
    status_code=202,
    response_model=models.Task,
    responses=problems("not_found", *CHANGING),
)


@_post("/api/v1/instances/{instance_id}/expel")
async def expel(port: Port, streams: OpenStreams, instance_id: InstanceId, body: models.Expel) -> Response:
    """Take an instance out for good: drained if it lives, rebuilt elsewhere if it is dead."""
    request = CreateRequest(RequestKind.LEAVE, instance_id, expel=True, drain=body.drain, timeout_ms=body.timeout_ms)
    return await _create(port, streams, request)


@_post("/api/v1/instances/{instance_id}/decommission")
async def decommission(port: Port, streams: OpenStreams, instance_id: InstanceId, body: models.Change) -> Response:
    """Let a living instance leave, after what it owns has moved."""
    return await _create(port, streams, CreateRequest(RequestKind.LEAVE, instance_id, timeout_ms=body.timeout_ms))


@_post("/api/v1/instances/{instance_id}/remove")
async def remove(port: Port, streams: OpenStreams, instance_id: InstanceId, body: models.Remove) -> Response:
    """Remove an instance that is dead and will not come back."""
    request = CreateRequest(RequestKind.REMOVE, instance_id, timeout_ms=body.timeout_ms, ignore=body.ignore)
    return await _create(port, streams, request)


@_post("/api/v1/instances/{instance_id}/rebuild")
async def rebuild(port: Port, streams: OpenStreams, instance_id: InstanceId, body: models.Rebuild) -> Response:
    """Fill an instance anew from the others."""
    request = CreateRequest(RequestKind.REBUILD, instance_id, timeout_ms=body.timeout_ms, source=body.source)
    return await _create(port, streams, request)


@_post("/api/v1/barrier", responses=problems(*CHANGING))
async def barrier(port: Port, streams: OpenStreams, body: models.Change) -> Response:
    """Wait until every instance routes by the topology of now and has ended what it began before."""
    return await _create(port, streams, CreateRequest(RequestKind.BARRIER, timeout_ms=body.timeout_ms))


async def _create(port: Port, streams: OpenStreams, request: CreateRequest) -> Response:
    return await answered(port, streams, await in_time(streams, port.create(request)))


async def answered(port: Port, streams: OpenStreams, reply: RequestReply) -> Response:
    """202, with the task that was made of a request."""
    view = await look(port, streams, local=True)
    shape = shapes.task(reply.number, reply.record, view)
    return answer(shape, 202, {"location": f"/api/v1/tasks/{reply.number}"})
