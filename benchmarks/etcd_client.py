"""aetcd as the load sees it: one client, linearizable reads (etcd's default)."""

from __future__ import annotations

import aetcd


class EtcdClient:
    def __init__(self, client: aetcd.Client) -> None:
        self._client = client

    async def put(self, key: bytes, value: bytes) -> None:
        await self._client.put(key, value)

    async def get(self, key: bytes) -> bytes | None:
        found = await self._client.get(key)
        return None if found is None else bytes(found.value)

    async def close(self) -> None:
        await self._client.close()


async def connect(endpoints: list[str]) -> EtcdClient:
    """A client of the first endpoint; the load lists the leader first, which is what serves etcd best."""
    host, _, port = endpoints[0].rpartition(":")
    # The clients of a process share its connection, as gRPC does by itself. One each looked slower, on a busy machine:
    # two runs of two seconds a setting, which is a hint and no more.
    client = aetcd.Client(host=host, port=int(port), timeout=30)
    await client.connect()
    return EtcdClient(client)
