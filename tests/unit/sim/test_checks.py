"""The invariants say no to what must not be, and nothing to what may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.raft.log import Log
from trimtab.raft.messages import ConfState, Entry, EntryType, HardState, Message, MessageType
from trimtab.raft.quorum import JointVoters
from trimtab.raft.roles import StateType
from trimtab.raft.storage import MemoryStorage
from trimtab.raft.tracker import Configuration
from trimtab.sim.checks import Checks, State, Violation

FOLLOWER, LEADER, CANDIDATE = StateType.FOLLOWER, StateType.LEADER, StateType.CANDIDATE


class Counting:
    """A reference machine whose revision is the number of entries."""

    def __init__(self) -> None:
        self.revision = 0

    def apply(self, entry: Entry) -> State:
        self.revision += bool(entry.data)
        return self.revision, b""


class Members:
    """Three members whose state is set by hand."""

    def __init__(self) -> None:
        self.checks = Checks(Counting())
        self.checks.founded(1, 1, (0, b""))
        self.groups: dict[int, Any] = {}
        config = Configuration(voters=JointVoters(frozenset((1, 2, 3))))
        for member in (1, 2, 3):
            storage = MemoryStorage()
            storage.apply_snapshot(snapshot_at_founding())
            log = Log(storage, 1 << 20)
            raft = SimpleNamespace(
                term=1, state=FOLLOWER, log=log, tracker=SimpleNamespace(config=config), hard_state=HardState()
            )
            machine = SimpleNamespace(applied_index=1, metastore=SimpleNamespace(revision=0, checksum=b""))
            self.groups[member] = SimpleNamespace(raw=SimpleNamespace(raft=raft), machine=machine)
            self.look(member)

    def raft(self, member: int) -> Any:
        return self.groups[member].raw.raft

    def look(self, member: int) -> None:
        self.checks.observe(member, self.groups[member])

    def votes(self, term: int, candidate: int, *voters: int) -> None:
        for voter in voters:
            self.checks.message(voter, Message(MessageType.VOTE_RESP, candidate, voter, term))

    def elect(self, member: int, term: int, *voters: int) -> None:
        for voter in voters:
            self.raft(voter).term = term
            self.look(voter)
        self.votes(term, member, *(voter for voter in voters if voter != member))
        self.raft(member).term, self.raft(member).state = term, LEADER
        self.look(member)

    def append(self, member: int, *entries: Entry) -> None:
        self.raft(member).log.append(entries)
        self.look(member)

    def acknowledge(self, member: int, leader: int, index: int) -> None:
        term = self.raft(member).term
        self.checks.message(member, Message(MessageType.APP_RESP, leader, member, term, index=index))

    def commit(self, member: int, index: int) -> None:
        self.raft(member).log.commit_to(index)
        self.look(member)

    def apply(self, member: int, index: int, revision: int) -> None:
        group = self.groups[member]
        group.raw.raft.log.accept_applying(index, 0, allow_unstable=True)
        group.raw.raft.log.applied_to(index, 0)
        group.machine.applied_index, group.machine.metastore.revision = index, revision
        self.look(member)


def snapshot_at_founding() -> Any:
    from trimtab.raft.messages import Snapshot, SnapshotMetadata

    return Snapshot(SnapshotMetadata(ConfState(voters=(1, 2, 3)), 1, 1))


def entry(index: int, term: int, data: bytes = b"x") -> Entry:
    return Entry(term, index, data=data)


def test_an_ordinary_election_and_commit_is_fine() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.append(1, entry(2, 2))
    members.append(2, entry(2, 2))
    members.acknowledge(2, 1, 2)
    members.commit(1, 2)
    members.apply(1, 2, 1)
    members.commit(2, 2)
    members.apply(2, 2, 1)
    assert members.checks.committed == [(1, 0), (1, 0), (2, 2)]


def test_two_leaders_in_a_term_are_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.checks.votes.clear()
    with pytest.raises(Violation, match="two leaders in term 2: 1 and 3"):
        members.elect(3, 2, 3, 2)


def test_a_second_vote_in_a_term_is_found_even_after_a_restart() -> None:
    members = Members()
    members.votes(2, 1, 2)
    members.checks.died(2)
    with pytest.raises(Violation, match="member 2 voted twice in term 2"):
        members.votes(2, 3, 2)


def test_a_leader_without_a_quorum_of_votes_is_found() -> None:
    members = Members()
    with pytest.raises(Violation, match="without the votes of a quorum"):
        members.elect(1, 2, 1)


def test_a_member_elected_again_in_the_same_term_after_a_crash_is_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.checks.died(1)
    members.raft(1).state, members.raft(1).term = FOLLOWER, 1
    members.look(1)
    with pytest.raises(Violation, match="elected twice in term 2"):
        members.elect(1, 2, 1, 2)


def test_two_entries_of_one_index_and_term_are_found() -> None:
    members = Members()
    members.append(1, entry(2, 2, b"one"))
    with pytest.raises(Violation, match="log matching: member 2 holds another entry at index 2 of term 2"):
        members.append(2, entry(2, 2, b"other"))


def test_a_commit_without_a_quorum_is_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.append(1, entry(2, 2))
    with pytest.raises(Violation, match="committed entry 2 in term 2 without a quorum"):
        members.commit(1, 2)


def test_a_leader_that_lacks_what_was_committed_is_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.append(1, entry(2, 2))
    members.append(2, entry(2, 2))
    members.acknowledge(2, 1, 2)
    members.commit(1, 2)
    with pytest.raises(Violation, match="the leader of term 3, member 3, lacks entry 2"):
        members.elect(3, 3, 3, 2)


def test_a_commit_that_a_possible_leader_lacks_is_found_before_there_is_an_election() -> None:
    """Figure 8 of the Raft paper, one step before the accident."""
    members = Members()
    members.elect(1, 2, 1, 2)
    members.append(1, entry(2, 2))
    members.elect(3, 3, 3, 2)
    members.append(3, entry(2, 3, b"three"))
    members.raft(1).state = FOLLOWER
    members.look(1)
    members.elect(1, 4, 1, 2)
    members.append(2, entry(2, 2))
    members.acknowledge(2, 1, 2)
    with pytest.raises(Violation, match=r"member 3 lacks it and could be elected by \[1, 2, 3\]"):
        members.commit(1, 2)


def test_dropping_what_was_acknowledged_in_the_same_term_is_found() -> None:
    members = Members()
    members.append(2, entry(2, 1), entry(3, 1))
    members.acknowledge(2, 1, 3)
    with pytest.raises(Violation, match="member 2 acknowledged entry 3 of term 1"):
        members.append(2, entry(2, 1, b"x"))
        members.raft(2).log.unstable.entries = [entry(2, 1)]
        members.look(2)


def test_a_member_that_comes_back_without_what_it_acknowledged_is_found() -> None:
    members = Members()
    members.append(2, entry(2, 1), entry(3, 1))
    members.acknowledge(2, 1, 3)
    members.checks.died(2)
    members.raft(2).log.unstable.entries = [entry(2, 1)]
    with pytest.raises(Violation, match="does not have it any more"):
        members.look(2)


def test_a_member_that_comes_back_without_what_it_never_acknowledged_is_fine() -> None:
    members = Members()
    members.append(2, entry(2, 1), entry(3, 1))
    members.acknowledge(2, 1, 2)
    members.checks.died(2)
    members.raft(2).log.unstable.entries = [entry(2, 1)]
    members.look(2)


def test_a_late_acknowledgement_of_what_a_newer_leader_replaced_is_fine() -> None:
    members = Members()
    members.append(2, entry(2, 1), entry(3, 1))
    late = Message(MessageType.APP_RESP, 1, 2, 1, index=3)
    members.raft(2).term = 2
    members.append(2, entry(2, 2, b"new"))
    members.checks.message(2, late)


def test_a_term_that_goes_back_over_a_promise_is_found() -> None:
    members = Members()
    members.raft(2).term = 5
    members.look(2)
    members.votes(5, 1, 2)
    members.checks.died(2)
    members.raft(2).term = 4
    with pytest.raises(Violation, match="came back in term 4, but had made promises in 5"):
        members.look(2)


def test_a_state_that_the_log_does_not_explain_is_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.append(1, entry(2, 2))
    members.append(2, entry(2, 2))
    members.acknowledge(2, 1, 2)
    members.commit(1, 2)
    members.commit(2, 2)
    with pytest.raises(Violation, match="the state of member 2 after applying index 2 is not that of the log"):
        members.apply(2, 2, 2)


def test_campaigning_over_an_unapplied_change_is_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    change = Entry(2, 2, EntryType.CONF_CHANGE_V2)
    members.append(1, change)
    members.append(2, change)
    members.acknowledge(2, 1, 2)
    members.commit(1, 2)
    members.commit(2, 2)
    members.raft(2).state, members.raft(2).term = CANDIDATE, 3
    with pytest.raises(Violation, match="has not applied the change of membership at index 2"):
        members.look(2)


def test_members_that_disagree_about_the_membership_are_found() -> None:
    members = Members()
    members.elect(1, 2, 1, 2)
    members.append(1, entry(2, 2))
    members.append(2, entry(2, 2))
    members.acknowledge(2, 1, 2)
    members.commit(1, 2)
    members.commit(2, 2)
    members.apply(1, 2, 1)
    members.raft(2).tracker.config = Configuration(voters=JointVoters(frozenset((1, 2))))
    with pytest.raises(Violation, match="members 1 and 2 disagree about the membership"):
        members.apply(2, 2, 1)


def test_positions_that_go_back_are_found() -> None:
    members = Members()
    members.raft(1).term = 4
    members.look(1)
    members.raft(1).term = 3
    with pytest.raises(Violation, match="the term of member 1 went back from 4 to 3"):
        members.look(1)
