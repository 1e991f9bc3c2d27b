"""The application: routes, errors as JSON, and its own description.

Nothing is loaded from elsewhere: the page at /docs is made here from /openapi.json, without scripts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match, Route

from trimtab import __version__
from trimtab.http import changing, limit, loads, looking, moves, tables, tasks
from trimtab.http.asking import answer
from trimtab.http.docs_page import docs_page
from trimtab.http.errors import problem
from trimtab.http.events import Streams
from trimtab.http.metrics import Metrics
from trimtab.http.port import ClusterPort, Refused

_ABOUT = (
    "The operator's door of a Trimtab instance. Every member shows the same cluster; changes are passed on to the "
    "leader. Errors are `{error, code, what_to_do}`."
)
_MAX_FAULTS = 5
_ROUTERS = (looking.router, tables.router, loads.router, moves.router, limit.router, changing.router, tasks.router)


def build_app(port: ClusterPort, metrics: Metrics, streams: Streams) -> FastAPI:
    """The application over an instance."""
    app = FastAPI(title="Trimtab", version=__version__, openapi_url=None, redirect_slashes=False)
    app.state.port = port
    app.state.metrics = metrics
    app.state.streams = streams
    for router in _ROUTERS:
        app.include_router(router)
    for path, handler in (("/", _index), ("/docs", _docs), ("/openapi.json", _openapi)):
        app.add_api_route(path, handler, include_in_schema=False)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_such)
    app.add_exception_handler(Exception, _defect)
    return app


async def _index(request: Request) -> Response:
    paths = sorted((await _described(request))["paths"])
    return answer(
        {"name": "trimtab", "release": __version__, "docs": "/docs", "openapi": "/openapi.json", "paths": paths}
    )


async def _docs(request: Request) -> Response:
    return HTMLResponse(docs_page(await _described(request)))


async def _openapi(request: Request) -> Response:
    return answer(await _described(request))


async def _described(request: Request) -> dict[str, Any]:
    """The description. It takes a while to make, so it is made when first asked for, and not on the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, describe, request.app)


def describe(app: FastAPI) -> dict[str, Any]:
    """OpenAPI as it is: a request that is not valid is answered with 400 here, not FastAPI's 422."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        app.openapi_schema = schema
    return app.openapi_schema


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(error.code, error.text, error.what_to_do)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    told = "; ".join(f"{_place(fault['loc'])}: {fault['msg']}" for fault in faults[:_MAX_FAULTS])
    more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return problem("invalid", f"the request is not valid: {told}{more}")


def _place(where: tuple[str | int, ...]) -> str:
    return " ".join(str(part)[:100] for part in where)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem("no_such_path", f"there is nothing at {request.url.path[:200]!r}")
    if error.status_code == 405:
        text = f"{request.url.path[:200]!r} does not take {request.method[:20]}"
        return problem("wrong_method", text, headers={"allow": ", ".join(_methods(request))})
    # What remains is a body that could not be parsed.
    return problem("invalid", str(error.detail))


def _methods(request: Request) -> list[str]:
    """All methods that a path takes; several routes may have the same."""
    routes = [*(route for router in _ROUTERS for route in router.routes), *request.app.routes]
    found = {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(found)


async def _defect(_request: Request, error: Exception) -> Response:
    # The guard tells it in the log; here it only becomes JSON.
    return problem("internal", f"the instance failed to answer: {type(error).__name__}")
