"""Real sockets on loopback for this folder's tests: peers that record what they were told, and raw ones that lie."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl as ssl_module
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from benchmarks.processes import free_ports

from trimtab.net.client import Channel
from trimtab.net.frames import FORMAT, GOODBYE, HELLO, Frame, FrameReader, decode_reason, encode_frame
from trimtab.net.hello import Hello, encode_greeting
from trimtab.net.limits import Limits
from trimtab.net.server import Handler, Request, Server

WAIT_S = 30.0  # how long any one thing may take before a test fails

Play = Callable[[Callable[[], Any]], None]


def limits(**changes: Any) -> Limits:
    """Short pauses, and time for a hello on a busy machine; everything else as in production."""
    settings: dict[str, Any] = {"hello_timeout_s": 10.0, "goodbye_linger_s": 0.1, "backoff_max_s": 0.1}
    return Limits(**{**settings, **changes})


def echo(request: Request) -> None:
    request.reply(request.body)


class Served:
    """A server, its port and the sentences it reported."""

    def __init__(self, server: Server, port: int, errors: asyncio.Queue[tuple[str, BaseException | None]]) -> None:
        self.server = server
        self.port = port
        self.errors = errors

    async def error(self) -> str:
        return (await asyncio.wait_for(self.errors.get(), WAIT_S))[0]


@contextlib.asynccontextmanager
async def serving(
    handlers: Mapping[str, Handler] | None = None, *, port: int = 0, hello: Hello | None = None, **options: Any
) -> AsyncIterator[Served]:
    errors: asyncio.Queue[tuple[str, BaseException | None]] = asyncio.Queue()
    options.setdefault("limits", limits())
    server = Server(
        handlers if handlers is not None else {"echo": echo},
        hello or Hello(cluster_id="c", instance_id="server", raft_id=1),
        on_error=lambda text, error: errors.put_nowait((text, error)),
        **options,
    )
    bound = await server.start("127.0.0.1", port)
    try:
        yield Served(server, bound, errors)
    finally:
        server.close()
        await asyncio.wait_for(server.wait_closed(), WAIT_S)


class Caller:
    """A channel and everything it was told."""

    def __init__(self, port: int, ssl: ssl_module.SSLContext | None = None, **options: Any) -> None:
        self.ups: asyncio.Queue[Hello] = asyncio.Queue()
        self.downs: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
        self.errors: asyncio.Queue[tuple[str, BaseException | None]] = asyncio.Queue()
        options.setdefault("limits", limits())
        self.channel = Channel(
            ("127.0.0.1", port),
            options.pop("hello", Hello(cluster_id="c", instance_id="caller", raft_id=2)),
            random.Random(7),
            ssl,
            self.ups.put_nowait,
            lambda reason, refused: self.downs.put_nowait((reason, refused)),
            on_error=lambda text, error: self.errors.put_nowait((text, error)),
            **options,
        )

    async def up(self) -> Hello:
        return await asyncio.wait_for(self.ups.get(), WAIT_S)

    async def down(self) -> tuple[str, bool]:
        return await asyncio.wait_for(self.downs.get(), WAIT_S)


@contextlib.asynccontextmanager
async def calling(port: int, *, wait: bool = True, **options: Any) -> AsyncIterator[Caller]:
    caller = Caller(port, **options)
    try:
        if wait:
            await caller.up()
        yield caller
    finally:
        caller.channel.close()


class RawPeer:
    """Writes whatever bytes a test likes, and reads frames until the other side closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameReader(64 * 1024 * 1024)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def say_hello(self, hello: Hello | None = None, max_frame_bytes: int = 4 * 1024 * 1024) -> None:
        greeting = encode_greeting(hello or Hello(cluster_id="c", instance_id="raw"), max_frame_bytes)
        self.write(encode_frame(HELLO, 0, FORMAT, 0, greeting))

    async def next(self) -> Frame | None:
        """The next frame; None when the peer has closed."""
        while (frame := self.frames.next()) is None:
            try:
                data = await asyncio.wait_for(self.reader.read(65536), WAIT_S)
            except ConnectionError:
                return None
            if not data:
                return None
            self.frames.feed(data)
        return frame

    async def goodbye(self) -> str:
        """Reads to the end of the connection; the reason the peer gave."""
        reason = "none"
        while (frame := await self.next()) is not None:
            if frame.kind == GOODBYE:
                reason = decode_reason(frame.body)
        return reason

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def raw_peer(port: int, *, hello: bool = False) -> AsyncIterator[RawPeer]:
    peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port))
    try:
        if hello:
            peer.say_hello()
            frame = await peer.next()
            assert frame is not None and frame.kind == HELLO
        yield peer
    finally:
        peer.close()


@contextlib.asynccontextmanager
async def raw_server() -> AsyncIterator[tuple[int, asyncio.Queue[RawPeer]]]:
    """Accepts connections and does nothing with them; the test plays the server."""
    peers: asyncio.Queue[RawPeer] = asyncio.Queue()
    accepted: list[RawPeer] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawPeer(reader, writer)
        accepted.append(peer)
        peers.put_nowait(peer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], peers
    finally:
        server.close()
        for peer in accepted:
            peer.close()


def free_port() -> int:
    """A port nobody listens on now, and that no outgoing connection of anybody gets in the next moment."""
    return free_ports(1)[0]


async def until(condition: Callable[[], bool]) -> None:
    """For what no callback announces: gives the loop turns until it holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 (the code under test knows nothing of our events)
            await asyncio.sleep(0.001)
