"""The door itself: the application behind its guard, and the connections to it. Imports all that is heavy."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from starlette.types import ASGIApp, Message
from uvicorn.config import Config
from uvicorn.server import ServerState

from trimtab.http.app import build_app
from trimtab.http.connections import DoorConnection
from trimtab.http.events import Streams
from trimtab.http.guard import DoorLimits, Guard
from trimtab.http.metrics import Metrics
from trimtab.http.port import ClusterPort

_BACKLOG = 128
_TLS_HANDSHAKE_S = 5.0


class Door:
    """One door. `build` may run in a thread; the rest belongs to the loop."""

    def __init__(self, port: ClusterPort, limits: DoorLimits | None, story: Callable[[str], None]) -> None:
        self.limits = limits or DoorLimits()
        self.streams = Streams(self.limits)
        self.state = ServerState()
        self._port = port
        self._story = story

    def build(self, *, loopback: bool, own_names: frozenset[str]) -> ASGIApp:
        """The whole application, ready to be asked."""
        app = build_app(self._port, Metrics(self._port.figures), self.streams)
        asyncio.run(_make_routes(app))
        return Guard(app, self.limits, loopback=loopback, own_names=own_names, story=self._story)

    async def listen(self, app: ASGIApp, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        errors = logging.getLogger("uvicorn.error")
        errors.handlers, errors.propagate = [_Told(self._story)], False
        limits = self.limits
        config = Config(
            app,
            loop="none",
            http=DoorConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_ms // 1000,
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        config.load()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: DoorConnection(config, self.state, limits),
            sock=bound,
            backlog=_BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=_TLS_HANDSHAKE_S if tls is not None else None,
        )

    async def close(self) -> None:
        """End streams at once, let answers that are under way finish for a moment, then close what is left."""
        self._server.close()
        self.streams.close()
        for connection in list(self.state.connections):
            connection.shutdown()
        if self.state.tasks:
            _done, late = await asyncio.wait(list(self.state.tasks), timeout=self.limits.stop_ms / 1000)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self.state.connections):
            transport = connection.transport
            if isinstance(transport, asyncio.Transport):
                transport.abort()


async def _make_routes(app: ASGIApp) -> None:
    """FastAPI makes its routes when it is first asked for anything, and that takes a tenth of a second: not then."""
    scope = {"type": "http", "method": "GET", "path": "/nothing", "headers": [], "query_string": b""}

    async def nothing() -> Message:
        return {"type": "http.request"}

    async def to_nobody(_message: Message) -> None: ...

    await app(scope, nothing, to_nobody)


class _Told(logging.Handler):
    """What uvicorn calls an error, as a line of the instance's log."""

    def __init__(self, story: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        self._story(f"warning: the HTTP door: {record.getMessage().strip().splitlines()[0]}")
