"""The pump on a cluster of values: moves begin, go on and end, whoever dies; see `moving` for what is checked."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.governor.moving import Moves
from tests.unit.loads.ledger import USERS

from trimtab.governor.move_waits import failing_moves, kept_moves
from trimtab.governor.moves import advance_moves, begin_moves, crossed
from trimtab.governor.state import MoveFacts, Trouble
from trimtab.governor.steps import CommitMoves, CrossMoves
from trimtab.governor.waiting import waiting
from trimtab.jobs.records import JobState
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import Stage
from trimtab.tablets.stages import MAX_TRIES
from trimtab.tablets.transitions import Cause, Proposal, RebalanceState, transition_key
from trimtab.topology.records import RequestKind, RequestRecord, encode, instance_key, job_key, request_key

FORWARD = [
    Stage.ALLOW_WRITE_BOTH_READ_OLD,
    Stage.WRITE_BOTH_READ_OLD,
    Stage.STREAMING,
    Stage.WRITE_BOTH_READ_NEW,
    Stage.USE_NEW,
    Stage.CLEANUP,
    Stage.END_MIGRATION,
]


def test_a_migration_goes_through_every_stage_and_loses_nothing() -> None:
    world = Moves([(1, 2, 3)])
    for router in (1, 2, 3):
        world.write(0, router, 0.8)
    world.propose(0, 1, 2, 4)
    world.run()
    assert world.stable() == (1, 2, 4) and world.current() is None
    assert world.stages[0] == FORWARD
    assert (3, 0) not in world.replicas and not world.loads.sessions and not world.open_jobs()
    record = world.rebalance()
    assert record.state is RebalanceState.COMPLETED and record.moves == 1
    assert any("the move begins (a test)" in text for text in world.events)
    assert any("the move is done (a test)" in text for text in world.events)


@pytest.mark.parametrize(
    ("stable", "target"),
    [
        ((1, 2, 3), (1, 2, 3, 4, 5)),
        ((1, 2, 3, 4, 5), (1, 2, 3)),
        ((1,), (2,)),
        ((1,), (1, 2, 3)),
        ((1, 2, 3), (1, 4, 5)),
        ((1, 2), (3, 4)),
        ((1, 2, 3, 4), (5,)),
    ],
)
def test_any_set_becomes_any_other(stable: tuple[int, ...], target: tuple[int, ...]) -> None:
    world = Moves([stable])
    for _ in range(20):
        world.write(0, world.random.choice(stable), 0.8)
    world.propose(0, *target)
    world.run()
    assert set(world.stable()) == set(target) and world.current() is None


def test_a_set_that_shrinks_while_others_arrive_is_widened_first() -> None:
    """Of 1 2 3 4 5, 3 4 5 have a write; of 1 2 6 only the newcomer would."""
    world = Moves([(1, 2, 3, 4, 5)], instances=6)
    world.silent = {1, 2}
    assert world.write(0, 3)
    world.silent = set()
    world.propose(0, 1, 2, 6)
    step = world.next_step()
    assert isinstance(step, CommitMoves) and world.carry_out(step)
    current = world.current()
    assert current is not None and current.pending == (1, 2, 3, 4, 5, 6) and current.planned == (1, 2, 6)
    world.run()
    assert world.stable() == (1, 2, 6)


@pytest.mark.parametrize("stage", FORWARD[:3])
@pytest.mark.parametrize("victim", [3, 4])
def test_who_dies_before_the_lock_has_the_move_undone(stage: Stage, victim: int) -> None:
    world = Moves([(1, 2, 3)])
    world.write(0, 1)
    world.propose(0, 1, 2, 4)
    world.run(until=stage)
    world.proposals.clear()
    world.kill(victim)
    world.mark(victim)
    world.write(0, 2)
    world.run()
    assert world.stable() == (1, 2, 3) and world.current() is None
    assert world.stages[0][-2:] == [Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION]
    record = world.rebalance()
    assert record.state is RebalanceState.FAILED and "went down" in record.reason
    assert (4, 0) not in world.replicas or victim == 4


@pytest.mark.parametrize("taken", [True, False])
def test_the_only_replica_dies_after_its_copy_was_taken_before_its_job_has_ended(taken: bool) -> None:
    """The copy is all there is, and the leader has not heard of it: whoever arrives is asked before it is undone."""
    world = Moves([(3,)])
    assert world.write(0, 1)
    world.propose(0, 4)
    world.run(until=Stage.STREAMING, jobs=False)
    current = world.current()
    assert current is not None
    if taken:
        copied = world.replicas[4, 0]
        copied.rows |= world.replicas[3, 0].rows
        copied.adopted = True
    world.proposals.clear()
    world.kill(3)
    world.mark(3)
    world.run(jobs=False)
    assert world.stable() == ((4,) if taken else (3,)) and world.current() is None


@pytest.mark.parametrize("stage", FORWARD[3:])
@pytest.mark.parametrize("victim", [3, 4])
def test_who_dies_after_the_lock_can_not_stop_it(stage: Stage, victim: int) -> None:
    world = Moves([(1, 2, 3)])
    world.write(0, 1)
    world.propose(0, 1, 2, 4)
    world.run(until=stage)
    world.kill(victim)
    world.mark(victim)
    world.write(0, 2)
    world.proposals.clear()
    world.run()
    undone = stage is Stage.WRITE_BOTH_READ_NEW and victim == 4
    assert world.stable() == ((1, 2, 3) if undone else (1, 2, 4)) and world.current() is None
    if undone:
        assert world.stages[0][-3:] == [Stage.WRITE_BOTH_READ_OLD, Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION]


def test_a_dead_replica_is_replaced_by_the_merge_of_a_read_quorum() -> None:
    world = Moves([(1, 2, 3)])
    world.silent = {2}
    assert world.write(0, 1)
    world.silent = set()
    world.kill(3)
    world.mark(3)
    world.propose(0, 1, 2, 4, cause=Cause.HEAL)
    world.run(until=Stage.STREAMING)
    (job,) = world.open_jobs()
    (copy,) = job.command.parameters["copies"]
    assert sorted(copy["sources"]) == [1, 2] and copy["target"] == 4
    world.run()
    assert world.stable() == (1, 2, 4)


def test_nothing_begins_where_too_few_replicas_are_left() -> None:
    world = Moves([(1, 2, 3)])
    for victim in (2, 3):
        world.kill(victim)
        world.mark(victim)
    world.propose(0, 1, 4, 5, cause=Cause.HEAL)
    assert world.next_step() is None


def test_balancing_keeps_still_when_it_is_told_to_and_healing_does_not() -> None:
    world = Moves([(1, 2, 3)])
    world.settings = RebalanceSettings(enabled=False)
    world.propose(0, 1, 2, 4, cause=Cause.BALANCE)
    assert world.next_step() is None
    world.propose(0, 1, 2, 5, cause=Cause.HEAL)
    world.run()
    assert world.stable() == (1, 2, 5)


def test_as_many_tablets_move_at_once_as_the_limits_allow() -> None:
    world = Moves([(1, 2, 3)] * 8)
    world.settings = RebalanceSettings(moving=3)
    for tablet in range(8):
        world.propose(tablet, 1, 2, 4)
    assert world.carry_out(world.next_step())  # type: ignore[arg-type]
    assert len(world.tables.transitions[USERS]) == 3
    world.run()
    assert all(world.stable(tablet) == (1, 2, 4) for tablet in range(8))


def test_what_is_urgent_does_not_wait_for_balancing_that_is_held_up() -> None:
    world = Moves([(1, 2, 3)] * 6)
    world.settings = RebalanceSettings(moving=2)
    for tablet in range(3):
        world.propose(tablet, 1, 2, 4, cause=Cause.BALANCE)
    world.run(until=Stage.STREAMING, jobs=False)
    assert set(world.tables.transitions[USERS]) == {0, 1}
    world.proposals.clear()
    for tablet in range(2, 6):
        world.propose(tablet, 1, 2, 5, cause=Cause.BALANCE if tablet == 2 else Cause.HEAL)
    step = begin_moves(world.state())
    assert step is not None and world.carry_out(step)
    assert set(world.tables.transitions[USERS]) == {0, 1, 3, 4}, "as many as are allowed, beside those for balance"
    assert begin_moves(world.state()) is None
    world.run()
    assert [world.stable(tablet)[2] for tablet in range(6)] == [4, 4, 5, 5, 5, 5]


def test_bytes_to_and_from_an_instance_are_limited_but_one_always_goes() -> None:
    world = Moves([(1, 2, 3)] * 4)
    world.settings = RebalanceSettings(moving_bytes=100)
    for tablet, size in enumerate((500, 10, 60, 60)):
        world.propose(tablet, 1, 2, 4 + tablet % 2, size=size)
    world.carry_out(world.next_step())  # type: ignore[arg-type]
    # 3 gives a copy of each: that of the first is more than all it may.
    assert list(world.tables.transitions[USERS]) == [0]
    world.run()
    assert {world.stable(tablet)[2] for tablet in range(4)} == {4, 5}


def test_many_tablets_share_a_write_a_barrier_and_a_job() -> None:
    world = Moves([(1, 2, 3)] * 64)
    for tablet in range(64):
        world.propose(tablet, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    (job,) = world.open_jobs()
    assert len(job.command.parameters["copies"]) == 64
    steps = 0
    while world.current() is not None:
        step = world.next_step()
        if step is None:
            world.run_job(world.open_jobs()[0])
            continue
        steps += 1
        world.carry_out(step)
    assert steps < 12


def test_a_target_that_changes_before_the_lock_begins_anew_under_another_session() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    before = world.current()
    assert before is not None
    world.proposals.clear()
    world.propose(0, 1, 2, 5)
    world.carry_out(world.next_step())  # type: ignore[arg-type]
    now = world.current()
    assert now is not None and now.session != before.session and now.leftovers == (4,)
    assert before.session not in world.loads.sessions
    assert (4, 0) in world.replicas, "who was the target keeps its replica while somebody may write to it"
    world.run()
    assert world.stable() == (1, 2, 5)
    assert (4, 0) not in world.replicas or not world.up(4)


def test_a_copy_of_an_abandoned_attempt_is_adopted_by_nobody() -> None:
    """Document 004's topology guards: the stream is released after its move was given up and begun anew."""
    world = Moves([(1, 2, 3)])
    world.write(0, 1)
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    (job,) = world.open_jobs()
    world.proposals.clear()
    world.propose(0, 1, 2, 3)
    world.run(jobs=False)
    assert world.current() is None and not world.loads.sessions
    world.run_job(job)
    assert not world.staged, "nothing is staged under a session that is closed"
    world.proposals.clear()
    world.propose(0, 1, 2, 4)
    world.run()
    assert world.stable() == (1, 2, 4)


