"""What an operator reads of tablets under way."""

from __future__ import annotations

import msgspec
from tests.unit.tablets.moving_tables import USERS, MovingTables

from trimtab.tablets.moves_shown import JobShown, shown
from trimtab.tablets.moving_words import duration, in_bytes, moving_view, part_of
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import (
    Cause,
    Proposal,
    RebalanceRecord,
    RebalanceState,
    TransitionKind,
    encode,
    rebalance_key,
)
from trimtab.topology.protocol import MovingView
from trimtab.topology.records import RequestKind, RequestRecord, RequestState

GIB = 1 << 30


def told(world: MovingTables, *proposals: Proposal, job: JobShown | None = None, held: int = 0) -> MovingView:
    reply = shown(world.tables, proposals=proposals, job_of=lambda _number: job)
    return moving_view(reply, world.view, lambda _raft_id: held, proposals)


def test_nothing_is_under_way() -> None:
    assert told(MovingTables()) == MovingView()


def test_moves_to_one_instance_are_one_sentence_with_the_time_left() -> None:
    world = MovingTables()
    for tablet in (0, 1):
        world.under_way(tablet, (5, 2, 3), Stage.STREAMING, job=9, size_bytes=GIB)
    found = told(world, job=JobShown("running", False, GIB // 2, 2 * GIB, GIB / 20, 30.0))
    assert found.sentences == ["2 tablets are being moved to i5: 0.5 of 2.0 GiB, about 30 s left"]
    assert (found.tablets, found.progress_bytes, found.total_bytes) == (2, GIB // 2, 2 * GIB)
    assert (found.eta_s, found.stages) == (30.0, {"streaming": 2})
    paused = told(world, job=JobShown("paused", False, GIB // 2, 2 * GIB))
    assert paused.sentences == ["2 tablets are being moved to i5: 0.5 of 2.0 GiB (paused)"]


def test_what_an_operator_asked_for_and_what_goes_back_are_told_apart() -> None:
    world = MovingTables()
    world.under_way(0, (5, 2, 3), Stage.USE_NEW, cause=Cause.OPERATOR, size_bytes=2_048)
    world.under_way(1, (4, 2, 3), Stage.CLEANUP_TARGET, error="i4 is down")
    assert told(world).sentences == [
        "1 tablet is being moved to i5 for an operator: 2.0 of 2.0 KiB",
        "1 tablet goes back to where it was: i4 is down",
    ]


def test_healing_counts_those_that_wait_too() -> None:
    world = MovingTables()
    world.under_way(0, (5, 2, 3), Stage.STREAMING, cause=Cause.HEAL, kind=TransitionKind.REBUILD)
    waiting = Proposal(USERS, 1, (5, 2, 3), Cause.HEAL, "i1 is lost", 9, 100)
    assert told(world, waiting).sentences == [
        "healing: 2 tablets have lost a replica, 1 of them is being copied",
        "1 tablet (100 B) will be moved next",
    ]
    assert told(world).sentences == ["healing: 1 tablet has lost a replica, and is being copied"]


def test_what_should_move_while_balancing_is_off_is_no_work() -> None:
    world = MovingTables()
    wanted = [Proposal(USERS, 1, (5, 2, 3), Cause.BALANCE, "i5 is empty", 9, 100)]
    reply = msgspec.structs.replace(shown(world.tables, proposals=wanted), still="balancing is off")
    found = moving_view(reply, world.view, lambda _raft_id: 0, wanted)
    assert (found.sentences, found.still) == ([], "balancing is off; 1 tablet (100 B) should move")
    assert found.upcoming_tablets == 1


def test_a_drain_says_how_much_is_left() -> None:
    world = MovingTables()
    world.request(9, RequestRecord(RequestKind.LEAVE, RequestState.RUNNING, raft_id=2, tablets=40))
    assert told(world, held=12).sentences == ["i2 is being drained: 12 of 40 tablets left"]
    assert told(world, held=1).sentences == ["i2 is being drained: 1 of 40 tablets left"]
    assert told(world, held=0).sentences == []
    world.request(9, RequestRecord(RequestKind.REMOVE, RequestState.RUNNING, raft_id=2, tablets=40))
    assert told(world, held=12).sentences == [
        "i2 is being removed: its replicas are made anew elsewhere, 12 of 40 tablets left"
    ]
    world.request(9, RequestRecord(RequestKind.LEAVE, RequestState.CANCELLED, raft_id=2, tablets=40))
    assert told(world, held=12).sentences == []


def test_a_failed_rebalance_is_a_problem_while_something_should_move_and_is_told_once() -> None:
    world = MovingTables()
    failed = RebalanceRecord(RebalanceState.FAILED, 1, 5, reason="i5 has no room", failed=1)
    world.put({rebalance_key(USERS): encode(failed)})
    assert told(world).problems == []
    wanted = [Proposal(USERS, 1, (5, 2, 3), Cause.BALANCE, "i5 is empty", 9, 100)]
    assert told(world, *wanted).problems == ["balancing shop.users failed: i5 has no room"]
    reply = msgspec.structs.replace(shown(world.tables, proposals=wanted), problems=["i5 has no room"])
    assert moving_view(reply, world.view, lambda _raft_id: 0, wanted).problems == ["i5 has no room"]


def test_a_shrinking_set_is_repaired_first() -> None:
    world = MovingTables()
    world.under_way(0, (2, 3), Stage.STREAMING, kind=TransitionKind.REPAIR, cause=Cause.REPLICATION)
    assert told(world).sentences == ["1 tablet is repaired before a replica goes"]


def test_numbers_are_short() -> None:
    assert [in_bytes(n) for n in (0, 999, 1023, 1 << 20, 150 << 20)] == [
        "0 B",
        "999 B",
        "1.0 KiB",
        "1.0 MiB",
        "150 MiB",
    ]
    assert part_of(1.2 * GIB, 3.4 * GIB) == "1.2 of 3.4 GiB"
    assert part_of(9, 5) == "5 of 5 B"
    assert [duration(s) for s in (0.2, 20, 119, 600, 7200)] == ["1 s", "20 s", "119 s", "10 min", "2.0 h"]
