"""The first line of `trimtab status`: what a person reads at three in the morning."""

from __future__ import annotations

from tests.unit.client.views import instance, view

from trimtab.cli.verdict import Level, judge
from trimtab.topology.grades import Grade
from trimtab.topology.records import JoinTicket, RequestKind, RequestRecord, RequestState, TransitionRecord
from trimtab.topology.states import NodeState, TransitionState


def test_three_that_are_online_are_well() -> None:
    verdict = judge(view())
    assert (verdict.level, verdict.line, verdict.details) == (
        Level.WELL,
        "All is well: 3 instances Online, i1 leads.",
        (),
    )


def test_a_cluster_of_one_is_well_but_survives_nothing() -> None:
    verdict = judge(view(instance(1)))
    assert verdict.line == "All is well: 1 instance Online, i1 leads."
    assert "survives no failure" in verdict.details[0]


def test_who_has_left_is_not_missed() -> None:
    gone = instance(4, Grade.EXPELLED, Grade.EXPELLED, state=NodeState.LEFT, voter=False, heard_ms=None)
    assert judge(view(instance(1), instance(2), instance(3), gone)).level is Level.WELL


def test_an_instance_that_is_down_is_named_with_the_reason_and_what_it_means_for_the_voters() -> None:
    down = instance(3, Grade.OFFLINE, Grade.OFFLINE, heard_ms=9_000, reason="not heard from for 6.0 s")
    verdict = judge(view(instance(1), instance(2), down))
    assert verdict.level is Level.WRONG
    assert verdict.line == "Not well: i3 is Offline; i1 leads, and the cluster serves."
    assert verdict.details == (
        "i3 is Offline, last heard of 9 s ago: not heard from for 6.0 s",
        "only 2 of 3 voters are up: if one more fails, nothing can be changed any more",
    )


def test_a_learner_that_is_down_leaves_the_voters_alone() -> None:
    down = instance(4, Grade.OFFLINE, Grade.OFFLINE, voter=False)
    assert len(judge(view(instance(1), instance(2), instance(3), down)).details) == 1


def test_an_instance_that_fell_silent_is_noticed_before_it_is_marked() -> None:
    verdict = judge(view(instance(1), instance(2), instance(3, heard_ms=3_000)))
    assert verdict.line.startswith("Not well: i3 has not been heard of lately")
    assert judge(view(instance(1), instance(2), instance(3, heard_ms=900))).level is Level.WELL


def test_what_is_under_way_is_no_fault() -> None:
    ticket = JoinTicket("i5", "u", "n", "10.0.0.5:3301")
    requests = {
        7: RequestRecord(RequestKind.LEAVE, RequestState.RUNNING, raft_id=3),
        8: RequestRecord(RequestKind.JOIN, join=ticket),
        6: RequestRecord(RequestKind.JOIN, RequestState.DONE, raft_id=2),
    }
    climbing = instance(4, Grade.RAFT_SYNCED, voter=False)
    leaving = instance(3, state=NodeState.DECOMMISSIONING)
    transition = TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.LEAVE, [7])
    shown = view(instance(1), instance(2), leaving, climbing, requests=requests, transition=transition)
    verdict = judge(shown)
    assert (verdict.level, verdict.line) == (Level.BUSY, "Busy: 3 of 4 instances Online, i1 leads.")
    assert verdict.details == (
        "request 7, leave of i3, is running",
        "request 8, join of i5, is pending",
        "i3 is decommissioning",
        "i4 goes from RaftSynced to Online",
        "the topology is in write_both_read_old for leave",
    )


def test_a_lost_majority_is_said_with_who_is_missing() -> None:
    verdict = judge(view(leader=0), "no leader is known yet", frozenset({"10.0.0.2:3301"}))
    assert verdict.level is Level.STOPPED
    assert verdict.line == "No majority: 1 of 3 voters answer, 2 are needed; there is no leader."
    assert "Start i1 and i3 again." in verdict.details
    assert any("trimtab recover" in each for each in verdict.details)
    assert verdict.details[-1] == "The last attempt said: no leader is known yet"


def test_an_election_is_not_taken_for_a_lost_majority() -> None:
    verdict = judge(view(leader=0), "timeout", frozenset({"10.0.0.2:3301", "10.0.0.3:3301"}))
    assert verdict.line.startswith("No leader: an election is under way")
    assert judge(view(leader=0)).level is Level.STOPPED


def test_a_record_that_can_not_be_read_is_shown() -> None:
    verdict = judge(view(unreadable=["instances/9: what is this"]))
    assert verdict.level is Level.WRONG and "instances/9: what is this" in verdict.line
