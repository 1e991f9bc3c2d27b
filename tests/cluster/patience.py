"""Patience with a cluster on a busy machine, where a test is not about that: an instance may lose its lease, or the
cluster its leader, for a moment.

It is bounded, and what was said last is told. Where the point is that no request fails, there is no patience.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import trimtab

T = TypeVar("T")
PATIENCE_S = 90.0
_PAUSE_S = 0.2
# What passes by itself. That a request makes no sense does not.
PASSING = (
    trimtab.Unavailable,
    trimtab.Timeout,
    trimtab.WriteFailed,
    trimtab.ReadFailed,
    trimtab.Overloaded,
    trimtab.VersionMismatch,
)


def patiently(work: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """The outcome of something that can be done twice without harm."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return work()
        except PASSING as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"refused for {timeout_s:g} s: {error}") from error
        time.sleep(_PAUSE_S)


def create_keyspace(db: trimtab.Database, name: str, replication: int | dict[str, int]) -> None:
    patiently(lambda: db.create_keyspace(name, replication=replication, if_not_exists=True))


def create_table(db: trimtab.Database, name: str, columns: dict[str, str], tablets: int) -> None:
    """Of which the first column is the key."""
    key = [next(iter(columns))]
    patiently(lambda: db.create_table(name, columns, primary_key=key, tablets=tablets, if_not_exists=True))


def put_rows(table: trimtab.Table, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows that a test begins with: writing them again does no harm."""
    kept = list(rows)
    assert patiently(lambda: table.put_many(kept)) == len(kept)


def scanned(table: trimtab.Table, **options: Any) -> list[dict[str, Any]]:
    """All rows of a table."""
    return patiently(lambda: list(table.scan(**options)))
