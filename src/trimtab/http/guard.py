"""What every request passes before anything looks at it: a few checks that hold for all paths.

The door has no passwords. On loopback whoever can connect is trusted, except that browsers connect on behalf of any
page their user looks at. So:

- a changing request that a browser sends for another site is refused (`Origin`, `Sec-Fetch-Site`), and routes take
  only JSON, which a browser sends to another site only after asking, and it is never told yes;
- on loopback the name in `Host` must be one of this machine: a page whose name was bound to 127.0.0.1 after it was
  loaded (DNS rebinding) gives itself away by it.

Bodies are read here, up to a limit and within a time; requests under way are counted, and refused above a limit. What
fails inside becomes an answer with status 500 and a line in the log.
"""

from __future__ import annotations

import asyncio
import ipaddress
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trimtab.http.errors import encode_problem

# Nothing but these changes anything; no route takes the other methods, so they are left to be told that.
CHANGES = frozenset(("POST", "PUT"))
_OWN_SITE = frozenset((b"same-origin", b"none"))
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True)
class DoorLimits:
    """How much the door takes. Event streams count as connections, but not as requests under way."""

    connections: int = 256
    requests: int = 64
    streams: int = 32
    body_bytes: int = 256 << 10
    header_bytes: int = 16 << 10
    request_read_ms: int = 10_000  # a request must have arrived within this
    idle_ms: int = 30_000  # a connection without a request is closed after this
    answer_ms: int = 8_000  # the cluster must have answered within this
    stream_keepalive_ms: int = 15_000
    stream_send_ms: int = 30_000  # a reader that takes nothing for so long is let go
    stop_ms: int = 250  # answers under way when the door closes


class Guard:
    """The outermost application. `own_names` are host names other than addresses that this instance is known by."""

    def __init__(
        self,
        app: ASGIApp,
        limits: DoorLimits,
        *,
        loopback: bool,
        own_names: frozenset[str] = frozenset(),
        story: Callable[[str], None],
    ) -> None:
        self._app = app
        self._limits = limits
        self._loopback = loopback
        self._own_names = own_names
        self._story = story
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the HTTP door does not speak {scope['type']}")
        answer = _Answer(send)
        headers = _Headers(scope)
        refusal = self._refusal(scope, headers)
        if refusal is None and self.under_way >= self._limits.requests:
            refusal = "overloaded", f"{self._limits.requests} requests are under way here already"
        if refusal is not None:
            await answer.refuse(*refusal)
            return
        self.under_way += 1
        counted = True

        def streaming() -> None:
            """A stream has begun: it is counted elsewhere."""
            nonlocal counted
            if counted:
                counted = False
                self.under_way -= 1

        try:
            if scope["method"] in CHANGES:
                body = await self._read_body(receive, answer)
                if body is None:
                    return
                receive = _replay(body, receive)
            inner = dict(scope)
            inner["streaming"] = streaming
            inner["head"] = scope["method"] == "HEAD"
            if inner["head"]:
                inner["method"] = "GET"  # the server drops the body
            await self._app(inner, receive, answer)
        except asyncio.CancelledError:
            # Only the closing door cancels, and the task ends here anyway: better a word than a broken connection.
            if not answer.begun:
                await answer.refuse("stopped", "this instance is stopping; the outcome of the request is unknown")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._story(
                f"the HTTP door failed at {scope['method']} {scope['path'][:200]!r}: {error!r} "
                f"({where.filename}:{where.lineno})"
            )
            if answer.begun and not answer.ended:
                raise  # half an answer: the connection must end
            if not answer.begun:
                await answer.refuse("internal", f"the instance failed to answer: {type(error).__name__}")
        finally:
            if counted:
                self.under_way -= 1

    def _refusal(self, scope: Scope, headers: _Headers) -> tuple[str, str] | None:
        """Why the request is not looked at: a code and a text."""
        host = headers.one(b"host")
        if self._loopback and host and not _local_name(host, self._own_names):
            return "wrong_host", f"this instance listens on loopback and is not called {_shown(host)}"
        if scope["method"] not in CHANGES:
            return None
        origin, site = headers.one(b"origin"), headers.one(b"sec-fetch-site")
        if (site is not None and site not in _OWN_SITE) or (
            origin is not None and origin != f"{scope['scheme']}://".encode() + (host or b"")
        ):
            return "cross_site", f"a browser sent this for another site ({_shown(origin or site or b'')})"
        return None

    async def _read_body(self, receive: Receive, answer: _Answer) -> bytes | None:
        """The whole body; None if it has been refused or nobody is there any more."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.request_read_ms / 1000):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._limits.body_bytes:
                        await answer.refuse("too_large", f"the body has more than {self._limits.body_bytes} bytes")
                        return None
                    more = message.get("more_body", False)
        except TimeoutError:
            await answer.refuse("slow_request", f"the body took longer than {self._limits.request_read_ms} ms")
            return None
        return bytes(body)


class _Answer:
    """`send`, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            present = {name for name, _value in message["headers"]}
            added = [(name, value) for name, value in _ALWAYS if name not in present]
            added.append((b"date", formatdate(usegmt=True).encode()))
            message = {**message, "headers": [*message["headers"], *added]}
        await self._send(message)
        if message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)

    async def refuse(self, code: str, text: str) -> None:
        status, body = encode_problem(code, text)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self({"type": "http.response.start", "status": int(status), "headers": headers})
        await self({"type": "http.response.body", "body": body})


class _Headers:
    """Headers by name. One that is given twice where one is expected counts as given with both values joined."""

    def __init__(self, scope: Scope) -> None:
        self._all: list[tuple[bytes, bytes]] = scope["headers"]

    def one(self, name: bytes) -> bytes | None:
        found = [value for key, value in self._all if key == name]
        return b", ".join(found) if found else None


def _replay(body: bytes, receive: Receive) -> Receive:
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal first
        message, first = first, None
        return await receive() if message is None else message

    return replay


def _local_name(host: bytes, own_names: frozenset[str]) -> bool:
    """Whether a Host header names this machine by an address or a name that nobody else can bind."""
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name == "localhost" or name.endswith(".localhost") or name in own_names:
        return True
    return is_address(name)


def is_address(name: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