def test_from_the_lock_on_another_target_is_planned_and_follows_at_once() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.WRITE_BOTH_READ_NEW)
    world.proposals.clear()
    world.propose(0, 1, 2, 5)
    step = begin_moves(world.state())
    assert step is not None and world.carry_out(step)
    now = world.current()
    assert now is not None and now.planned == (1, 2, 5) and now.pending == (1, 2, 4)
    world.proposals.clear()
    world.run(until=Stage.ALLOW_WRITE_BOTH_READ_OLD)
    now = world.current()
    assert world.stable() == (1, 2, 4) and now is not None and now.pending == (1, 2, 5) and not now.planned
    world.run()
    assert world.stable() == (1, 2, 5)


def planned_to(raft_id: int) -> Moves:
    """Tablet 0 is about to arrive at 4, and is to go on to another instance from there."""
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.WRITE_BOTH_READ_NEW)
    world.proposals.clear()
    world.propose(0, 1, 2, raft_id)
    step = begin_moves(world.state())
    assert step is not None and world.carry_out(step)
    world.proposals.clear()
    return world


def test_what_an_operator_forced_to_a_shared_host_follows_too() -> None:
    world = planned_to(5)
    first = msgspec.structs.replace(world.view.instances[1], failure_domain={"host": "one"})
    fifth = msgspec.structs.replace(world.view.instances[5], failure_domain={"host": "one"})
    world.put({instance_key(1): encode(first), instance_key(5): encode(fifth)})
    world.run()
    assert world.stable() == (1, 2, 5)


