"""One client process of a load: `python -m benchmarks.worker`, told what to do by one JSON line on standard input.

Runs in the environment of the system under load, so it needs nothing but the standard library, that system's client
and uvloop. It connects, warms up, says that it is ready, waits for "go", then each of its clients sends one request
after the other until the time is over. Clients are modules of this package with `async connect(endpoints)`, which gives
a KeyValueClient. Where the order says `shared`, all requests in flight go through one client, as in a service.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

KEYS = 1000
MANY = 100  # keys of one get_many
ZIPF = 0.99  # as YCSB has it


class KeyValueClient(Protocol):
    """What a load asks of a system's client."""

    async def put(self, key: bytes, value: bytes) -> None: ...

    async def get(self, key: bytes) -> bytes | None:
        """A read: linearizable where the case says so, else as weak as the system offers."""

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...

    async def close(self) -> None: ...


def answer(value: dict[str, Any]) -> None:
    """One line to the driver, whole. Unbuffered standard output may cut what a pipe can't take at once."""
    with open(sys.stdout.fileno(), "wb", closefd=False) as stream:
        stream.write(json.dumps(value).encode() + b"\n")


def key_of(number: int) -> bytes:
    return b"bench/%06d" % number


def picker(distribution: str, keys: int, rng: random.Random) -> Callable[[], int]:
    """Which key comes next: any of them alike, or few of them most of the time."""
    if distribution == "uniform":
        return lambda: rng.randrange(keys)
    weights = list(accumulate(1 / rank**ZIPF for rank in range(1, keys + 1)))
    order = list(range(keys))
    random.Random(0).shuffle(order)  # the same keys are the hot ones in every process
    return lambda: order[min(bisect_left(weights, rng.random() * weights[-1]), keys - 1)]


def operation(client: KeyValueClient, order: dict[str, Any], rng: random.Random) -> Callable[[], Awaitable[None]]:
    value_bytes: int = order["value_bytes"]
    values = [rng.randbytes(value_bytes) for _ in range(16)]
    pick = picker(order.get("distribution", "uniform"), order.get("keys", KEYS), rng)

    def check(value: bytes | None) -> None:
        if value is None or len(value) != value_bytes:
            raise RuntimeError("a key that was written before the run is not there")

    async def put() -> None:
        await client.put(key_of(pick()), values[rng.randrange(16)])

    async def get() -> None:
        check(await client.get(key_of(pick())))

    async def get_many() -> None:
        for value in await client.get_many([key_of(pick()) for _ in range(MANY)]):
            check(value)

    return {"put": put, "get": get, "get_many": get_many}[order["kind"]]


async def fill(client: KeyValueClient, value_bytes: int, keys: int, rng: random.Random) -> None:
    value = rng.randbytes(value_bytes)
    for start in range(0, keys, 50):
        await asyncio.gather(*(client.put(key_of(n), value) for n in range(start, min(start + 50, keys))))


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
    in_flight = order["clients"]
    shared = order.get("shared", False)
    clients: list[KeyValueClient] = [await connect(order["endpoints"]) for _ in range(1 if shared else in_flight)]
    if order["fill"]:
        await fill(clients[0], order["value_bytes"], order.get("keys", KEYS), rng)
    sends = [operation(clients[0 if shared else number], order, rng) for number in range(in_flight)]
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
