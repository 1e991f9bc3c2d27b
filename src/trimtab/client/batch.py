"""Several writes as one: collected here, sent together.

All of them get one timestamp. Those of one partition become visible together. A logged batch (the default) also happens
as a whole across partitions and tables, whoever dies meanwhile; an unlogged one costs less and may happen in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from trimtab.client.asks import Reply
from trimtab.client.consistency import (
    Consistency,
    checked_columns,
    checked_flag,
    checked_row,
    checked_stamp,
    checked_ttl,
    level_of,
)
from trimtab.client.errors import InvalidRequest
from trimtab.client.known import table_name
from trimtab.client.reads import Span
from trimtab.client.requests import Key, TableRequests, key_of, prepared
from trimtab.client.session import Session
from trimtab.client.writes import Batch, BatchedDelete, BatchedPut
from trimtab.tablets.consistency import Level


class BatchRequests:
    """What both kinds of batch share. Writes are collected, and made into one request by `execute`."""

    def __init__(
        self,
        session: Session,
        logged: bool,
        consistency: Consistency | Level,
        timestamp: int | None,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._logged = checked_flag(logged, "logged")
        self._level = level_of(consistency)
        self._timestamp_us = checked_stamp(timestamp)
        self._timeout_s = timeout_s
        self._parts: list[BatchedPut | BatchedDelete] = []
        self._sent = False

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, table: str | TableRequests, row: Mapping[str, Any], *, ttl: int | None = None) -> None:
        """Write a row."""
        self._add(BatchedPut(_name(table), checked_row(row), False, checked_ttl(ttl)))

    def update(self, table: str | TableRequests, row: Mapping[str, Any], *, ttl: int | None = None) -> None:
        """Write cells only: the row is gone when its last cell is."""
        self._add(BatchedPut(_name(table), checked_row(row), True, checked_ttl(ttl)))

    def delete(
        self,
        table: str | TableRequests,
        key: Key | None = None,
        /,
        *,
        columns: Sequence[str] = (),
        **key_columns: Any,
    ) -> None:
        """Delete a row, cells of it, or with the beginning of a key all rows that have it."""
        self._add(BatchedDelete(_name(table), key_of(key, key_columns), checked_columns(columns) or (), None))

    def delete_range(
        self,
        table: str | TableRequests,
        key: Key | None = None,
        /,
        *,
        after: Any = None,
        since: Any = None,
        until: Any = None,
        before: Any = None,
        **key_columns: Any,
    ) -> None:
        """Delete the rows of a partition between two ends."""
        self._add(BatchedDelete(_name(table), key_of(key, key_columns), (), Span(after, since, until, before)))

    def _add(self, part: BatchedPut | BatchedDelete) -> None:
        if self._sent:
            raise InvalidRequest("this batch was sent already; make another")
        self._check(part)
        self._parts.append(part)

    def _check(self, part: BatchedPut | BatchedDelete) -> None:
        """Raise what is wrong with a write at once, where the schema can be looked at for that."""

    def _ask(self) -> Batch | None:
        """The request; None if there is nothing to write."""
        if self._sent:
            raise InvalidRequest("this batch was sent already; make another")
        self._sent = True
        if not self._parts:
            return None
        ask = Batch(self._parts, self._logged, self._session.stamps, self._level, self._timestamp_us, self._timeout_s)
        return prepared(ask, self._session.known)


class AsyncBatch(BatchRequests):
    """`async with db.batch() as batch: batch.put("shop.users", {...})`; sent at the end, unless an error came first.

    What is wrong with a write is told by `execute`: the schema may have to be looked at for that.
    """

    def execute(self) -> Reply[int]:
        """Send it; gives the timestamp of all its writes (0 if there were none)."""
        ask = self._ask()
        if ask is not None:
            return self._session.start(ask)
        nothing: Reply[int] = Reply(loop=self._session.loop)
        nothing.set_result(0)
        return nothing

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._sent:
            await self.execute()


def _name(table: str | TableRequests) -> str:
    if isinstance(table, TableRequests):
        return table.name
    table_name(table)
    return table
