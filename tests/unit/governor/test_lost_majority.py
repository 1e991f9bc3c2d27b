"""Replicas that are lost for good, more of them than a quorum can spare: what is left goes on.

The majority of the voters may be lost as well. Then an operator makes one survivor the whole cluster (`trimtab
recover`), whatever was under way at that moment: moves end, or are undone, and what the survivor has is given to those
who join it.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.governor.elastic import Elastic, elastic
from tests.unit.governor.holdings import HEAL_AFTER_MS
from tests.unit.governor.moving import Moves

from trimtab.governor.steps import Write
from trimtab.governor.waiting import waiting
from trimtab.node.recovery import _records_after
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause, TabletTransition, TransitionKind
from trimtab.topology.records import RequestKind, RequestRecord, RequestState, encode, instance_key, request_key
from trimtab.topology.states import NodeState

STAGES = [stage for stage in Stage if stage not in (Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION)]
UNDONE = [Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION]


def recover(world: Elastic, name: str) -> None:
    """All others are lost, and an operator recovers the cluster from this one."""
    survivor = world.id_of(name)
    for row in list(world.view.members().values()):
        if row.instance_id != name:
            world.process(row.instance_id).up = False
    world.voters, world.learners = {survivor}, set()
    world.forsaken |= set(world.view.members()) - {survivor}
    world.elect()
    puts, _ = _records_after(world.view, survivor, world.now_ms)
    assert world.write(Write({}, puts))


def kept_by(world: Elastic, raft_id: int) -> set[int]:
    """The tablets of which an instance has all that can be had: by what they end as, when all others are lost."""
    under_way = world.tables.transitions.get(1, {})
    ends_as = {
        tablet: under_way[tablet].pending if tablet in under_way and under_way[tablet].locked else replicas
        for tablet, replicas in world.tables.maps[1]
    }
    return {tablet for tablet, replicas in ends_as.items() if raft_id in replicas}


def stages(world: Elastic) -> set[Stage]:
    return {current.stage for current in world.tables.transitions.get(1, {}).values()}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.value)
@pytest.mark.parametrize("operation", ["leave", "grow", "shrink"])
def test_a_majority_is_lost_while_tablets_move_and_the_survivor_goes_on(operation: str, stage: Stage) -> None:
    """Reset after a lost majority: what was under way ends or is undone, what is left is made whole again."""
    world = elastic(4, replication=2 if operation == "grow" else 3, tablets=4)
    match operation:
        case "leave":
            number = world.ask(RequestKind.LEAVE, "i4")
        case "grow":
            world.replicate(3)
        case "shrink":
            world.replicate(2)
    world.run(until=lambda: stage in stages(world))
    kept = kept_by(world, 1)
    assert kept
    recover(world, "i1")
    if operation == "leave":
        assert world.view.requests[number].state is RequestState.CANCELLED
    # What only the others had is lost: reads of it are errors, and nobody makes anything up.
    world.pass_time(5_000)
    for name in ("i5", "i6"):
        world.join(name)
    world.pass_time(HEAL_AFTER_MS)
    assert not world.tables.transitions, "nothing is under way for ever"
    wanted = sum(world.tables.catalog.keyspaces["shop"].replication.values())
    members = set(world.view.members())
    for tablet, replicas in world.tables.maps[1]:
        if tablet in kept:
            assert members.issuperset(replicas) and len(replicas) == wanted, (tablet, replicas)
        else:
            assert members.isdisjoint(replicas), (tablet, replicas)
    lost = [problem.text for problem in world.problems]
    assert all("can't be read or written" in text for text in lost) and bool(lost) == (len(kept) < 4), lost
    assert set(waiting(world.state())) <= set(lost), "nothing else is waited for"
    # It stays so.
    moves = world.moves
    world.pass_time(HEAL_AFTER_MS)
    assert world.moves == moves and not world.tables.transitions


@pytest.mark.parametrize("stage", UNDONE, ids=lambda stage: stage.value)
def test_a_majority_is_lost_while_a_move_is_being_undone(stage: Stage) -> None:
    world = elastic(4, tablets=4)
    tablet, replicas = next((tablet, each) for tablet, each in world.tables.maps[1] if 1 in each)
    source = next(each for each in replicas if each != 1)
    target = next(each for each in (1, 2, 3, 4) if each not in replicas)
    pending = tuple(target if each == source else each for each in replicas)
    version = world.view.version
    world.under_way(
        1,
        tablet,
        TabletTransition(pending, TransitionKind.MIGRATION, stage, "move-s", version=version, cause=Cause.OPERATOR),
    )
    recover(world, "i1")
    world.pass_time(5_000)
    assert not world.tables.transitions and world.tables.maps[1].replicas(tablet) == replicas
    for name in ("i5", "i6"):
        world.join(name)
    world.pass_time(HEAL_AFTER_MS)
    members = set(world.view.members())
    assert all(members.issuperset(each) for _, each in world.tables.maps[1] if 1 in each)


def test_a_survivor_that_nobody_joins_is_enough_for_one_replica() -> None:
    world = elastic(3, tablets=4)
    recover(world, "i1")
    world.pass_time(HEAL_AFTER_MS)
    assert world.factors() == {3}, "three are declared, and nobody else is there"
    world.replicate(1)
    world.pass_time(5_000)
    assert {replicas for _, replicas in world.tables.maps[1]} == {(1,)}
    world.assert_still()


def test_two_of_three_replicas_are_replaced_at_once_and_the_third_gives_what_it_has() -> None:
    """Nobody has a read quorum any more, and nobody ever will: the tablet is made anew from the one that is left."""
    world = elastic(5, tablets=4)
    hit = [tablet for tablet, replicas in world.tables.maps[1] if {4, 5} <= set(replicas)]
    assert hit
    for name in ("i4", "i5"):
        world.kill(name)
    world.pass_time(7_000)
    numbers = [world.join(f"i{each + 4}", replaces=f"i{each}", domain={"host": f"h{each + 4}"}) for each in (4, 5)]
    world.pass_time(HEAL_AFTER_MS)
    assert all(world.view.requests[number].state is RequestState.DONE for number in numbers)
    assert world.factors() == {3} and not {4, 5} & world.tables.loads().keys()
    told = [event for event in world.events if "1 of 3 replicas are left" in event]
    assert told, "it is told that no quorum was left"
    world.assert_still()


def test_one_that_is_only_down_is_waited_for_though_no_quorum_is_up() -> None:
    """Who did not leave may come back, with what was acknowledged: nothing is made of too little meanwhile."""
    world = elastic(6, tablets=4)
    tablet, replicas = next((tablet, each) for tablet, each in world.tables.maps[1] if {1, 2} - set(each))
    victims = [each for each in replicas if each not in (1, 2)][:2]
    assert len(victims) == 2
    for raft_id in victims:
        world.kill(world.view.instances[raft_id].instance_id)
    world.pass_time(3 * HEAL_AFTER_MS)
    assert world.tables.maps[1].replicas(tablet) == replicas
    assert any("needs 2 of 3 other replicas" in text for text in waiting(world.state())), waiting(world.state())
    world.start(world.view.instances[victims[0]].instance_id)
    world.pass_time(HEAL_AFTER_MS)
    assert victims[1] not in world.tables.maps[1].replicas(tablet)
    assert world.factors() == {3}


@pytest.mark.parametrize("replaced", [False, True], ids=["down", "left for good"])
def test_a_tablet_whose_replicas_are_all_dead_is_never_made_anew_from_nothing(replaced: bool) -> None:
    """Nothing is reset by itself where nothing is left; what others still have is healed meanwhile."""
    world = elastic(7, tablets=16)
    tablet, victims = next((tablet, each) for tablet, each in world.tables.maps[1] if len(world.voters - {*each}) >= 3)
    names = [world.view.instances[raft_id].instance_id for raft_id in victims]
    for name in names:
        world.kill(name)
    world.pass_time(7_000)
    if replaced:
        numbers = [world.join(f"new-{name}", replaces=name, domain={"host": f"new-{name}"}) for name in names]
        world.pass_time(HEAL_AFTER_MS)
        assert all(world.view.requests[number].state is RequestState.DONE for number in numbers)
        assert all(world.view.instances[raft_id].left for raft_id in victims)
    world.pass_time(3 * HEAL_AFTER_MS)
    lost = {number for number, each in world.tables.maps[1] if set(each) <= set(victims)}
    assert tablet in lost and world.tables.maps[1].replicas(tablet) == victims
    assert not world.tables.transitions, world.tables.transitions
    assert not [event for event in world.events if event.startswith(f"tablet {tablet} of")], "nothing was even begun"
    told = [problem.text for problem in world.problems]
    assert any("can't be read or written" in text for text in told), told
    alive = set(world.view.members()) - set(victims)
    assert world.factors() == {3}
    assert all(alive & set(each) for number, each in world.tables.maps[1] if number not in lost)
    if not replaced:
        for name in names:
            world.start(name)
        world.pass_time(HEAL_AFTER_MS)
        world.assert_still()


def leave_for_good(world: Moves, raft_id: int) -> None:
    """Lost with the majority."""
    record = msgspec.structs.replace(world.view.instances[raft_id], state=NodeState.LEFT)
    world.put({instance_key(raft_id): encode(record)})


def half_copied() -> Moves:
    """2 had it alone, 4 has its copy, 5 has not, and 2 is dead; one write is on 2 and 5 only."""
    world = Moves([(2,)])
    assert world.write(0, 1)
    world.propose(0, 2, 4, 5)
    world.run(until=Stage.STREAMING, jobs=False)
    world.replicas[4, 0].rows |= world.replicas[2, 0].rows
    world.replicas[4, 0].adopted = True
    world.proposals.clear()
    world.silent.add(4)
    assert world.write(0, 1)
    world.silent.discard(4)
    world.kill(2)
    world.mark(2)
    return world


def test_all_sources_of_a_rebuild_are_lost_and_the_others_copy_from_the_one_that_has_it() -> None:
    """Undone, it would have been lost: nobody else had it."""
    world = half_copied()
    leave_for_good(world, 2)
    world.run()
    assert set(world.stable()) == {2, 4, 5} and world.current() is None
    assert world.acknowledged[0] <= world.replicas[4, 0].rows | world.replicas[5, 0].rows
    assert len(world.acknowledged[0]) == 2 and world.acknowledged[0] <= world.replicas[5, 0].rows


def test_who_was_to_have_the_last_copy_too_is_waited_for_until_it_is_removed() -> None:
    world = half_copied()
    leave_for_good(world, 2)
    world.kill(5)
    world.mark(5)
    world.run()
    current = world.current()
    assert current is not None and current.stage is Stage.STREAMING
    assert any("i5 may have what nobody else has: start it again" in text for text in waiting(world.state()))
    world.acknowledged[0] &= world.replicas[4, 0].rows
    world.put({request_key(1): encode(RequestRecord(RequestKind.REMOVE, raft_id=5, asked_ms=world.now_ms))})
    world.run()
    assert set(world.stable()) == {2, 4} and world.current() is None
    assert any("it goes on with those who have a copy" in text for text in world.events)