def test_what_was_planned_and_can_not_be_any_more_is_told() -> None:
    world = planned_to(5)
    world.kill(5)
    world.mark(5)
    world.run()
    assert world.stable() == (1, 2, 4)
    assert any("what was planned is given up" in told and "i5 is not Online" in told for told in world.events)


def test_a_job_that_nobody_awaits_is_cancelled_however_many_others_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.governor.moves._MAX_TIDIED", 1)
    world = Moves([(1, 2, 3)] * 2)
    for tablet in range(2):
        world.propose(tablet, 1, 2, 4)
        while (now := world.current(tablet)) is None or now.stage is not Stage.STREAMING:
            step = world.next_step()
            assert step is not None and world.carry_out(step)
    awaited, given_up = world.open_jobs()
    world.proposals.clear()
    world.propose(1, 1, 2, 3)
    for _ in range(20):
        if (step := world.next_step()) is not None:
            world.carry_out(step)
    wanted = {job.number: job.wanted for job in world.open_jobs()}
    assert wanted.get(given_up.number, "cancel") == "cancel" and wanted[awaited.number] != "cancel"


def test_a_job_that_an_operator_cancels_has_its_moves_undone() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    (job,) = world.open_jobs()
    world._end_job(job, JobState.CANCELLED)
    world.proposals.clear()
    world.run()
    assert world.stable() == (1, 2, 3) and "was cancelled" in world.rebalance().reason


