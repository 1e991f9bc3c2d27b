"""The tables as seen through the metastore: in order, whatever order records come in; what is unread is told."""

from __future__ import annotations

import pytest

from trimtab.catalog import keys, updates
from trimtab.catalog.schema import Column, ColumnKind
from trimtab.catalog.updates import Change, KeyspaceAdded, TableAdded, TableDropped, Update
from trimtab.tablets.records import chunk_key, entries
from trimtab.tablets.selectors import Stage
from trimtab.tablets.tablet_map import TabletMap
from trimtab.tablets.transitions import (
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    TransitionKind,
    rebalance_key,
    transition_key,
)
from trimtab.tablets.transitions import encode as encode_transition
from trimtab.tablets.view import TableView

COLUMNS = (Column(1, "id", "bigint", ColumnKind.PARTITION, 0), Column(2, "name", "text", ColumnKind.REGULAR, 0))
KEYSPACE = KeyspaceAdded("shop", {"dc1": 3})
USERS = TableAdded(1, "shop", "users", COLUMNS, 4)
ORDERS = TableAdded(2, "shop", "orders", COLUMNS, 2)


def update(version: int, *changes: Change, request: str = "") -> tuple[bytes, bytes]:
    return keys.update_key(version), updates.encode(Update(version, 1_000 + version, changes, request=request))


def version(number: int) -> tuple[bytes, bytes]:
    return keys.VERSION_KEY, keys.version_value(number)


def view_of(*pairs: tuple[bytes, bytes]) -> TableView:
    view = TableView()
    for revision, (key, value) in enumerate(pairs, start=1):
        view.change(key, value, revision)
    return view


def shop() -> TableView:
    replicas = [(1, 2, 3), (2, 3, 4), (3, 4, 1), (4, 1, 2)]
    return view_of(
        update(1, KEYSPACE, request="a"),
        update(2, USERS, request="b"),
        *entries(1, replicas).items(),
        update(3, ORDERS),
        *entries(2, [(5, 1), (1, 6)]).items(),
        version(3),
    )


def test_updates_make_the_schema_and_chunks_the_maps() -> None:
    view = shop()
    assert view.catalog.version == view.announced == 3 and not view.waits_for and not view.unreadable
    assert view.catalog.table("shop.users").id == 1
    assert view.maps[1].count == 4 and view.maps[1].replicas(1) == (2, 3, 4)
    sets = view.sets(1, 2)
    assert sets.writes == ((3, 4, 1),) and sets.reads == (3, 4, 1)
    assert view.made == {"a": 1, "b": 2}
    assert view.revisions[keys.VERSION_KEY] == 6
    with pytest.raises(KeyError):
        view.sets(1, 4)
    with pytest.raises(KeyError):
        view.sets(9, 0)
    assert view.map(9).count == 0


def test_what_an_instance_holds_is_counted_and_told() -> None:
    view = shop()
    assert view.held_by(1) == {1: [0, 2, 3], 2: [0, 1]}
    assert view.loads() == {1: 5, 2: 3, 3: 3, 4: 3, 5: 1, 6: 1}
    assert view.holdings(1) == "5 tablet replicas of shop.users (3), shop.orders (2)"
    assert view.holdings(6) == "1 tablet replica of shop.orders (1)"
    assert view.holdings(7) == "" and view.held_by(7) == {}


def test_updates_are_applied_in_order_whatever_order_they_come_in() -> None:
    view = view_of(version(3), update(3, ORDERS), update(2, USERS))
    assert view.catalog.version == 0
    assert "version 0 of 3: version 1 can't be applied (its update is not here)" in view.waits_for
    view.change(*update(1, KEYSPACE), 9)
    assert view.catalog.version == 3 and view.waits_for == ""


def test_an_update_that_can_not_be_read_is_not_skipped() -> None:
    newer = b'{"format": 2, "version": 2, "changes": [{"change": "magic"}]}'
    view = view_of(update(1, KEYSPACE), (keys.update_key(2), newer), update(3, ORDERS), version(3))
    assert view.catalog.version == 1
    assert "the schema stays at version 1 of 3" in view.waits_for and "format 2" in view.waits_for
    assert keys.update_key(2) in view.unreadable
    view.change(*update(2, USERS), 9)
    assert view.catalog.version == 3 and not view.unreadable and not view.waits_for


def test_an_update_that_does_not_fit_is_named_and_what_follows_waits() -> None:
    view = view_of(update(1, TableDropped(7)), update(2, KEYSPACE), version(2))
    assert view.catalog.version == 0
    assert keys.update_key(1) in view.unreadable and "version 1 can't be applied" in view.waits_for


def test_an_update_under_the_wrong_key_is_not_taken() -> None:
    view = view_of((keys.update_key(2), update(1, KEYSPACE)[1]))
    assert "holds the update to version 1" in view.unreadable[keys.update_key(2)]


def test_replicas_that_can_not_be_read_are_shown_and_the_old_ones_kept() -> None:
    view = shop()
    view.change(chunk_key(1, 0), b"\x09rest", 20)
    assert "format 9" in view.unreadable[chunk_key(1, 0)]
    assert view.maps[1].replicas(0) == (1, 2, 3)
    assert view.revisions[chunk_key(1, 0)] == 20, "a decision based on what was there must know"
    view.change(b"tablets/nonsense", b"x", 21)
    assert b"tablets/nonsense" in view.unreadable


