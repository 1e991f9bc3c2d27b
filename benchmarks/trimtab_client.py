"""Trimtab's metastore client as the load sees it."""

from __future__ import annotations

from trimtab.client.metastore import MetastoreClient


class TrimtabClient:
    def __init__(self, client: MetastoreClient) -> None:
        self._client = client

    async def put(self, key: bytes, value: bytes) -> None:
        await self._client.put(key, value)

    async def get(self, key: bytes) -> bytes | None:
        found = await self._client.get(key, linearizable=True)
        return None if found is None else found.value

    async def close(self) -> None:
        await self._client.close()


async def connect(endpoints: list[str]) -> TrimtabClient:
    return TrimtabClient(await MetastoreClient.connect(endpoints))
