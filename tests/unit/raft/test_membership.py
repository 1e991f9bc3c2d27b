"""Membership changes in a running cluster."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft.describe import parse_changes
from trimtab.raft.errors import ConfChangeRefused
from trimtab.raft.messages import (
    LEAVE_JOINT,
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Entry,
    EntryType,
    Message,
    MessageType,
    encode_conf_change,
)
from trimtab.raft.node import StateType


def change(text: str, transition: ConfChangeTransition = ConfChangeTransition.AUTO) -> ConfChangeV2:
    return ConfChangeV2(transition, parse_changes(text))


def config(cluster: Cluster, node: int) -> str:
    return str(cluster.raw(node).raft.tracker.config)


def test_a_newcomer_is_added_as_learner_catches_up_and_is_promoted() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    cluster.add(4)
    cluster[1].compact()
    cluster.change(change("l4"))
    cluster.tick(2)
    assert cluster[4].data == [b"a"] and config(cluster, 4) == "voters=(1 2 3) learners=(4)"
    cluster.change(change("v4"))
    assert {config(cluster, node) for node in (1, 2, 3, 4)} == {"voters=(1 2 3 4)"}


def test_several_changes_go_through_a_joint_configuration_that_is_left_by_itself() -> None:
    cluster = Cluster(3)
    cluster[1].compact()
    for node in (4, 5):
        cluster.add(node)
    cluster.change(change("r2 r3 v4 v5"))
    cluster.tick(3)
    assert {config(cluster, node) for node in (1, 4, 5)} == {"voters=(1 4 5)"}


def test_an_explicit_joint_configuration_stays_until_it_is_left_and_refuses_other_changes() -> None:
    cluster = Cluster(3)
    cluster.change(change("l3", ConfChangeTransition.JOINT_EXPLICIT))
    assert config(cluster, 1) == "voters=(1 2)&&(1 2 3) learners_next=(3)"
    assert cluster.raw(1).raft.conf_change_refusal(change("v4")) == "the configuration is joint; leave it first"
    cluster.change(change("v4"))
    assert cluster[1].applied[-1].type == EntryType.NORMAL
    cluster.change(LEAVE_JOINT)
    assert config(cluster, 2) == "voters=(1 2) learners=(3)"


def test_a_joint_configuration_needs_both_majorities() -> None:
    cluster = Cluster(3)
    cluster[1].compact()
    for node in (4, 5):
        cluster.add(node)
    cluster.change(change("r2 r3 v4 v5", ConfChangeTransition.JOINT_EXPLICIT))
    cluster.tick(2)
    for node in (2, 3):
        cluster.isolate(node)
    committed = cluster.raw(1).raft.log.committed
    cluster.propose(b"needs the old majority too")
    assert cluster.raw(1).raft.log.committed == committed
    cluster.heal()
    cluster.tick(2)
    assert cluster.raw(1).raft.log.committed == committed + 1


def test_a_new_leader_leaves_the_joint_configuration_its_predecessor_entered() -> None:
    cluster = Cluster(5)
    leader = cluster.raw(1)
    leader.propose_conf_change(change("l5", ConfChangeTransition.JOINT_IMPLICIT))
    index = leader.raft.log.last_index()
    # The change commits everywhere, but the old leader's proposal to leave never gets out.
    cluster.passes = lambda message: not any(entry.index > index for entry in message.entries)
    cluster.settle()
    assert config(cluster, 2) == "voters=(1 2 3 4)&&(1 2 3 4 5) learners_next=(5) autoleave"
    cluster.passes = lambda _: True
    cluster.isolate(1)
    cluster.tick(60, only=[2, 3, 4, 5])
    assert {config(cluster, node) for node in (2, 3, 4, 5)} == {"voters=(1 2 3 4) learners=(5)"}


def test_leaving_a_joint_configuration_waits_for_the_end_of_a_transfer() -> None:
    cluster = Cluster(3)
    leader = cluster.raw(1)
    leader.propose_conf_change(change("l3", ConfChangeTransition.JOINT_IMPLICIT))
    cluster.passes = lambda message: message.type is not MessageType.TIMEOUT_NOW
    leader.transfer_leader(2)
    cluster.settle()
    assert "autoleave" in config(cluster, 1)
    cluster.tick(11)
    cluster.propose(b"anything applied asks again")
    assert config(cluster, 1) == "voters=(1 2) learners=(3)"


def test_only_one_change_is_under_way_and_an_untimely_one_becomes_an_empty_entry() -> None:
    cluster = Cluster(3)
    leader = cluster.raw(1)
    leader.propose_conf_change(change("l4"))
    refusal = leader.raft.conf_change_refusal(change("l5"))
    assert refusal is not None and "another change may be under way" in refusal
    leader.propose_conf_change(change("l5"))
    cluster.settle()
    assert [entry.type for entry in cluster[1].applied[-2:]] == [EntryType.CONF_CHANGE_V2, EntryType.NORMAL]
    assert config(cluster, 1) == "voters=(1 2 3) learners=(4)"


def test_a_new_leader_takes_no_change_before_it_has_applied_its_log() -> None:
    cluster = Cluster(3, async_storage_writes=True, start=False)
    cluster.raw(1).campaign()
    while cluster.state(1) is not StateType.LEADER:
        cluster.work()
        cluster.deliver()
    leader = cluster.raw(1)
    assert leader.raft.pending_conf_index == leader.raft.log.last_index() - 1
    cluster.settle()
    assert leader.raft.conf_change_refusal(change("l4")) is None


def test_two_changes_in_one_proposal_are_not_both_taken() -> None:
    cluster = Cluster(3)
    kind, data = encode_conf_change(change("l4"))
    twice = [Entry(type=kind, data=data)] * 2
    cluster.raw(1).step(Message(MessageType.PROP, 1, 2, entries=[*twice, Entry(type=EntryType.CONF_CHANGE_V2)]))
    cluster.settle()
    assert [each.type for each in cluster[1].applied[-3:]] == [
        EntryType.CONF_CHANGE_V2,
        EntryType.NORMAL,
        EntryType.NORMAL,
    ]


def test_a_removed_leader_steps_down_and_the_rest_elects_another() -> None:
    cluster = Cluster(3)
    cluster.change(ConfChange(ConfChangeType.REMOVE_NODE, 1))
    assert cluster.state(1) is StateType.FOLLOWER
    cluster.tick(30)
    assert cluster.leader in (2, 3)
    cluster.propose(b"x")
    assert b"x" not in cluster[1].data


def test_a_removed_leader_that_stays_does_not_count_itself() -> None:
    cluster = Cluster(3, step_down_on_removal=False)
    cluster.raw(1).propose_conf_change(ConfChange(ConfChangeType.REMOVE_NODE, 1))
    cluster.raw(1).propose(b"tail")
    cluster.cut = {(1, 3), (3, 1)}
    cluster.settle()
    leader = cluster.raw(1)
    assert "voters=(2 3)" in config(cluster, 1)
    assert leader.raft.log.committed < leader.raft.log.last_index() or cluster[2].data == [b"tail"]


def test_a_change_of_a_smaller_quorum_commits_what_was_short_of_one() -> None:
    cluster = Cluster(4)
    cluster.raw(1).propose_conf_change(ConfChange(ConfChangeType.REMOVE_NODE, 4))
    cluster.isolate(4)
    cluster.settle()
    cluster.isolate(3)
    cluster.propose(b"two of three")
    assert cluster[1].data == [b"two of three"]


def test_the_transferee_that_is_removed_ends_the_transfer() -> None:
    cluster = Cluster(3)
    leader = cluster.raw(1)
    leader.propose_conf_change(ConfChange(ConfChangeType.REMOVE_NODE, 3))
    cluster.isolate(3)
    leader.transfer_leader(3)
    cluster.settle()
    assert leader.raft.lead_transferee == 0
    leader.propose(b"goes on")


def test_an_impossible_change_is_refused_alike_when_it_is_applied() -> None:
    cluster = Cluster(1, disable_conf_change_validation=True)
    before = config(cluster, 1)
    with pytest.raises(ConfChangeRefused):
        cluster.raw(1).apply_conf_change(change("r1"))
    with pytest.raises(ConfChangeRefused):
        cluster.raw(1).apply_conf_change(LEAVE_JOINT)
    assert config(cluster, 1) == before


def test_an_impossible_change_is_found_out_before_it_gets_into_the_log() -> None:
    cluster = Cluster(1)
    assert cluster.raw(1).raft.conf_change_refusal(change("r1")) == "removed all voters"
    cluster.change(change("r1"))
    assert cluster[1].applied[-1].type == EntryType.NORMAL and config(cluster, 1) == "voters=(1)"


def test_a_restarted_member_knows_the_configuration_of_its_snapshot() -> None:
    cluster = Cluster(3)
    cluster.change(change("l3", ConfChangeTransition.JOINT_EXPLICIT))
    cluster[2].compact()
    cluster[2].restart()
    assert config(cluster, 2) == "voters=(1 2)&&(1 2 3) learners_next=(3)"


def test_a_promoted_learner_votes_before_it_knows_that_it_is_a_voter() -> None:
    cluster = Cluster(3, learners=(3,))
    cluster.isolate(3)
    cluster.change(change("v3"))
    assert cluster.raw(3).raft.is_learner
    cluster.heal()
    cluster.isolate(1)
    cluster.tick(60, only=[2, 3])
    assert cluster.state(2) is StateType.LEADER and not cluster.raw(3).raft.is_learner
