"""Idle groups go quiet, and wake up for whatever happens."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft.describe import parse_changes
from trimtab.raft.errors import RaftError
from trimtab.raft.messages import LOCAL_APPEND, ConfChangeTransition, ConfChangeV2, Message, MessageType
from trimtab.raft.node import StateType


def quiet(cluster: Cluster) -> None:
    """The leader goes quiet and tells everybody, as a host would."""
    leader = cluster.raw(cluster.leader)
    assert leader.may_quiesce()
    leader.quiesce()
    for node in cluster.members:
        if node != leader.raft.id:
            assert cluster.raw(node).accept_quiesce(leader.raft.id, leader.raft.term, leader.raft.log.committed)


def idle(**settings: object) -> Cluster:
    cluster = Cluster(3, **settings)
    cluster.propose(b"a")
    cluster.tick(2)
    return cluster


def test_a_quiet_group_is_silent_for_ever_and_keeps_its_leader() -> None:
    cluster = idle()
    quiet(cluster)
    cluster.delivered.clear()
    cluster.tick(500)
    assert not cluster.delivered and cluster.leader == 1


def test_a_proposal_wakes_the_whole_group() -> None:
    for node in (1, 2):
        cluster = idle()
        quiet(cluster)
        cluster.propose(b"b", at=node)
        assert [member.data for member in cluster.members.values()] == [[b"a", b"b"]] * 3
        assert not any(member.raw.quiescent for member in cluster.members.values())


def test_a_read_wakes_the_leader_and_is_answered() -> None:
    cluster = idle()
    quiet(cluster)
    cluster.raw(1).read_index(b"r")
    cluster.settle()
    assert len(cluster[1].reads) == 1 and not cluster.raw(1).quiescent


@pytest.mark.parametrize("why", ["unmatched", "uncommitted", "read", "transfer", "joint", "ready"])
def test_a_leader_with_anything_pending_does_not_go_quiet(why: str) -> None:
    cluster = idle()
    leader = cluster.raw(1)
    if why == "unmatched":
        cluster.isolate(3)
        cluster.propose(b"b")
    elif why == "uncommitted":
        cluster.isolate(1)
        cluster.propose(b"b")
    elif why == "read":
        cluster.isolate(1)
        leader.read_index(b"r")
        cluster.settle()
    elif why == "transfer":
        cluster.isolate(2)
        leader.transfer_leader(2)
        cluster.settle()
    elif why == "joint":
        cluster.change(ConfChangeV2(ConfChangeTransition.JOINT_EXPLICIT, parse_changes("l3")))
    else:
        leader.propose(b"b")
    assert not leader.may_quiesce()
    with pytest.raises(RaftError, match="has work to do"):
        leader.quiesce()


def test_only_leaders_with_pre_vote_and_without_leases_go_quiet() -> None:
    assert not idle().raw(2).may_quiesce()
    assert not idle(pre_vote=False).raw(1).may_quiesce()
    assert not idle(read_only="lease").raw(1).may_quiesce()


def test_a_follower_goes_quiet_only_with_its_leader_its_term_and_all_of_its_log() -> None:
    cluster = idle()
    follower = cluster.raw(2)
    commit, term = follower.raft.log.committed, follower.raft.term
    assert not follower.accept_quiesce(3, term, commit)
    assert not follower.accept_quiesce(1, term - 1, commit)
    assert not follower.accept_quiesce(1, term, commit + 1)
    assert not follower.accept_quiesce(1, term, commit - 1)
    assert not cluster.raw(1).accept_quiesce(1, term, commit)
    assert follower.accept_quiesce(1, term, commit) and follower.quiescent


def test_a_follower_that_missed_the_last_commit_index_learns_it_from_the_notice() -> None:
    cluster = Cluster(3)
    cluster.cut.add((1, 3))
    cluster.heal()
    cluster.raw(1).propose(b"a")
    cluster.passes = lambda message: not (message.type is MessageType.APP and not message.entries and message.to == 3)
    cluster.settle()
    cluster.passes = lambda _: True
    assert cluster[3].data == []
    quiet(cluster)
    cluster.settle()
    assert cluster[3].data == [b"a"] and cluster.raw(3).quiescent


def test_when_the_leaders_process_dies_the_host_wakes_the_rest_and_they_elect() -> None:
    cluster = idle()
    quiet(cluster)
    cluster.isolate(1)
    for node in (2, 3):
        cluster.raw(node).wake()
    cluster.tick(25, only=[2, 3])
    assert {cluster.state(2), cluster.state(3)} == {StateType.LEADER, StateType.FOLLOWER}


def test_a_member_that_restarts_into_a_quiet_group_wakes_it_and_deposes_nobody() -> None:
    cluster = idle()
    quiet(cluster)
    term = cluster.raw(1).raft.term
    cluster[3].restart()
    cluster.tick(60)
    assert cluster.leader == 1 and cluster.raw(3).raft.lead == 1
    assert {member.raw.raft.term for member in cluster.members.values()} == {term}


def test_a_notice_that_comes_late_is_undone_by_the_next_message() -> None:
    cluster = idle()
    leader = cluster.raw(1)
    late = (1, leader.raft.term, leader.raft.log.committed)
    assert cluster.raw(2).accept_quiesce(*late)
    cluster.tick(1)
    assert not cluster.raw(2).quiescent
    cluster.propose(b"b")
    assert not cluster.raw(2).accept_quiesce(*late)


def test_storage_responses_do_not_wake_a_member() -> None:
    cluster = idle(async_storage_writes=True)
    quiet(cluster)
    cluster.raw(2).step(Message(MessageType.STORAGE_APPEND_RESP, 2, LOCAL_APPEND, term=2))
    assert cluster.raw(2).quiescent


def test_whoever_wakes_up_gives_the_others_a_whole_timeout_and_a_leader_speaks_at_once() -> None:
    cluster = idle()
    quiet(cluster)
    for node in cluster.members:
        cluster.raw(node).wake()
        assert cluster.raw(node).raft.election_elapsed == 0
    cluster.raw(1).tick()
    assert {message.type for message in cluster.raw(1).raft.msgs} == {MessageType.HEARTBEAT}


def test_a_leader_rests_although_a_member_whose_process_is_down_lags_and_catches_it_up_when_woken() -> None:
    cluster = idle()
    cluster.isolate(3)
    cluster.propose(b"b")
    leader = cluster.raw(1)
    assert not leader.may_quiesce() and leader.may_quiesce(down={3})
    leader.quiesce(down={3})
    assert cluster.raw(2).accept_quiesce(1, leader.raft.term, leader.raft.log.committed)
    cluster.heal()
    leader.wake()
    cluster.tick(2)
    assert cluster[3].data == [b"a", b"b"]


def test_a_late_answer_to_the_last_heartbeat_does_not_wake_the_leader() -> None:
    cluster = idle()
    quiet(cluster)
    leader = cluster.raw(1)
    leader.step(Message(MessageType.HEARTBEAT_RESP, 1, 2, leader.raft.term))
    assert leader.quiescent
    leader.step(Message(MessageType.HEARTBEAT_RESP, 1, 2, leader.raft.term + 1))
    assert not leader.quiescent