def test_a_dropped_table_leaves_nothing_behind() -> None:
    view = shop()
    view.change(*update(4, TableDropped(1)), 20)
    view.change(chunk_key(1, 0), None, 20)
    assert view.catalog.find("shop.users") is None
    assert 1 not in view.maps and chunk_key(1, 0) not in view.revisions
    assert view.holdings(1) == "2 tablet replicas of shop.orders (2)"


def test_a_snapshot_stands_for_the_updates_before_it() -> None:
    before = shop()
    pieces = keys.snapshot_entries(before.catalog.snapshot())
    view = TableView()
    view.load(
        [
            *((key, value, 7) for key, value in pieces.items()),
            (*update(4, TableDropped(1), request="d"), 8),
            (*version(4), 8),
            *((key, value, 3) for key, value in entries(2, [(5, 1), (1, 6)]).items()),
            (b"instances/00000000000000000001", b"{}", 1),
        ]
    )
    assert view.catalog.version == 4 and list(view.catalog.tables) == [2] and view.made == {"d": 4}
    assert not view.unreadable and b"instances/00000000000000000001" not in view.revisions
    view.change(keys.update_key(4), None, 9)
    assert view.made == {} and view.catalog.version == 4


def test_a_damaged_snapshot_is_shown_and_nothing_is_guessed() -> None:
    view = TableView()
    view.load([(keys.snapshot_key(0), b"{]", 1), (*update(4, KEYSPACE), 2), (*version(4), 2)])
    assert view.catalog.version == 0 and keys.SNAPSHOT in view.unreadable
    assert "the schema stays at version 0 of 4" in view.waits_for


def test_loading_begins_anew() -> None:
    view = shop()
    view.load([])
    assert view == TableView()


def test_other_keys_are_nobodys_business_here() -> None:
    view = view_of((b"shop/users", b"1"), (b"topology/version", b"7"))
    assert view == TableView()


# Tablets that move


def moving(stage: Stage, *pending: int, tablet: int = 0, **fields: object) -> tuple[bytes, bytes]:
    record = TabletTransition(pending, TransitionKind.MIGRATION, stage, session="s", **fields)  # type: ignore[arg-type]
    return transition_key(1, tablet), encode_transition(record)


def test_who_holds_and_who_is_read_goes_by_the_stage() -> None:
    view = shop()
    assert view.held(1) is view.map(1) and view.reading(1) is view.map(1)
    expected = {
        Stage.ALLOW_WRITE_BOTH_READ_OLD: ((1, 2, 3, 4), (1, 2, 3)),
        Stage.STREAMING: ((1, 2, 3, 4), (1, 2, 3)),
        Stage.WRITE_BOTH_READ_NEW: ((1, 2, 3, 4), (1, 2, 4)),
        Stage.USE_NEW: ((1, 2, 3, 4), (1, 2, 4)),
        Stage.CLEANUP: ((1, 2, 4), (1, 2, 4)),
        Stage.END_MIGRATION: ((1, 2, 4), (1, 2, 4)),
        Stage.CLEANUP_TARGET: ((1, 2, 3), (1, 2, 3)),
    }
    for stage, (held, reading) in expected.items():
        view.change(*moving(stage, 1, 2, 4), 50)
        assert view.held(1).replicas(0) == held and view.reading(1).replicas(0) == reading
        assert view.held(1).replicas(1) == view.map(1).replicas(1) == (2, 3, 4)
        assert TabletMap.unpacked(view.held(1).packed()).digest() == view.held(1).digest()


def test_where_replicas_are_is_news_with_every_stage_and_every_end() -> None:
    view = shop()
    before = view.placed(1)
    view.change(*moving(Stage.STREAMING, 1, 2, 4), 50)
    assert view.placed(1) == 50 > before and view.placed(2) < 50
    view.change(transition_key(1, 0), None, 51)
    view.change(rebalance_key(1), encode_transition(RebalanceRecord(RebalanceState.RUNNING)), 51)
    assert view.placed(1) == 51


def test_a_move_that_can_not_be_read_leaves_the_sets_as_they_were() -> None:
    view = shop()
    key, value = moving(Stage.STREAMING, 1, 2, 4)
    view.change(key, value, 50)
    view.change(key, b'{"stage": "a_new_one"}', 51)
    assert key in view.unreadable and view.revisions[key] == 51
    assert view.sets(1, 0).writers == (1, 2, 3, 4)


def test_what_was_copied_once_does_not_arrive_again_when_it_goes_back() -> None:
    view = shop()
    view.change(*moving(Stage.STREAMING, 1, 2, 4), 50)
    assert view.arriving_at(4) == {(1, 0): "s"} and view.arriving_at(3) == {}
    view.change(*moving(Stage.WRITE_BOTH_READ_OLD, 1, 2, 4, locked=True), 51)
    assert view.arriving_at(4) == {} and view.sets(1, 0).writers == (1, 2, 3, 4)
