"""Replication: streaming, probing, snapshots, windows, and what happens to logs that differ."""

from tests.unit.raft.cluster import Cluster, Member

from trimtab.raft.messages import ConfState, Entry, HardState, Message, MessageType
from trimtab.raft.node import StateType
from trimtab.raft.progress import ProgressState


def appends_to(cluster: Cluster, node: int) -> list[Message]:
    return [message for message in cluster.delivered if message.type is MessageType.APP and message.to == node]


def test_what_is_proposed_is_applied_by_all_in_one_order() -> None:
    cluster = Cluster(3)
    expected = [b"%d" % number for number in range(20)]
    cluster.raw(1).propose_many(expected[:10])
    for data in expected[10:]:
        cluster.propose(data)
    assert all(member.data == expected for member in cluster.members.values())


def test_a_minority_can_not_commit() -> None:
    cluster = Cluster(5)
    for node in (3, 4, 5):
        cluster.isolate(node)
    committed = cluster.raw(1).raft.log.committed
    cluster.propose(b"lost?")
    assert cluster.raw(1).raft.log.committed == committed


def test_a_follower_that_missed_entries_is_caught_up_by_its_next_heartbeat_answer() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    for number in range(5):
        cluster.propose(b"%d" % number)
    cluster.heal()
    cluster.tick(2)
    assert cluster[3].data == cluster[1].data and len(cluster[3].data) == 5


def test_an_entry_of_an_older_term_commits_only_with_one_of_the_newer() -> None:
    cluster = Cluster(5, check_quorum=False, pre_vote=False)
    cluster.isolate(1)
    cluster.cut -= {(1, 2), (2, 1)}
    cluster.raw(1).propose(b"old")
    cluster.settle()
    index = cluster.raw(1).raft.log.last_index()
    cluster.heal()
    # 2 has the entry and is elected, but its appends of the new term are lost: the old one is on a majority by count.
    cluster.isolate(1)
    cluster.raw(2).campaign()
    cluster.passes = lambda message: message.type is not MessageType.APP
    cluster.settle()
    assert cluster.state(2) is StateType.LEADER
    leader = cluster.raw(2)
    for node in (3, 4):
        leader.step(Message(MessageType.APP_RESP, 2, node, term=leader.raft.term, index=index))
    assert leader.raft.log.committed < index
    for node in (3, 4):
        leader.step(Message(MessageType.APP_RESP, 2, node, term=leader.raft.term, index=index + 1))
    assert leader.raft.log.committed == index + 1


def with_log(terms: list[int], *, term: int) -> Cluster:
    """Three members, of which 1 has a log of these terms (behind the entry 1/1 that all have)."""
    cluster = Cluster(3, start=False, check_quorum=False, pre_vote=False)
    rewrite(cluster[1], terms, term=term)
    return cluster


def rewrite(member: Member, terms: list[int], *, term: int) -> None:
    member.storage.append([Entry(each, index) for index, each in enumerate(terms, 2)])
    member.storage.set_hard_state(HardState(term, 0, 1))
    member.restart()


def test_a_divergent_tail_is_found_with_one_probe_per_term_not_one_per_entry() -> None:
    cluster = with_log([3] * 5 + [6] * 40, term=6)
    rewrite(cluster[2], [2] * 60, term=5)
    rewrite(cluster[3], [3] * 5 + [4] * 50, term=5)
    cluster.elect(1)
    for node in (2, 3):
        assert cluster[node].log == cluster[1].log
        assert len([message for message in appends_to(cluster, node) if not message.entries]) < 6


def test_committed_entries_survive_every_election_although_a_longer_log_comes_back() -> None:
    cluster = Cluster(3, check_quorum=False, pre_vote=False)
    cluster.isolate(1)
    for _ in range(5):
        cluster.raw(1).propose(b"never committed")
    cluster.settle()
    cluster.raw(2).campaign()
    cluster.settle()
    cluster.raw(2).propose(b"committed")
    cluster.settle()
    cluster.heal()
    cluster.tick(3, only=[2])
    assert all(member.data == [b"committed"] for member in cluster.members.values())


def test_a_full_window_pauses_the_stream_and_an_empty_append_gets_it_going_again() -> None:
    cluster = Cluster(3, max_inflight_msgs=3)
    cluster.cut.add((1, 3))
    for number in range(6):
        cluster.raw(1).propose(b"%d" % number)
    cluster.settle()
    progress = cluster.raw(1).raft.tracker.progress[3]
    assert progress.inflights.full and progress.is_paused
    cluster.heal()
    cluster.delivered.clear()
    cluster.tick(1)
    assert not appends_to(cluster, 3)[0].entries
    assert cluster[3].data == cluster[1].data


def test_the_window_is_bounded_in_bytes_too() -> None:
    cluster = Cluster(2, max_inflight_msgs=100, max_size_per_msg=1_000, max_inflight_bytes=2_000)
    cluster.cut.add((1, 2))
    for _ in range(10):
        cluster.raw(1).propose(bytes(900))
    cluster.settle()
    progress = cluster.raw(1).raft.tracker.progress[2]
    assert progress.inflights.full and 2_000 <= progress.inflights.size_bytes < 3_000
    cluster.heal()
    cluster.tick(2)
    assert len(cluster[2].data) == 10 and progress.inflights.size_bytes == 0


