"""Writes that all replicas have: Spark reads one of them by itself, and a client is content with two of three."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import trimtab

T = TypeVar("T")
_WAIT_S = 120.0
_PAUSE_S = 0.1


class Everywhere:
    """A table whose writes are repeated until every replica has taken them: one may still be opened, or stand still."""

    def __init__(self, db: trimtab.Database, table: str) -> None:
        self._table = db.table(table, consistency="ALL")

    def put(self, row: dict[str, Any], **options: Any) -> int:
        return _until_done(lambda: self._table.put(row, **options))

    def update(self, row: dict[str, Any], **options: Any) -> int:
        return _until_done(lambda: self._table.update(row, **options))

    def delete(self, **key: Any) -> int:
        return _until_done(lambda: self._table.delete(**key))

    def delete_range(self, **key: Any) -> int:
        return _until_done(lambda: self._table.delete_range(**key))

    def put_many(self, rows: Iterable[dict[str, Any]]) -> int:
        given = list(rows)
        return _until_done(lambda: self._table.put_many(given))


def _until_done(write: Callable[[], T]) -> T:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return write()
        except (trimtab.Unavailable, trimtab.Timeout, trimtab.WriteFailed, trimtab.Overloaded):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
