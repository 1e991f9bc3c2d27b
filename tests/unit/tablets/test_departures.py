"""Who goes, who is lost, what is bound to an instance, and whether the others can hold it."""

from __future__ import annotations

import msgspec
from tests.unit.topology.clusters import everybody, gone, member, nobody, view_of

from trimtab.catalog.commands import ColumnSpec, CreateKeyspace, CreateTable
from trimtab.tablets.changes import plan_change
from trimtab.tablets.departures import (
    asked_to_go,
    bound,
    bound_text,
    going,
    keepers,
    lost,
    only_copies,
    stays_because,
    too_few,
)
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import TabletTransition, TransitionKind, encode, transition_key
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import RequestKind, RequestRecord, RequestState
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

LEAVE, REMOVE = RequestKind.LEAVE, RequestKind.REMOVE
DOWN = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))
NOW_MS = 1_000_000


def tables_of(view: View, *replicas: tuple[int, ...], replication: int | dict[str, int] = 2) -> TableView:
    """`shop.users`, with one tablet for each of these sets."""
    tables = TableView()
    for command in (
        CreateKeyspace("shop", replication),
        CreateTable("shop", "users", [ColumnSpec("id", "bigint")], ["id"], tablets=len(replicas)),
    ):
        for key, value in plan_change(view, tables, command, "", NOW_MS).puts.items():
            tables.change(key, value, 1)
    tables.change(chunk_key(1, 0), pack(list(replicas)), 2)
    return tables


def test_who_goes_is_whoever_was_asked_and_has_not_been_asked_to_stay() -> None:
    view = view_of(
        *(member(number) for number in range(1, 6)),
        requests={
            1: RequestRecord(LEAVE, raft_id=1, state=RequestState.DONE),
            2: RequestRecord(LEAVE, raft_id=2),
            3: RequestRecord(REMOVE, raft_id=3, state=RequestState.RUNNING),
            4: RequestRecord(LEAVE, raft_id=4, state=RequestState.RUNNING, cancel="no"),
            5: RequestRecord(RequestKind.REBUILD, raft_id=5),
        },
    )
    assert going(view) == {2: LEAVE, 3: REMOVE}
    assert asked_to_go(view) == {2: 2, 3: 3}


def lost_of(
    view: View, now_ms: int, alive: object = nobody, heal_after_ms: int = 600_000, office_ms: int = 60_000
) -> set[int]:
    return set(lost(view, now_ms, heal_after_ms, in_office_ms=office_ms, alive=alive))  # type: ignore[arg-type]


def test_an_instance_is_lost_when_it_was_down_for_long_enough() -> None:
    view = view_of(member(1), member(2, grades=DOWN, down_ms=NOW_MS), gone(3))
    assert lost_of(view, NOW_MS + 599_999) == {3}
    assert lost_of(view, NOW_MS + 600_000) == {2, 3}
    assert lost_of(view, NOW_MS + 600_000, everybody) == {3}, "it is back, and climbs"
    assert lost_of(view, NOW_MS - 10**9) == {3}, "a clock that was set back heals nothing"


def test_where_nobody_noted_since_when_it_is_down_it_counts_from_the_leaders_office() -> None:
    view = view_of(member(1), member(2, grades=DOWN))
    assert lost_of(view, NOW_MS, office_ms=599_999) == set()
    assert lost_of(view, NOW_MS, office_ms=600_000) == {2}


def test_nobody_waits_for_one_that_is_removed_or_to_be_ignored() -> None:
    down = member(2, grades=DOWN, down_ms=NOW_MS)
    view = view_of(member(1), down, requests={1: RequestRecord(REMOVE, raft_id=2)})
    assert lost_of(view, NOW_MS) == {2}
    assert lost_of(view, NOW_MS, everybody) == set()
    other = member(3, grades=DOWN, down_ms=NOW_MS)
    view = view_of(member(1), down, other, requests={1: RequestRecord(REMOVE, raft_id=3, ignore=[2])})
    assert lost_of(view, NOW_MS) == {2, 3}
    cancelled = msgspec.structs.replace(view.requests[1], cancel="no", ignore=[])
    assert lost_of(view_of(member(1), down, other, requests={1: cancelled}), NOW_MS) == set()


