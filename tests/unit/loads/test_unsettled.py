from __future__ import annotations

from trimtab.loads.records import (
    SCAN_LIFE_MS,
    EpochRecord,
    LoadKind,
    LoadRecord,
    LoadState,
    SessionKind,
    SessionRecord,
    encode,
    epoch_key,
    load_key,
    session_key,
)
from trimtab.loads.unsettled import MARGIN_MS, unsettled_since_ms, unsettled_stamps
from trimtab.loads.view import LoadView

NOW_MS = 10 * SCAN_LIFE_MS


def view(*loads: LoadRecord) -> LoadView:
    made = LoadView()
    made.change(epoch_key(7), encode(EpochRecord(committed=9, visible=5)), 1)
    for load in loads:
        made.change(load_key(7, load.id), encode(load), 1)
    return made


def load(id: str, state: LoadState, stamp: int, *, epoch: int = 1, published_ms: int = 0) -> LoadRecord:
    return LoadRecord(id, 7, LoadKind.APPEND, state, stamp, epoch=epoch, published_ms=published_ms)


def test_rows_of_loads_that_some_reader_may_have_to_leave_out_are_not_settled() -> None:
    lately, long_ago = NOW_MS - SCAN_LIFE_MS, NOW_MS - SCAN_LIFE_MS - MARGIN_MS
    loads = view(
        load("staging", LoadState.STAGING, 999, epoch=0),
        load("committed", LoadState.COMMITTED, 1999),
        load("lately", LoadState.PUBLISHED, 2999, published_ms=lately),
        load("long-ago", LoadState.PUBLISHED, 3999, published_ms=long_ago),
        load("back", LoadState.ROLLED_BACK, 4999, published_ms=lately),
        load("aborted", LoadState.ABORTED, 5999, epoch=0),
    )
    assert unsettled_stamps(loads, 7, NOW_MS) == {1999, 2999, 4999}
    assert unsettled_stamps(loads, 8, NOW_MS) == frozenset()


def test_the_oldest_open_session_of_a_table_counts() -> None:
    loads = view()
    assert unsettled_since_ms(loads, 7) is None
    for id, table, opened_ms in (("a", 7, 30), ("b", 7, 20), ("c", 8, 10)):
        loads.change(session_key(id), encode(SessionRecord(SessionKind.LOAD, table, opened_ms)), 1)
    assert unsettled_since_ms(loads, 7) == 20
