"""Writers that put new rows as fast as they are acknowledged, and what became of every put.

Every put makes a row of its own; an acknowledged one must be there in the end, as it was written. A put whose outcome
is unknown (the client gave up) may or may not be; it is counted apart.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from trimtab.client.database import Database
from trimtab.client.errors import Error
from trimtab.client.table import Table

KEYSPACE = "shop"
TABLE = "shop.orders"
TABLETS = 8
WRITERS = 8
WAIT_S = 30.0
_PAUSE_S = 0.01  # after a failure
_CUSTOMERS = 97


async def create_table(database: Database, replication: int) -> None:
    await database.create_keyspace(KEYSPACE, replication=replication)
    columns = {"id": "bigint", "customer": "text", "total": "double"}
    await database.create_table(TABLE, columns, primary_key=["id"], tablets=TABLETS)


def row_of(number: int) -> dict[str, Any]:
    """The order of that number."""
    return {"id": number, "customer": f"customer {number % _CUSTOMERS}", "total": number * 1.25}


@dataclass
class Writing:
    """Puts under way: what was acknowledged, and when, so that the longest silence can be told."""

    acknowledged: set[int] = field(default_factory=set)
    unknown: int = 0
    times: list[float] = field(default_factory=list)
    stopped: bool = False
    number: int = 0

    def start(self, table: Table) -> list[asyncio.Future[None]]:
        """All writers, as tasks."""
        return [asyncio.ensure_future(self.write(table)) for _ in range(WRITERS)]

    async def write(self, table: Table) -> None:
        while not self.stopped:
            self.number += 1
            number = self.number
            try:
                await table.put(row_of(number))
            except Error:
                self.unknown += 1
                await asyncio.sleep(_PAUSE_S)
                continue
            self.acknowledged.add(number)
            self.times.append(time.monotonic())

    def longest_silence_s(self, since: float) -> float:
        """The longest time without an acknowledgement, from a moment on."""
        moments = [since, *(moment for moment in self.times if moment > since)]
        return max((after - before for before, after in itertools.pairwise(moments)), default=WAIT_S)

    async def lost(self, table: Table) -> int:
        """How many acknowledged rows are not there, or are not what was written, when everything is read back."""
        found = {row["id"] async for row in table.scan() if row == row_of(row["id"])}
        return len(self.acknowledged - found)
