"""How a put_many goes: how many requests are under way, what has been written, what went wrong first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trimtab.client.asks import Ask
from trimtab.client.errors import Error, InvalidRequest
from trimtab.client.many import Placed, RowBatches
from trimtab.client.session import Session
from trimtab.client.writes import PutSome


class Tally:
    """The sink of all requests of one put_many, on the loop."""

    gone = False

    def __init__(self, session: Session, batches: RowBatches) -> None:
        self._session = session
        self._batches = batches
        self._under_way = 0
        self._written = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def added(self, row: Mapping[str, Any]) -> PutSome | None:
        """Take a row; a request that is full now. Raises what went wrong so far."""
        if self._error is not None:
            self.result()
        try:
            row, plan, cells, key = await self._placed(row)
        except Error as error:
            self._error = error
            self.result()
            raise
        if self._batches.conflicts(key, plan):
            for ask in self._batches.rest():
                await self.send(ask, 1 << 30)
            await self.drained()
            self._batches.forget()
        return self._batches.add(row, plan, cells, key)

    async def _placed(self, row: Mapping[str, Any]) -> Placed:
        known = self._session.known
        try:
            return self._batches.placed(row)
        except InvalidRequest:
            if not await self._session.look(known, self._session.loop.time() + self._session.timeout_s):
                raise
            return self._batches.placed(row)

    async def send(self, ask: PutSome, most: int) -> None:
        """Send a request when fewer than `most` are under way."""
        await self._below(most)
        if self._error is not None:
            self.result()
        ask.sink = self
        self._under_way += 1
        self._session.submit(ask)

    async def drained(self) -> None:
        """Wait until nothing is under way."""
        await self._below(1)

    def result(self) -> int:
        """How many rows were written, or the first error, which says so too."""
        if self._error is not None:
            raise told(self._error, self._written)
        return self._written

    async def _below(self, most: int) -> None:
        while self._under_way >= most:
            self._waiter = self._session.loop.create_future()
            await self._waiter

    # The sink

    def answered(self, ask: Ask[Any], body: bytes) -> None:
        assert isinstance(ask, PutSome)
        try:
            ask.read(body)
            self._written += len(ask.rows)
        except Exception as error:
            self._error = self._error or error
        self._ended(ask)

    def failed(self, ask: Ask[Any], error: Exception) -> None:
        self._error = self._error or error
        self._ended(ask)

    def _ended(self, ask: Ask[Any]) -> None:
        self._under_way -= 1
        self._batches.ended(ask)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def told(error: Exception, written: int) -> Exception:
    """The error of one request as that of the whole put_many."""
    if not isinstance(error, Error) or error.rows_written is not None:
        return error
    if isinstance(error, InvalidRequest) and not written:
        error.rows_written = 0
        return error
    made = type(error)(f"after {written} rows were written: {error}")
    made.__dict__.update(error.__dict__)
    made.rows_written = written
    made.__cause__ = error
    return made
