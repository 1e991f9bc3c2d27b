"""The door: Ready and advance, asynchronous writes, and inputs that are refused."""

import pytest
from tests.unit.raft.cluster import Cluster

from trimtab.raft.errors import InvariantViolated, LocalMessageRefused, RaftError, StepRefused, UnknownPeer
from trimtab.raft.messages import (
    LOCAL_APPEND,
    LOCAL_TYPES,
    RESPONSE_TYPES,
    Entry,
    HardState,
    Message,
    MessageType,
)
from trimtab.raft.node import StateType


def test_a_ready_must_be_finished_before_the_next_one() -> None:
    cluster = Cluster(3)
    cluster.raw(1).propose(b"a")
    cluster.raw(1).ready()
    with pytest.raises(RaftError, match="advance"):
        cluster.raw(1).ready()


def test_with_asynchronous_writes_there_is_no_advance() -> None:
    with pytest.raises(RaftError):
        Cluster(1, async_storage_writes=True).raw(1).advance()


def test_nothing_to_do_is_an_empty_ready() -> None:
    cluster = Cluster(3)
    assert not cluster.raw(1).has_ready()
    assert cluster.raw(1).ready().is_empty


def test_only_what_is_promised_must_be_synced() -> None:
    cluster = Cluster(3)
    cluster.raw(1).propose(b"a")
    assert cluster.raw(1).ready().must_sync
    cluster.raw(1).advance()
    cluster.settle()
    cluster.raw(1).raft.log.unstable.accept_in_progress()
    cluster.raw(2).raft.log.committed -= 1
    assert not cluster.raw(2).ready().must_sync


@pytest.mark.parametrize("kind", sorted(LOCAL_TYPES))
def test_local_messages_from_the_network_are_refused(kind: MessageType) -> None:
    cluster = Cluster(3)
    before = cluster.raw(1).raft.hard_state()
    with pytest.raises(LocalMessageRefused):
        cluster.raw(1).step(Message(kind, 1, 2, term=99))
    assert cluster.raw(1).raft.hard_state() == before


@pytest.mark.parametrize("kind", sorted(RESPONSE_TYPES - LOCAL_TYPES))
def test_answers_of_strangers_are_dropped_and_their_term_is_not_followed(kind: MessageType) -> None:
    cluster = Cluster(3)
    before = cluster.raw(1).raft.hard_state()
    with pytest.raises(UnknownPeer):
        cluster.raw(1).step(Message(kind, 1, 77, term=99, index=5))
    assert cluster.raw(1).raft.hard_state() == before


def test_an_append_whose_entries_do_not_fit_together_is_refused() -> None:
    cluster = Cluster(3)
    last = cluster.raw(2).raft.log.last_index()
    for entries in ([Entry(2, last + 2)], [Entry(2, last + 1), Entry(2, last + 3)]):
        with pytest.raises(StepRefused):
            cluster.raw(2).step(Message(MessageType.APP, 2, 1, 2, 2, last, entries))
    assert cluster.raw(2).raft.log.last_index() == last


def test_acknowledgements_leave_only_when_their_entries_are_durable_the_leaders_own_included() -> None:
    cluster = Cluster(3, async_storage_writes=True)
    leader = cluster[1]
    leader.raw.propose(b"a")
    index = leader.raw.raft.log.last_index()
    cluster.post(leader.take_ready())
    cluster.deliver()
    follower = cluster[2]
    assert not follower.take_ready(), "no answer may leave before the write"
    assert leader.raw.raft.tracker.progress[1].match == index - 1
    answers = follower.sync()
    assert [(answer.type, answer.index) for answer in answers] == [(MessageType.APP_RESP, index)]
    cluster.post(answers)
    cluster.deliver()
    assert leader.raw.raft.log.committed == index - 1, "one durable copy of three"
    leader.sync()
    assert leader.raw.raft.log.committed == index


def test_writes_are_pipelined_and_confirmed_in_order() -> None:
    cluster = Cluster(3, async_storage_writes=True)
    leader = cluster[1]
    for number in range(3):
        leader.raw.propose(b"%d" % number)
        cluster.post(leader.take_ready())
    assert [len(write.entries) for write in leader.append_work] == [1, 1, 1]
    first = leader.raw.raft.log.unstable.offset
    leader.sync()
    assert leader.raw.raft.log.unstable.offset == first + 1
    cluster.settle()
    assert all(member.data == [b"0", b"1", b"2"] for member in cluster.members.values())


