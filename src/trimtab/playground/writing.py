"""Writers that put new keys as fast as they are acknowledged, and what became of every put.

Every put goes to a key of its own; an acknowledged one must be there in the end, written exactly once. A put whose
outcome is unknown (the client gave up) may or may not be; it is counted apart.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient

WRITERS = 8
WAIT_S = 20.0
PREFIX = b"demo/"


@dataclass
class Writing:
    """Puts under way: what was acknowledged, and when, so that the longest silence can be told."""

    acknowledged: set[bytes] = field(default_factory=set)
    unknown: int = 0
    times: list[float] = field(default_factory=list)
    stopped: bool = False
    number: int = 0

    def start(self, client: MetastoreClient) -> list[asyncio.Future[None]]:
        """All writers, as tasks."""
        return [asyncio.ensure_future(self.write(client)) for _ in range(WRITERS)]

    async def write(self, client: MetastoreClient) -> None:
        while not self.stopped:
            self.number += 1
            key = PREFIX + b"%08d" % self.number
            try:
                await client.put(key, key)
            except Error:
                self.unknown += 1
                continue
            self.acknowledged.add(key)
            self.times.append(time.monotonic())

    def longest_silence_s(self, since: float) -> float:
        """The longest time without an acknowledgement, from a moment on."""
        moments = [since, *(moment for moment in self.times if moment > since)]
        return max((after - before for before, after in itertools.pairwise(moments)), default=WAIT_S)


async def read_back(client: MetastoreClient) -> dict[bytes, int]:
    """Every key with the number of times it was written, read linearizably, page by page."""
    versions: dict[bytes, int] = {}
    low: bytes | None = PREFIX
    while low is not None:
        page = await client.range(low, PREFIX + b"\xff")
        versions.update({entry.key: entry.version for entry in page.entries})
        low = page.next_key
    return versions
