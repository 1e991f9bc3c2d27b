"""Membership arithmetic against a model of sets, and back from the state a snapshot carries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.raft.confchange import Changer, check_invariants, restore
from trimtab.raft.describe import describe_changes, parse_changes
from trimtab.raft.errors import ConfChangeRefused, InvariantViolated
from trimtab.raft.messages import (
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
)
from trimtab.raft.quorum import JointVoters
from trimtab.raft.tracker import Configuration, Tracker

SINGLES = st.builds(ConfChangeSingle, st.sampled_from(ConfChangeType), st.integers(0, 6))
CHANGES = st.builds(ConfChangeV2, st.sampled_from(ConfChangeTransition), st.lists(SINGLES, max_size=4).map(tuple))


def tracker(text: str = "") -> Tracker:
    """Of voters and learners, as `v1 v2 l3`."""
    made = Tracker(10, 0)
    for change in parse_changes(text):
        made.switch(*Changer(made, 10).simple([change]))
    return made


def model(state: ConfState, changes: tuple[ConfChangeSingle, ...]) -> tuple[set[int], set[int]]:
    """Voters and learners once everything is over: each change in order, the last word on a node counts."""
    voters, learners = set(state.voters), set(state.learners)
    for change in changes:
        if change.node_id == 0 or change.type == ConfChangeType.UPDATE_NODE:
            continue
        voters.discard(change.node_id)
        learners.discard(change.node_id)
        if change.type == ConfChangeType.ADD_NODE:
            voters.add(change.node_id)
        elif change.type == ConfChangeType.ADD_LEARNER_NODE:
            learners.add(change.node_id)
    return voters, learners


@given(st.lists(CHANGES, max_size=12))
def test_any_sequence_of_changes_keeps_the_invariants_and_ends_where_the_model_ends(
    changes: list[ConfChangeV2],
) -> None:
    members = tracker("v1")
    for change in changes:
        before = members.config
        state = before.conf_state()
        ids = set(members.progress)
        try:
            config, progress = Changer(members, 10).apply(change)
        except ConfChangeRefused:
            assert members.config is before and set(members.progress) == ids
            continue
        check_invariants(config, progress)
        members.switch(config, progress)
        after = config.conf_state()
        if change.leaves_joint:
            assert set(after.voters) == set(state.voters) and not after.voters_outgoing
            assert set(after.learners) == set(state.learners) | set(state.learners_next)
            continue
        voters, learners = model(state, change.changes)
        assert set(after.voters) == voters
        assert set(after.learners) | set(after.learners_next) == learners
        if change.enters_joint:
            assert set(after.voters_outgoing) == set(state.voters)
            assert set(after.learners_next) == learners & set(state.voters)
        else:
            assert len(set(after.voters) ^ set(state.voters)) <= 1
        assert set(progress) == voters | learners | set(after.voters_outgoing)


@given(st.lists(CHANGES, max_size=8))
def test_whatever_was_reached_can_be_restored_from_its_conf_state(changes: list[ConfChangeV2]) -> None:
    members = tracker("v1")
    for change in changes:
        try:
            members.switch(*Changer(members, 10).apply(change))
        except ConfChangeRefused:
            continue
    config, progress = restore(Tracker(10, 0), 10, members.config.conf_state())
    assert config == members.config
    assert {node: peer.is_learner for node, peer in progress.items()} == {
        node: peer.is_learner for node, peer in members.progress.items()
    }


def test_a_demoted_voter_keeps_its_progress_and_becomes_a_learner_only_when_joint_is_left() -> None:
    members = tracker("v1 v2 v3")
    members.progress[3].match = 7
    members.switch(*Changer(members, 10).enter_joint(parse_changes("l3 v4"), auto_leave=True))
    assert str(members.config) == "voters=(1 2 4)&&(1 2 3) learners_next=(3) autoleave"
    assert not members.progress[3].is_learner
    members.switch(*Changer(members, 10).leave_joint())
    assert str(members.config) == "voters=(1 2 4) learners=(3)"
    assert members.progress[3].is_learner and members.progress[3].match == 7


def test_a_refused_change_says_why() -> None:
    members = tracker("v1 v2")
    with pytest.raises(ConfChangeRefused, match="more than one voter changed"):
        Changer(members, 10).simple(parse_changes("v3 v4"))
    with pytest.raises(ConfChangeRefused, match="removed all voters"):
        Changer(members, 10).enter_joint(parse_changes("r1 r2"), auto_leave=False)
    with pytest.raises(ConfChangeRefused, match="non-joint"):
        Changer(members, 10).leave_joint()


def test_a_conf_state_that_contradicts_itself_is_not_restored() -> None:
    with pytest.raises((InvariantViolated, ConfChangeRefused)):
        restore(Tracker(10, 0), 1, ConfState(voters=(1, 2), learners=(2,)))
    with pytest.raises((InvariantViolated, ConfChangeRefused)):
        restore(Tracker(10, 0), 1, ConfState(voters=(1,), learners_next=(2,)))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Configuration(JointVoters(frozenset({9}))), "no progress"),
        (Configuration(JointVoters(frozenset({1})), learners=frozenset({1})), "learner and a voter"),
        (Configuration(JointVoters(frozenset({1})), learners=frozenset({2})), "not marked"),
        (Configuration(JointVoters(frozenset({1})), learners_next=frozenset({2})), "not an outgoing voter"),
        (Configuration(JointVoters(frozenset({1})), auto_leave=True), "only a joint configuration"),
    ],
)
def test_an_impossible_configuration_is_found(config: Configuration, why: str) -> None:
    with pytest.raises(InvariantViolated, match=why):
        check_invariants(config, tracker("v1 v2").progress)


@given(st.lists(SINGLES, max_size=5).map(tuple))
def test_changes_read_back_what_they_are_written_as(changes: tuple[ConfChangeSingle, ...]) -> None:
    assert parse_changes(describe_changes(changes)) == changes


@pytest.mark.parametrize("text", ["x1", "v", "vx"])
def test_what_is_not_a_change_is_not_read(text: str) -> None:
    with pytest.raises(ValueError):
        parse_changes(text)
