"""Joining: who is let in, who is told why not, and that the same attempt is the same."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.topology.clusters import RELEASE, everybody, gone, join_request, member, nobody, ticket, view_of

from trimtab.topology import join
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import Address
from trimtab.topology.records import JoinTicket, RequestKind, RequestRecord, RequestState, encode, instance_key
from trimtab.topology.states import NodeState
from trimtab.topology.view import View


def asking(*records: object, also: dict[int, RequestRecord] | None = None, **fields: object) -> View:
    """A cluster with request 5, of i9, to join."""
    mine = join.asked_to_join(join_request(**fields), 1_000, 9_000)
    return view_of(*records, requests={**(also or {}), 5: mine})  # type: ignore[arg-type]


def door(view: View, alive: join.Alive = everybody, **fields: object) -> str | None:
    return join.door_refusal(view, "demo", RELEASE, alive, join_request(**fields))  # type: ignore[arg-type]


# The door


def test_a_fresh_instance_passes_the_door() -> None:
    assert door(view_of(member(1))) is None


def test_the_wrong_cluster_is_told_which_one_this_is() -> None:
    refusal = join.door_refusal(view_of(member(1)), "demo", RELEASE, everybody, join_request("other"))
    assert refusal == "this is the cluster 'demo', not 'other'; correct --cluster-id or --peer"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"instance_id": "i 9"}, "instance id"),
        ({"uuid": ""}, "uuid"),
        ({"nonce": ""}, "uuid"),
        ({"address": "nowhere"}, "HOST:PORT"),
        ({"address": "0.0.0.0:3301"}, "--advertise"),
        ({"http_address": "x"}, "HOST:PORT"),
        ({"failure_domain": {"rack": ""}}, "failure domain"),
        ({"replaces": "i/1"}, "instance id"),
        ({"capacity_bytes": -1}, "below zero"),
        ({"release": ""}, "not a release"),
        ({"release": "0.9.0"}, "adjacent minor versions"),
    ],
)
def test_what_is_malformed_is_refused_at_the_door(fields: dict[str, object], word: str) -> None:
    assert word in (door(view_of(member(1)), **fields) or "")


def test_an_adjacent_release_passes() -> None:
    assert door(view_of(member(1)), release="0.2.7") is None


def test_an_id_of_a_living_instance_is_refused() -> None:
    refusal = door(view_of(member(1), member(2)), instance_id="i2") or ""
    assert refusal.startswith("the instance id 'i2' is in use: raft id 2 at 127.0.0.1:3311 is alive")
    assert "another --instance-id" in refusal
    assert "--replace" not in refusal


def test_an_id_of_a_dead_member_can_be_taken_over_by_replacing_it() -> None:
    view = view_of(member(1), member(2))
    refusal = door(view, nobody, instance_id="i2") or ""
    assert "has not left the cluster" in refusal
    assert "--replace i2" in refusal
    assert door(view, nobody, instance_id="i2", replaces="i2") is None


def test_an_id_of_one_that_left_is_free_again() -> None:
    assert door(view_of(member(1), gone(2)), instance_id="i2") is None


def test_a_directory_that_left_does_not_come_back() -> None:
    refusal = door(view_of(member(1), gone(2, reason="expelled by an operator")), uuid="uuid-2") or ""
    assert refusal == (
        "this data directory belonged to i2 (raft id 2), which has left the cluster: expelled by an operator; "
        "start with an empty data directory"
    )


def test_a_directory_that_is_in_does_not_come_in_twice() -> None:
    refusal = door(view_of(member(1), member(2)), uuid="uuid-2", instance_id="i7") or ""
    assert "is i2 (raft id 2) already" in refusal


def test_another_that_joins_under_the_same_id_is_refused_and_the_same_attempt_is_not() -> None:
    view = asking(member(1))
    assert door(view) is None
    assert "is joining as 'i9' (request 5)" in (door(view, uuid="u2") or "")
    assert "by another attempt (request 5)" in (door(view, nonce="n2", instance_id="x") or "")
    assert "is joining from 127.0.0.1:3999" in (door(view, uuid="u2", instance_id="x") or "")


def test_the_same_attempt_three_times_is_one_request() -> None:
    view = asking(member(1))
    for _ in range(3):
        assert join.find_attempt(view, "uuid-9", "nonce-9") == 5
    assert join.find_attempt(view, "uuid-9", "nonce-8") is None
    assert join.find_attempt(view, "uuid-8", "nonce-9") is None


def test_the_same_attempt_passes_the_door_even_when_it_is_a_member_by_now() -> None:
    view = asking(member(1))
    admission = join.admitted(view, 5, 2_000)
    view.instances[admission.raft_id] = admission.instance
    view.requests[5] = admission.request
    assert door(view) is None


def test_a_request_keeps_what_was_said_with_keys_in_lower_case() -> None:
    request = join.asked_to_join(join_request(failure_domain={"Rack": "R1"}), 1_000, 9_000)
    assert request.kind is RequestKind.JOIN
    assert (request.asked_ms, request.deadline_ms) == (1_000, 9_000)
    assert request.join == ticket(failure_domain={"rack": "R1"})
    assert join.asked_to_join(join_request(replaces="i2"), 0, 0).kind is RequestKind.REPLACE


# The coordinator


def refused(view: View, alive: join.Alive = everybody) -> str:
    return join.coordinator_refusal(view, 5, alive) or ""


def test_a_fresh_instance_is_accepted() -> None:
    assert refused(asking(member(1))) == ""


def test_every_failure_domain_key_in_use_must_be_given_whatever_its_case() -> None:
    records = (member(1, failure_domain={"dc": "eu", "rack": "a"}), gone(2, failure_domain={"room": "7"}))
    assert refused(asking(*records, failure_domain={"DC": "eu"})) == (
        "its failure domain lacks rack, which members have (such as i1); add --failure-domain rack=VALUE"
    )
    assert refused(asking(*records, failure_domain={"DC": "eu", "RACK": "b", "host": "h"})) == ""


def test_an_address_in_use_is_refused_unless_its_owner_is_replaced() -> None:
    records = (member(1), member(2))
    assert "is the address of i2 (raft id 2)" in refused(asking(*records, address="127.0.0.1:3311"))
    assert refused(asking(*records, address="127.0.0.1:3311", replaces="i2"), nobody) == ""


def test_uniqueness_is_judged_again_because_a_members_view_may_be_old() -> None:
    assert "is in use" in refused(asking(member(1), member(2), instance_id="i2"))
    assert "already" in refused(asking(member(1), member(2), uuid="uuid-2"))
    assert "adjacent" in refused(asking(member(1, release="0.3.0")))


def test_of_two_with_one_name_the_first_is_served() -> None:
    first = join.asked_to_join(join_request(uuid="u1", nonce="n1", address="a:1"), 0, 0)
    view = asking(member(1), also={4: first})
    assert "(request 4)" in refused(view)
    assert join.coordinator_refusal(view, 4, everybody) is None


@pytest.mark.parametrize(
    ("records", "alive", "word"),
    [
        ((member(1),), nobody, "there is no instance 'i2' to replace"),
        ((member(1), gone(2)), nobody, "has left already"),
        ((member(1), member(2)), everybody, "is alive, and only a dead instance can be replaced"),
        ((member(1), member(2), member(3, replaces=2, state=NodeState.REPLACING)), nobody, "being replaced by 'i3'"),
    ],
)
def test_only_a_dead_member_that_nobody_replaces_yet_is_replaced(
    records: tuple[object, ...], alive: join.Alive, word: str
) -> None:
    assert word in refused(asking(*records, replaces="i2"), alive)


def test_one_with_a_request_of_its_own_is_not_replaced() -> None:
    removal = RequestRecord(RequestKind.REMOVE, raft_id=2)
    view = asking(member(1), member(2), replaces="i2", also={4: removal})
    assert "has a request to remove under way (request 4)" in refused(view, nobody)


def test_a_request_of_another_kind_is_no_request_to_join() -> None:
    view = view_of(member(1), requests={5: RequestRecord(RequestKind.LEAVE, raft_id=1)})
    with pytest.raises(ValueError, match="request 5 is no request to join: leave"):
        join.coordinator_refusal(view, 5, everybody)


# The outcome


def test_an_accepted_one_gets_an_id_above_all_there_ever_were() -> None:
    view = asking(member(1), gone(2), gone(3), failure_domain={"Rack": "R"}, http_address="h:80")
    admission = join.admitted(view, 5, 2_000)
    assert admission.raft_id == 4
    row = admission.instance
    assert (row.state, row.grades, row.weight, row.joined_ms) == (NodeState.NONE, Grades(), 0.0, 2_000)
    assert (row.uuid, row.nonce, row.failure_domain) == ("uuid-9", "nonce-9", {"rack": "R"})
    assert (admission.request.state, admission.request.raft_id) == (RequestState.RUNNING, 4)
    assert admission.request.started_ms == 2_000


def test_a_replacement_knows_whom_it_replaces() -> None:
    view = asking(member(1), member(2), instance_id="i2", replaces="i2")
    assert join.admitted(view, 5, 0).instance.replaces == 2


def accepted(**row_fields: object) -> View:
    view = asking(member(1))
    admission = join.admitted(view, 5, 2_000)
    row = msgspec.structs.replace(admission.instance, **row_fields)
    view.change(instance_key(2), encode(row), 300)
    view.requests[5] = admission.request
    return view


def test_nothing_is_said_before_the_learner_is_added() -> None:
    assert join.decision(asking(member(1)), 5, "demo", "g", {1}) is None
    assert join.decision(accepted(), 5, "demo", "g", {1}) is None


def test_an_accepted_one_is_told_its_id_and_the_members() -> None:
    members = [Address(1, "127.0.0.1:3301", 17)]
    told = join.decision(accepted(), 5, "demo", "g", {1, 2}, members, term=3)
    assert told is not None
    assert told.accepted
    assert (told.uuid, told.nonce, told.raft_id) == ("uuid-9", "nonce-9", 2)
    assert (told.cluster_id, told.genesis, told.members, told.term) == ("demo", "g", members, 3)


def test_a_refused_one_is_told_why_and_should_not_try_again_by_itself() -> None:
    view = asking(member(1))
    view.requests[5] = join.rejected(view, 5, "its failure domain lacks rack", 3_000)
    assert view.requests[5].ended_ms == 3_000
    told = join.decision(view, 5, "demo", "g", {1})
    assert told is not None
    assert (told.accepted, told.reason, told.again) == (False, "its failure domain lacks rack", False)


def timed_out(**row_fields: object) -> View:
    view = accepted(state=NodeState.LEFT, **row_fields)
    view.requests[5] = msgspec.structs.replace(view.requests[5], state=RequestState.FAILED, reason="too late")
    return view


def test_an_attempt_that_ran_out_of_time_may_begin_anew_unless_it_was_ever_online() -> None:
    told = join.decision(timed_out(), 5, "demo", "g", {1})
    assert told is not None
    assert (told.accepted, told.reason, told.again) == (False, "too late", True)
    was_online = Grades(Standing(Grade.EXPELLED, 1), Standing(Grade.EXPELLED, 1))
    told = join.decision(timed_out(grades=was_online), 5, "demo", "g", {1})
    assert told is not None
    assert not told.again


def test_one_that_was_done_and_has_left_since_is_told_so() -> None:
    view = accepted(state=NodeState.LEFT, reason="expelled")
    view.requests[5] = msgspec.structs.replace(view.requests[5], state=RequestState.DONE)
    told = join.decision(view, 5, "demo", "g", {1, 2})
    assert told is not None
    assert (told.accepted, told.reason, told.again) == (False, "expelled", False)


def test_tickets_survive_the_metastore() -> None:
    view = asking(member(1), failure_domain={"rack": "a"})
    assert isinstance(view.requests[5].join, JoinTicket)
