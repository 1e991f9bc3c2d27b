"""Connections of the HTTP door: uvicorn's protocol over h11, with the bounds that it leaves to others.

- A request's head must arrive within a time, counted from the opening of the connection or the end of the last answer,
  however slowly it trickles.
- There is a limit on connections. One above it is told so and closed.
- What is not HTTP is answered in JSON like every other error.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from trimtab.http.errors import encode_problem
from trimtab.http.guard import DoorLimits


class DoorConnection(H11Protocol):
    """One connection."""

    def __init__(self, config: Config, state: ServerState, limits: DoorLimits) -> None:
        super().__init__(config=config, server_state=state, app_state={"abort": self._abort})
        self._limits = limits
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._turn_away("overloaded", f"{self._limits.connections} connections are open here already")
        else:
            self._wait(self._limits.request_read_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enough()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self._answering:
            self._enough()
        elif self.cycle is not None and self._patience is not None and self.conn.trailing_data[0]:
            # The next request has begun: from now on it has as long as a first one.
            self._wait(self._limits.request_read_ms, only_sooner=True)

    def on_response_complete(self) -> None:
        self._wait(self._limits.idle_ms)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._turn_away("invalid", f"this is no HTTP request that can be read: {msg}")

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _abort(self) -> None:
        """Close without waiting for what the reader has not taken; answers that nobody reads end so."""
        self.transport.abort()

    def _wait(self, patience_ms: int, *, only_sooner: bool = False) -> None:
        until = self.loop.time() + patience_ms / 1000
        if only_sooner and self._patience is not None and self._patience.when() <= until:
            return
        self._enough()
        self._patience = self.loop.call_at(until, self.transport.close)

    def _enough(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _turn_away(self, code: str, text: str) -> None:
        """Answer without h11, which may be in a state where it can't, and close."""
        if not self._answering:
            status, body = encode_problem(code, text)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