def test_a_message_carries_no_more_than_its_limit_but_at_least_one_entry() -> None:
    cluster = Cluster(2, max_size_per_msg=100)
    cluster.isolate(2)
    cluster.raw(1).propose_many([bytes(40)] * 6 + [bytes(500)])
    cluster.heal()
    cluster.delivered.clear()
    cluster.tick(2)
    sizes = [len(message.entries) for message in appends_to(cluster, 2) if message.entries]
    assert max(sizes) == 2 and len(cluster[2].data) == 7


def test_a_follower_behind_a_compacted_log_gets_a_snapshot_and_then_entries() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    for number in range(5):
        cluster.propose(b"%d" % number)
    cluster[1].compact()
    cluster.heal()
    cluster.tick(3)
    cluster.propose(b"after")
    assert cluster[3].data == cluster[1].data
    assert cluster.raw(1).raft.tracker.progress[3].state is ProgressState.REPLICATE


def test_no_snapshot_is_made_for_a_peer_that_is_not_there() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    cluster.tick(20)
    cluster.propose(b"a")
    cluster[1].compact()
    cluster.propose(b"b")
    cluster.tick(20)
    assert cluster.raw(1).raft.tracker.progress[3].state is not ProgressState.SNAPSHOT


def test_a_failed_snapshot_is_tried_again_after_a_sign_of_life() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    cluster.propose(b"a")
    cluster[1].compact()
    cluster.heal()
    cluster.passes = lambda message: message.type is not MessageType.SNAP
    cluster.tick(1)
    progress = cluster.raw(1).raft.tracker.progress[3]
    assert progress.state is ProgressState.SNAPSHOT
    cluster.raw(1).report_snapshot(3, ok=False)
    assert progress.state is ProgressState.PROBE and progress.is_paused
    cluster.passes = lambda message: True
    cluster.tick(2)
    assert cluster[3].data == [b"a"]


def test_a_snapshot_that_arrived_is_followed_by_a_probe_when_its_answer_got_lost() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    cluster.propose(b"a")
    cluster[1].compact()
    cluster.heal()
    cluster.passes = lambda message: message.type is not MessageType.APP_RESP or message.from_ != 3 or message.reject
    cluster.tick(1)
    assert cluster[3].data == [b"a"]
    cluster.passes = lambda message: True
    cluster.raw(1).report_snapshot(3, ok=True)
    cluster.tick(2)
    assert cluster.raw(1).raft.tracker.progress[3].state is ProgressState.REPLICATE


def test_a_snapshot_that_says_nothing_new_only_moves_the_commit_index() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    follower = cluster.raw(2)
    last = follower.raft.log.last_index()
    cluster[1].compact()
    snapshot = cluster[1].storage.snapshot()
    follower.raft.log.committed -= 1
    follower.step(Message(MessageType.SNAP, 2, 1, term=follower.raft.term, snapshot=snapshot))
    assert follower.raft.log.unstable.snapshot is None and follower.raft.log.committed == last


def test_a_snapshot_for_a_group_without_this_member_is_ignored() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    cluster[1].conf_state = ConfState(voters=(1, 2))
    cluster[1].compact()
    newcomer = Cluster(3, start=False)
    message = Message(MessageType.SNAP, 3, 1, term=2, snapshot=cluster[1].storage.snapshot())
    newcomer.raw(3).step(message)
    assert newcomer.raw(3).raft.log.unstable.snapshot is None


def test_an_unreachable_peer_is_probed_instead_of_streamed_to() -> None:
    cluster = Cluster(3)
    cluster.propose(b"a")
    cluster.raw(1).report_unreachable(2)
    progress = cluster.raw(1).raft.tracker.progress[2]
    assert progress.state is ProgressState.PROBE
    cluster.tick(1)
    assert progress.state is ProgressState.REPLICATE


def test_messages_that_come_twice_or_late_change_nothing() -> None:
    cluster = Cluster(3)
    for number in range(5):
        cluster.propose(b"%d" % number)
    old = list(cluster.delivered)
    before = {node: member.log for node, member in cluster.members.items()}
    cluster.network.extend(old + old[::-1])
    cluster.settle()
    assert {node: member.log for node, member in cluster.members.items()} == before
    assert cluster.leader == 1


def test_a_heartbeat_never_tells_a_commit_index_the_peer_is_not_known_to_have() -> None:
    cluster = Cluster(3)
    cluster.isolate(3)
    for number in range(3):
        cluster.propose(b"%d" % number)
    match = cluster.raw(1).raft.tracker.progress[3].match
    cluster.raw(1).tick()
    (beat,) = [
        message for message in cluster.raw(1).raft.msgs if message.type is MessageType.HEARTBEAT and message.to == 3
    ]
    assert beat.commit == match
