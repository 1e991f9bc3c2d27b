"""The first line of `trimtab status`: what a person reads at three in the morning."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.client.views import instance, view

from trimtab.cli.verdict import Level, judge
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import InstanceView, MovingView
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
        "i3 is Offline: not heard from for 9 s",
        "start i3 again, or, if it is gone for good: trimtab expel i3",
        "only 2 of 3 voters are up: if one more fails, nothing can be changed any more",
    )


def full(number: int, **fields: Any) -> InstanceView:
    return msgspec.structs.replace(instance(number, **fields), disk_full=True)


def test_an_instance_whose_disk_is_full_is_named_with_what_to_do() -> None:
    """It was called well while every write there was refused."""
    verdict = judge(view(instance(1), full(2), instance(3)))
    assert verdict.level is Level.WRONG
    assert verdict.line == "Not well: i2 takes no writes, for want of disk space; i1 leads, and the cluster serves."
    assert len(verdict.details) == 1
    assert verdict.details[0].startswith("make space on the disk of i2: less is free than its reserve")
    both = judge(view(instance(1), full(2), full(3)))
    assert both.line.startswith("Not well: i2 and i3 take no writes") and "of i2 and i3" in both.details[0]
    all_of_them = judge(view(full(1), full(2), full(3)))
    assert all_of_them.line.endswith("i1 leads, and nobody takes writes.")


def test_a_disk_that_was_full_when_its_instance_went_down_is_no_news_but_is_without_a_leader() -> None:
    down = full(3, current=Grade.OFFLINE, target=Grade.OFFLINE, heard_ms=9_000)
    assert not any("make space" in line for line in judge(view(instance(1), instance(2), down)).details)
    stopped = judge(view(instance(1), full(2), instance(3), leader=0), "no leader is known yet")
    assert stopped.level is Level.STOPPED and any("make space on the disk of i2" in line for line in stopped.details)


def test_a_learner_that_is_down_leaves_the_voters_alone() -> None:
    down = instance(4, Grade.OFFLINE, Grade.OFFLINE, voter=False, heard_ms=9_000, reason="it was stopped")
    assert judge(view(instance(1), instance(2), instance(3), down)).details == (
        "i4 is Offline, last heard of 9 s ago: it was stopped",
        "start i4 again, or, if it is gone for good: trimtab expel i4",
    )


def test_nobody_is_told_to_start_who_is_on_the_way_back_or_out() -> None:
    back = instance(3, Grade.OFFLINE, Grade.OFFLINE, heard_ms=300)
    assert not any("again" in line for line in judge(view(instance(1), instance(2), back)).details)
    out = instance(3, Grade.OFFLINE, Grade.OFFLINE, heard_ms=9_000)
    requests = {7: RequestRecord(RequestKind.LEAVE, RequestState.RUNNING, raft_id=3)}
    assert not any("again" in line for line in judge(view(instance(1), instance(2), out, requests=requests)).details)


def test_several_that_are_down_are_started_again_or_expelled_one_by_one() -> None:
    down = [instance(number, Grade.OFFLINE, Grade.OFFLINE, heard_ms=9_000, voter=False) for number in (4, 5)]
    details = judge(view(instance(1), instance(2), instance(3), *down)).details
    assert "start i4 and i5 again, or, for each that is gone for good: trimtab expel ID" in details


def test_an_age_that_nobody_measured_is_not_told() -> None:
    down = instance(3, Grade.OFFLINE, Grade.OFFLINE, heard_ms=90_000, applied=0, reason="not heard from for 6.0 s")
    details = judge(view(instance(1), instance(2), down)).details
    assert details[0] == "i3 is Offline: not heard from for 6.0 s"


def test_an_instance_that_joins_is_no_fault_though_it_was_never_heard_of() -> None:
    ticket = JoinTicket("i4", "u", "n", "10.0.0.4:3301")
    requests = {3: RequestRecord(RequestKind.JOIN, RequestState.RUNNING, raft_id=4, join=ticket)}
    off = Grade.OFFLINE
    coming = instance(4, off, off, state=NodeState.NONE, voter=False, heard_ms=40_000, applied=0)
    verdict = judge(view(instance(1), instance(2), instance(3), coming, leader=2, requests=requests))
    assert verdict.line == "Busy: 3 of 4 instances Online, i2 leads."
    assert verdict.details == ("i4 is joining (request 3)",)
    verdict = judge(view(instance(1), instance(2), instance(3), coming))
    assert (verdict.level, verdict.details) == (Level.BUSY, ("i4 has not joined yet",))


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
        "i5 asks to join (request 8)",
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
    assert not any("last attempt" in each for each in verdict.details)


def test_names_are_told_in_their_own_order_not_in_that_of_joining() -> None:
    members = [instance(1), instance(2, name="i3"), instance(3, name="i2")]
    said = judge(view(*members, leader=0), "no answer", frozenset({members[0].record.address}))
    assert "Start i2 and i3 again." in said.details


def test_an_election_is_not_taken_for_a_lost_majority() -> None:
    verdict = judge(view(leader=0), "timeout", frozenset({"10.0.0.2:3301", "10.0.0.3:3301"}))
    assert verdict.line.startswith("No leader: an election is under way")
    assert verdict.details[-1] == "The last attempt said: timeout"
    assert judge(view(leader=0)).level is Level.STOPPED


def test_a_record_that_can_not_be_read_is_shown() -> None:
    verdict = judge(view(unreadable=["instances/9: what is this"]))
    assert verdict.level is Level.WRONG and "instances/9: what is this" in verdict.line


def test_tablets_under_way_are_told_and_what_keeps_them_is_wrong() -> None:
    moving = MovingView(3, sentences=["3 tablets are being moved to i4: 1.2 of 3.4 GiB, about 20 s left"])
    verdict = judge(view(moving=moving))
    assert verdict.level is Level.BUSY
    assert verdict.details == ("3 tablets are being moved to i4: 1.2 of 3.4 GiB, about 20 s left",)
    lost = MovingView(problems=["tablet 3 of shop.users has lost all its replicas"])
    verdict = judge(view(moving=lost))
    assert verdict.level is Level.WRONG
    assert verdict.line == (
        "Not well: tablet 3 of shop.users has lost all its replicas; i1 leads, and the cluster serves."
    )


def test_a_drain_is_told_once() -> None:
    leaves = {7: RequestRecord(RequestKind.LEAVE, RequestState.RUNNING, raft_id=2)}
    moving = MovingView(1, sentences=["i2 is being drained: 12 of 40 tablets left"])
    assert judge(view(requests=leaves, moving=moving)).details == ("i2 is being drained: 12 of 40 tablets left",)
    assert judge(view(requests=leaves)).details == ("request 7, leave of i2, is running",)
    waits = [
        "request 7 (leave): i2 is drained; it still has 12 replicas",
        "tablets 1 and 2 of shop.users: job 9 copies it",
    ]
    told = msgspec.structs.replace(view(requests=leaves, moving=moving), waiting=[*waits, "i3 waits for votes"])
    assert judge(told).details == ("i2 is being drained: 12 of 40 tablets left", "i3 waits for votes")


def test_who_may_not_go_is_not_to_be_expelled_and_what_nobody_serves_is_in_the_first_line() -> None:
    """An expel was advised that was refused, and the cluster was said to serve."""
    why = "i3 has the only copy of 3 tablets of one.t (3), and nobody can make those anew; start it again"
    unread = "3 tablets of one.t can't be read or written: i3 had the only copy; start it again"
    down = msgspec.structs.replace(instance(3, Grade.OFFLINE, Grade.OFFLINE, heard_ms=9_000, voter=False), stays=why)
    moving = MovingView(problems=[unread], unserved_tablets=3)
    verdict = judge(view(instance(1), instance(2), down, moving=moving))
    assert verdict.line == "Not well: i3 is Offline; i1 leads, and the cluster serves all but 3 tablets."
    assert verdict.details == ("i3 is Offline, last heard of 9 s ago", f"start i3 again: {why}", unread)
    other = instance(4, Grade.OFFLINE, Grade.OFFLINE, heard_ms=9_000, voter=False)
    details = judge(view(instance(1), instance(2), down, other)).details
    assert f"start i3 again: {why}" in details
    assert "start i4 again, or, if it is gone for good: trimtab expel i4" in details


def test_a_problem_is_told_once_though_the_governor_waits_for_it_too() -> None:
    said = "tablet 0 of shop.users: can't move yet: its last move was undone, and it is tried again in a while"
    moving = MovingView(problems=["8 tablets of shop.users lack replicas that i3 had", said])
    shown = msgspec.structs.replace(view(moving=moving), waiting=[*moving.problems, "i3 waits for votes"])
    verdict = judge(shown)
    assert (verdict.line.count(moving.problems[0]), verdict.details) == (1, (said, "i3 waits for votes"))
