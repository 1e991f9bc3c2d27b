"""Leases: an instance that is marked Offline holds none, whatever messages, clocks and elections do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.topology.clusters import gone, member
from tests.unit.topology.lease_world import BUGS, World

from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.leases import (
    ELECTION_MAX_MS,
    LEASE_MS,
    MAX_HEARTBEATS,
    OFFLINE_AFTER_MS,
    LeaseHolder,
    Presence,
    check_timing,
    confirmed_within_ms,
    grant_for,
    quorum_confirmed,
)
from trimtab.topology.protocol import Grant, Heartbeat


def beat(raft_id: int = 1, number: int = 1, applied: int = 0, *, surrendered: bool = False) -> Heartbeat:
    return Heartbeat(raft_id, f"uuid-{raft_id}", number, 1, applied, 1, surrendered)


def grant(number: int, term: int = 1, lease_ms: int = LEASE_MS, reason: str = "") -> Grant:
    return Grant(number, term, lease_ms, 0, reason)


# Everything together


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_instance_that_is_offline_never_holds_a_lease(seed: int) -> None:
    assert World(seed).run().violations == []


def test_the_world_does_mark_instances_offline_and_lets_others_serve() -> None:
    """Or the test above would show nothing."""
    worlds = [World(seed).run() for seed in range(40)]
    assert sum(world.marked for world in worlds) >= 10
    assert any(world.holder.left_ms(world.clocks[9].at(world.now_s)) for world in worlds)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_lets_an_offline_instance_serve(bug: str) -> None:
    assert any(World(seed, bug).run().violations for seed in range(500))


# The holder


def test_a_lease_counts_from_the_sending_of_the_heartbeat() -> None:
    holder = LeaseHolder()
    number = holder.sent(10.0)
    assert not holder.valid(10.0)
    assert holder.granted(grant(number), 12.5)
    assert holder.valid(12.999)
    assert holder.left_ms(12.5) == 500
    assert not holder.valid(13.0)
    assert holder.left_ms(13.0) == 0


def test_a_grant_that_comes_after_its_time_grants_nothing() -> None:
    holder = LeaseHolder()
    number = holder.sent(10.0)
    assert not holder.granted(grant(number), 13.0)
    assert not holder.valid(13.0)


def test_grants_for_what_was_not_asked_or_twice_are_ignored() -> None:
    holder = LeaseHolder()
    number = holder.sent(10.0)
    assert not holder.granted(grant(number + 1), 10.1)
    assert holder.granted(grant(number), 10.1)
    assert not holder.granted(grant(number), 10.2)
    assert holder.left_ms(10.0) == 3_000


def test_a_grant_of_an_older_term_is_ignored() -> None:
    holder = LeaseHolder()
    first, second = holder.sent(10.0), holder.sent(10.5)
    assert holder.granted(grant(first, term=5), 10.6)
    assert not holder.granted(grant(second, term=4), 10.7)
    assert holder.left_ms(10.0) == 3_000


def test_grants_out_of_order_never_shorten_a_lease() -> None:
    holder = LeaseHolder()
    first, second = holder.sent(10.0), holder.sent(11.0)
    assert holder.granted(grant(second), 11.1)
    assert not holder.granted(grant(first), 11.2)
    assert holder.left_ms(11.0) == 3_000


def test_the_memory_of_heartbeats_is_bounded() -> None:
    holder = LeaseHolder()
    first = holder.sent(0.0)
    for _ in range(MAX_HEARTBEATS):
        last = holder.sent(0.0)
    assert not holder.granted(grant(first), 0.0)
    assert holder.granted(grant(last), 0.0)


def test_a_refusal_does_not_end_what_was_granted_and_says_why_later() -> None:
    holder = LeaseHolder()
    assert holder.why_not(0.0) == "no leader has granted it a lease yet"
    holder.granted(grant(holder.sent(10.0)), 10.0)
    holder.granted(grant(holder.sent(11.0), lease_ms=0, reason="i1 should be Offline"), 11.0)
    assert holder.valid(12.0)
    assert holder.why_not(12.0) == ""
    assert holder.why_not(13.0) == "the leader refuses: i1 should be Offline"
    holder.granted(grant(holder.sent(14.0)), 14.0)
    assert holder.why_not(19.0) == "no leader has renewed it; it ran out 2.0 s ago"


def test_a_surrendered_lease_is_gone_at_once_and_grants_on_their_way_do_not_bring_it_back() -> None:
    holder = LeaseHolder()
    holder.granted(grant(holder.sent(10.0)), 10.0)
    on_its_way = holder.sent(10.5)
    holder.surrender("it shuts down")
    assert holder.surrendered
    assert not holder.valid(10.6)
    assert not holder.granted(grant(on_its_way), 10.7)
    assert not holder.granted(grant(holder.sent(10.8)), 10.9)
    assert holder.why_not(11.0) == "it gave its lease up: it shuts down"
    before = holder.sent(11.0)
    holder.resume()
    assert not holder.granted(grant(before), 11.1)
    assert holder.granted(grant(holder.sent(11.2)), 11.3)


def test_numbers_of_a_later_life_are_greater() -> None:
    assert LeaseHolder(1_000).sent(0.0) == 1_001


def test_a_leader_of_before_the_announcement_grants_nothing_that_counts() -> None:
    """Its row of this instance may have the timing of an earlier life."""
    holder = LeaseHolder()
    holder.heard_of(5)
    assert not holder.granted(grant(holder.sent(10.0), term=4, lease_ms=20_000), 10.1)
    assert holder.granted(grant(holder.sent(11.0), term=5), 11.1)


# The giver


def test_who_was_never_heard_counts_from_taking_office() -> None:
    presence = Presence()
    presence.took_office(100.0, {})
    seen = presence.of(7, 106.0)
    assert (seen.age_ms, seen.lease_left_ms, seen.stalled_ms) == (6_000, 0, 0)
    assert presence.of(7, 104.0).lease_left_ms > 0, "an earlier leader may have granted it one"


def test_the_next_leader_waits_for_the_end_of_what_the_last_one_may_have_granted_by_the_row() -> None:
    """The leaders before it may have been started with longer leases than this one."""
    presence = Presence(3_000, 2_000)
    presence.took_office(100.0, {1: member(1, lease_ms=20_000, election_max_ms=4_000), 2: member(2)})
    assert presence.of(1, 123.0).lease_left_ms > 0 and presence.of(2, 123.0).lease_left_ms == 0
    presence.heard(beat(1), 0, 101.0)
    assert presence.of(1, 123.0).lease_left_ms > 0
    assert presence.of(1, 125.0).lease_left_ms == 0


def test_nobody_grants_a_longer_lease_or_on_an_older_quorum_than_the_row_says() -> None:
    def given(own_ms: int, row_ms: int) -> int:
        row = member(1, lease_ms=row_ms)
        return grant_for(beat(), row, term=1, commit=1, lease_ms=own_ms, confirmed=True).lease_ms

    assert given(20_000, 3_000) == 3_000 and given(3_000, 20_000) == 3_000 and given(20_000, 20_000) == 20_000
    assert given(20_000, 0) == LEASE_MS, "a row that says nothing has the default"
    assert confirmed_within_ms(member(1, election_max_ms=200), 1_000) == 200
    assert confirmed_within_ms(member(1, election_max_ms=9_000), 1_000) == 1_000
    assert confirmed_within_ms(member(1), 5_000) == ELECTION_MAX_MS


def test_taking_office_again_forgets_what_was_known() -> None:
    presence = Presence()
    presence.took_office(0.0, {})
    presence.heard(beat(applied=7), 7, 50.0)
    assert presence.of(1, 50.0).applied == 7
    presence.took_office(60.0, {})
    assert presence.of(1, 61.0).age_ms == 1_000
    assert presence.of(1, 61.0).applied == 0


def test_a_grant_is_waited_for_and_a_surrender_is_not() -> None:
    presence = Presence()
    presence.took_office(0.0, {})
    presence.heard(beat(number=1), 0, 10.0)
    assert presence.of(1, 10.0).lease_left_ms == 0
    presence.granted(1, 10.0)
    assert 3_000 < presence.of(1, 10.0).lease_left_ms < 3_100
    presence.heard(beat(number=3, surrendered=True), 0, 11.0)
    assert presence.of(1, 11.0).lease_left_ms == 0
    presence.heard(beat(number=4), 0, 11.5)
    presence.granted(1, 11.5)
    presence.heard(beat(number=2, surrendered=True), 0, 11.6)  # late: what it was granted since is still out
    assert presence.of(1, 11.6).lease_left_ms > 0


def test_slow_is_not_stalled_and_stalled_is_only_who_is_behind() -> None:
    presence = Presence()
    presence.took_office(0.0, {})
    presence.heard(beat(applied=5), 5, 1.0)
    presence.heard(beat(applied=5), 5, 100.0)
    assert presence.of(1, 100.0).stalled_ms == 0, "there was nothing to apply"
    presence.heard(beat(applied=5), 9, 101.0)
    presence.heard(beat(applied=6), 9, 125.0)
    assert presence.of(1, 126.0).stalled_ms == 1_000, "it gets on, slowly"
    presence.heard(beat(applied=6), 20, 150.0)
    assert presence.of(1, 155.0).stalled_ms == 30_000
    presence.heard(beat(applied=20), 20, 156.0)
    assert presence.of(1, 200.0).stalled_ms == 0


def test_who_has_yet_to_climb_is_not_stalled_however_long_a_snapshot_takes() -> None:
    presence = Presence()
    presence.took_office(0.0, {})
    for now_s in range(60):
        presence.heard(beat(applied=0), 9, float(now_s), catching_up=True)
    assert presence.of(1, 60.0).stalled_ms == 0
    presence.heard(beat(applied=0), 9, 61.0)
    assert presence.of(1, 91.0).stalled_ms == 30_000


def test_all_gives_everybody_asked_for_and_forget_forgets() -> None:
    presence = Presence()
    presence.took_office(0.0, {})
    presence.heard(beat(2), 0, 5.0)
    seen = presence.all([1, 2], 6.0)
    assert {raft_id: one.age_ms for raft_id, one in seen.items()} == {1: 6_000, 2: 1_000}
    presence.forget([2])
    assert presence.of(2, 6.0).age_ms == 6_000


# The answer

_DOWN = Standing(Grade.OFFLINE, 1)
_UP = Standing(Grade.ONLINE, 1)


@pytest.mark.parametrize(
    ("grades", "granted"),
    [
        (Grades(_UP, _UP), True),
        (Grades(Standing(Grade.RAFT_SYNCED, 2), Standing(Grade.ONLINE, 2)), True),
        (Grades(_UP, Standing(Grade.ONLINE, 2)), True),
        (Grades(_UP, _DOWN), False),
        (Grades(_DOWN, _UP), False),
        (Grades(_DOWN, _DOWN), False),
        (Grades(_UP, Standing(Grade.EXPELLED, 1)), False),
    ],
)
def test_who_is_or_should_be_down_gets_no_lease(grades: Grades, granted: bool) -> None:
    answer = grant_for(beat(), member(1, grades=grades), term=3, commit=8, lease_ms=LEASE_MS, confirmed=True)
    assert (answer.lease_ms > 0) == granted
    assert bool(answer.reason) != granted
    assert (answer.number, answer.term, answer.commit) == (1, 3, 8)


def test_reasons_for_no_lease() -> None:
    def reason(record: object, confirmed: bool = True, surrendered: bool = False) -> str:
        asked = beat(surrendered=surrendered)
        answer = grant_for(asked, record, term=1, commit=1, lease_ms=1, confirmed=confirmed)  # type: ignore[arg-type]
        assert answer.lease_ms == 0
        return answer.reason

    assert reason(None) == "there is no instance with raft id 1"
    assert reason(member(1, uuid="other")) == "i1 (raft id 1) belongs to another data directory"
    assert reason(gone(1)) == "i1 has left the cluster"
    assert reason(member(1, grades=Grades(_UP, _DOWN), reason="not heard")) == "i1 should be Offline: not heard"
    assert reason(member(1), confirmed=False) == "the leader has not heard from a majority of voters lately"
    assert reason(member(1), surrendered=True) == "i1 asked for none"


# A majority


def test_a_majority_of_both_sets_must_have_answered_lately() -> None:
    contacts = {1: 0.0, 2: 9.0, 3: 5.0, 4: 9.5}
    assert quorum_confirmed(contacts, {1, 2, 3}, (), 1, 10.0, 2.0), "itself and 2"
    assert not quorum_confirmed(contacts, {1, 3, 5}, (), 1, 10.0, 2.0)
    assert quorum_confirmed(contacts, {1, 2, 3}, {1, 4, 5}, 1, 10.0, 2.0)
    assert not quorum_confirmed(contacts, {1, 2, 3}, {1, 3, 5}, 1, 10.0, 2.0)
    assert quorum_confirmed({}, {1}, (), 1, 10.0, 2.0), "alone it is its own majority"
    assert not quorum_confirmed({}, {1, 2}, (), 1, 10.0, 2.0)
    assert not quorum_confirmed({2: 10.0}, {2, 3}, (), 1, 10.0, 2.0), "a leader without a vote does not count itself"
    assert quorum_confirmed({2: 8.0, 3: 8.0}, {2, 3}, (), 1, 10.0, 2.0)


# The numbers


def test_the_defaults_are_fine() -> None:
    assert check_timing(LEASE_MS, OFFLINE_AFTER_MS, ELECTION_MAX_MS) is None


@pytest.mark.parametrize(
    ("numbers", "word"),
    [
        ((3_000, 5_000, 2_000), "offline_after_ms (5000) must be at least 5102"),
        ((1_000, 9_000, 2_000), "lease_ms (1000) must not be below"),
        ((0, 9_000, 2_000), "above zero"),
    ],
)
def test_numbers_that_would_let_an_offline_instance_serve_are_refused(numbers: tuple[int, int, int], word: str) -> None:
    refusal = check_timing(*numbers)
    assert refusal is not None
    assert word in refusal
