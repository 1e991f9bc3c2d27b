"""Rows that come in pages: which request comes next, and when there is none.

A slice goes on from the state that its last page ended with. A scan goes through the ring in segments, each of
neighbouring tablets that one member holds replicas of, so that whoever is asked reads its own data. All of them are
read at the epoch of the first page: a load that is published meanwhile is in none. If that takes so long that the epoch
can't be read any more, the scan ends with an error; what was given out already can't be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from trimtab.client.asks import Ask
from trimtab.client.errors import InvalidRequest
from trimtab.client.known import UnknownTable
from trimtab.client.members import Member, Members
from trimtab.client.reads import Page, Scan, Slice
from trimtab.client.session import Session
from trimtab.tablets.ring import MAX_TOKEN, MIN_TOKEN, last_token, tablets_between

Segment = tuple[int | None, int | None, Member | None]


class Pages(Protocol):
    def next(self) -> Ask[Any] | None:
        """The request for the next page; None: there is none."""

    def take(self, page: Page) -> list[Any]:
        """A page came: its rows, as many as are wanted."""


class SlicePages:
    """Of one partition."""

    def __init__(self, make: Callable[[int, bytes], Slice], limit: int | None, page_rows: int) -> None:
        self._make = make
        self._left = limit
        self._page_rows = page_rows
        self._state = b""
        self._done = False

    def next(self) -> Ask[Any] | None:
        if self._done:
            return None
        rows = self._page_rows if self._left is None else min(self._page_rows, self._left)
        return self._make(rows, self._state)

    def take(self, page: Page) -> list[Any]:
        rows = page.rows if self._left is None else page.rows[: self._left]
        if self._left is not None:
            self._left -= len(rows)
        self._state = page.state
        self._done = not page.state or self._left == 0
        return rows


class ScanPages:
    """Of a table, or the part of it between two tokens (the first exclusive)."""

    def __init__(
        self,
        make: Callable[[int | None, int | None, int, bytes, int], Scan],
        session: Session,
        name: str,
        tokens: tuple[int | None, int | None],
        limit: int | None,
        page_rows: int,
    ) -> None:
        for token in tokens:
            if token is not None and (not isinstance(token, int) or not MIN_TOKEN <= token <= MAX_TOKEN):
                raise InvalidRequest(f"a token is a whole number of 64 bits, not {token!r}")
        self._make = make
        self._left = limit
        self._page_rows = page_rows
        self._state = b""
        self._epoch = -1  # the newest
        self._segments = _segments(session, name, tokens)
        self._segment: Segment | None = next(self._segments, None)

    def next(self) -> Ask[Any] | None:
        if self._segment is None:
            return None
        first, last, member = self._segment
        rows = self._page_rows if self._left is None else min(self._page_rows, self._left)
        ask = self._make(first, last, rows, self._state, self._epoch)
        ask.prefer = member
        return ask

    def take(self, page: Page) -> list[Any]:
        rows = page.rows if self._left is None else page.rows[: self._left]
        if self._left is not None:
            self._left -= len(rows)
        self._state = page.state
        self._epoch = page.epoch
        if not page.state:
            self._segment = next(self._segments, None)
        if self._left == 0:
            self._segment = None
        return rows


def _segments(session: Session, name: str, tokens: tuple[int | None, int | None]) -> Iterator[Segment]:
    first, last = tokens
    try:
        table = session.known.table(name)
    except UnknownTable:
        yield first, last, None
        return
    low = first
    shared: list[Member] = []
    for tablet in tablets_between(first, last, table.tablets):
        holders = _near(session.members, table.id, tablet)
        still = [member for member in shared if member in holders] if shared else holders
        if shared and not still:
            end = last_token(tablet - 1, table.tablets)
            yield low, end, shared[0]
            low, still = end, holders
        shared = still
    yield low, last, shared[0] if shared else None


def _near(members: Members, table: int, tablet: int) -> list[Member]:
    holders = members.holding(table, tablet)
    return [member for member in holders if member.near] or list(holders)
