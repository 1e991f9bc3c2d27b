"""The loads as seen through the metastore: what is visible, what is hidden, and what can't be read."""

from __future__ import annotations

from tests.unit.loads.ledger import USERS, Ledger

from trimtab.loads.records import SCAN_LIFE_MS, EpochRecord, LoadKind, encode, epoch_key, load_key, session_key
from trimtab.loads.view import LoadView


def test_a_table_without_loads_is_at_epoch_zero_of_its_first_generation() -> None:
    view = LoadView()
    assert (view.visible(7), view.generation(7), view.generations(7)) == (0, 1, frozenset({1}))
    assert view.hidden(7, 0) == frozenset() and view.needed(7, 0) == 0 and view.readable(7, 0, 1)
    assert view.oldest_unsettled_us(7, 1) is None and view.of_table(7) == []


def test_the_view_is_the_same_whether_changes_came_one_by_one_or_at_once() -> None:
    ledger = Ledger()
    ledger.publish("a")
    ledger.publish("b", LoadKind.OVERWRITE)
    ledger.begin("c")
    ledger.commit("c", 1, 2, 3)
    ledger.begin("d")
    ledger.abort("d")
    fresh = LoadView()
    fresh.load([(key, value, revision) for key, (value, revision) in ledger.store.items()])
    for each in ("loads", "epochs", "sessions", "revisions", "unreadable", "open_loads"):
        assert getattr(fresh, each) == getattr(ledger.loads, each), each
    assert fresh.of_table(USERS) == ledger.loads.of_table(USERS) and fresh.tables == {USERS}
    assert set(fresh.open_loads) == {(USERS, "c")}


def test_rows_of_a_load_are_unsettled_until_no_scan_can_have_to_leave_them_out() -> None:
    ledger = Ledger()
    ledger.begin("a")
    assert ledger.loads.oldest_unsettled_us(USERS, ledger.now_ms) is None
    stamp = ledger.commit("a", 1, 2, 3).stamp_us
    assert ledger.loads.oldest_unsettled_us(USERS, ledger.now_ms + 10 * SCAN_LIFE_MS) == stamp
    ledger.adopt("a", 1, 2, 3)
    assert ledger.loads.oldest_unsettled_us(USERS, ledger.now_ms + SCAN_LIFE_MS - 1) == stamp
    assert ledger.loads.oldest_unsettled_us(USERS, ledger.now_ms + SCAN_LIFE_MS) is None


def test_nothing_of_the_time_before_an_overwrite_is_in_what_it_brought() -> None:
    ledger = Ledger()
    ledger.publish("a")
    assert ledger.loads.whole_since_us(USERS) == 0
    over = ledger.publish("b", LoadKind.OVERWRITE)
    assert ledger.loads.whole_since_us(USERS) == over.published_ms * 1000 > 0
    ledger.publish("c")
    assert ledger.loads.whole_since_us(USERS) == over.published_ms * 1000
    ledger.rollback("b")
    assert ledger.loads.whole_since_us(USERS) == 0


def test_a_scan_may_read_at_the_epoch_it_began_with_for_a_while() -> None:
    ledger = Ledger()
    ledger.publish("a")
    ledger.publish("b")
    now = ledger.now_ms
    readable = ledger.loads.readable
    assert readable(USERS, 2, now + 10 * SCAN_LIFE_MS) and readable(USERS, 1, now)
    assert not readable(USERS, 1, now + SCAN_LIFE_MS) and not readable(USERS, 3, now)
    ledger.put({}, [load_key(USERS, "b")])
    assert not readable(USERS, 1, now)


def test_what_cannot_be_read_stays_as_it_was_and_is_told() -> None:
    ledger = Ledger()
    load = ledger.begin("a")
    key = load_key(USERS, "a")
    ledger.put({key: b"{"})
    assert ledger.loads.loads[USERS, "a"] == load and key in ledger.loads.unreadable
    assert ledger.loads.revisions[key] == ledger.revision
    ledger.put({load_key(USERS, "b"): encode(load)})
    assert "it holds load a" in ledger.loads.unreadable[load_key(USERS, "b")]
    ledger.put({b"loads/x": b"{}", b"epochs/x": b"{}", session_key("s"): b"[]", epoch_key(USERS): b"[]"})
    assert len(ledger.loads.unreadable) == 6
    ledger.put({}, [key, load_key(USERS, "b"), b"loads/x", b"epochs/x", session_key("s"), epoch_key(USERS)])
    assert not ledger.loads.unreadable and not ledger.loads.loads and not ledger.loads.open_loads


def test_records_have_room_for_new_fields() -> None:
    view = LoadView()
    view.change(epoch_key(3), b'{"committed":4,"visible":4,"new":true}', 1)
    assert view.epochs[3] == EpochRecord(4, 4) and view.visible(3) == 4
