"""Every error of the HTTP door is JSON: what was wrong, a code, and what to do.

The codes are those of the node's RPC, so that a program knows them whichever door it came through; this table adds the
HTTP status that fits. 503 means that another try, here or at another member, may work; 409 that the cluster's state
forbids it; 504 that the outcome is not known.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

import msgspec
from starlette.responses import Response

TRY_AGAIN = "try again shortly, or ask another member"


class Meaning(NamedTuple):
    status: HTTPStatus
    what_to_do: str


# code -> status, and what to do when whoever refused did not say
CODES: dict[str, Meaning] = {
    "invalid": Meaning(HTTPStatus.BAD_REQUEST, "correct the request; /openapi.json describes it"),
    "cross_site": Meaning(HTTPStatus.FORBIDDEN, "send changes from a program, or from a page of this very address"),
    "not_found": Meaning(HTTPStatus.NOT_FOUND, "/api/v1/status and /api/v1/tasks list what there is"),
    "no_such_path": Meaning(HTTPStatus.NOT_FOUND, "/ lists the paths there are"),
    "wrong_method": Meaning(HTTPStatus.METHOD_NOT_ALLOWED, "the header Allow names the methods this path takes"),
    "slow_request": Meaning(HTTPStatus.REQUEST_TIMEOUT, "send the whole request at once"),
    "conflict": Meaning(HTTPStatus.CONFLICT, "look at /api/v1/status and /api/v1/tasks before asking again"),
    "too_large": Meaning(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "send a shorter body"),
    "wrong_type": Meaning(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json"),
    "wrong_host": Meaning(HTTPStatus.MISDIRECTED_REQUEST, "use the address this instance listens on"),
    "internal": Meaning(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a defect; the log of the instance has details"),
    "not_ready": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "wait until /ready answers 200, or ask another member"),
    "not_leader": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN),
    "no_lease": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN),
    "skew": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "set the clock of this instance right, or ask another member"),
    "fenced": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN),
    "refused": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN),
    "overwritten": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN),
    "unavailable": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN),
    "overloaded": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "wait a little, and ask less at a time"),
    "too_many_streams": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "close other event streams, or ask another member"),
    "disk_full": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "make space on the disk of this instance"),
    "removed": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "ask a member of the cluster"),
    "stopped": Meaning(HTTPStatus.SERVICE_UNAVAILABLE, "ask another member"),
    "leadership_lost": Meaning(HTTPStatus.GATEWAY_TIMEOUT, "the outcome is unknown: look at /api/v1/tasks"),
    "stalled": Meaning(HTTPStatus.GATEWAY_TIMEOUT, "the outcome is unknown: look at /api/v1/tasks"),
    "no_answer": Meaning(HTTPStatus.GATEWAY_TIMEOUT, "the outcome is unknown: look at /api/v1/tasks"),
    "deadline_exceeded": Meaning(
        HTTPStatus.GATEWAY_TIMEOUT,
        "see whether a majority of the voters is up (/api/v1/status?local=true); a change may have been made: "
        "look at /api/v1/tasks",
    ),
}
_UNKNOWN = Meaning(HTTPStatus.SERVICE_UNAVAILABLE, TRY_AGAIN)


class Problem(msgspec.Struct, frozen=True):
    """The body of an error."""

    error: str
    code: str
    what_to_do: str


def encode_problem(code: str, text: str, what_to_do: str = "") -> tuple[int, bytes]:
    """Status and body."""
    meaning = CODES.get(code, _UNKNOWN)
    # A text may repeat what was asked, and JSON can ask with halves of characters.
    readable = text.encode(errors="backslashreplace").decode()
    return meaning.status, msgspec.json.encode(Problem(readable, code, what_to_do or meaning.what_to_do))


def problem(code: str, text: str, what_to_do: str = "", headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that was not carried out."""
    status, body = encode_problem(code, text, what_to_do)
    return Response(body, status, headers, media_type="application/json")
