"""Elections: who is elected, who is not, and who is not disturbed."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft.errors import InvariantViolated
from trimtab.raft.messages import (
    ConfChange,
    ConfChangeType,
    Entry,
    HardState,
    Message,
    MessageType,
)
from trimtab.raft.node import StateType


def test_a_cluster_elects_one_leader_and_everyone_knows_it() -> None:
    cluster = Cluster(3, start=False)
    cluster.tick(25)
    leader = cluster.leader
    assert {member.raw.raft.lead for member in cluster.members.values()} == {leader}


def test_a_single_voter_elects_itself_once_its_vote_is_on_disk() -> None:
    cluster = Cluster(1, start=False, pre_vote=False)
    cluster.raw(1).campaign()
    ready = cluster.raw(1).ready()
    assert ready.must_sync and cluster.state(1) is StateType.CANDIDATE
    cluster.raw(1).advance()
    assert cluster.state(1) is StateType.LEADER


def test_a_member_votes_once_a_term_and_again_for_the_same_candidate() -> None:
    cluster = Cluster(3, start=False, pre_vote=False, check_quorum=False)
    voter = cluster.raw(1)
    for candidate, granted in ((2, True), (3, False), (2, True)):
        voter.step(Message(MessageType.VOTE, 1, candidate, term=2, log_term=1, index=1))
        answer = voter.raft.msgs_after_append[-1]
        assert (answer.to, answer.reject) == (candidate, not granted)


def test_a_vote_leaves_only_after_it_is_durable() -> None:
    cluster = Cluster(3, start=False, pre_vote=False, async_storage_writes=True)
    cluster.raw(1).step(Message(MessageType.VOTE, 1, 2, term=2, log_term=1, index=1))
    ready = cluster.raw(1).ready()
    (write,) = ready.messages
    assert write.type is MessageType.STORAGE_APPEND and (write.term, write.vote) == (2, 2)
    assert [response.type for response in write.responses] == [MessageType.VOTE_RESP]


def test_a_candidate_whose_log_is_behind_is_not_elected() -> None:
    cluster = Cluster(3, pre_vote=False, check_quorum=False)
    cluster.isolate(3)
    cluster.propose(b"a")
    cluster.heal()
    cluster.raw(3).campaign()
    cluster.settle()
    assert cluster.state(3) is not StateType.LEADER
    cluster.raw(2).campaign()
    cluster.settle()
    assert cluster.leader == 2


def test_votes_are_counted_by_member_not_by_message() -> None:
    cluster = Cluster(5, start=False, pre_vote=False)
    cluster.raw(1).campaign()
    cluster.work()
    cluster.network.clear()
    for _ in range(4):
        cluster.raw(1).step(Message(MessageType.VOTE_RESP, 1, 2, term=2))
    assert cluster.state(1) is StateType.CANDIDATE
    cluster.raw(1).step(Message(MessageType.VOTE_RESP, 1, 3, term=2))
    assert cluster.state(1) is StateType.LEADER


def test_a_lost_election_ends_in_the_same_term() -> None:
    cluster = Cluster(3, start=False, pre_vote=False)
    cluster.raw(1).campaign()
    cluster.work()
    for voter in (2, 3):
        cluster.raw(1).step(Message(MessageType.VOTE_RESP, 1, voter, term=2, reject=True))
    assert cluster.state(1) is StateType.FOLLOWER and cluster.raw(1).raft.term == 2


def test_with_pre_vote_a_member_that_was_cut_off_comes_back_without_a_new_term() -> None:
    cluster = Cluster(3)
    term = cluster.raw(1).raft.term
    cluster.isolate(3)
    cluster.tick(100)
    assert cluster.state(3) is StateType.PRE_CANDIDATE and cluster.raw(3).raft.term == term
    cluster.heal()
    cluster.tick(30)
    assert cluster.leader == 1 and {member.raw.raft.term for member in cluster.members.values()} == {term}


def test_without_pre_vote_and_leases_it_deposes_the_leader() -> None:
    cluster = Cluster(3, pre_vote=False, check_quorum=False)
    term = cluster.raw(1).raft.term
    cluster.isolate(3)
    cluster.tick(100)
    cluster.heal()
    cluster.tick(60)
    assert cluster.raw(cluster.leader).raft.term > term


def test_a_pre_vote_of_a_lower_term_is_rejected_aloud() -> None:
    cluster = Cluster(3)
    follower = cluster.raw(2)
    follower.step(Message(MessageType.PRE_VOTE, 2, 3, term=1, log_term=1, index=1))
    answer = follower.raft.msgs_after_append[-1]
    assert answer.type is MessageType.PRE_VOTE_RESP and answer.reject and answer.term == follower.raft.term


def test_a_rejected_pre_vote_in_a_higher_term_brings_the_pre_candidate_up_to_it() -> None:
    cluster = Cluster(3, start=False)
    cluster.raw(1).campaign()
    cluster.raw(1).step(Message(MessageType.PRE_VOTE_RESP, 1, 2, term=9, reject=True))
    assert cluster.state(1) is StateType.FOLLOWER and cluster.raw(1).raft.term == 9


def test_a_late_answer_to_a_pre_vote_is_not_a_vote() -> None:
    cluster = Cluster(5, start=False)
    cluster.raw(1).campaign()
    cluster.work()
    for voter in (2, 3):
        cluster.raw(1).step(Message(MessageType.PRE_VOTE_RESP, 1, voter, term=2))
    assert cluster.state(1) is StateType.CANDIDATE
    for voter in (2, 3, 4, 5):
        cluster.raw(1).step(Message(MessageType.PRE_VOTE_RESP, 1, voter, term=2))
    assert cluster.state(1) is StateType.CANDIDATE


@pytest.mark.parametrize("kind", [MessageType.VOTE, MessageType.PRE_VOTE])
def test_while_a_leader_is_heard_from_votes_are_ignored(kind: MessageType) -> None:
    cluster = Cluster(3)
    follower = cluster.raw(2)
    term = follower.raft.term
    follower.step(Message(kind, 2, 3, term=term + 5, log_term=term, index=99))
    assert follower.raft.term == term and not follower.raft.msgs_after_append
    for _ in range(10):
        follower.raft.election_elapsed += 1
    follower.step(Message(kind, 2, 3, term=term + 5, log_term=term, index=99))
    assert [answer.reject for answer in follower.raft.msgs_after_append] == [False]


def test_a_leader_without_a_quorum_steps_down_within_two_election_timeouts() -> None:
    cluster = Cluster(3)
    cluster.isolate(1)
    cluster.tick(20, only=[1])
    assert cluster.state(1) is StateType.FOLLOWER and cluster.raw(1).raft.lead == 0


def test_a_leader_with_a_quorum_stays_and_learners_do_not_count() -> None:
    cluster = Cluster(5, learners=(4, 5))
    cluster.isolate(2)
    cluster.tick(50, only=[1])
    assert cluster.state(1) is StateType.LEADER
    cluster.isolate(3)
    cluster.tick(20, only=[1])
    assert cluster.state(1) is StateType.FOLLOWER


def test_a_member_ahead_in_its_term_is_freed_by_answering_the_leader() -> None:
    cluster = Cluster(3, pre_vote=False, check_quorum=True)
    cluster.isolate(3)
    cluster.tick(60, only=[3])
    ahead = cluster.raw(3).raft.term
    assert ahead > cluster.raw(1).raft.term
    cluster.heal()
    cluster.tick(60)
    assert cluster.raw(cluster.leader).raft.term >= ahead
    assert {member.raw.raft.lead for member in cluster.members.values()} == {cluster.leader}


def test_a_learner_votes_but_never_campaigns() -> None:
    cluster = Cluster(3, learners=(3,))
    cluster.isolate(3)
    cluster.tick(60, only=[3])
    assert cluster.state(3) is StateType.FOLLOWER
    cluster.raw(3).campaign()
    assert cluster.state(3) is StateType.FOLLOWER
    cluster.raw(3).raft.lead = 0
    cluster.raw(3).step(Message(MessageType.VOTE, 3, 2, term=9, log_term=9, index=99))
    assert not cluster.raw(3).raft.msgs_after_append[-1].reject


def test_nobody_campaigns_while_a_committed_configuration_change_is_not_applied() -> None:
    cluster = Cluster(3, async_storage_writes=True)
    cluster.raw(1).propose_conf_change(ConfChange(ConfChangeType.ADD_LEARNER_NODE, 4))
    follower = cluster[2]
    for _ in range(20):
        cluster.deliver()
        for member in cluster.members.values():
            if member.raw.has_ready():
                cluster.post(member.take_ready())
            while member.append_work:
                cluster.post(member.sync())
            while member.apply_work and member is not follower:
                cluster.post(member.apply_next())
    assert follower.apply_work and follower.raw.raft.log.committed > follower.raw.raft.log.applied
    follower.raw.campaign()
    assert cluster.state(2) is StateType.FOLLOWER
    while follower.apply_work:
        follower.apply_next()
    follower.raw.campaign()
    assert cluster.state(2) is StateType.PRE_CANDIDATE


def test_a_member_about_to_install_a_snapshot_does_not_campaign() -> None:
    cluster = Cluster(3)
    for _ in range(3):
        cluster.propose(b"x")
    cluster.isolate(3)
    cluster.propose(b"y")
    cluster[1].compact()
    cluster.heal()
    cluster.tick(1)
    snapshots = [message for message in cluster.delivered if message.type is MessageType.SNAP]
    assert snapshots
    newcomer = Cluster(3, start=False)
    newcomer.raw(3).step(snapshots[-1])
    newcomer.raw(3).campaign()
    assert newcomer.state(3) is StateType.FOLLOWER


def test_term_and_vote_survive_a_restart() -> None:
    cluster = Cluster(3)
    cluster[2].restart()
    raft = cluster.raw(2).raft
    assert (raft.term, raft.vote) == (2, 1)
    cluster.tick(2)
    assert cluster.raw(2).raft.lead == 1


def test_a_member_with_hard_state_beyond_its_log_does_not_start() -> None:
    cluster = Cluster(1)
    cluster[1].storage.set_hard_state(HardState(5, 1, 1_000))
    with pytest.raises(InvariantViolated, match="stored commit index"):
        cluster[1].restart()


def test_a_forgotten_leader_is_followed_again_when_it_speaks() -> None:
    cluster = Cluster(3)
    cluster.raw(2).forget_leader()
    assert cluster.raw(2).raft.lead == 0
    cluster.tick(1)
    assert cluster.raw(2).raft.lead == 1


def test_a_new_leader_appends_an_entry_of_its_term() -> None:
    cluster = Cluster(3)
    raft = cluster.raw(1).raft
    assert raft.log.last_term() == raft.term
    assert cluster[2].applied[-1] == Entry(raft.term, raft.log.last_index())