def test_bound_are_replicas_copies_on_their_way_and_what_has_yet_to_be_dropped() -> None:
    view = view_of(*(member(number) for number in range(1, 7)))
    tables = tables_of(view, (1, 2), (1, 2))
    assert [bound(tables, raft_id) for raft_id in range(1, 7)] == [2, 2, 0, 0, 0, 0]
    moving = TabletTransition((1, 3), TransitionKind.MIGRATION, planned=(1, 4), leftovers=(5,))
    tables.change(transition_key(1, 0), encode(moving), 3)
    assert [bound(tables, raft_id) for raft_id in range(1, 7)] == [2, 2, 1, 1, 1, 0]
    assert bound_text(tables, 2) == "2 tablet replicas of shop.users (2)"
    assert bound_text(tables, 3) == "1 tablet on the way to it or back"
    assert bound_text(tables, 6) == ""
    # Who leaves is bound until the new set is the stable one.
    cleaned = msgspec.structs.replace(moving, stage=Stage.END_MIGRATION, planned=(), leftovers=())
    tables.change(transition_key(1, 0), encode(cleaned), 4)
    assert bound(tables, 2) == 2


def test_keepers_have_their_place_and_are_not_to_lose_it() -> None:
    view = view_of(
        member(1),
        member(2, state=NodeState.REBUILDING),
        member(3, state=NodeState.BOOTSTRAPPING),
        member(4, state=NodeState.DECOMMISSIONING),
        member(5, grades=DOWN),
        gone(6),
        member(7),
    )
    assert [node.name for node in keepers(view, {7})] == ["i1", "i2", "i5"]


def test_too_few_is_told_with_every_keyspace_that_it_concerns() -> None:
    view = view_of(member(1), member(2), member(3))
    tables = tables_of(view, (1, 2), replication=2)
    assert too_few(tables, keepers(view, ())) is None
    assert too_few(tables, keepers(view, {3})) is None
    text = too_few(tables, keepers(view, {2, 3}))
    assert text is not None
    assert text.startswith("keyspace shop: data centre dc1 needs 2 distinct hosts for 2 replicas and has 1: i1")


def test_two_instances_on_one_host_are_one() -> None:
    on = [member(number, failure_domain={"host": f"h{number // 2}"}) for number in range(1, 6)]
    view = view_of(*on)  # h0: i1; h1: i2, i3; h2: i4, i5
    tables = tables_of(view, (1, 2, 4), replication=3)
    assert stays_because(view, tables, 2, LEAVE) is None, "i3 is on the same host"
    assert "has 2: h1 (i2, i3), h2 (i4, i5)" in str(stays_because(view, tables, 1, LEAVE))


def test_who_has_nothing_stays_where_its_host_is_needed() -> None:
    view = view_of(member(1), member(2), member(3))
    tables = tables_of(view, (1, 2), replication=2)
    assert stays_because(view, tables, 3, LEAVE) is None
    assert "has 1: i1" in str(stays_because(view, tables, 3, LEAVE, gone={2}))


def test_other_data_centres_keep_nobody() -> None:
    view = view_of(
        member(1), member(2), member(3, failure_domain={"dc": "dc2"}), member(4, failure_domain={"dc": "dc2"})
    )
    tables = tables_of(view, (1, 2, 3), replication={"dc1": 2, "dc2": 1})
    assert stays_because(view, tables, 3, LEAVE, gone={1, 2}) is None, "dc1 is short of hosts, but that is no matter"
    assert "data centre dc1 needs 2" in str(stays_because(view, tables, 1, LEAVE))
    assert "data centre dc2 needs 1 distinct hosts" in str(stays_because(view, tables, 3, LEAVE, gone={4}))


def test_only_copies_are_those_of_which_no_member_has_another() -> None:
    view = view_of(member(1), member(2, grades=DOWN), member(3, grades=DOWN), gone(4))
    tables = tables_of(view, (2,), (2, 3), (2, 4), (1, 2), replication=1)
    assert only_copies(view, tables, 2) == "the only copy of 2 tablets of shop.users (2)"
    assert only_copies(view, tables, 3) == ""
    assert "has the only copy of 2 tablets" in str(stays_because(view, tables, 2, REMOVE))
    assert stays_because(view, tables, 2, LEAVE) is None
