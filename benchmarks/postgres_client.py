"""asyncpg with a pool, as the load sees it: one table of key and value, prepared statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

# More backends than this are slower on a small machine: each is a process of its own.
CONNECTIONS = 16
_TABLE = "CREATE TABLE IF NOT EXISTS bench (key bytea PRIMARY KEY, value bytea NOT NULL)"
_PUT = "INSERT INTO bench VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"
_GET = "SELECT value FROM bench WHERE key = $1"
_GET_MANY = "SELECT key, value FROM bench WHERE key = ANY($1)"


class PostgresClient:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def put(self, key: bytes, value: bytes) -> None:
        await self._pool.execute(_PUT, key, value)

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._pool.fetchval(_GET, key)
        return value

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found = {row["key"]: row["value"] for row in await self._pool.fetch(_GET_MANY, keys)}
        return [found.get(key) for key in keys]

    async def close(self) -> None:
        await self._pool.close()


async def connect(endpoints: list[str]) -> PostgresClient:
    host, _, port = endpoints[0].rpartition(":")
    pool = await asyncpg.create_pool(
        host=host, port=int(port), user="bench", database="postgres", min_size=1, max_size=CONNECTIONS
    )
    await pool.execute(_TABLE)
    return PostgresClient(pool)