def test_a_late_answer_to_a_write_of_an_older_term_does_not_make_newer_entries_stable() -> None:
    """The ABA race: an entry is replaced, then restored with its index and term, while its first write is under way."""
    cluster = Cluster(5, async_storage_writes=True, check_quorum=False, pre_vote=False)
    raft = cluster.raw(2).raft
    last = raft.log.last_index()
    append = MessageType.APP
    follower = cluster[2]
    # Term 2: the leader's entry, whose write starts but does not finish.
    follower.raw.step(Message(append, 2, 1, 2, 2, last, [Entry(2, last + 1, data=b"A")], last))
    follower.take_ready()
    # Term 3: another leader replaces it; that write starts too.
    follower.raw.step(Message(append, 2, 3, 3, 2, last, [Entry(3, last + 1, data=b"B")], last))
    follower.take_ready()
    # Term 4: the first leader is back and restores its entry, of the original term.
    follower.raw.step(Message(append, 2, 1, 4, 2, last, [Entry(2, last + 1, data=b"A")], last))
    follower.take_ready()
    assert len(follower.append_work) == 3
    follower.sync()
    assert raft.log.unstable.offset == last + 1, "the write of B is still to come and will replace A on disk"
    follower.sync()
    assert raft.log.unstable.offset == last + 1
    assert follower.storage.entries(last + 1, last + 2, 1_000)[0].data == b"B"
    assert raft.log.slice(last + 1, last + 2, 1_000)[0].data == b"A"
    follower.sync()
    assert raft.log.unstable.offset == last + 2
    assert follower.storage.entries(last + 1, last + 2, 1_000)[0].data == b"A"


def test_entries_whose_answer_was_dropped_are_confirmed_by_the_next_write() -> None:
    cluster = Cluster(3, async_storage_writes=True, check_quorum=False, pre_vote=False)
    follower = cluster[2]
    raft = follower.raw.raft
    last = raft.log.last_index()
    follower.raw.step(Message(MessageType.APP, 2, 1, 2, 2, last, [Entry(2, last + 1)], last))
    follower.take_ready()
    follower.raw.step(Message(MessageType.HEARTBEAT, 2, 3, 3))
    follower.take_ready()
    follower.sync()
    assert raft.log.unstable.entries, "the answer came in a newer term"
    follower.sync()
    assert not raft.log.unstable.entries


def test_a_snapshot_installed_in_an_older_term_is_still_installed() -> None:
    cluster = Cluster(3, async_storage_writes=True)
    cluster.propose(b"a")
    cluster[1].compact()
    snapshot = cluster[1].storage.snapshot()
    other = Cluster(3, start=False, async_storage_writes=True)
    newcomer = other[3]
    newcomer.raw.step(Message(MessageType.SNAP, 3, 1, term=2, snapshot=snapshot))
    newcomer.take_ready()
    newcomer.raw.step(Message(MessageType.HEARTBEAT, 3, 2, term=5))
    newcomer.sync()
    assert newcomer.raw.raft.log.unstable.snapshot is None
    assert newcomer.raw.raft.log.applied == snapshot.metadata.index


def test_what_is_applied_at_a_time_is_bounded() -> None:
    cluster = Cluster(1, async_storage_writes=True, max_committed_size_per_ready=100)
    cluster.raw(1).propose_many([bytes(40)] * 10)
    member = cluster[1]
    sizes = []
    while member.raw.has_ready() or member.append_work or member.apply_work:
        if member.raw.has_ready():
            member.take_ready()
        elif member.append_work:
            member.sync()
        else:
            sizes.append(len(member.apply_work[0].entries))
            member.apply_next()
    assert max(sizes) == 2 and sum(sizes) == 10


def test_status_is_a_picture_that_does_not_change() -> None:
    cluster = Cluster(3)
    status = cluster.raw(1).status()
    cluster.propose(b"a")
    assert status.state is StateType.LEADER and status.peers[2].match == status.last_index
    assert cluster.raw(1).status().last_index == status.last_index + 1
    assert cluster.raw(2).status().peers == {}


def test_a_storage_response_for_nobody_does_no_harm() -> None:
    cluster = Cluster(3, async_storage_writes=True)
    before = cluster.raw(1).raft.log.unstable.offset
    cluster.raw(1).step(Message(MessageType.STORAGE_APPEND_RESP, 1, LOCAL_APPEND, 2, log_term=2, index=999))
    assert cluster.raw(1).raft.log.unstable.offset == before


def test_a_state_machine_may_be_ahead_of_the_stored_commit_index_after_a_crash() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    member = cluster[2]
    state = member.raw.raft.hard_state()
    member.storage.set_hard_state(HardState(state.term, state.vote, state.commit - 1))
    member.restart()
    assert member.raw.raft.log.committed == member.raw.raft.log.applied == state.commit


def test_a_state_machine_outside_the_log_does_not_start() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    member = cluster[2]
    member.applied_index += 5
    with pytest.raises(InvariantViolated, match="the state machine is at"):
        member.restart()


def test_a_write_under_way_does_not_take_on_promises_made_after_it() -> None:
    """Found by chaos: the responses of an earlier, empty-handed write were the live list of messages that wait."""
    cluster = Cluster(3, async_storage_writes=True)
    follower = cluster[2]
    follower.raw.step(Message(MessageType.HEARTBEAT, 2, 1, term=7))
    follower.take_ready()
    last = follower.raw.raft.log.last_index()
    follower.raw.step(Message(MessageType.APP, 2, 1, 7, 2, last, [Entry(7, last + 1)]))
    assert follower.sync() == [], "the entry is not even on its way to the disk"
