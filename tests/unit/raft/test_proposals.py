"""Proposals: appended, passed on, or dropped with the reason."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft.errors import DropReason, ProposalDropped, StepRefused
from trimtab.raft.messages import (
    ConfChange,
    ConfChangeType,
    Entry,
    EntryType,
    Message,
    MessageType,
)


def reason_of(cluster: Cluster, node: int, data: bytes = b"x") -> DropReason:
    with pytest.raises(ProposalDropped) as dropped:
        cluster.raw(node).propose(data)
    assert dropped.value.reason.value in str(dropped.value)
    return dropped.value.reason


def test_a_follower_passes_proposals_on() -> None:
    cluster = Cluster(3)
    cluster.propose(b"from 2", at=2)
    assert cluster[3].data == [b"from 2"]


def test_without_a_leader_a_proposal_is_dropped() -> None:
    cluster = Cluster(3, start=False)
    assert reason_of(cluster, 1) is DropReason.NO_LEADER
    cluster.raw(1).campaign()
    assert reason_of(cluster, 1) is DropReason.NO_LEADER


def test_a_follower_that_must_not_pass_on_says_so() -> None:
    cluster = Cluster(3, disable_proposal_forwarding=True)
    assert reason_of(cluster, 2) is DropReason.FORWARDING_DISABLED


def test_during_a_transfer_proposals_are_dropped() -> None:
    cluster = Cluster(3)
    cluster.isolate(2)
    cluster.raw(1).transfer_leader(2)
    assert reason_of(cluster, 1) is DropReason.TRANSFERRING


def test_a_leader_that_was_removed_takes_no_proposals() -> None:
    cluster = Cluster(3, step_down_on_removal=False)
    cluster.change(ConfChange(ConfChangeType.REMOVE_NODE, 1))
    assert reason_of(cluster, 1) is DropReason.REMOVED


def test_what_waits_to_be_committed_is_bounded_and_frees_as_it_is_applied() -> None:
    cluster = Cluster(3, max_uncommitted_entries_size=1_000)
    cluster.isolate(1)
    leader = cluster.raw(1)
    leader.propose(bytes(5_000))  # whatever its size: nothing waits yet
    assert reason_of(cluster, 1) is DropReason.TOO_MUCH_UNCOMMITTED
    leader.propose(b"")  # an empty entry always passes
    last = leader.raft.log.last_index()
    assert leader.raft.uncommitted_bytes == 5_000
    cluster.heal()
    cluster.tick(2)
    assert leader.raft.log.applied == last and leader.raft.uncommitted_bytes == 0
    leader.propose(bytes(900))


def test_a_dropped_batch_leaves_no_trace() -> None:
    cluster = Cluster(3, max_uncommitted_entries_size=100)
    cluster.isolate(1)
    leader = cluster.raw(1)
    leader.propose(bytes(90))
    before = (leader.raft.log.last_index(), leader.raft.uncommitted_bytes, leader.raft.pending_conf_index)
    entries = [Entry(data=bytes(50)), Entry(type=EntryType.CONF_CHANGE_V2)]
    with pytest.raises(ProposalDropped):
        leader.step(Message(MessageType.PROP, 1, 2, entries=entries))
    assert (leader.raft.log.last_index(), leader.raft.uncommitted_bytes, leader.raft.pending_conf_index) == before


def test_a_configuration_change_that_can_not_be_read_is_dropped() -> None:
    cluster = Cluster(3)
    for kind in (EntryType.CONF_CHANGE, EntryType.CONF_CHANGE_V2):
        with pytest.raises(ProposalDropped) as dropped:
            cluster.raw(1).step(Message(MessageType.PROP, 1, 2, entries=[Entry(type=kind, data=b"\xff")]))
        assert dropped.value.reason is DropReason.MALFORMED_CHANGE


def test_a_proposal_without_entries_is_refused() -> None:
    with pytest.raises(StepRefused):
        Cluster(1).raw(1).step(Message(MessageType.PROP, 1, 1))


def test_proposing_nothing_is_nothing() -> None:
    cluster = Cluster(1)
    last = cluster.raw(1).raft.log.last_index()
    cluster.raw(1).propose_many([])
    assert cluster.raw(1).raft.log.last_index() == last
