"""A cluster of dictionaries on real sockets, in a thread of its own: for clients that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from tests.unit.client.fake_cluster import FakeCluster

from trimtab.net.hello import Hello
from trimtab.net.server import Server


@contextlib.contextmanager
def served(ports: list[int]) -> Iterator[FakeCluster]:
    """Members on these loopback ports."""
    cluster = FakeCluster({number: f"127.0.0.1:{port}" for number, port in enumerate(ports, start=1)})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve(number: int, port: int) -> Server:
        server = Server(cluster.handlers(number), Hello(instance_id=f"i{number}"))
        await server.start("127.0.0.1", port)
        return server

    async def close(server: Server) -> None:
        server.close()
        await server.wait_closed()

    servers = []
    try:
        for number, port in enumerate(ports, start=1):
            servers.append(asyncio.run_coroutine_threadsafe(serve(number, port), loop).result(10))
        yield cluster
    finally:
        for server in servers:
            asyncio.run_coroutine_threadsafe(close(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def contact(cluster: FakeCluster) -> str:
    return ",".join(cluster.addresses.values())
