"""Linearizable reads: what they wait for, and what can't confirm them."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft import reads
from trimtab.raft.describe import parse_changes
from trimtab.raft.messages import (
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Entry,
    Message,
    MessageType,
)
from trimtab.raft.node import ReadState, StateType


def test_a_read_is_answered_at_the_commit_index_of_the_moment_it_was_asked() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    committed = cluster.raw(1).raft.log.committed
    assert cluster.raw(1).read_index(b"r")
    cluster.settle()
    assert cluster[1].reads == [ReadState(committed, b"r")]


def test_a_follower_asks_its_leader_and_without_one_says_no_at_once() -> None:
    cluster = Cluster(3)
    assert cluster.raw(2).read_index(b"r")
    cluster.settle()
    assert cluster[2].reads == [ReadState(cluster.raw(1).raft.log.committed, b"r")]
    cluster.raw(2).forget_leader()
    assert not cluster.raw(2).read_index(b"r")


def test_a_sole_voter_answers_at_once_learners_or_not() -> None:
    cluster = Cluster(2, learners=(2,))
    cluster.isolate(2)
    cluster.raw(1).read_index(b"r")
    assert [state.context for state in cluster.raw(1).raft.reads.states] == [b"r"]


def test_even_a_sole_voter_waits_for_the_first_commit_of_its_term() -> None:
    cluster = Cluster(1, start=False, async_storage_writes=True)
    cluster.raw(1).campaign()
    while cluster.state(1) is not StateType.LEADER:
        cluster.work()
    raft = cluster.raw(1).raft
    before = raft.log.committed
    cluster.raw(1).read_index(b"r")
    assert not raft.reads.states
    cluster.settle()
    assert cluster[1].reads == [ReadState(before + 1, b"r")]


def test_a_new_leader_postpones_reads_until_it_has_committed_in_its_term() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    cluster.passes = lambda message: message.type is not MessageType.APP_RESP
    cluster.raw(2).raft.lead = cluster.raw(3).raft.lead = 0
    cluster.raw(2).campaign()
    cluster.settle()
    assert cluster.state(2) is StateType.LEADER
    cluster.raw(2).read_index(b"early")
    cluster.settle()
    assert not cluster[2].reads and cluster.raw(2).raft.reads.postponed
    cluster.passes = lambda _: True
    cluster.tick(2)
    assert cluster[2].reads == [ReadState(cluster.raw(2).raft.log.committed, b"early")]


def test_reads_that_arrive_together_share_one_round_of_heartbeats() -> None:
    cluster = Cluster(3)
    cluster.delivered.clear()
    for number in range(50):
        cluster.raw(1).read_index(b"%d" % number)
    cluster.settle()
    beats = [message for message in cluster.delivered if message.type is MessageType.HEARTBEAT]
    assert len(beats) == 2
    assert [state.context for state in cluster[1].reads] == [b"%d" % number for number in range(50)]


def test_a_read_that_comes_after_the_heartbeats_left_waits_for_a_round_of_its_own() -> None:
    cluster = Cluster(3)
    cluster.raw(1).read_index(b"first")
    cluster.work()
    early = list(cluster.network)
    cluster.raw(1).read_index(b"second")
    assert all(message.context for message in early)
    cluster.network = early
    cluster.deliver()
    for node in (2, 3):
        cluster.post(cluster[node].take_ready())
    cluster.deliver()
    assert [state.context for state in cluster.raw(1).raft.reads.states] == [b"first"]
    cluster.settle()
    assert [state.context for state in cluster[1].reads] == [b"first", b"second"]


def test_two_reads_with_one_context_do_not_stand_in_for_one_another() -> None:
    cluster = Cluster(3)
    cluster.raw(1).read_index(b"same")
    cluster.work()
    held = list(cluster.network)
    cluster.network = []
    cluster.propose(b"between")
    cluster.raw(1).read_index(b"same")
    cluster.work()
    cluster.network = []  # the second round is lost; only the answers to the first come
    cluster.network = held
    cluster.deliver()
    for node in (2, 3):
        cluster.post(cluster[node].take_ready())
    cluster.deliver()
    (first,) = cluster.raw(1).raft.reads.states
    assert first.index < cluster.raw(1).raft.log.committed
    cluster.tick(1)
    assert [state.index for state in cluster[1].reads] == [first.index, cluster.raw(1).raft.log.committed]


def test_lost_heartbeats_are_made_up_for_by_the_next_ones() -> None:
    cluster = Cluster(3)
    cluster.isolate(1)
    cluster.raw(1).read_index(b"r")
    cluster.settle()
    assert not cluster[1].reads
    cluster.heal()
    cluster.tick(1)
    assert [state.context for state in cluster[1].reads] == [b"r"]


def test_a_leader_that_was_deposed_can_not_confirm_a_read() -> None:
    cluster = Cluster(3)
    cluster.isolate(1)
    cluster.tick(40, only=[2, 3])
    new = next(node for node in (2, 3) if cluster.state(node) is StateType.LEADER)
    cluster.raw(new).propose(b"newer")
    cluster.settle()
    assert cluster.state(1) is StateType.LEADER, "it does not know yet"
    cluster.raw(1).read_index(b"stale")
    cluster.settle()
    cluster.heal()
    cluster.tick(5)
    assert not cluster[1].reads and cluster.state(1) is StateType.FOLLOWER
    assert not cluster.raw(1).raft.reads.pending


def test_one_answer_of_two_needed_and_answers_of_learners_are_not_a_quorum() -> None:
    cluster = Cluster(7, learners=(6, 7))
    cluster.raw(1).read_index(b"r")
    for node in (2, 6, 7):
        answer = Message(MessageType.HEARTBEAT_RESP, 1, node, term=2, context=(1).to_bytes(8, "big"))
        cluster.raw(1).step(answer)
        cluster.raw(1).step(answer)
    assert not cluster.raw(1).raft.reads.states
    cluster.raw(1).step(Message(MessageType.HEARTBEAT_RESP, 1, 3, term=2, context=(1).to_bytes(8, "big")))
    assert len(cluster.raw(1).raft.reads.states) == 1


@pytest.mark.parametrize("context", [b"\xff" * 8, b"nonsense that is long", b"\x00"])
def test_an_answer_to_a_round_that_never_was_confirms_nothing(context: bytes) -> None:
    cluster = Cluster(3)
    cluster.raw(1).read_index(b"r")
    for node in (2, 3):
        cluster.raw(1).step(Message(MessageType.HEARTBEAT_RESP, 1, node, term=2, context=context))
    assert not cluster.raw(1).raft.reads.states


def test_an_answer_of_an_earlier_leadership_confirms_nothing_in_a_later_one() -> None:
    cluster = Cluster(3)
    cluster.raw(1).read_index(b"old")
    cluster.work()
    old = [message for message in cluster.network if message.context]
    cluster.network = []
    cluster.raw(1).transfer_leader(2)
    cluster.settle()
    cluster.raw(2).transfer_leader(1)
    cluster.settle()
    assert cluster.leader == 1
    cluster.raw(1).read_index(b"new")
    for message in old:
        answer = Message(MessageType.HEARTBEAT_RESP, 1, message.to, term=message.term, context=message.context)
        cluster.raw(1).step(answer)
    assert not cluster.raw(1).raft.reads.states


def test_a_read_needs_both_majorities_of_a_joint_configuration() -> None:
    cluster = Cluster(5)
    raft = cluster.raw(1).raft
    cluster.change(ConfChangeV2(ConfChangeTransition.JOINT_EXPLICIT, parse_changes("r4 r5")))
    cluster.raw(1).read_index(b"r")
    context = raft.reads.round.to_bytes(8, "big")
    cluster.raw(1).step(Message(MessageType.HEARTBEAT_RESP, 1, 2, term=2, context=context))
    assert not raft.reads.states, "two of three, but only two of five"
    cluster.raw(1).step(Message(MessageType.HEARTBEAT_RESP, 1, 4, term=2, context=context))
    assert len(raft.reads.states) == 1


def test_the_only_voter_left_is_another_one_so_a_removed_leader_must_ask_it() -> None:
    cluster = Cluster(2, step_down_on_removal=False)
    cluster.change(ConfChange(ConfChangeType.REMOVE_NODE, 1))
    cluster.isolate(2)
    cluster.raw(1).read_index(b"r")
    cluster.settle()
    assert not cluster[1].reads


def test_pending_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_PENDING_READS", 3)
    cluster = Cluster(3)
    cluster.isolate(1)
    assert [cluster.raw(1).read_index(b"r") for _ in range(5)] == [True, True, True, False, False]
    cluster.raw(1).step(Message(MessageType.READ_INDEX, 1, 2, entries=[Entry(data=b"from a follower")]))
    assert len(cluster.raw(1).raft.reads._waiting) == 3


def test_a_malformed_read_is_ignored() -> None:
    cluster = Cluster(3)
    cluster.raw(1).step(Message(MessageType.READ_INDEX, 1, 2))
    cluster.raw(2).step(Message(MessageType.READ_INDEX_RESP, 2, 1, term=2, index=3))
    cluster.settle()
    assert not cluster[2].reads


def test_lease_reads_are_answered_without_asking_anyone_when_chosen() -> None:
    cluster = Cluster(3, read_only="lease")
    cluster.isolate(1)
    cluster.raw(1).read_index(b"r")
    assert len(cluster.raw(1).raft.reads.states) == 1
    cluster.raw(2).forget_leader()
    assert cluster.raw(2).raft.lead == 1, "forgetting the leader would break its lease"


def test_reads_that_wait_for_a_peer_are_answered_when_it_is_no_longer_needed() -> None:
    """Found by chaos: they waited for an answer that nobody was left to give."""
    cluster = Cluster(2)
    cluster.raw(1).propose_conf_change(ConfChange(ConfChangeType.REMOVE_NODE, 2))
    cluster.passes = lambda message: message.type is not MessageType.HEARTBEAT_RESP
    cluster.raw(1).read_index(b"r")
    cluster.settle()
    assert [state.context for state in cluster[1].reads] == [b"r"]


def test_a_sole_voter_on_both_sides_of_a_joint_configuration_asks_nobody() -> None:
    cluster = Cluster(1)
    cluster.change(ConfChangeV2(ConfChangeTransition.JOINT_EXPLICIT, parse_changes("l2")))
    assert cluster.raw(1).raft.tracker.config.is_joint
    cluster.raw(1).read_index(b"r")
    assert cluster.raw(1).raft.reads.states
