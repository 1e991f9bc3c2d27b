"""Requests: what may be asked, the order, taking back, and what ends them."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.topology.clusters import everybody, gone, join_request, member, nobody, view_of

from trimtab.topology import lifecycle
from trimtab.topology.join import asked_to_join
from trimtab.topology.lifecycle import MAX_OPEN_REQUESTS, RequestRefused, cancel, create
from trimtab.topology.protocol import CreateRequest
from trimtab.topology.records import RequestKind, RequestRecord, RequestState, TransitionRecord
from trimtab.topology.states import NodeState, TransitionState
from trimtab.topology.view import View

LEAVE, REMOVE, REBUILD = RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.REBUILD
BARRIER, JOIN, REPLACE = RequestKind.BARRIER, RequestKind.JOIN, RequestKind.REPLACE


def trio(**requests: RequestRecord) -> View:
    """i1, i2 and i3, and requests by number (`_4=…`)."""
    return view_of(member(1), member(2), member(3), requests={int(key[1:]): value for key, value in requests.items()})


def dead(*raft_ids: int) -> lifecycle.Alive:
    return lambda raft_id: raft_id not in raft_ids


def refusal(view: View, asked: CreateRequest, alive: lifecycle.Alive = everybody, **more: object) -> tuple[str, str]:
    with pytest.raises(RequestRefused) as refused:
        create(view, asked, alive, 1_000, **more)  # type: ignore[arg-type]
    return refused.value.code, str(refused.value)


# Asking


def test_a_living_instance_may_leave() -> None:
    record = create(trio(), CreateRequest(LEAVE, "i2", timeout_ms=500), everybody, 1_000)
    assert record == RequestRecord(LEAVE, raft_id=2, asked_ms=1_000, deadline_ms=1_500)


def test_a_dead_instance_is_removed_without_waiting_for_other_dead_ones() -> None:
    record = create(trio(), CreateRequest(REMOVE, "i2", ignore=["i3", "i3"]), dead(2, 3), 1_000)
    assert record == RequestRecord(REMOVE, raft_id=2, asked_ms=1_000, ignore=[3])


def test_a_deadline_of_the_settings_holds_for_requests_without_one() -> None:
    assert create(trio(), CreateRequest(BARRIER), everybody, 1_000, timeout_ms=50).deadline_ms == 1_050


def test_expel_leaves_when_it_lives_and_removes_when_it_is_dead() -> None:
    asked = CreateRequest(REBUILD, "i2", expel=True)
    assert create(trio(), asked, everybody, 0).kind is LEAVE
    assert create(trio(), asked, dead(2), 0).kind is REMOVE
    assert create(trio(), CreateRequest(BARRIER, "i2", expel=True), everybody, 0).raft_id == 2


def eight(raft_id: int) -> str:
    return "8 tablet replicas of shop.users (8)" if raft_id == 2 else ""


@pytest.mark.parametrize(("kind", "alive"), [(LEAVE, everybody), (REMOVE, dead(2))])
@pytest.mark.parametrize(("expel", "drain"), [(False, False), (True, True)])
def test_an_instance_that_holds_replicas_may_go_where_others_can_hold_them(
    kind: RequestKind, alive: lifecycle.Alive, expel: bool, drain: bool
) -> None:
    asked = CreateRequest(kind, "i2", expel=expel, drain=drain)
    assert create(trio(), asked, alive, 0, holds=eight).kind is kind
    code, text = refusal(trio(), asked, alive, holds=eight, keeps=lambda _raft_id, kind: f"no {kind.value}")
    assert (code, text) == (
        "conflict",
        f"i2 holds 8 tablet replicas of shop.users (8) and can't go: no {kind.value}",
    )


def test_an_instance_without_replicas_may_be_needed_too() -> None:
    asked = CreateRequest(LEAVE, "i3")
    code, text = refusal(trio(), asked, everybody, holds=eight, keeps=lambda _raft_id, _kind: "there are too few hosts")
    assert (code, text) == ("conflict", "i3 can't go: there are too few hosts")


def test_whoever_holds_replicas_is_expelled_only_when_it_may_be_drained() -> None:
    for alive in (everybody, dead(2)):
        code, text = refusal(trio(), CreateRequest(LEAVE, "i2", expel=True), alive, holds=eight)
        assert code == "conflict"
        assert text == (
            "i2 holds 8 tablet replicas of shop.users (8); to have them moved to others first, use: trimtab expel i2 "
            "--drain"
        )
    assert create(trio(), CreateRequest(LEAVE, "i3", expel=True), everybody, 0, holds=eight).kind is LEAVE
    assert create(trio(), CreateRequest(REBUILD, "i2"), everybody, 0, holds=eight).kind is REBUILD


def test_a_rebuild_remembers_where_to_read() -> None:
    assert create(trio(), CreateRequest(REBUILD, "i2", source="dc1"), everybody, 0).source == "dc1"


def test_global_requests_queue_without_an_instance() -> None:
    view = trio(_1=RequestRecord(BARRIER))
    assert create(view, CreateRequest(BARRIER), everybody, 7) == RequestRecord(BARRIER, asked_ms=7)


@pytest.mark.parametrize(
    ("asked", "alive", "code", "word"),
    [
        (CreateRequest(LEAVE), everybody, "invalid", "names no instance"),
        (CreateRequest(LEAVE, "i9"), everybody, "not_found", "there is no instance 'i9'; there are: i1, i2, i3"),
        (CreateRequest(LEAVE, "i4"), everybody, "conflict", "has left the cluster already"),
        (CreateRequest(LEAVE, "i2"), dead(2), "conflict", "trimtab remove i2"),
        (CreateRequest(REMOVE, "i2"), everybody, "conflict", "trimtab decommission i2, or stop it first"),
        (CreateRequest(REBUILD, "i2"), dead(2), "conflict", "is dead"),
        (CreateRequest(JOIN, "i2"), everybody, "invalid", "trimtab run"),
        (CreateRequest(REPLACE, "i2"), everybody, "invalid", "trimtab run"),
        (CreateRequest(LEAVE, "i2", timeout_ms=-1), everybody, "invalid", "timeout_ms"),
        (CreateRequest(REMOVE, "i2", ignore=["i3"]), dead(2), "invalid", "i3 can't be ignored: it is alive"),
        (CreateRequest(REMOVE, "i2", ignore=["i2"]), dead(2), "invalid", "the request is about it"),
        (CreateRequest(REMOVE, "i2", ignore=["i8"]), dead(2), "not_found", "there is no instance 'i8'"),
    ],
)
def test_refusals_say_what_to_do(asked: CreateRequest, alive: lifecycle.Alive, code: str, word: str) -> None:
    view = view_of(member(1), member(2), member(3), gone(4))
    assert refusal(view, asked, alive)[0] == code
    assert word in refusal(view, asked, alive)[1]


@pytest.mark.parametrize("expel", [False, True])
def test_the_last_member_stays(expel: bool) -> None:
    alone = view_of(member(1), gone(2))
    assert "last member" in refusal(alone, CreateRequest(LEAVE, "i1", expel=expel))[1]
    leaving = view_of(member(1), member(2), requests={1: RequestRecord(LEAVE, raft_id=2)})
    assert "last member" in refusal(leaving, CreateRequest(LEAVE, "i1", expel=expel))[1]


def test_the_last_normal_member_stays_while_another_is_joining() -> None:
    view = view_of(member(1), member(2, state=NodeState.BOOTSTRAPPING))
    assert "last normal member" in refusal(view, CreateRequest(LEAVE, "i1"))[1]


def test_only_a_normal_one_is_rebuilt() -> None:
    view = view_of(member(1), member(2, state=NodeState.BOOTSTRAPPING))
    assert "i2 is bootstrapping" in refusal(view, CreateRequest(REBUILD, "i2"))[1]


def test_one_request_at_a_time_for_an_instance() -> None:
    view = trio(_4=RequestRecord(LEAVE, raft_id=2))
    code, text = refusal(view, CreateRequest(REBUILD, "i2"))
    assert code == "conflict"
    assert text == ("i2 has a request under way: leave (request 4); wait for its end, or: trimtab tasks cancel 4")
    view.requests[4] = lifecycle.ended(view.requests[4], RequestState.DONE, "", 9)
    assert create(view, CreateRequest(REBUILD, "i2"), everybody, 0).raft_id == 2


def test_one_that_is_being_replaced_has_a_request_under_way() -> None:
    view = trio(_4=asked_to_join(join_request(replaces="i2"), 0, 0))
    assert "replace (request 4)" in refusal(view, CreateRequest(REMOVE, "i2"), dead(2))[1]


def test_asking_again_finds_the_request_there_is() -> None:
    view = trio(_4=RequestRecord(LEAVE, raft_id=2))
    assert lifecycle.same_request(view, CreateRequest(LEAVE, "i2")) == 4
    assert lifecycle.same_request(view, CreateRequest(JOIN, "i2", expel=True)) == 4
    assert lifecycle.same_request(view, CreateRequest(REBUILD, "i2")) is None
    assert lifecycle.same_request(view, CreateRequest(LEAVE, "i3")) is None
    assert lifecycle.same_request(view, CreateRequest(BARRIER)) is None


def test_the_queue_is_bounded() -> None:
    view = trio()
    view.requests.update({number: RequestRecord(BARRIER) for number in range(1, MAX_OPEN_REQUESTS + 1)})
    assert "wait already" in refusal(view, CreateRequest(BARRIER))[1]


# The order


def test_requests_are_taken_by_urgency_and_then_by_age() -> None:
    kinds = [BARRIER, REBUILD, LEAVE, REMOVE, JOIN, JOIN, REPLACE]
    view = view_of(member(1), requests={number: RequestRecord(kind) for number, kind in enumerate(kinds, 1)})
    view.requests[9] = RequestRecord(REPLACE, RequestState.DONE)
    assert lifecycle.queue(view) == [7, 5, 6, 4, 3, 2, 1]


# Taking back


def test_one_that_has_not_begun_ends_at_once() -> None:
    record = cancel(trio(_4=RequestRecord(LEAVE, raft_id=2)), 4, "changed my mind", 9)
    assert record == RequestRecord(LEAVE, RequestState.CANCELLED, 2, "changed my mind", ended_ms=9)


def test_one_that_runs_is_marked_and_undone_by_the_governor() -> None:
    running = RequestRecord(LEAVE, RequestState.RUNNING, 2)
    record = cancel(trio(_4=running), 4, "", 9)
    assert (record.state, record.cancel) == (RequestState.RUNNING, "an operator cancelled it")
    assert cancel(trio(_4=record), 4, "again", 10) == record


def crossing(state: TransitionState, **fields: int) -> View:
    running = RequestRecord(LEAVE, RequestState.RUNNING, 2, **fields)  # type: ignore[arg-type]
    return view_of(member(1), member(2), requests={4: running}, transition=TransitionRecord(state, LEAVE, [4], 2))


def test_it_is_too_late_once_reads_go_to_the_new_topology() -> None:
    assert cancel(crossing(TransitionState.WRITE_BOTH_READ_OLD), 4, "no", 9).cancel == "no"
    with pytest.raises(RequestRefused, match="only goes forward"):
        cancel(crossing(TransitionState.WRITE_BOTH_READ_NEW), 4, "no", 9)


def test_what_is_over_or_unknown_can_not_be_cancelled() -> None:
    view = trio(_4=RequestRecord(LEAVE, RequestState.DONE, 2))
    with pytest.raises(RequestRefused, match=r"request 4 \(leave\) is done already"):
        cancel(view, 4, "", 9)
    with pytest.raises(RequestRefused) as refused:
        cancel(view, 5, "", 9)
    assert refused.value.code == "not_found"


# Deadlines


def test_deadlines_end_what_can_still_be_given_up() -> None:
    view = trio(_4=RequestRecord(LEAVE, raft_id=2, deadline_ms=100), _5=RequestRecord(BARRIER))
    assert lifecycle.expired(view, 99) == []
    assert lifecycle.expired(view, 100) == [4]
    assert lifecycle.expired(crossing(TransitionState.WRITE_BOTH_READ_OLD, deadline_ms=1), 9) == [4]
    assert lifecycle.expired(crossing(TransitionState.WRITE_BOTH_READ_NEW, deadline_ms=1), 9) == []


def test_started_and_ended_keep_the_times() -> None:
    request = lifecycle.started(RequestRecord(LEAVE, raft_id=2), 5)
    assert (request.state, request.started_ms) == (RequestState.RUNNING, 5)
    assert lifecycle.started(request, 6) is request
    assert lifecycle.ended(request, RequestState.DONE, "drained", 8).ended_ms == 8
    with pytest.raises(AssertionError):
        lifecycle.ended(request, RequestState.RUNNING, "", 8)


# Blocked


@pytest.mark.parametrize(
    ("kind", "alive", "word"),
    [
        (REMOVE, everybody, "is alive again"),
        (LEAVE, dead(2), "trimtab remove i2"),
        (REBUILD, dead(2), "can't be rebuilt"),
        (LEAVE, dead(1, 3), "no other member is alive"),
        (REMOVE, nobody, "no other member is alive"),
    ],
)
def test_why_a_request_can_not_proceed(kind: RequestKind, alive: lifecycle.Alive, word: str) -> None:
    assert word in (lifecycle.blocked(trio(_4=RequestRecord(kind, raft_id=2)), 4, alive) or "")


def test_a_replacement_is_blocked_when_the_replaced_one_is_back() -> None:
    view = view_of(
        member(1),
        member(2),
        member(3, replaces=2, state=NodeState.NONE),
        requests={4: RequestRecord(REPLACE, raft_id=3)},
    )
    assert "i2 is alive again" in (lifecycle.blocked(view, 4, everybody) or "")
    assert lifecycle.blocked(view, 4, dead(2)) is None


def test_what_can_proceed_is_not_blocked() -> None:
    view = trio(_4=RequestRecord(LEAVE, raft_id=2), _5=RequestRecord(BARRIER), _6=asked_to_join(join_request(), 0, 0))
    assert [lifecycle.blocked(view, number, everybody) for number in (4, 5, 6)] == [None, None, None]


def test_all_are_given_up_only_if_none_can_proceed() -> None:
    view = trio(_4=RequestRecord(LEAVE, raft_id=2), _5=RequestRecord(REBUILD, raft_id=3))
    assert lifecycle.all_blocked(view, dead(2)) == {}
    assert sorted(lifecycle.all_blocked(view, dead(2, 3))) == [4, 5]
    assert lifecycle.all_blocked(trio(), nobody) == {}


def test_a_removal_that_has_begun_is_not_stopped_by_a_return() -> None:
    view = view_of(member(1), member(2, state=NodeState.REMOVING), requests={4: RequestRecord(REMOVE, raft_id=2)})
    assert lifecycle.blocked(view, 4, everybody) is None


def test_old_ended_requests_can_be_pruned_and_numbers_stay_unused() -> None:
    done = RequestRecord(LEAVE, RequestState.DONE, 2)
    view = trio()
    view.requests.update({1: done, 2: done, 3: msgspec.structs.replace(done, state=RequestState.RUNNING), 4: done})
    assert lifecycle.prunable(view, keep=1) == [1, 2]
    assert lifecycle.prunable(view, keep=0) == [1, 2]
    assert view.next_request() == 5
