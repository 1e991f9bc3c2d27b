"""redis-py's asyncio client, with hiredis. Its pool opens a connection for each request in flight."""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio


class RedisClient:
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def put(self, key: bytes, value: bytes) -> None:
        await self._client.set(key, value)

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._client.get(key)
        return value

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        values: list[bytes | None] = await self._client.mget(keys)
        return values

    async def close(self) -> None:
        await self._client.aclose()


async def connect(endpoints: list[str]) -> RedisClient:
    host, _, port = endpoints[0].rpartition(":")
    return RedisClient(redis.asyncio.Redis(host=host, port=int(port)))
