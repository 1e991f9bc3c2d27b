"""Loads that are not settled: what a replica must not do to a table's rows while there are any.

stamps     some reader may still have to leave these rows out: they are not merged with others, when rows are
           folded or copied, for what was merged can't be left out any more
begun_ms   a deletion that arrived since may have to cover rows that are still being staged: it is not forgotten
"""

from __future__ import annotations

from trimtab.loads.records import SCAN_LIFE_MS, LoadState
from trimtab.loads.view import LoadView

# Beyond the time for which pages of a scan are answered: clocks differ, and a request takes its time.
MARGIN_MS = 60_000
NO_STAMPS: frozenset[int] = frozenset()


def unsettled_stamps(loads: LoadView, table: int, now_ms: int) -> frozenset[int]:
    """The stamps of loads that are not visible yet, or became visible so lately that a scan may not see them."""
    if table not in loads.epochs:
        return NO_STAMPS
    from_ms = now_ms - SCAN_LIFE_MS - MARGIN_MS
    return frozenset(
        load.stamp_us
        for load in loads.of_table(table)
        if load.epoch and (load.state is LoadState.COMMITTED or load.published_ms > from_ms)
    )


def unsettled_since_ms(loads: LoadView, table: int) -> int | None:
    """When the oldest session of a table began that is still open; None: there is none."""
    begun = [session.opened_ms for session in loads.sessions.values() if session.table == table]
    return min(begun, default=None)
