"""New targets as one write: what it changes, what it depends on."""

from __future__ import annotations

from tests.unit.tablets.moving_tables import USERS, MovingTables

from trimtab.tablets import transitions
from trimtab.tablets.move_changes import MovesWrite, begun_write, running
from trimtab.tablets.records import chunk_key
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import (
    Cause,
    Outcome,
    Proposal,
    RebalanceRecord,
    RebalanceState,
    TransitionKind,
    rebalance_key,
    transition_key,
)
from trimtab.topology.records import SESSIONS, VERSION_KEY


def written(world: MovingTables, *proposals: Proposal) -> MovesWrite:
    made = begun_write(
        world.view, world.tables, proposals, term=3, now_ms=1_000, new_session=lambda each: f"new-{each.tablet}"
    )
    assert all(world.store.get(key, (b"", 0))[1] == at for key, at in made.expect.items())
    assert made.puts.keys() | set(made.deletes) <= made.expect.keys()
    return made


def proposal(world: MovingTables, tablet: int, target: tuple[int, ...]) -> Proposal:
    return Proposal(USERS, tablet, target, Cause.OPERATOR, "because", world.revision, 77)


def test_many_targets_are_one_write_that_routing_hears_of() -> None:
    world = MovingTables()
    made = written(world, proposal(world, 0, (4, 2, 3)), proposal(world, 1, (1, 2, 5)))
    assert [each.outcome for each in made.proposed] == [Outcome.PENDING, Outcome.PENDING]
    assert made.puts[VERSION_KEY] == b"8"
    first = transitions.decode_transition(made.puts[transition_key(USERS, 0)])
    assert (first.pending, first.kind, first.session) == ((4, 2, 3), TransitionKind.MIGRATION, "new-0")
    assert (first.version, first.why, first.size_bytes, first.began_ms) == (8, "because", 77, 1_000)
    record = transitions.decode_rebalance(made.puts[rebalance_key(USERS)])
    assert (record.state, record.term, record.trigger) == (RebalanceState.RUNNING, 3, world.revision)
    assert chunk_key(USERS, 0) in made.expect


def test_what_is_so_already_writes_nothing() -> None:
    world = MovingTables()
    made = written(world, proposal(world, 0, (3, 2, 1)))
    assert made.proposed[0].outcome is Outcome.NOTHING and not made.puts and not made.expect


def test_a_copy_that_is_given_up_loses_its_session() -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.STREAMING)
    world.put({SESSIONS + b"s0": b"{}"})
    undone = written(world, proposal(world, 0, (1, 2, 3)))
    assert undone.proposed[0].outcome is Outcome.UNDONE and undone.deletes == [SESSIONS + b"s0"]
    adjusted = written(world, proposal(world, 0, (5, 2, 3)))
    after = transitions.decode_transition(adjusted.puts[transition_key(USERS, 0)])
    assert adjusted.deletes == [SESSIONS + b"s0"] and (after.session, after.leftovers) == ("new-0", (4,))


def test_what_is_only_planned_raises_no_version() -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.USE_NEW, locked=True)
    made = written(world, proposal(world, 0, (5, 2, 3)))
    after = transitions.decode_transition(made.puts[transition_key(USERS, 0)])
    assert made.proposed[0].outcome is Outcome.PLANNED and VERSION_KEY not in made.puts
    assert (after.planned, after.version, after.stage) == ((5, 2, 3), 7, Stage.USE_NEW)


def test_a_rebalance_that_runs_goes_on_and_one_that_ended_begins_anew() -> None:
    under_way = RebalanceRecord(RebalanceState.RUNNING, 2, 9, began_ms=5, moves=4, moved_bytes=40)
    assert running(under_way, 3, 7, 1_000) == RebalanceRecord(
        RebalanceState.RUNNING, 3, 9, began_ms=5, moves=4, moved_bytes=40
    )
    ended = RebalanceRecord(RebalanceState.FAILED, 2, 9, reason="no room", ended_ms=6)
    assert running(ended, 3, 11, 1_000) == RebalanceRecord(RebalanceState.RUNNING, 3, 11, began_ms=1_000)
    assert running(None, 3, 11, 1_000).state is RebalanceState.RUNNING
