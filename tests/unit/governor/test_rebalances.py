"""How a table's rebalance is noted where nothing moves: skipped, failed, well again; each once."""

from __future__ import annotations

import msgspec
from tests.unit.governor.holdings import Holding, holding

from trimtab.governor.rebalances import note_rebalances
from trimtab.governor.steps import Write
from trimtab.tablets.departures import Problem
from trimtab.tablets.transitions import (
    Cause,
    Proposal,
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    TransitionKind,
    encode,
    rebalance_key,
)

OFF = "balancing is off (`trimtab rebalance on`)"


def shop(*tables: str) -> Holding:
    world = holding(3)
    world.create(2, *tables)
    return world


def wants(world: Holding, cause: Cause = Cause.BALANCE, table: int = 1) -> None:
    world.proposals = (Proposal(table, 0, (1, 3), cause, "a test", world.revision),)


def off(world: Holding) -> None:
    world.settings = msgspec.structs.replace(world.settings, enabled=False)


def record(world: Holding, table: int = 1) -> RebalanceRecord | None:
    return world.tables.rebalances.get(table)


def test_a_skipped_trigger_is_kept_once_and_forgotten_when_nobody_wants_it() -> None:
    world = shop()
    off(world)
    wants(world)
    first = world.revision
    world.run()
    assert record(world) == RebalanceRecord(RebalanceState.IDLE, world.term, skipped=first, reason=OFF)
    assert world.events == [f"tablets of shop.users should be balanced, but: {OFF}"]
    wants(world)  # planned again, at a later revision
    before = world.revision
    world.run()
    assert world.revision == before
    world.proposals = ()
    world.run()
    assert record(world) == RebalanceRecord(RebalanceState.IDLE, world.term)


def test_what_does_not_ask_for_balance_is_not_skipped() -> None:
    world = shop()
    off(world)
    wants(world, Cause.HEAL)
    assert note_rebalances(world.state()) is None


def test_nothing_is_noted_before_the_planner_knows_everything() -> None:
    world = shop()
    off(world)
    wants(world)
    world.planned = False
    assert note_rebalances(world.state()) is None


def test_what_can_not_be_done_has_failed_until_it_is_mended() -> None:
    world = shop("users", "orders")
    world.problems = (Problem("no disk has room", 1), Problem("another reason", 1), Problem("of nobody"))
    world.run()
    found = record(world)
    assert found == RebalanceRecord(RebalanceState.FAILED, world.term, reason="no disk has room", ended_ms=world.now_ms)
    assert record(world, 2) is None
    assert world.events == ["tablets of shop.users can't be where they should be: no disk has room"]
    before = world.revision
    world.pass_time(5_000)
    assert world.revision == before, "it is written once"
    world.problems = (Problem("still no disk", 1),)
    world.run()
    found = record(world)
    assert found is not None and found.reason == "still no disk"
    world.problems = ()
    world.run()
    found = record(world)
    assert found is not None and (found.state, found.reason) == (RebalanceState.IDLE, "")
    assert world.events[-1] == "nothing keeps tablets of shop.users from where they should be any more"


def test_while_tablets_move_their_record_is_left_to_the_moves() -> None:
    world = shop()
    running = RebalanceRecord(RebalanceState.RUNNING, 1, began_ms=5)
    assert world.write(Write({}, {rebalance_key(1): encode(running)}))
    world.problems = (Problem("no disk has room", 1),)
    world.under_way(1, 0, TabletTransition((1, 3), TransitionKind.MIGRATION))
    assert note_rebalances(world.state()) is None
    world.place(1, 0, world.tables.maps[1].replicas(0))
    world.run()
    found = record(world)
    assert found is not None and found.state is RebalanceState.FAILED, "what was left could not be done"


def test_a_new_leader_finds_the_same_and_writes_nothing() -> None:
    world = shop()
    off(world)
    wants(world)
    world.problems = (Problem("no disk has room", 1),)
    world.run()
    found = record(world)
    assert found is not None
    assert (found.state, found.reason, bool(found.skipped)) == (RebalanceState.FAILED, "no disk has room", True)
    before = world.revision
    world.elect()
    world.run()
    assert world.revision == before


def test_records_of_tables_that_can_not_be_read_are_left_alone() -> None:
    world = shop()
    assert world.write(Write({}, {rebalance_key(1): b"{"}))
    world.problems = (Problem("no disk has room", 1),)
    assert note_rebalances(world.state()) is None
