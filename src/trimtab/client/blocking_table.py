"""A table, and a batch, as a plain Python program uses them: every call waits for its answer.

    users = db.table("shop.users")
    users.put({"id": 1, "name": "Ada"}, ttl=3600)
    row = users.get(id=1)
    for row in users.slice(id=1, limit=100): ...

Any number of threads may use one. What is wrong with a request is told where it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from trimtab.client.asks import Ask
from trimtab.client.batch import BatchRequests
from trimtab.client.consistency import Consistency, iterated
from trimtab.client.errors import InvalidRequest, TooLarge
from trimtab.client.known import UnknownTable
from trimtab.client.loop_thread import LoopThread, Waiter
from trimtab.client.many import KEYS_AT_ONCE, MAX_BATCHES, key_batches
from trimtab.client.paging import Pages
from trimtab.client.plans import Row
from trimtab.client.reads import GetSome, RowWithMeta, Span
from trimtab.client.requests import MANY_ROWS, PAGE_ROWS, Key, TableRequests, key_of, keys_of
from trimtab.client.thread_tally import ThreadTally
from trimtab.client.writes import BatchedDelete, BatchedPut
from trimtab.tablets.consistency import Level


class Table(TableRequests):
    """Made by `db.table(name)`."""

    def __init__(self, thread: LoopThread, name: str, consistency: Consistency | Level, timeout_s: float) -> None:
        super().__init__(thread.session, name, consistency, timeout_s)
        self._thread = thread

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
    ) -> Row | None: ...

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
    ) -> RowWithMeta | None: ...

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
    ) -> Any:
        """The row with this primary key, or None: `users.get(id=1)`.

        `with_meta`: together with its cells' write times and remaining TTL. `as_of`: as it was at this time
        (microseconds since 1970), as far back as the table keeps its history.
        """
        wanted = key_columns if key is None else key_of(key, key_columns)
        return self._thread.ask(self._get(wanted, columns, with_meta, consistency, timeout, as_of))

    def put(
        self,
        row: Mapping[str, Any],
        *,
        ttl: int | None = None,
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> int:
        """Write a row: None deletes a cell, a column that is missing stays as it is. Gives the write's timestamp."""
        return self._thread.ask(self._put(row, False, ttl, timestamp, consistency, timeout))

    def update(
        self,
        row: Mapping[str, Any],
        *,
        ttl: int | None = None,
        timestamp: int | None = None,
        consistency: Consistency | None = None,
        timeout: float | None = None,
    ) -> int:
        """Write cells only: unlike after `put`, the row is gone when its last cell is."""
        return self._thread.ask(self._put(row, True, ttl, timestamp, consistency, timeout))

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
    ) -> int:
        """Delete the row with this key, or some of its cells; with the beginning of a key, all rows that have it."""
        ask = self._delete(key_of(key, key_columns), columns, None, timestamp, consistency, timeout)
        return self._thread.ask(ask)

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
    ) -> int:
        """Delete the rows of a partition between two ends; see `slice` for how these are given."""
        span = Span(after, since, until, before)
        return self._thread.ask(self._delete(key_of(key, key_columns), (), span, timestamp, consistency, timeout))

    # Many rows

    def put_many(
        self,
        rows: Iterable[Mapping[str, Any]],
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
        self._look()
        writing = ThreadTally(self._thread, batches)
        try:
            for row in iterated(rows, MANY_ROWS):
                if (full := writing.added(row)) is not None:
                    writing.send(full, MAX_BATCHES)
            for ask in batches.rest():
                writing.send(ask, MAX_BATCHES)
        finally:
            writing.drain()
        return writing.result()

    @overload
    def get_many(
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
    def get_many(
        self,
        keys: Iterable[Key],
        *,
        columns: Sequence[str] | None = None,
        with_meta: Literal[True],
        consistency: Consistency | None = None,
        timeout: float | None = None,
        as_of: int | None = None,
    ) -> list[RowWithMeta | None]: ...

    def get_many(
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
        self._look()
        found: list[Any] = []
        for begin in range(0, len(listed), KEYS_AT_ONCE):
            some = listed[begin : begin + KEYS_AT_ONCE]
            asks = self._key_batches(some, make)
            waiters = [self._thread.start(ask) for ask in asks]
            rows: list[Any] = [None] * len(some)
            for ask, waiter in zip(asks, waiters, strict=True):
                self._fill(rows, ask, waiter)
            found += rows
        return found

    def _key_batches(self, keys: Sequence[Key], make: Callable[[], GetSome]) -> list[GetSome]:
        known = self._session.known
        try:
            return key_batches(known.plan(self.name), self._session.members, keys, make)
        except InvalidRequest:
            if not self._thread.look(known):
                raise
            return key_batches(self._session.known.plan(self.name), self._session.members, keys, make)

    def _fill(self, rows: list[Any], ask: GetSome, waiter: Waiter) -> None:
        try:
            ask.put_into(rows, waiter.wait(ask))
        except TooLarge:
            halves = ask.halves()
            if not halves:
                raise
            for half in halves:
                half.prepare(self._session.known)
                self._fill(rows, half, self._thread.start(half))

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
    ) -> Iterator[Row]: ...

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
    ) -> Iterator[RowWithMeta]: ...

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
    ) -> Iterator[Any]:
        """Rows of one partition in the table's order (`reverse`: against it), read page by page as they are wanted.

        The key is that of the partition, and maybe the first clustering columns. Rows begin with the one `since` or
        `after` it and end with `until` or `before` it, all in the table's order: of a single clustering column its
        value, else a tuple of the first ones. `timeout` is for each page.
        """
        pages, first = self._slice(
            key_of(key, key_columns),
            Span(after, since, until, before),
            columns,
            limit,
            reverse,
            with_meta,
            page_rows,
            consistency,
            timeout,
            as_of,
        )
        return self._rows(pages, self._fitting(first))

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
    ) -> Iterator[Row]: ...

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
    ) -> Iterator[RowWithMeta]: ...

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
    ) -> Iterator[Any]:
        """All rows, partition by partition in the order of their tokens, read page by page as they are wanted."""
        tokens = (after_token, until_token)
        pages, first = self._scan(columns, limit, tokens, with_meta, page_rows, consistency, timeout, as_of)
        return self._rows(pages, self._fitting(first))

    def _rows(self, pages: Pages, first: Ask[Any]) -> Iterator[Any]:
        ask: Ask[Any] | None = first
        coming: Waiter | None = None
        begun = False
        while ask is not None:
            if coming is None:
                coming = self._thread.start(ask)
            rows = pages.take(coming.wait(ask))
            coming = None
            ask = self._following(pages)
            if begun and ask is not None:
                # Whoever has read a whole page reads on: the next one may come meanwhile.
                coming = self._thread.start(ask)
            begun = True
            yield from rows

    def _fitting(self, ask: Ask[Any]) -> Ask[Any]:
        """What is wrong with the first page is told when it is asked for, and not when it is read."""
        if not ask.ready:
            session = self._session
            self._thread.call(lambda: session.dispatcher.prepare(ask, session.loop.time() + ask.timeout_s))
        return ask

    def _look(self) -> None:
        """A table that is not known may be new."""
        session = self._session
        if self.name not in session.known:
            self._thread.call(lambda: session.refresh(session.loop.time() + self._timeout_s))


class Batch(BatchRequests):
    """`with db.batch() as batch: batch.put("shop.users", {...})`; sent at the end, unless an error came first."""

    def __init__(self, thread: LoopThread, logged: bool, level: Level, timestamp: int | None, timeout_s: float) -> None:
        super().__init__(thread.session, logged, level, timestamp, timeout_s)
        self._thread = thread

    def _check(self, part: BatchedPut | BatchedDelete) -> None:
        known = self._session.known
        try:
            part.request(known)
        except UnknownTable:
            pass  # it may be new: the batch is made when it is sent
        except InvalidRequest:
            if not self._thread.look(known):
                raise
            part.request(self._session.known)

    def execute(self) -> int:
        """Send it; the timestamp of all its writes (0 if there were none)."""
        ask = self._ask()
        return 0 if ask is None else self._thread.ask(ask)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._sent:
            self.execute()
