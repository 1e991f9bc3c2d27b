"""How routes read what they are asked and give their answers: strictly, within a time, as JSON.

- A parameter that a path does not know, or that is given twice, is refused: a mistyped `limt=5` must not look obeyed.
- Numbers are plain digits, yes and no are `true` and `false`. What is loosely a number elsewhere is a mistake here.
- Answers are the shapes that the command line shows with `--json`, encoded as they are. The models that routes name
  describe them for /openapi.json; tests compare the two.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from trimtab.http.errors import CODES
from trimtab.http.events import Streams
from trimtab.http.guard import CHANGES
from trimtab.http.models import ProblemModel
from trimtab.http.port import ClusterPort, Refused
from trimtab.topology.protocol import ViewReply

T = TypeVar("T")

MAX_NUMBER = (1 << 63) - 1
MAX_NAME = 255
MAX_PAGE = 1_000
_DIGITS = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


def _plain_number(value: Any) -> Any:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("write a whole number in digits")
    return value


def _plain_truth(value: Any) -> Any:
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("write true or false")
    return value


# The bounds stand before the validator: only so do they get into /openapi.json under their names there.
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER), BeforeValidator(_plain_number)]
PageSize = Annotated[int, Field(ge=1, le=MAX_PAGE), BeforeValidator(_plain_number)]
Truth = Annotated[bool, BeforeValidator(_plain_truth)]
Local = Annotated[
    Truth,
    Query(description="Answer from what this instance knows, without asking the others. It may be out of date."),
]
InstanceId = Annotated[
    str, Path(min_length=1, max_length=MAX_NAME, description="The name of the instance.", examples=["i1"])
]
TaskId = Annotated[
    str,
    Path(
        max_length=MAX_NAME,
        pattern=r"^([1-9][0-9]{0,18}|[A-Za-z0-9_]+\.[A-Za-z0-9_]+(:[0-9]{1,9})?)$",
        description="The id of the task, as /api/v1/tasks lists it: a number, KEYSPACE.TABLE:TABLET for a tablet under "
        "way, or KEYSPACE.TABLE for all tablets of a table.",
        examples=["1"],
    ),
]
TableName = Annotated[
    str,
    Path(
        max_length=MAX_NAME,
        pattern=r"^[A-Za-z0-9_]+\.[A-Za-z0-9_]+$",
        description="KEYSPACE.TABLE.",
        examples=["shop.users"],
    ),
]
TabletNumber = Annotated[
    int,
    Field(ge=0, le=MAX_NUMBER),
    BeforeValidator(_plain_number),
    Path(description="The number of the tablet, from 0.", examples=[0]),
]


def port_of(request: Request) -> ClusterPort:
    port: ClusterPort = request.app.state.port
    return port


def streams_of(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


Port = Annotated[ClusterPort, Depends(port_of)]
OpenStreams = Annotated[Streams, Depends(streams_of)]


class StrictRoute(APIRoute):
    """A route that refuses parameters it does not know, and bodies that don't say that they are JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = {field.alias for field in self.dependant.query_params}

        async def strictly(request: Request) -> Response:
            if request.method in CHANGES:
                _check_type(request.headers.get("content-type", ""))
            given = Counter(name for name, _value in request.query_params.multi_items())
            for name, times in given.items():
                if name not in known:
                    offer = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
                    raise Refused("invalid", f"{self.path} knows no parameter {name[:100]!r}; {offer}")
                if times > 1:
                    raise Refused("invalid", f"the parameter {name!r} is given {times} times")
            return await handle(request)

        return strictly


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("wrong_type", f"the body is {kind[:100] or 'of no declared type'}, not application/json")


def answer(shape: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A shape as JSON."""
    return Response(msgspec.json.encode(shape), status, headers, media_type="application/json")


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """For /openapi.json: the errors a route can answer with. Every route may find the request, or itself, at fault."""
    statuses = sorted({CODES[code].status for code in ("invalid", "internal", "wrong_host", *codes)})
    return {int(status): {"model": ProblemModel, "description": status.phrase} for status in statuses}


ASKING = ("not_leader", "deadline_exceeded")  # what may go wrong when others must be asked
CHANGING = ("cross_site", "wrong_type", "too_large", "slow_request", "conflict", *ASKING)


async def in_time(streams: Streams, asked: Awaitable[T]) -> T:
    """The answer of the cluster; Refused when it takes too long."""
    limit_ms = streams.limits.answer_ms
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await asked
    except TimeoutError:
        raise Refused("deadline_exceeded", f"the cluster did not answer within {limit_ms} ms") from None


async def look(port: ClusterPort, streams: Streams, local: bool, after: int = -1, limit: int = 0) -> ViewReply:
    """The cluster as it is, or as this instance knows it."""
    return await in_time(streams, port.view(not local, after, limit))
