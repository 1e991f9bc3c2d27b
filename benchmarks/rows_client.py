"""Trimtab's table client as the load sees it: one table of key and value. The endpoints end with the level to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trimtab

KEYSPACE, TABLE = "bench", "bench.rows"


class RowsClient:
    def __init__(self, db: Any, table: Any) -> None:
        self._db = db
        self._table = table

    async def put(self, key: bytes, value: bytes) -> None:
        await self._table.put({"key": key, "value": value})

    async def get(self, key: bytes) -> bytes | None:
        row = await self._table.get(key=key)
        return None if row is None else row["value"]

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        rows = await self._table.get_many([{"key": key} for key in keys])
        return [None if row is None else row["value"] for row in rows]

    async def close(self) -> None:
        await self._db.close()


async def connect(endpoints: list[Any]) -> RowsClient:
    *addresses, level = endpoints
    db = await trimtab.aio.connect(",".join(addresses))
    return RowsClient(db, db.table(TABLE, consistency=level))


async def create(addresses: list[str], replication: int) -> None:
    """The keyspace and the table of a load."""
    db = await trimtab.aio.connect(",".join(addresses))
    try:
        await db.create_keyspace(KEYSPACE, replication=replication)
        await db.create_table(TABLE, {"key": "blob", "value": "blob"}, primary_key=["key"], tablets=8)
    finally:
        await db.close()
