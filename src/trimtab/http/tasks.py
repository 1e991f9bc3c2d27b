"""Routes about tasks: requests, jobs and tablets under way together, as `trimtab tasks` shows them, and orders to them.

Requests and jobs have numbers, and count together; a tablet under way is KEYSPACE.TABLE:TABLET, and all tablets of a
table are KEYSPACE.TABLE. To pause a tablet is to pause the job that copies it, and with it the other tablets of that
job; to cancel it is to undo its move. Requests can't be paused.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.responses import Response

from trimtab.http import models
from trimtab.http.asking import (
    ASKING,
    CHANGING,
    MAX_NUMBER,
    Local,
    OpenStreams,
    Port,
    StrictRoute,
    TaskId,
    answer,
    in_time,
    look,
    problems,
)
from trimtab.http.changing import answered
from trimtab.http.port import NOT_FOUND, Refused
from trimtab.jobs import shapes as job_shapes
from trimtab.jobs.protocol import SteerJob
from trimtab.jobs.rules import CANCEL, PAUSE, RESUME
from trimtab.tablets import move_shapes
from trimtab.tablets.move_protocol import MoveRequest
from trimtab.tablets.moves_shown import MovesShown, ShownMove
from trimtab.topology import shapes
from trimtab.topology.protocol import CancelRequest, ViewReply

router = APIRouter(route_class=StrictRoute)
_post = partial(
    router.post,
    tags=["tasks"],
    status_code=202,
    response_model=models.Task,
    responses=problems("not_found", *CHANGING),
)


@router.get("/api/v1/tasks", tags=["tasks"], response_model=list[models.Task], responses=problems(*ASKING))
async def tasks(port: Port, streams: OpenStreams, local: Local = False) -> Response:
    """What the cluster does, is going to do and has done for operators; as `trimtab tasks list --json`."""
    view = await look(port, streams, local)
    jobs = await in_time(streams, port.jobs((), local))
    moves = await in_time(streams, port.moves(0, local))
    under_way = move_shapes.tasks(moves, _names(view))
    return answer(job_shapes.together(shapes.tasks(view), job_shapes.tasks(jobs), under_way))


@router.get(
    "/api/v1/tasks/{task_id}",
    tags=["tasks"],
    response_model=models.Task,
    responses=problems("not_found", *ASKING),
)
async def task(port: Port, streams: OpenStreams, task_id: TaskId, local: Local = False) -> Response:
    """One task."""
    view = await look(port, streams, local)
    if not task_id.isdigit():
        moves = await in_time(streams, port.moves(0, local))
        for shape in move_shapes.tasks(moves, _names(view)):
            if shape["id"] == _plain(task_id):
                return answer(shape)
        raise Refused(NOT_FOUND, f"there is no task {task_id}: nothing is under way with it (any more)")
    wanted = _number(task_id)
    for number, record in view.requests:
        if number == wanted:
            return answer(shapes.task(number, record, view))
    found = job_shapes.tasks(await in_time(streams, port.jobs((wanted,), local)))
    if not found:
        raise Refused(NOT_FOUND, f"there is no task {task_id}")
    return answer(found[0])


@_post("/api/v1/tasks/{task_id}/cancel")
async def cancel(port: Port, streams: OpenStreams, task_id: TaskId, body: models.Cancel) -> Response:
    """Ask for a task to be given up, if it has not gone too far; a tablet goes back to where it was."""
    if not task_id.isdigit():
        moves, chosen = await _move(port, streams, task_id)
        await in_time(streams, port.move(MoveRequest(chosen.table, chosen.tablet, why=body.reason)))
        return await _moving(port, streams, task_id, moves, chosen)
    number = _number(task_id)
    if await _is_request(port, streams, number):
        return await answered(port, streams, await in_time(streams, port.cancel(CancelRequest(number, body.reason))))
    return await _steered(port, streams, SteerJob(number, CANCEL, body.reason))


@_post("/api/v1/tasks/{task_id}/pause")
async def pause(port: Port, streams: OpenStreams, task_id: TaskId, body: models.Steer) -> Response:
    """Let a job, or the copying of a tablet, stop for a while; what it has done stays."""
    return await _steer(port, streams, task_id, PAUSE)


@_post("/api/v1/tasks/{task_id}/resume")
async def resume(port: Port, streams: OpenStreams, task_id: TaskId, body: models.Steer) -> Response:
    """Let a job, or the copying of a tablet, go on from where it was paused."""
    return await _steer(port, streams, task_id, RESUME)


async def _steer(port: Port, streams: OpenStreams, task_id: str, order: str) -> Response:
    if not task_id.isdigit():
        moves, chosen = await _move(port, streams, task_id)
        if not chosen.transition.job:
            stage = chosen.transition.stage.value
            raise Refused("conflict", f"{task_id} copies nothing now (it is in {stage}); only a copy can {order}")
        await in_time(streams, port.steer(SteerJob(chosen.transition.job, order)))
        return await _moving(port, streams, task_id, moves, chosen)
    number = _number(task_id)
    if await _is_request(port, streams, number):
        raise Refused("conflict", f"task {number} is a request; only jobs and tablets under way can {order}")
    return await _steered(port, streams, SteerJob(number, order))


def _number(task_id: str) -> int:
    if int(task_id) > MAX_NUMBER:
        raise Refused(NOT_FOUND, f"there is no task {task_id}")
    return int(task_id)


def _plain(task_id: str) -> str:
    """As it is listed: 007 is tablet 7."""
    table, colon, tablet = task_id.partition(":")
    return f"{table}:{int(tablet)}" if colon else table


def _names(view: ViewReply) -> dict[int, str]:
    return {shown.raft_id: shown.record.instance_id for shown in view.instances}


async def _move(port: Port, streams: OpenStreams, task_id: str) -> tuple[MovesShown, ShownMove]:
    """The tablet under way that an order is about; Refused where it is none."""
    moves = await in_time(streams, port.moves(0, False))
    try:
        table, tablet = move_shapes.place_of(task_id)
    except ValueError as error:
        raise Refused(NOT_FOUND, str(error)) from error
    if tablet is None:
        raise Refused("conflict", f"{task_id} is all that is under way with a table; name one tablet: {table}:0")
    for each in moves.moves:
        if each.tablet == tablet and moves.names.get(each.table) == table:
            return moves, each
    raise Refused(NOT_FOUND, f"there is no task {task_id}: nothing is under way with it (any more)")


async def _moving(port: Port, streams: OpenStreams, task_id: str, before: MovesShown, chosen: ShownMove) -> Response:
    """The task as it is after an order; as it was, where it has ended since."""
    view = await look(port, streams, local=True)
    now = await in_time(streams, port.moves(chosen.table, False))
    shown = next(
        ((now, each) for each in now.moves if (each.table, each.tablet) == (chosen.table, chosen.tablet)),
        (before, chosen),
    )
    shape = move_shapes.move_task(shown[1], shown[0], _names(view))
    return answer(shape, 202, {"location": f"/api/v1/tasks/{task_id}"})


async def _is_request(port: Port, streams: OpenStreams, number: int) -> bool:
    view = await look(port, streams, local=True)
    return any(number == each for each, _record in view.requests)


async def _steered(port: Port, streams: OpenStreams, order: SteerJob) -> Response:
    job = await in_time(streams, port.steer(order))
    # As it is shown elsewhere: with how far it is.
    shown = job_shapes.tasks(await in_time(streams, port.jobs((job.number,), False)))
    return answer(shown[0] if shown else job_shapes.task(job), 202, {"location": f"/api/v1/tasks/{job.number}"})
