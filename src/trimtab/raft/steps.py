"""What each role does with each message: the state machine as a table.

The table is read by role and message type; what is not listed is ignored. Terms were settled before (`core.step`), so
a message here is of the member's own term, or has none.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from trimtab.raft import election, following, proposals, reads, replication, transfer
from trimtab.raft.messages import Message, MessageType
from trimtab.raft.roles import StateType

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

Step = Callable[["Raft", Message], None]


def _ignore(raft: "Raft", message: Message) -> None:
    pass


def _storage_appended(raft: "Raft", message: Message) -> None:
    raft.storage_appended(message)


def _storage_applied(raft: "Raft", message: Message) -> None:
    raft.storage_applied(message)


_ANY_ROLE: dict[MessageType, Step] = {
    MessageType.HUP: election.campaign_when_timed_out,
    MessageType.VOTE: election.answer_vote_request,
    MessageType.PRE_VOTE: election.answer_vote_request,
    MessageType.STORAGE_APPEND_RESP: _storage_appended,
    MessageType.STORAGE_APPLY_RESP: _storage_applied,
}

_FOLLOWER: dict[MessageType, Step] = {
    MessageType.PROP: proposals.forward,
    MessageType.APP: following.on_append,
    MessageType.HEARTBEAT: following.on_heartbeat,
    MessageType.SNAP: following.on_snapshot,
    MessageType.TRANSFER_LEADER: transfer.forward,
    MessageType.TIMEOUT_NOW: transfer.campaign_now,
    MessageType.FORGET_LEADER: following.forget_leader,
    MessageType.READ_INDEX: reads.forward,
    MessageType.READ_INDEX_RESP: reads.on_answer,
}

_CANDIDATE: dict[MessageType, Step] = {
    MessageType.PROP: proposals.refuse_without_leader,
    MessageType.APP: following.on_append_as_candidate,
    MessageType.HEARTBEAT: following.on_heartbeat_as_candidate,
    MessageType.SNAP: following.on_snapshot_as_candidate,
}

_LEADER: dict[MessageType, Step] = {
    MessageType.BEAT: replication.on_beat,
    MessageType.CHECK_QUORUM: replication.on_check_quorum,
    MessageType.PROP: proposals.on_proposal,
    MessageType.READ_INDEX: reads.on_request,
    MessageType.APP_RESP: replication.on_append_response,
    MessageType.HEARTBEAT_RESP: replication.on_heartbeat_response,
    MessageType.SNAP_STATUS: replication.on_snapshot_status,
    MessageType.UNREACHABLE: replication.on_unreachable,
    MessageType.TRANSFER_LEADER: transfer.on_request,
}

_BY_ROLE: dict[StateType, dict[MessageType, Step]] = {
    StateType.FOLLOWER: _FOLLOWER,
    # A pre-candidate counts only pre-votes, a candidate only votes: answers of the first round may come late.
    StateType.CANDIDATE: _CANDIDATE | {MessageType.VOTE_RESP: election.on_vote},
    StateType.LEADER: _LEADER,
    StateType.PRE_CANDIDATE: _CANDIDATE | {MessageType.PRE_VOTE_RESP: election.on_vote},
}

TABLE: tuple[tuple[Step, ...], ...] = tuple(
    tuple((_ANY_ROLE | _BY_ROLE[role]).get(kind, _ignore) for kind in MessageType) for role in StateType
)
