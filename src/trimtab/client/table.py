"""A table as an asyncio application uses it.

    users = db.table("shop.users")
    await users.put({"id": 1, "name": "Ada"}, ttl=3600)
    row = await users.get(id=1)
    rows = await asyncio.gather(*(users.get(id=number) for number in range(100)))
    async for row in users.slice(id=1, limit=100): ...

Requests are sent when they are made, not when they are awaited, and cost no task. What does not fit the table is told
where it is awaited, because the schema may have to be looked at first; what fits no table, at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from trimtab.client.asks import Ask, Reply
from trimtab.client.consistency import Consistency, iterated
from trimtab.client.errors import InvalidRequest, TooLarge
from trimtab.client.many import KEYS_AT_ONCE, MAX_BATCHES, key_batches
from trimtab.client.paging import Pages
from trimtab.client.plans import Row
from trimtab.client.reads import GetSome, RowWithMeta, Span
from trimtab.client.requests import MANY_ROWS, PAGE_ROWS, Key, TableRequests, key_of, keys_of
from trimtab.client.tally import Tally


class Table(TableRequests):
    """Made by `db.table(name)`. Use it from the loop that the client was made on."""

    # One row

    @overload
    def get(
        self,
        key: Key | None = None,
        /,
        *,
        columns: Sequence[str] | None = None,
        with_meta: Literal[False] = False,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
        **key_columns: Any,
    ) -> Reply[Row | None]: ...

    @overload
    def get(
        self,
        key: Key | None = None,
        /,
        *,
        columns: Sequence[str] | None = None,
        with_meta: Literal[True],
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
        **key_columns: Any,
    ) -> Reply[RowWithMeta | None]: ...

    def get(
        self,
        key: Key | None = None,
        /,
        *,
        columns: Sequence[str] | None = None,
        with_meta: bool = False,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
        **key_columns: Any,
    ) -> Reply[Any]:
        """The row with this primary key, or None: `await users.get(id=1)`.

        `with_meta`: together with its cells' write times and remaining TTL. `as_of`: as it was at this time
        (microseconds since 1970), as far back as the table keeps its history.
        """
        wanted = key_columns if key is None else key_of(key, key_columns)
        return self._session.start(self._get(wanted, columns, with_meta, consistency, timeout, as_of))

    def put(
        self,
        row: Mapping[str, Any],
        *,
        ttl: int | None = None,
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Reply[int]:
        """Write a row: None deletes a cell, a column that is missing stays as it is. Gives the write's timestamp."""
        return self._session.start(self._put(row, False, ttl, timestamp, consistency, timeout))

    def update(
        self,
        row: Mapping[str, Any],
        *,
        ttl: int | None = None,
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> Reply[int]:
        """Write cells only: unlike after `put`, the row is gone when its last cell is."""
        return self._session.start(self._put(row, True, ttl, timestamp, consistency, timeout))

    def delete(
        self,
        key: Key | None = None,
        /,
        *,
        columns: Sequence[str] = (),
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        **key_columns: Any,
    ) -> Reply[int]:
        """Delete the row with this key, or some of its cells; with the beginning of a key, all rows that have it."""
        ask = self._delete(key_of(key, key_columns), columns, None, timestamp, consistency, timeout)
        return self._session.start(ask)

    def delete_range(
        self,
        key: Key | None = None,
        /,
        *,
        after: Any = None,
        since: Any = None,
        until: Any = None,
        before: Any = None,
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        **key_columns: Any,
    ) -> Reply[int]:
        """Delete the rows of a partition between two ends; see `slice` for how these are given."""
        span = Span(after, since, until, before)
        ask = self._delete(key_of(key, key_columns), (), span, timestamp, consistency, timeout)
        return self._session.start(ask)

    # Many rows

    async def put_many(
        self,
        rows: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        ttl: int | None = None,
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> int:
        """Write rows, many to a message and several messages at a time; how many were written.

        A later row with the same key wins. After an error some of the rows may be written: `error.rows_written` are
        for certain.
        """
        batches = self._row_batches(False, ttl, timestamp, consistency, timeout)
        if self.name not in self._session.known:
            await self._session.refresh(self._session.loop.time() + self._timeout_s)
        tally = Tally(self._session, batches)
        try:
            if isinstance(rows, AsyncIterable):
                async for row in rows:
                    if (full := await tally.added(row)) is not None:
                        await tally.send(full, MAX_BATCHES)
            else:
                for row in iterated(rows, MANY_ROWS):
                    if (full := await tally.added(row)) is not None:
                        await tally.send(full, MAX_BATCHES)
            for ask in batches.rest():
                await tally.send(ask, MAX_BATCHES)
        finally:
            await tally.drained()
        return tally.result()

    @overload
    async def get_many(
        self,
        keys: Iterable[Key],
        *,
        columns: Sequence[str] | None = None,
        with_meta: Literal[False] = False,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> list[Row | None]: ...

    @overload
    async def get_many(
        self,
        keys: Iterable[Key],
        *,
        columns: Sequence[str] | None = None,
        with_meta: Literal[True],
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> list[RowWithMeta | None]: ...

    async def get_many(
        self,
        keys: Iterable[Key],
        *,
        columns: Sequence[str] | None = None,
        with_meta: bool = False,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> list[Any]:
        """The rows with these primary keys, in the order of the keys; None where there is none."""
        listed = keys_of(keys)
        make = self._key_asks(columns, with_meta, consistency, timeout, as_of)
        session = self._session
        if self.name not in session.known:
            await session.refresh(session.loop.time() + self._timeout_s)
        found: list[Any] = []
        for begin in range(0, len(listed), KEYS_AT_ONCE):
            some = listed[begin : begin + KEYS_AT_ONCE]
            asks = await self._key_batches(some, make)
            replies = [session.start(ask) for ask in asks]
            rows: list[Any] = [None] * len(some)
            try:
                for ask, reply in zip(asks, replies, strict=True):
                    await self._fill(rows, ask, reply)
            finally:
                for reply in replies:
                    # Of several that fail one is raised; the others must not be called forgotten.
                    if reply.done() and not reply.cancelled():
                        reply.exception()
                    reply.cancel()
            found += rows
        return found

    async def _key_batches(self, keys: Sequence[Key], make: Callable[[], GetSome]) -> list[GetSome]:
        session, known = self._session, self._session.known
        try:
            return key_batches(known.plan(self.name), session.members, keys, make)
        except InvalidRequest:
            if not await session.look(known, session.loop.time() + self._timeout_s):
                raise
            return key_batches(session.known.plan(self.name), session.members, keys, make)

    async def _fill(self, rows: list[Any], ask: GetSome, reply: Reply[list[Any]]) -> None:
        try:
            ask.put_into(rows, await reply)
        except TooLarge:
            halves = ask.halves()
            if not halves:
                raise
            for half in halves:
                half.prepare(self._session.known)
                await self._fill(rows, half, self._session.start(half))

    # Rows in order

    @overload
    def slice(
        self,
        key: Key | None = None,
        /,
        *,
        after: Any = None,
        since: Any = None,
        until: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        columns: Sequence[str] | None = None,
        with_meta: Literal[False] = False,
        page_rows: int = PAGE_ROWS,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
        **key_columns: Any,
    ) -> AsyncIterator[Row]: ...

    @overload
    def slice(
        self,
        key: Key | None = None,
        /,
        *,
        after: Any = None,
        since: Any = None,
        until: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        columns: Sequence[str] | None = None,
        with_meta: Literal[True],
        page_rows: int = PAGE_ROWS,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
        **key_columns: Any,
    ) -> AsyncIterator[RowWithMeta]: ...

    def slice(
        self,
        key: Key | None = None,
        /,
        *,
        after: Any = None,
        since: Any = None,
        until: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        columns: Sequence[str] | None = None,
        with_meta: bool = False,
        page_rows: int = PAGE_ROWS,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
        **key_columns: Any,
    ) -> AsyncIterator[Any]:
        """Rows of one partition in the table's order (`reverse`: against it), read page by page as they are wanted.

        The key is that of the partition, and maybe the first clustering columns. Rows begin with the one `since` or
        `after` it and end with `until` or `before` it, all in the table's order: of a single clustering column its
        value, else a tuple of the first ones. `timeout` is for each page.
        """
        span = Span(after, since, until, before)
        pages, first = self._slice(
            key_of(key, key_columns),
            span,
            columns,
            limit,
            reverse,
            with_meta,
            page_rows,
            consistency,
            timeout,
            as_of,
        )
        return self._rows(pages, first)

    @overload
    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        after_token: int | None = None,
        until_token: int | None = None,
        with_meta: Literal[False] = False,
        page_rows: int = PAGE_ROWS,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> AsyncIterator[Row]: ...

    @overload
    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        after_token: int | None = None,
        until_token: int | None = None,
        with_meta: Literal[True],
        page_rows: int = PAGE_ROWS,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> AsyncIterator[RowWithMeta]: ...

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        after_token: int | None = None,
        until_token: int | None = None,
        with_meta: bool = False,
        page_rows: int = PAGE_ROWS,
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> AsyncIterator[Any]:
        """All rows, partition by partition in the order of their tokens, read page by page as they are wanted."""
        tokens = (after_token, until_token)
        pages, first = self._scan(columns, limit, tokens, with_meta, page_rows, consistency, timeout, as_of)
        return self._rows(pages, first)

    async def _rows(self, pages: Pages, first: Ask[Any]) -> AsyncIterator[Any]:
        coming: Reply[Any] | None = None
        ask: Ask[Any] | None = first
        begun = False
        try:
            while ask is not None or coming is not None:
                if coming is None:
                    assert ask is not None
                    coming = self._session.start(ask)
                reply, coming = coming, None
                rows = pages.take(await reply)
                ask = self._following(pages)
                if begun and ask is not None:
                    # Whoever has read a whole page reads on: the next one may come meanwhile.
                    coming, ask = self._session.start(ask), None
                begun = True
                for row in rows:
                    yield row
        finally:
            if coming is not None:
                coming.cancel()
