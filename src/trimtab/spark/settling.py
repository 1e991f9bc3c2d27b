"""What becomes of a load's rejected rows, by what became of the load: the record of the load decides, never a guess.

An answer may be lost, or a driver killed, between any two steps. So nothing is removed but what a record says does not
count; where nobody answers, the next load of the table that rejects rows to the same place sees to it. Nothing here can
fail a load: it is too late for that, or too early.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from trimtab.catalog.schema import Table
from trimtab.client.errors import Error
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.spark import rejecting


class Records(Protocol):
    """The part of the cluster that knows loads."""

    def show(self, table: int, id: str) -> LoadRecord | None: ...


def settle_rejects(path: str, table: Table, id: str) -> None:
    """The load is committed; what it rejected is in place already."""
    # What can't be removed now is passed over by readers, and swept by the next load.
    with suppress(OSError):
        rejecting.settle(path, rejecting.name_of(table.full_name, id))


def drop_rejects(records: Records, path: str, table: Table, id: str) -> None:
    """A load was given up: what it rejected goes, unless it was committed after all, or nobody knows."""
    with suppress(Error, OSError):
        record = records.show(table.id, id)
        if record is None or record.state is LoadState.ABORTED:
            rejecting.drop(path, rejecting.name_of(table.full_name, id))


def tidy_refused(records: Records, path: str, table: Table, id: str) -> None:
    """A load was not begun: nothing stays of the attempt, nor of an earlier one that was aborted."""
    name = rejecting.name_of(table.full_name, id)
    with suppress(Error, OSError):
        record = records.show(table.id, id)
        if record is not None and record.state is LoadState.ABORTED:
            rejecting.drop(path, name)
        else:
            rejecting.take_back(path, name)


def sweep_rejects(records: Records, path: str, table: Table, id: str) -> None:
    """Finish what drivers that were killed left there of other loads of the table."""
    with suppress(Error, OSError):
        rejecting.sweep(
            path,
            table.full_name,
            rejecting.name_of(table.full_name, id),
            lambda other: records.show(table.id, other),
        )
