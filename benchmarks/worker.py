"""One client process of a load: `python -m benchmarks.worker`, told what to do by one JSON line on standard input.

Runs in the environment of the system under load, so it needs nothing but the standard library, that system's client
and uvloop. It connects, warms up, says that it is ready, waits for "go", then each of its clients sends one request
after the other until the time is over. Clients are modules of this package with `async connect(endpoints)`, which gives
a KeyValueClient.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

KEYS = 1000


class KeyValueClient(Protocol):
    """What a load asks of a system's client."""

    async def put(self, key: bytes, value: bytes) -> None: ...

    async def get(self, key: bytes) -> bytes | None:
        """A linearizable read."""

    async def close(self) -> None: ...


def answer(value: dict[str, Any]) -> None:
    """One line to the driver, whole. Unbuffered standard output may cut what a pipe can't take at once."""
    with open(sys.stdout.fileno(), "wb", closefd=False) as stream:
        stream.write(json.dumps(value).encode() + b"\n")


def key_of(number: int) -> bytes:
    return b"bench/%06d" % number


def operation(client: KeyValueClient, kind: str, value_bytes: int, rng: random.Random) -> Callable[[], Awaitable[None]]:
    values = [rng.randbytes(value_bytes) for _ in range(16)]

    async def put() -> None:
        await client.put(key_of(rng.randrange(KEYS)), values[rng.randrange(16)])

    async def get() -> None:
        value = await client.get(key_of(rng.randrange(KEYS)))
        if value is None or len(value) != value_bytes:
            raise RuntimeError("a key that was written before the run is not there")

    return put if kind == "put" else get


async def fill(client: KeyValueClient, value_bytes: int, rng: random.Random) -> None:
    value = rng.randbytes(value_bytes)
    for start in range(0, KEYS, 50):
        await asyncio.gather(*(client.put(key_of(n), value) for n in range(start, start + 50)))


async def send_until(deadline: float, send: Callable[[], Awaitable[None]], took_us: list[int]) -> None:
    clock = time.perf_counter
    now = clock()
    while now < deadline:
        await send()
        done = clock()
        took_us.append(int((done - now) * 1e6))
        now = done


async def work(order: dict[str, Any]) -> dict[str, Any]:
    rng = random.Random(order["seed"])
    connect = importlib.import_module(f"benchmarks.{order['client']}").connect
    clients: list[KeyValueClient] = [await connect(order["endpoints"]) for _ in range(order["clients"])]
    if order["fill"]:
        await fill(clients[0], order["value_bytes"], rng)
    sends = [operation(client, order["kind"], order["value_bytes"], rng) for client in clients]
    warm_until = time.perf_counter() + order["warm_up_seconds"]
    await asyncio.gather(*(send_until(warm_until, send, []) for send in sends))
    answer({"ready": True})
    await asyncio.to_thread(sys.stdin.readline)
    took_us: list[int] = []
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(send_until(started + order["seconds"], send, took_us) for send in sends))
    result = {
        "operations": len(took_us),
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "took_us": took_us,
    }
    for client in clients:
        await client.close()
    return result


def main() -> None:
    order = json.loads(sys.stdin.readline())
    if order["uvloop"]:
        import uvloop

        result = uvloop.run(work(order))
    else:
        result = asyncio.run(work(order))
    answer(result)


if __name__ == "__main__":
    main()