def test_a_job_that_nobody_knows_any_more_is_made_again() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    (job,) = world.open_jobs()
    world.put({}, [job_key(job.number)])
    world.run()
    assert world.stable() == (1, 2, 4)


def test_a_job_that_no_tablet_waits_for_is_cancelled() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    world.proposals.clear()
    world.propose(0, 1, 2, 3)
    world.run(jobs=False)
    assert not world.open_jobs() and any("no tablet waits for it" in text for text in world.events)


def test_moves_of_a_dropped_table_are_forgotten_with_their_sessions_and_jobs() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    world.proposals.clear()
    world.drop(USERS)
    for _ in range(10):
        step = world.next_step()
        if step is None:
            break
        assert isinstance(step, CommitMoves)
        world.put(step.write.puts, step.write.deletes)
    assert not world.tables.transitions and not world.tables.rebalances and not world.loads.sessions
    assert not world.open_jobs()


def test_a_record_that_can_not_be_read_is_left_alone() -> None:
    world = Moves([(1, 2, 3)] * 2)
    for tablet in range(2):
        world.propose(tablet, 1, 2, 4)
    world.run(until=Stage.STREAMING)
    world.put({transition_key(USERS, 1): b'{"stage": "a_new_one"}'})
    world.run()
    assert world.stable(0) == (1, 2, 4) and world.stable(1) == (1, 2, 3)
    assert world.store[transition_key(USERS, 1)][0] == b'{"stage": "a_new_one"}'


