"""Routes that look: health, readiness, metrics, and the cluster as the command line shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from trimtab.http import models
from trimtab.http.asking import (
    ASKING,
    MAX_NAME,
    MAX_NUMBER,
    InstanceId,
    Local,
    Number,
    OpenStreams,
    PageSize,
    Port,
    StrictRoute,
    Truth,
    answer,
    in_time,
    look,
    problems,
)
from trimtab.http.events import EventStream
from trimtab.http.metrics import CONTENT_TYPE, Metrics
from trimtab.http.port import NOT_FOUND, Health, Refused, unready
from trimtab.topology import shapes
from trimtab.topology.protocol import Level, ProbeRequest, ViewReply

router = APIRouter(route_class=StrictRoute)
_STREAM = "text/event-stream"


# The instance itself


@router.get("/health", tags=["instance"], response_model=models.Health, responses=problems())
async def health(port: Port) -> Response:
    """Whether this process lives and its loop turns. Says nothing about the cluster: see /ready."""
    return answer({"status": "ok", **_standing(port.health())})


@router.get(
    "/ready",
    tags=["instance"],
    response_model=models.Ready,
    responses={
        **problems(),
        503: {"model": models.Ready, "description": "It should get no requests; `reason` says why."},
    },
)
async def ready(port: Port) -> Response:
    """Whether this instance should get requests: it is Online and has a lease."""
    standing = port.health()
    reason = unready(standing)
    return answer({"ready": not reason, "reason": reason, **_standing(standing)}, 503 if reason else 200)


@router.get(
    "/metrics",
    tags=["instance"],
    response_class=Response,
    responses={**problems(), 200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    page: Metrics = request.app.state.metrics
    return Response(page.page(), headers={"content-type": CONTENT_TYPE})


def _standing(health: Health) -> dict[str, Any]:
    return {
        "cluster_id": health.cluster_id,
        "instance_id": health.instance_id,
        "raft_id": health.raft_id,
        "release": health.release,
        "role": health.role,
        "term": health.term,
        "leader": health.leader or None,
        "current_grade": health.grades.current.grade.value,
        "target_grade": health.grades.target.grade.value,
        "incarnation": health.grades.current.incarnation,
        "lease_ms": health.lease_ms,
        "disk_full": health.disk_full or None,
    }


# The cluster


@router.get("/api/v1/status", tags=["cluster"], response_model=models.Status, responses=problems(*ASKING))
async def status(port: Port, streams: OpenStreams, local: Local = False) -> Response:
    """Who is in the cluster and how they are; as `trimtab status --json`."""
    return answer(shapes.status(await look(port, streams, local)))


@router.get("/api/v1/topology", tags=["cluster"], response_model=models.Topology, responses=problems(*ASKING))
async def topology(port: Port, streams: OpenStreams, local: Local = False) -> Response:
    """Node states, requests and the transition under way; as `trimtab topology --json`."""
    return answer(shapes.topology(await look(port, streams, local)))


@router.get(
    "/api/v1/instances/{instance_id}",
    tags=["cluster"],
    response_model=models.Instance,
    responses=problems("not_found", *ASKING),
)
async def instance(port: Port, streams: OpenStreams, instance_id: InstanceId, local: Local = False) -> Response:
    """One instance, as /api/v1/status shows it."""
    view = await look(port, streams, local)
    raft_id = raft_id_of(view, instance_id)
    return answer(next(shown for shown in shapes.status(view)["instances"] if shown["raft_id"] == raft_id))


@router.get(
    "/api/v1/probe", tags=["cluster"], response_model=models.Probe, responses=problems("not_found", "no_lease", *ASKING)
)
async def probe(
    port: Port,
    streams: OpenStreams,
    target: Annotated[
        str, Query(max_length=MAX_NAME, description="The instance that should answer; this one if left out.")
    ] = "",
    level: Annotated[
        Literal["ONE", "QUORUM"], Query(description="ONE may be answered without a lease, and then says so.")
    ] = "QUORUM",
) -> Response:
    """Send a request without data the way that data requests take: router, fence, lease."""
    view = await look(port, streams, local=True)
    raft_id = raft_id_of(view, target) if target else 0
    reply = await in_time(streams, port.probe(ProbeRequest(raft_id, Level[level])))
    names = {shown.raft_id: shown.record.instance_id for shown in view.instances}
    return answer(
        {
            "instance_id": names.get(reply.raft_id, ""),
            "raft_id": reply.raft_id,
            "topology_version": reply.version,
            "stale": reply.stale,
            "applied": reply.applied,
        }
    )


# Events


@router.get(
    "/api/v1/events",
    tags=["tasks"],
    response_model=models.Events,
    responses=problems(*ASKING),
)
async def events(
    port: Port,
    streams: OpenStreams,
    after: Annotated[
        Number | SkipJsonSchema[None],
        Query(description="Only events with a higher number. Left out: the newest."),
    ] = None,
    limit: Annotated[PageSize, Query(description="At most so many events on a page.")] = 100,
    local: Local = False,
    stream: Annotated[Truth, Query(include_in_schema=False)] = False,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    last_event_id: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """What the governor did and why, oldest first.

    With `Accept: text/event-stream`, or `stream=true`, the answer is a stream of server-sent events that goes on with
    new ones as they happen; `Last-Event-ID` resumes one that was interrupted. OpenAPI has no words for an answer that
    does not end, so only the page is described here.
    """
    if stream or _STREAM in accept:
        return await _stream(port, streams, _resumed(last_event_id, after))
    if after is None:
        after = max((await look(port, streams, local)).last_event - limit, 0)
    return answer(shapes.events(await look(port, streams, local, after, limit)))


async def _stream(port: Port, streams: OpenStreams, after: int | None) -> Response:
    if streams.full:
        raise Refused("too_many_streams", f"{streams.limits.streams} event streams are open here already")
    if after is None:
        after = (await look(port, streams, local=True)).last_event
    return EventStream(streams, port.watch_events(after), after, shapes.event)


def _resumed(last_event_id: str, after: int | None) -> int | None:
    """Where a stream goes on. A browser repeats the address with its `after`: the header is the newer word."""
    if not last_event_id:
        return after
    if not last_event_id.isascii() or not last_event_id.isdigit() or int(last_event_id) > MAX_NUMBER:
        raise Refused("invalid", f"Last-Event-ID {last_event_id[:50]!r} is no number of an event")
    return int(last_event_id)


def raft_id_of(view: ViewReply, instance_id: str) -> int:
    """The member of that name, or the last that had it; Refused where nobody ever had."""
    named = [shown for shown in view.instances if shown.record.instance_id == instance_id]
    if not named:
        raise Refused(NOT_FOUND, f"no instance is called {instance_id!r}")
    return max(named, key=lambda shown: (not shown.record.left, shown.raft_id)).raft_id
