"""The answering end (skeleton: signatures only, see the docstrings)."""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Callable, Mapping

from trimtab.net.hello import Hello
from trimtab.net.limits import DEFAULT_LIMITS, Counters, Limits

CheckHello = Callable[[Hello], str | None]
OnError = Callable[[str, BaseException | None], None]


class Request:
    """One request (or one-way message, or stream) on its way through a handler. Answer now or later, once."""

    method: str
    body: bytes
    peer: Hello
    protocol: int  # the negotiated version
    deadline: float | None  # loop time
    oneway: bool
    streaming: bool
    done: bool  # answered, cancelled, expired or its connection is gone: further answers are ignored

    def reply(self, body: bytes = b"") -> None:
        """Answers; for a stream: ends it well. Ignored when done or one-way."""
        raise NotImplementedError

    def fail(self, code: str, text: str, details: bytes = b"") -> None:
        raise NotImplementedError

    def push(self, body: bytes) -> bool:
        """One item of a stream. False: not sent (the consumer is slow, or the stream is over)."""
        raise NotImplementedError

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Called once, when push() would be accepted again after it said False."""
        raise NotImplementedError

    def on_cancel(self, callback: Callable[[str], None]) -> None:
        """Called at most once with a reason: cancelled by the caller, deadline passed, or connection lost."""
        raise NotImplementedError

    def expired(self, loop_time: float) -> bool:
        raise NotImplementedError


Handler = Callable[[Request], None]


class Server:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        hello: Hello,
        limits: Limits = DEFAULT_LIMITS,
        ssl: ssl_module.SSLContext | None = None,
        check_hello: CheckHello | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self.hello = hello
        self.counters = Counters()
        raise NotImplementedError

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port."""
        raise NotImplementedError

    def close(self, reason: str = "the server is shutting down") -> None:
        """Stops listening and says goodbye to every connection."""
        raise NotImplementedError

    async def wait_closed(self) -> None:
        raise NotImplementedError
