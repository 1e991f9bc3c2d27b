"""A real door on loopback over a made-up cluster, and a client before it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from benchmarks.processes import free_ports
from tests.unit.http.made_up import MadeUpCluster

from trimtab.http.guard import DoorLimits
from trimtab.http.server import bind, open_door

Play = Callable[[Callable[[], Awaitable[None]]], None]
WAIT_S = 10.0


@dataclass
class Opened:
    """A door that is open."""

    cluster: MadeUpCluster
    client: httpx.AsyncClient
    port: int
    close: Callable[[], Awaitable[None]]
    told: list[str] = field(default_factory=list)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.client.post(path, json={} if body is None else body, **options)

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def door(
    cluster: MadeUpCluster | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    verify: ssl.SSLContext | bool = True,
    known_as: tuple[str, ...] = (),
    **limits: int,
) -> AsyncIterator[Opened]:
    cluster = cluster or MadeUpCluster()
    bound = bind_free()
    port = bound.getsockname()[1]
    told: list[str] = []
    close = await open_door(cluster, bound, tls=tls, known_as=known_as, story=told.append, limits=DoorLimits(**limits))
    scheme = "http" if tls is None else "https"
    try:
        async with httpx.AsyncClient(base_url=f"{scheme}://127.0.0.1:{port}", verify=verify, timeout=WAIT_S) as client:
            yield Opened(cluster, client, port, close, told)
    finally:
        await close()


def bind_free() -> Any:
    """A socket on a port that is free: no outgoing connection of anybody gets one of these."""
    return bind(f"127.0.0.1:{free_ports(1)[0]}")


async def until(happened: Callable[[], bool], what: str) -> None:
    """Give the loop turns until something happened."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not happened():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.005)
