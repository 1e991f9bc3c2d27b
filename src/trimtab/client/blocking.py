"""A cluster as a plain Python program uses it: `db = trimtab.connect("127.0.0.1:3301")`.

Every call waits for its answer. A Database may be used by any number of threads; close it in the end, or use it as
`with`. For asyncio there is `trimtab.aio`, with the same names.
"""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import Keyspace
from trimtab.catalog.schema import Table as Schema
from trimtab.client import database as aio
from trimtab.client.asks import Ask
from trimtab.client.batch import BatchRequests
from trimtab.client.consistency import Consistency, addresses_of, checked_timeout, level_of
from trimtab.client.contact import DEFAULT_TIMEOUT_S
from trimtab.client.definitions import PrimaryKey, Replication
from trimtab.client.dispatch import MAX_IN_FLIGHT, MAX_WAITING
from trimtab.client.errors import TooLarge
from trimtab.client.loop_thread import LoopThread, Waiter
from trimtab.client.many import KEYS_AT_ONCE, MAX_BATCHES, key_batches
from trimtab.client.operations import GetSome, RowWithMeta, Span
from trimtab.client.paging import Pages
from trimtab.client.plans import Row, TablePlan
from trimtab.client.requests import PAGE_ROWS, Key, TableRequests, key_of, keys_of
from trimtab.client.session import Session
from trimtab.client.thread_tally import ThreadTally
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
            for row in rows:
                if (full := writing.added(row)) is not None:
                    writing.send(full, MAX_BATCHES)
            for ask in batches.rest():
                writing.send(ask, MAX_BATCHES)
        finally:
            writing.drain()
        return writing.result()

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
        session = self._session
        found: list[Any] = []
        for begin in range(0, len(listed), KEYS_AT_ONCE):
            some = listed[begin : begin + KEYS_AT_ONCE]
            asks = key_batches(session.known.plan(self.name), session.members, some, make)
            waiters = [self._thread.start(ask) for ask in asks]
            rows: list[Any] = [None] * len(some)
            for ask, waiter in zip(asks, waiters, strict=True):
                self._fill(rows, ask, waiter)
            found += rows
        return found

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
        return self._rows(pages, first)

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
        return self._rows(pages, first)

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


