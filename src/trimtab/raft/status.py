"""A picture of a member for operators and tests: values only, nothing that changes later."""

from typing import TYPE_CHECKING

import msgspec

from trimtab.raft.progress import ProgressState
from trimtab.raft.roles import StateType
from trimtab.raft.tracker import Configuration

if TYPE_CHECKING:
    from trimtab.raft.core import Raft


class PeerStatus(msgspec.Struct, frozen=True):
    match: int
    next: int
    state: ProgressState
    is_learner: bool
    is_paused: bool
    recent_active: bool
    pending_snapshot: int
    inflight_messages: int
    inflight_bytes: int


class Status(msgspec.Struct, frozen=True):
    id: int
    term: int
    vote: int
    state: StateType
    lead: int
    lead_transferee: int
    committed: int
    applied: int
    first_index: int
    last_index: int
    config: Configuration
    # What a leader knows about everyone; empty on the others, who know nothing.
    peers: dict[int, PeerStatus]


def status_of(raft: "Raft") -> Status:
    peers: dict[int, PeerStatus] = {}
    if raft.state is StateType.LEADER:
        for node in raft.tracker.ids:
            progress = raft.tracker.progress[node]
            peers[node] = PeerStatus(
                match=progress.match,
                next=progress.next,
                state=progress.state,
                is_learner=progress.is_learner,
                is_paused=progress.is_paused,
                recent_active=progress.recent_active,
                pending_snapshot=progress.pending_snapshot,
                inflight_messages=len(progress.inflights),
                inflight_bytes=progress.inflights.size_bytes,
            )
    return Status(
        id=raft.id,
        term=raft.term,
        vote=raft.vote,
        state=raft.state,
        lead=raft.lead,
        lead_transferee=raft.lead_transferee,
        committed=raft.log.committed,
        applied=raft.log.applied,
        first_index=raft.log.first_index(),
        last_index=raft.log.last_index(),
        config=raft.tracker.config,
        peers=peers,
    )
