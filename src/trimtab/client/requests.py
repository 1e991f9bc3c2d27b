"""What the table of either client makes its requests with: arguments checked, defaults filled in, messages prepared.

A request is prepared where it is made, in the caller's own thread or task, so that the event loop has little to do.
What does not fit the schema as it is known (a table, a column, a value) is left to the session, which looks first
whether that is old: what does not fit then either is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from trimtab.catalog.schema import Table as Schema
from trimtab.client.asks import Ask
from trimtab.client.consistency import (
    Consistency,
    checked_columns,
    checked_limit,
    checked_row,
    checked_stamp,
    checked_timeout,
    checked_ttl,
    iterated,
    level_of,
)
from trimtab.client.errors import InvalidRequest
from trimtab.client.known import Known, table_name
from trimtab.client.many import RowBatches
from trimtab.client.paging import Pages, ScanPages, SlicePages
from trimtab.client.reads import Get, GetSome, Scan, Slice, Span
from trimtab.client.session import Session
from trimtab.client.writes import Delete, Put, PutSome
from trimtab.tablets.consistency import Level

PAGE_ROWS = 1_000
A = TypeVar("A", bound=Ask[Any])

Key = Mapping[str, Any]
MANY_ROWS = "rows are given as mappings of their columns, [{'id': 1}, …], or by what yields such"


class TableRequests:
    """Of one table, with the defaults that its handle was made with."""

    def __init__(self, session: Session, name: str, consistency: Consistency | Level, timeout_s: float) -> None:
        table_name(name)
        self._session = session
        self._level = level_of(consistency)
        self._timeout_s = timeout_s
        self.name = name

    def __repr__(self) -> str:
        return f"<Table {self.name}, {self._level.name}>"

    @property
    def schema(self) -> Schema:
        """The table as it was declared, as far as this client knows; NotFound if it knows of none."""
        return self._session.known.table(self.name)

    def _read_level(self, consistency: Consistency | None) -> Level:
        if consistency is None and self._level is not Level.ANY:
            return self._level
        return level_of(self._level if consistency is None else consistency, reads=True)

    # One row

    def _get(
        self,
        key: Key,
        columns: Sequence[str] | None,
        meta: bool,
        consistency: Consistency | None,
        timeout: float | None,
        as_of: int | None,
    ) -> Get:
        ask = Get(
            self.name,
            key,
            None if columns is None else checked_columns(columns),
            self._session.stamps,
            self._read_level(consistency),
            0 if as_of is None else checked_stamp(as_of, "as_of"),
            bool(meta),
            self._timeout_s if timeout is None else checked_timeout(timeout, 0),
        )
        return prepared(ask, self._session.known)

    def _put(
        self,
        row: Mapping[str, Any],
        update: bool,
        ttl: int | None,
        timestamp: int | None,
        consistency: Consistency | None,
        timeout: float | None,
    ) -> Put:
        ask = Put(
            self.name,
            checked_row(row),
            update,
            None if ttl is None else checked_ttl(ttl),
            self._session.stamps,
            self._level if consistency is None else level_of(consistency),
            0 if timestamp is None else checked_stamp(timestamp),
            self._timeout_s if timeout is None else checked_timeout(timeout, 0),
        )
        return prepared(ask, self._session.known)

    def _delete(
        self,
        key: Key,
        columns: Sequence[str],
        span: Span | None,
        timestamp: int | None,
        consistency: Consistency | None,
        timeout: float | None,
    ) -> Delete:
        ask = Delete(
            self.name,
            key,
            checked_columns(columns) or (),
            span,
            self._session.stamps,
            self._level if consistency is None else level_of(consistency),
            checked_stamp(timestamp),
            checked_timeout(timeout, self._timeout_s),
        )
        return prepared(ask, self._session.known)

    # Many rows

    def _row_batches(
        self,
        update: bool,
        ttl: int | None,
        timestamp: int | None,
        consistency: Consistency | None,
        timeout: float | None,
    ) -> RowBatches:
        ttl_s, stamp_us = checked_ttl(ttl), checked_stamp(timestamp)
        level = self._level if consistency is None else level_of(consistency)
        timeout_s = checked_timeout(timeout, self._timeout_s)
        session = self._session

        def make() -> PutSome:
            return PutSome(self.name, update, ttl_s, session.stamps, level, stamp_us, timeout_s)

        return RowBatches(self.name, lambda: session.known, session.members, make)

    def _key_asks(
        self,
        columns: Sequence[str] | None,
        meta: bool,
        consistency: Consistency | None,
        timeout: float | None,
        as_of: int | None,
    ) -> Callable[[], GetSome]:
        level, names, with_meta = self._read_level(consistency), checked_columns(columns), bool(meta)
        as_of_us = checked_stamp(as_of, "as_of")
        timeout_s = checked_timeout(timeout, self._timeout_s)
        stamps = self._session.stamps
        return lambda: GetSome(self.name, names, stamps, level, as_of_us, with_meta, timeout_s)

    # Rows in order

    def _slice(
        self,
        key: Key,
        span: Span,
        columns: Sequence[str] | None,
        limit: int | None,
        reverse: bool,
        meta: bool,
        page_rows: int,
        consistency: Consistency | None,
        timeout: float | None,
        as_of: int | None,
    ) -> tuple[Pages, Ask[Any]]:
        level, names, with_meta = self._read_level(consistency), checked_columns(columns), bool(meta)
        as_of_us = checked_stamp(as_of, "as_of")
        timeout_s, stamps, backwards = checked_timeout(timeout, self._timeout_s), self._session.stamps, bool(reverse)

        def make(rows: int, page: bytes) -> Slice:
            return Slice(
                self.name, key, span, names, rows, backwards, page, stamps, level, as_of_us, with_meta, timeout_s
            )

        pages = SlicePages(make, checked_limit(limit), _page_rows(page_rows))
        return pages, self._first(pages)

    def _scan(
        self,
        columns: Sequence[str] | None,
        limit: int | None,
        tokens: tuple[int | None, int | None],
        meta: bool,
        page_rows: int,
        consistency: Consistency | None,
        timeout: float | None,
        as_of: int | None,
    ) -> tuple[Pages, Ask[Any]]:
        level, names, with_meta = self._read_level(consistency), checked_columns(columns), bool(meta)
        as_of_us = checked_stamp(as_of, "as_of")
        timeout_s, stamps = checked_timeout(timeout, self._timeout_s), self._session.stamps

        def make(first: int | None, last: int | None, rows: int, page: bytes, epoch: int) -> Scan:
            return Scan(self.name, names, first, last, rows, page, epoch, stamps, level, as_of_us, with_meta, timeout_s)

        pages = ScanPages(make, self._session, self.name, tokens, checked_limit(limit), _page_rows(page_rows))
        return pages, self._first(pages)

    def _first(self, pages: Pages) -> Ask[Any]:
        ask = pages.next()
        assert ask is not None, "there is always a first page"
        return prepared(ask, self._session.known)

    def _following(self, pages: Pages) -> Ask[Any] | None:
        ask = pages.next()
        return None if ask is None else prepared(ask, self._session.known)


def _page_rows(rows: int) -> int:
    return checked_limit(rows, "page_rows") or PAGE_ROWS


def prepared(ask: A, known: Known) -> A:
    # Else the session looks at the schema again, and then prepares it.
    with suppress(InvalidRequest):
        ask.prepare(known)
    return ask


def key_of(key: Key | None, named: Mapping[str, Any]) -> Key:
    """A key given as a mapping, by its columns' names, or as some of both."""
    if key is None:
        return named
    if not isinstance(key, Mapping):
        raise InvalidRequest(f"a key is given by its columns' names: get(id=1), or get({{'id': 1}}), not {key!r}")
    return {**key, **named} if named else key


def keys_of(keys: Iterable[Key]) -> list[Key]:
    expected = "keys are given as mappings of their columns: [{'id': 1}, …]"
    listed = list(iterated(keys, expected))
    for key in listed:
        if key.__class__ is not dict and not isinstance(key, Mapping):
            raise InvalidRequest(f"{expected}, not {key!r}")
    return listed
