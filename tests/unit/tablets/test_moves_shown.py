"""How far tablets under way are, as whoever looks is told."""

from __future__ import annotations

import pytest
from tests.unit.tablets.moving_tables import USERS, MovingTables

from trimtab.tablets import move_shapes, moves_shown
from trimtab.tablets.moves_shown import JobShown, MovesShown, ShowMoves, shown
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, Proposal, RebalanceRecord, RebalanceState, encode, rebalance_key

HALF = JobShown("running", False, 50, 100, 10.0, 5.0)


@pytest.mark.parametrize(
    ("stage", "done"),
    [
        (Stage.ALLOW_WRITE_BOTH_READ_OLD, 0),
        (Stage.WRITE_BOTH_READ_OLD, 0),
        (Stage.STREAMING, 500),
        (Stage.WRITE_BOTH_READ_NEW, 1_000),
        (Stage.END_MIGRATION, 1_000),
        (Stage.CLEANUP_TARGET, 0),
    ],
)
def test_a_tablet_is_as_far_as_the_job_that_copies_it(stage: Stage, done: int) -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), stage, job=9, size_bytes=1_000)
    (move,) = shown(world.tables, job_of=lambda _number: HALF).moves
    assert (move.progress_bytes, move.total_bytes) == (done, 1_000)
    assert move.job_state == ("running" if stage is Stage.STREAMING else "")


def test_every_replica_that_arrives_counts_and_sizes_come_from_reports_where_nobody_planned_them() -> None:
    world = MovingTables()
    world.under_way(0, (4, 5, 3), Stage.STREAMING)
    (move,) = shown(world.tables, size_of=lambda _table, _tablet: 70).moves
    assert (move.total_bytes, move.arriving, move.leaving) == (140, (4, 5), (1, 2))


def test_only_what_is_asked_for_is_shown_and_it_survives_the_wire() -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.STREAMING, job=9)
    world.under_way(1, (4, 2, 3), Stage.USE_NEW)
    world.put({rebalance_key(USERS): encode(RebalanceRecord(RebalanceState.RUNNING, 1, 5))})
    coming = [
        Proposal(USERS, 2, (2, 3, 5), Cause.BALANCE, "", 9, 30),
        Proposal(USERS, 0, (5, 2, 3), Cause.BALANCE, "", 9),
    ]
    everything = shown(world.tables, proposals=coming, job_of=lambda _number: HALF)
    assert [(each.table, each.tablet) for each in everything.moves] == [(USERS, 0), (USERS, 1)]
    assert everything.names == {USERS: "shop.users"} and everything.rates == {USERS: 10.0}
    # Tablet 0 is under way already, so that it will move again is no news.
    assert [(each.tablets, each.bytes) for each in everything.upcoming] == [(1, 30)]
    assert moves_shown.decode_shown(moves_shown.encode(everything)) == everything
    one = shown(world.tables, table=USERS, only=1)
    assert [each.tablet for each in one.moves] == [1] and one.replicas == (1, 2, 3)
    assert shown(world.tables, table=77) == MovesShown()
    request = ShowMoves(USERS, tablet=1)
    assert moves_shown.decode_show(moves_shown.encode(request)) == request


def test_tablets_under_way_and_rebalances_are_tasks_with_all_fields() -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.STREAMING, job=9, size_bytes=1_000, why="i4 is new", began_ms=5)
    record = RebalanceRecord(RebalanceState.RUNNING, 1, 5, began_ms=5, moves=3, moved_bytes=3_000)
    world.put({rebalance_key(USERS): encode(record)})
    whole, one = move_shapes.tasks(shown(world.tables, job_of=lambda _number: HALF), {1: "i1", 4: "i4"})
    assert whole.keys() == one.keys()
    assert (whole["id"], whole["kind"], whole["state"]) == ("shop.users", "rebalance", "running")
    assert (whole["progress_tablets"], whole["total_tablets"]) == (3, 4)
    assert (whole["progress_bytes"], whole["total_bytes"], whole["eta_s"]) == (3_500, 4_000, 50.0)
    assert (one["id"], one["kind"], one["state"], one["phase"]) == (
        "shop.users:0",
        "migration",
        "running",
        "streaming",
    )
    assert (one["why"], one["instance_id"], one["eta_s"]) == ("i4 is new", "i4", 5.0)
    assert one["move"]["from"] == ["i1"]
    world.under_way(0, (4, 2, 3), Stage.CLEANUP_TARGET, error="i4 is down")
    undone = move_shapes.tasks(shown(world.tables), {})[1]
    assert (undone["state"], undone["cancelling"], undone["error"]) == ("undoing", "i4 is down", "i4 is down")


def test_a_task_of_a_tablet_has_a_name() -> None:
    assert move_shapes.place_of("shop.users:17") == ("shop.users", 17)
    assert move_shapes.place_of("shop.users/17") == ("shop.users", 17)
    assert move_shapes.place_of("shop.users") == ("shop.users", None)
    for wrong in (
        "users:17",
        "shop.users:",
        "shop.users:-1",
        "shop.users:x",
        "shop.users:1234567890",
        "",
        ":",
        "a.b.c",
    ):
        with pytest.raises(ValueError):
            move_shapes.place_of(wrong)
