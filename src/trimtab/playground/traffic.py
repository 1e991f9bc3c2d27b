"""Requests of an application while other things happen: reads and writes at QUORUM, and what became of each.

Every write makes a row of its own; an acknowledged one must be there in the end. One whose outcome is unknown (whoever
took it died) is written again, as an application would: that does no harm. What still is unknown after that may or may
not be there, and is counted apart. Every read is of a row that must be there, and is compared with
what that row is. The pace is fixed, so that the rest of the machine is for the cluster and Spark.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.client.errors import Error
from trimtab.client.plans import Row
from trimtab.playground.orders import order

WORKERS = 8  # half of them write
PER_S = 25.0  # requests of one worker
_PAUSE_S = 0.05  # after a failure
_ATTEMPTS = 3
_KEPT_ERRORS = 5


class Orders(Protocol):
    """The table, as far as this needs it."""

    def put(self, row: Row) -> Awaitable[object]: ...

    def get(self, *, id: int) -> Awaitable[Row | None]: ...


@dataclass(frozen=True)
class Sample:
    """One request that was answered: when it ended, and how long it took."""

    ended: float
    took_s: float


@dataclass
class Traffic:
    """`first`: the number of the first row to write; all below are there already, and are read."""

    first: int
    written: int = 0  # numbers used, from `first` on
    under_way: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    puts: list[Sample] = field(default_factory=list)
    gets: list[Sample] = field(default_factory=list)
    failed_gets: int = 0
    repeated: int = 0
    wrong: list[int] = field(default_factory=list)  # rows that were not what they must be
    errors: list[str] = field(default_factory=list)
    stopped: bool = False
    clock: Callable[[], float] = time.monotonic

    async def run(self, table: Orders) -> None:
        """Until `stopped`; every request that was begun has ended then."""
        writers = [self._write(table, each) for each in range(WORKERS // 2)]
        readers = [self._read(table, random.Random(each)) for each in range(WORKERS // 2)]
        await asyncio.gather(*writers, *readers)

    async def _write(self, table: Orders, worker: int) -> None:
        await asyncio.sleep(worker / PER_S / WORKERS)
        while not self.stopped:
            number = self.first + self.written
            self.written += 1
            began = self.clock()
            self.under_way.add(number)
            done = await self._put(table, number)
            self.under_way.discard(number)
            if done:
                await self._answered(self.puts, began)
            else:
                self.unknown.add(number)

    async def _put(self, table: Orders, number: int) -> bool:
        for attempt in range(_ATTEMPTS):
            self.repeated += attempt > 0
            try:
                await table.put(order(number))
            except Error as error:
                await self._failed(error)
            else:
                return True
        return False

    async def _read(self, table: Orders, chosen: random.Random) -> None:
        while not self.stopped:
            number = chosen.randrange(self.first + self.written)
            # Whether it is there is known of those alone that were acknowledged before it is asked for.
            known = number not in self.under_way and number not in self.unknown
            began = self.clock()
            try:
                found = await table.get(id=number)
            except Error as error:
                self.failed_gets += 1
                await self._failed(error)
                continue
            if known and found != order(number):
                self.wrong.append(number)
            await self._answered(self.gets, began)

    async def _answered(self, samples: list[Sample], began: float) -> None:
        now = self.clock()
        samples.append(Sample(now, now - began))
        await asyncio.sleep(max(0.0, began + 1 / PER_S - now))

    async def _failed(self, error: Error) -> None:
        if len(self.errors) < _KEPT_ERRORS:
            self.errors.append(str(error))
        await asyncio.sleep(_PAUSE_S)

    # Looking

    @property
    def failed(self) -> int:
        """Requests that ended with an error, however often they were tried."""
        return self.failed_gets + len(self.unknown)

    @property
    def acknowledged(self) -> int:
        return len(self.puts)

    def longest_silence_s(self, since: float) -> float:
        """The longest time without an answered write, from a moment on until now."""
        moments = [since, *(each.ended for each in self.puts if each.ended > since), self.clock()]
        return max(after - before for before, after in itertools.pairwise(moments))

    def slowest_ms(self, share: float, since: float = 0.0, until: float = float("inf")) -> float:
        """Milliseconds within which this share of the requests was answered; 0 where there were none."""
        took = sorted(each.took_s for each in [*self.puts, *self.gets] if since <= each.ended < until)
        return took[min(len(took) - 1, int(len(took) * share))] * 1000 if took else 0.0

    def __str__(self) -> str:
        again = f", {self.repeated} written again" if self.repeated else ""
        return f"{len(self.puts):,} writes and {len(self.gets):,} reads at QUORUM{again}, {self.failed} failed"