class Database:
    """Made by `connect`."""

    def __init__(self, thread: LoopThread, consistency: Consistency) -> None:
        self._thread = thread
        self._consistency: Consistency = consistency
        self._aio = aio.Database(thread.session, consistency)
        self._finalizer = weakref.finalize(self, thread.abandon)
        self._finalizer.atexit = False

    def close(self) -> None:
        """End all connections; requests under way end with an Error."""
        self._thread.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Rows

    def table(self, name: str, *, consistency: Consistency | None = None, timeout: float | None = None) -> Table:
        """A table by its full name, `shop.users`, with the consistency level and timeout to use for it."""
        level = level_of(self._consistency if consistency is None else consistency)
        found = Table(self._thread, name, level, checked_timeout(timeout, self._thread.session.timeout_s))
        found._look()
        found.schema  # noqa: B018 (NotFound, if there is none)
        return found

    def batch(
        self,
        *,
        logged: bool = True,
        consistency: Consistency | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> Batch:
        """Several writes as one: `with db.batch() as batch: batch.put("shop.users", {...})`."""
        level = level_of(self._consistency if consistency is None else consistency)
        return Batch(self._thread, logged, level, timestamp, checked_timeout(timeout, self._thread.session.timeout_s))

    # Looking at the schema

    def refresh(self) -> None:
        """Look at the schema and the members now, and not only when a request finds that they have changed."""
        self._thread.call(self._aio.refresh)

    def keyspaces(self) -> dict[str, Keyspace]:
        """All keyspaces, by name."""
        return self._thread.call(self._aio.keyspaces)

    def tables(self, keyspace: str | None = None) -> dict[str, Schema]:
        """All tables by their full names, or those of one keyspace."""
        return self._thread.call(lambda: self._aio.tables(keyspace))

    @property
    def catalog(self) -> Catalog:
        """The whole schema, as this client knows it; `refresh` first for the newest."""
        return self._aio.catalog

    def plan(self, table: str) -> TablePlan:
        """A table's columns, keys and types, as this client knows it; NotFound if it knows of none."""
        return self._aio.plan(table)

    def tablets(self, table: str = "") -> list[dict[str, Any]]:
        """Every tablet, or those of one table: its tokens, its replicas, and the bytes of the largest of them.

        Instances report sizes every few seconds; `bytes` is None where nobody has yet, or the leader can't be asked.
        """
        return self._thread.call(lambda: self._aio.tablets(table))

    # Changing the schema. Each returns when every instance that is Online knows of it; the names of those that don't
    # yet, which is none as a rule.

    def create_keyspace(
        self,
        name: str,
        *,
        replication: Replication,
        mode: str = "eventual",
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> list[str]:
        """`replication`: a number of replicas, or by data centre {"dc1": 3, "dc2": 2}."""
        return self._thread.call(
            lambda: self._aio.create_keyspace(
                name, replication=replication, mode=mode, if_not_exists=if_not_exists, timeout=timeout
            )
        )

    def alter_keyspace(self, name: str, *, replication: Replication, timeout: float | None = None) -> list[str]:
        return self._thread.call(lambda: self._aio.alter_keyspace(name, replication=replication, timeout=timeout))

    def drop_keyspace(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        """With all its tables and types, and all rows in them."""
        return self._thread.call(lambda: self._aio.drop_keyspace(name, if_exists=if_exists, timeout=timeout))

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str],
        *,
        primary_key: PrimaryKey,
        order: Mapping[str, str] | None = None,
        static: Collection[str] = (),
        tablets: int | None = None,
        if_not_exists: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> list[str]:
        """A table `shop.users` with columns {"id": "bigint", …}.

        `primary_key`: ["a", "b"] is partition key a and clustering key b, [["a", "b"], "c"] partition key (a, b).
        `order`: {"b": "desc"}. `tablets`: a power of two; without it the cluster chooses. Options: comment,
        default_ttl_s, gc_grace_s, history_s, speculative_retry, extensions.
        """
        return self._thread.call(
            lambda: self._aio.create_table(
                name,
                columns,
                primary_key=primary_key,
                order=order,
                static=static,
                tablets=tablets,
                if_not_exists=if_not_exists,
                timeout=timeout,
                **options,
            )
        )

    def alter_table(
        self,
        name: str,
        *,
        add: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        static: Collection[str] = (),
        timeout: float | None = None,
        **options: Any,
    ) -> list[str]:
        """Add columns {"name": "type"}, drop some, rename key columns {"old": "new"}, change options."""
        return self._thread.call(
            lambda: self._aio.alter_table(
                name, add=add, drop=drop, rename=rename, static=static, timeout=timeout, **options
            )
        )

    def drop_table(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        """With all its rows."""
        return self._thread.call(lambda: self._aio.drop_table(name, if_exists=if_exists, timeout=timeout))

    def create_type(
        self, name: str, fields: Mapping[str, str], *, if_not_exists: bool = False, timeout: float | None = None
    ) -> list[str]:
        """A user type `shop.address` with fields {"street": "text", …}."""
        return self._thread.call(
            lambda: self._aio.create_type(name, fields, if_not_exists=if_not_exists, timeout=timeout)
        )

    def alter_type(
        self,
        name: str,
        *,
        add: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        return self._thread.call(lambda: self._aio.alter_type(name, add=add, rename=rename, timeout=timeout))

    def drop_type(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        return self._thread.call(lambda: self._aio.drop_type(name, if_exists=if_exists, timeout=timeout))


def connect(
    contact: str | Sequence[str],
    *,
    consistency: Consistency = "QUORUM",
    timeout: float = DEFAULT_TIMEOUT_S,
    datacenter: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    max_waiting: int = MAX_WAITING,
    tls: ssl.SSLContext | None = None,
) -> Database:
    """A client of the cluster that a member at `contact` ("a:1", or "a:1,b:2") belongs to; Unavailable if none answers.

    `consistency` and `timeout` (seconds) are defaults of everything it does. Replicas in `datacenter` are asked first.
    At most `max_in_flight` requests are under way and `max_waiting` wait; more are refused as Overloaded. Connect after
    a fork, not before: a client can't be used in another process than the one that made it.
    """
    addresses = addresses_of(contact)
    options = aio.checked_options(consistency, timeout, datacenter, max_in_flight, max_waiting, tls)
    thread = LoopThread()
    try:
        thread.session = thread.call(lambda: Session.open(addresses, **options))
    except BaseException:
        thread.abandon()
        raise
    return Database(thread, consistency)
