"""What an operator may ask of a tablet, and what is refused, with a reason to read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.tablets.moving_tables import USERS, MovingTables
from tests.unit.topology.clusters import gone

from trimtab.tablets.move_protocol import MoveRequest
from trimtab.tablets.move_rules import MoveRefused, MoveScene, asked_move, goes_to
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, TransitionKind
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import RequestKind, RequestRecord, RequestState, encode, instance_key
from trimtab.topology.states import NodeState

OFFLINE = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.ONLINE, 1))


def scene(world: MovingTables, silent: tuple[int, ...] = (), **known: object) -> MoveScene:
    return MoveScene(world.view, world.tables, lambda raft_id: raft_id not in silent, **known)  # type: ignore[arg-type]


def refused(world: MovingTables, request: MoveRequest, **options: object) -> tuple[str, str]:
    with pytest.raises(MoveRefused) as told:
        asked_move(scene(world, **options), request, world.revision)  # type: ignore[arg-type]
    return told.value.code, str(told.value)


def test_a_replica_moves_to_whoever_has_none() -> None:
    world = MovingTables()
    proposal = asked_move(scene(world, size_bytes=77), MoveRequest(USERS, 0, 1, 4, why="a hot  one"), world.revision)
    assert proposal is not None
    assert (proposal.target, proposal.cause, proposal.was) == ((4, 2, 3), Cause.OPERATOR, (1, 2, 3))
    assert proposal.why == "an operator asked for it: a hot one"
    assert (proposal.trigger, proposal.size_bytes) == (world.revision, 77)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (MoveRequest(9, 0, 1, 4), "not_found", "there is no table with the id 9"),
        (MoveRequest(USERS, 4, 1, 4), "not_found", "shop.users has the tablets 0 to 3, and no tablet 4"),
        (MoveRequest(USERS, -1, 1, 4), "not_found", "no tablet -1"),
        (MoveRequest(USERS, 0, 1, 77), "not_found", "there is no instance with the raft id 77"),
        (MoveRequest(USERS, 0, 77, 4), "not_found", "there is no instance with the raft id 77"),
        (MoveRequest(USERS, 0, 1, 1), "invalid", "i1 is both source and target"),
        (MoveRequest(USERS, 0, 5, 4), "conflict", "i5 holds no replica of tablet 0 of shop.users, which is on i1, i2"),
        (MoveRequest(USERS, 0, 1, 2), "conflict", "i2 holds a replica of tablet 0 of shop.users already"),
        (MoveRequest(USERS, 0), "conflict", "tablet 0 of shop.users is not under way: there is nothing to undo"),
    ],
)
def test_what_is_not_there_can_t_be_moved(request_: MoveRequest, code: str, text: str) -> None:
    found, said = refused(MovingTables(), request_)
    assert found == code and text in said


def test_a_move_that_is_under_way_already_is_no_mistake() -> None:
    code, said = refused(MovingTables(), MoveRequest(USERS, 2, 1, 4))
    assert code == "conflict" and "i4 has a replica already and i1 has none; it has moved before" in said
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.STREAMING)
    assert asked_move(scene(world), MoveRequest(USERS, 0, 1, 4), world.revision) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda world: world.put({instance_key(4): encode(gone(4))}), "i4 has left the cluster"),
        (
            lambda world: world.instance(4, state=NodeState.DECOMMISSIONING),
            "i4 is decommissioning: it gets no replicas",
        ),
        (lambda world: world.instance(4, state=NodeState.BOOTSTRAPPING), "i4 is bootstrapping"),
        (lambda world: world.instance(4, grades=OFFLINE), "it is Offline, not Online"),
        (
            lambda world: world.request(9, RequestRecord(RequestKind.LEAVE, RequestState.PENDING, raft_id=4)),
            "i4 is asked to leave: it gets no replicas",
        ),
        (lambda world: world.instance(4, domain={"dc": "dc2"}), "i4 is in data centre dc2 and i1 in dc1"),
    ],
)
def test_a_target_that_can_t_have_it_is_refused_even_by_force(
    change: Callable[[MovingTables], object], text: str
) -> None:
    world = MovingTables()
    change(world)
    for force in (False, True):
        code, said = refused(world, MoveRequest(USERS, 0, 1, 4, force))
        assert code == "conflict" and text in said


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda world: world.instance(4, domain={"host": "h2"}), "i4 is on the host h2, as is i2"),
        (lambda world: _racks(world), "would be spread over fewer racks: r2, where i4 is"),
        (lambda world: world.instance(4, capacity_bytes=100), "i4 holds 50 of the 100 bytes"),
    ],
)
def test_what_is_unwise_needs_force(change: Callable[[MovingTables], object], text: str) -> None:
    world = MovingTables()
    change(world)
    known = {"size_bytes": 77, "sizes": {4: 50}}
    code, said = refused(world, MoveRequest(USERS, 0, 1, 4), **known)
    assert code == "conflict" and text in said and "forced" in said
    assert asked_move(scene(world, **known), MoveRequest(USERS, 0, 1, 4, True), world.revision) is not None


def _racks(world: MovingTables) -> None:
    for raft_id in range(1, 6):
        world.instance(raft_id, domain={"rack": f"r{(1, 2, 3, 2, 1)[raft_id - 1]}"})


def test_within_its_rack_a_replica_moves_freely() -> None:
    world = MovingTables()
    _racks(world)
    assert asked_move(scene(world), MoveRequest(USERS, 0, 2, 4), world.revision) is not None


def test_a_dead_source_needs_a_quorum_of_the_others() -> None:
    world = MovingTables()
    assert asked_move(scene(world, silent=(1,)), MoveRequest(USERS, 0, 1, 4), world.revision) is not None
    code, said = refused(world, MoveRequest(USERS, 0, 1, 4), silent=(1, 2))
    assert code == "conflict" and "too few other replicas of tablet 0 of shop.users are up" in said


def test_before_the_lock_the_target_is_replaced_and_after_it_planned() -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.STREAMING)
    replaced = asked_move(scene(world), MoveRequest(USERS, 0, 1, 5), world.revision)
    assert replaced is not None and replaced.target == (5, 2, 3)
    world.under_way(0, (4, 2, 3), Stage.USE_NEW, locked=True)
    follows = asked_move(scene(world), MoveRequest(USERS, 0, 4, 5), world.revision)
    assert follows is not None and follows.target == (5, 2, 3) and follows.was == (1, 2, 3)
    _, said = refused(world, MoveRequest(USERS, 0, 1, 5))
    assert "i1 holds no replica of tablet 0 of shop.users, which will be on i4, i2, i3" in said


def test_what_is_under_way_is_undone_until_it_is_locked() -> None:
    world = MovingTables()
    world.under_way(0, (4, 2, 3), Stage.STREAMING)
    undone = asked_move(scene(world), MoveRequest(USERS, 0), world.revision)
    assert undone is not None and undone.target == (1, 2, 3)
    world.under_way(0, (4, 2, 3), Stage.WRITE_BOTH_READ_NEW, locked=True)
    code, said = refused(world, MoveRequest(USERS, 0))
    assert code == "conflict" and "it only goes forward to i4, i2, i3" in said
    # What was to follow can still be given up.
    world.under_way(0, (4, 2, 3), Stage.WRITE_BOTH_READ_NEW, locked=True, planned=(5, 2, 3))
    given_up = asked_move(scene(world), MoveRequest(USERS, 0), world.revision)
    assert given_up is not None and given_up.target == (4, 2, 3)
    # It goes back by itself, because those who arrived went down.
    world.under_way(0, (4, 2, 3), Stage.WRITE_BOTH_READ_OLD, locked=True)
    assert asked_move(scene(world), MoveRequest(USERS, 0), world.revision) is None
    follows = asked_move(scene(world), MoveRequest(USERS, 0, 1, 5), world.revision)
    assert follows is not None and follows.target == (5, 2, 3)
    # Asked again while it goes back.
    world.under_way(0, (4, 2, 3), Stage.CLEANUP_TARGET)
    assert asked_move(scene(world), MoveRequest(USERS, 0), world.revision) is None


def test_nothing_is_undone_whose_old_set_left_for_good() -> None:
    world = MovingTables()
    world.under_way(0, (1, 4, 5), Stage.STREAMING, kind=TransitionKind.REBUILD)
    for raft_id in (1, 2, 3):
        world.instance(raft_id, state=NodeState.LEFT)
    code, said = refused(world, MoveRequest(USERS, 0))
    assert code == "conflict" and "i1, i2, i3 left for good, and whoever gets it may have the only copy" in said


def test_where_a_tablet_ends_if_nobody_changes_anything() -> None:
    world = MovingTables()
    assert goes_to((1, 2, 3), None) == (1, 2, 3)
    assert goes_to((1, 2, 3), world.under_way(0, (4, 2, 3), Stage.STREAMING)) == (4, 2, 3)
    assert goes_to((1, 2, 3), world.under_way(0, (4, 2, 3), Stage.CLEANUP_TARGET)) == (1, 2, 3)
    assert goes_to((1, 2, 3), world.under_way(0, (4, 2, 3), Stage.USE_NEW, planned=(5, 2, 3))) == (5, 2, 3)