def test_a_new_leader_takes_over_the_rebalance_and_asks_again() -> None:
    for stage in FORWARD:
        world = Moves([(1, 2, 3)])
        world.write(0, 1)
        world.propose(0, 1, 2, 4)
        world.run(until=stage)
        world.took_office()
        world.run()
        assert world.stable() == (1, 2, 4) and world.rebalance().term == world.term


def test_no_stage_is_entered_behind_a_barrier_that_was_asked_before_it_was_announced() -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.WRITE_BOTH_READ_NEW)
    step = world.next_step()
    assert isinstance(step, CrossMoves)
    now = world.current()
    assert now is not None
    assert crossed(world.state(), now.version - 1) is None and crossed(world.state(), now.version) is not None


def test_what_moves_wait_for_is_told_in_words() -> None:
    world = Moves([(1, 2, 3)] * 2)
    for tablet in range(2):
        world.propose(tablet, 1, 2, 4)
    world.run(until=Stage.STREAMING, jobs=False)
    assert "tablets 0 and 1 of shop.users: streaming: job 1 copies it" in waiting(world.state())
    assert list(kept_moves(world.state())) == [], "that is as it should be"
    world.run_job(world.open_jobs()[0])
    now = world.current()
    assert now is not None
    world.serial += 1
    world.troubles[USERS, 0, now.session] = (Trouble(4, "failed", "its disk is ill", now.job),)
    assert "tablet 0 of shop.users: streaming: i4 can't take its copy over: its disk is ill" in waiting(world.state())


@pytest.mark.parametrize("code", ["disk_full", "lost"])
def test_what_no_other_copy_mends_is_undone(code: str) -> None:
    world = Moves([(1, 2, 3)])
    world.propose(0, 1, 2, 4)
    world.run(until=Stage.STREAMING, jobs=False)
    world.run_job(world.open_jobs()[0])
    now = world.current()
    assert now is not None
    world.serial += 1
    world.troubles[USERS, 0, now.session] = (Trouble(4, code, "it can't be", now.job),)
    world.run(until=Stage.CLEANUP_TARGET)
    undone = world.current()
    assert undone is not None and undone.error == "i4: it can't be" and not world.loads.sessions


def test_what_can_not_begin_is_told_with_its_reason() -> None:
    world = Moves([(1, 2, 3)])
    for victim in (2, 3):
        world.kill(victim)
        world.mark(victim)
    world.propose(0, 1, 4, 5, cause=Cause.HEAL)
    (told,) = (text for text in waiting(world.state()) if "can't move yet" in text)
    assert told.endswith(": a replica for i4 needs 2 of 3 other replicas in data centre dc1, 1 ready")
    assert list(kept_moves(world.state())) == [told], "`rebalance status` tells it as well"


def test_a_set_of_nobody_never_begins() -> None:
    """No record of such a move could be gone on with, or undone."""
    world = Moves([(1, 2, 3)])
    world.propose(0, cause=Cause.REPLICATION)
    world.run()
    assert not world.tables.transitions and world.tables.maps[1].replicas(0) == (1, 2, 3)
    assert any("nobody would have it any more" in text for text in waiting(world.state()))


def test_a_cancelled_decommission_undoes_what_is_not_locked_and_is_no_failure() -> None:
    world = Moves([(1, 2, 3)] * 2)
    request = RequestRecord(RequestKind.LEAVE, raft_id=3, asked_ms=world.now_ms)
    world.put({request_key(1): encode(request)})
    for tablet in range(2):
        world.propose(tablet, 1, 2, 4, cause=Cause.DRAIN)
    world.run(until=Stage.STREAMING, jobs=False)
    world.proposals.clear()
    world.put({request_key(1): encode(msgspec.structs.replace(request, cancel="an operator thought again"))})
    world.run(jobs=False)
    assert all(world.stable(tablet) == (1, 2, 3) for tablet in range(2)) and not world.open_jobs()
    assert any("i3 is to stay after all" in text for text in world.events)
    assert world.rebalance().state is RebalanceState.COMPLETED and not world.rebalance().failed


