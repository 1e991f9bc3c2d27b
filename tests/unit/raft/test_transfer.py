"""Handing leadership over."""

from tests.unit.raft.cluster import Cluster

from trimtab.raft.messages import Message, MessageType
from trimtab.raft.node import StateType


def test_leadership_goes_to_a_follower_that_is_up_to_date_although_the_others_hear_from_their_leader() -> None:
    cluster = Cluster(3)
    cluster.raw(1).transfer_leader(3)
    cluster.settle()
    assert cluster.leader == 3


def test_a_follower_that_is_behind_is_brought_up_to_date_first() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    cluster.propose(b"a")
    cluster.heal()
    cluster.raw(1).transfer_leader(3)
    cluster.tick(2)
    assert cluster.leader == 3 and cluster[3].data == [b"a"]


def test_a_follower_passes_the_request_on() -> None:
    cluster = Cluster(3)
    cluster.raw(2).transfer_leader(3)
    cluster.settle()
    assert cluster.leader == 3


def test_a_transfer_that_takes_longer_than_an_election_timeout_is_given_up() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    cluster.raw(1).transfer_leader(3)
    cluster.tick(9, only=[1, 2])
    assert cluster.raw(1).raft.lead_transferee == 3
    cluster.tick(1, only=[1, 2])
    assert cluster.raw(1).raft.lead_transferee == 0
    cluster.propose(b"goes on")
    assert cluster[2].data == [b"goes on"]


def test_a_newer_request_replaces_an_older_one_and_the_leader_itself_calls_it_off() -> None:
    cluster = Cluster(3)
    leader = cluster.raw(1)
    cluster.isolate(1)
    leader.transfer_leader(3)
    leader.transfer_leader(2)
    assert leader.raft.lead_transferee == 2
    leader.transfer_leader(1)
    assert leader.raft.lead_transferee == 0


def test_learners_and_strangers_are_not_handed_leadership() -> None:
    cluster = Cluster(3, learners=(3,))
    for node in (3, 9):
        cluster.raw(1).transfer_leader(node)
        assert cluster.raw(1).raft.lead_transferee == 0


def test_a_follower_told_to_campaign_does_so_without_pre_vote() -> None:
    cluster = Cluster(3)
    cluster.raw(2).step(Message(MessageType.TIMEOUT_NOW, 2, 1, term=2))
    assert cluster.state(2) is StateType.CANDIDATE


def test_a_learner_told_to_campaign_does_not() -> None:
    cluster = Cluster(3, learners=(3,))
    cluster.raw(3).step(Message(MessageType.TIMEOUT_NOW, 3, 1, term=2))
    assert cluster.state(3) is StateType.FOLLOWER


def test_without_a_leader_a_request_goes_nowhere() -> None:
    cluster = Cluster(3, start=False)
    cluster.raw(1).transfer_leader(2)
    assert not cluster.raw(1).has_ready()