def test_bytes_of_those_who_are_read_for_a_rebuild_are_limited_too() -> None:
    """Else healing could load one of those who are left without limit."""
    world = Moves([(1, 2, 3)] * 4, instances=8)
    world.settings = RebalanceSettings(moving_bytes=100)
    world.kill(3)
    world.mark(3)
    for tablet in range(4):
        world.propose(tablet, 1, 2, 4 + tablet, cause=Cause.HEAL, size=60)
    world.carry_out(world.next_step())  # type: ignore[arg-type]
    # 1 and 2 are read for each of them.
    assert list(world.tables.transitions[USERS]) == [0]
    world.run()
    assert [world.stable(tablet)[2] for tablet in range(4)] == [4, 5, 6, 7]


def test_who_is_read_for_several_copies_is_counted_for_each() -> None:
    world = Moves([(1,)] * 2)
    world.settings = RebalanceSettings(moving_bytes=100)
    world.propose(0, 1, 2, cause=Cause.REPLICATION, size=40)
    world.propose(1, 1, 4, 5, cause=Cause.REPLICATION, size=40)
    world.carry_out(world.next_step())  # type: ignore[arg-type]
    assert list(world.tables.transitions[USERS]) == [0]


@pytest.mark.parametrize(("code", "times"), [("disk_full", 1), ("failed", MAX_TRIES)])
def test_a_target_that_can_not_make_a_replica_has_the_move_undone_with_the_reason(code: str, times: int) -> None:
    """It stayed in its first stage for ever; nobody but the target's log knew why."""
    world = Moves([(1, 2, 3)])
    world.settings = RebalanceSettings(moving=1)
    world.propose(0, 1, 2, 4, cause=Cause.HEAL)
    world.run(until=Stage.ALLOW_WRITE_BOTH_READ_OLD)
    now = world.current()
    assert now is not None
    attempt, why = (USERS, 0, now.session), "there is a file of this name"
    world.serial += 1
    for number in range(1, times):
        world.troubles[attempt] = (Trouble(4, code, why, times=number),)
        world.serial += 1
        assert not any("undone" in text for text in told(world))
        assert list(failing_moves(world.state())) == [
            f"tablet 0 of shop.users: allow_write_both_read_old: i4 can't make room for it: {why}"
        ]
    world.troubles[attempt] = (Trouble(4, code, why, times=times),)
    world.serial += 1
    world.run(until=Stage.CLEANUP_TARGET)
    undone = world.current()
    assert undone is not None and undone.error.startswith(f"i4: {why}")
    assert any(f"the move is undone (i4: {why}" in text for text in world.events)
    world.proposals.clear()
    world.run()
    assert world.stable() == (1, 2, 3) and why in world.rebalance().reason
    world.propose(0, 1, 2, 4, cause=Cause.HEAL)
    world.put_off.add((USERS, 0))
    (text,) = failing_moves(world.state())
    assert text.startswith("tablet 0 of shop.users: can't move yet: its last move was undone (i4: ") and why in text


def told(world: Moves) -> tuple[str, ...]:
    """What the next write would say, where there is one."""
    step = advance_moves(world.state())
    return step.write.sentences if step is not None else ()


def test_what_an_operator_undid_balancing_leaves_alone_and_nobody_else_does() -> None:
    world = Moves([(1, 2, 3)])
    state = replace(world.state(), moves=MoveFacts(spared=frozenset({(USERS, 0)})))
    for cause in Cause:
        wanted = Proposal(USERS, 0, (1, 2, 4), cause, "a test", world.revision, 0, (1, 2, 3))
        begun = begin_moves(replace(state, proposals=(wanted,)))
        assert (begun is None) == (cause is Cause.BALANCE), cause
        said = [text for text in waiting(replace(state, proposals=(wanted,))) if "an operator undid its move" in text]
        assert bool(said) == (cause is Cause.BALANCE), cause
