"""The follower's side of replication: appends, heartbeats, snapshots.

An append is taken only where what precedes it matches; then this log equals the leader's up to its end. Answers leave
only after what they promise is durable.
"""

from typing import TYPE_CHECKING

from trimtab.raft import membership
from trimtab.raft.errors import StepRefused
from trimtab.raft.messages import NONE, Message, MessageType, Snapshot
from trimtab.raft.roles import StateType

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

_APP_RESP = MessageType.APP_RESP


def on_append(raft: "Raft", message: Message) -> None:
    entries = message.entries
    if entries and not (entries[0].index == message.index + 1 and entries[-1].index == message.index + len(entries)):
        raise StepRefused(
            f"append from {message.from_} after {message.index} has entries {entries[0].index}..{entries[-1].index}"
        )
    raft.election_elapsed = 0
    raft.lead = message.from_
    log = raft.log
    if message.index < log.committed:
        # Old news: everything up to the commit index is the same in both logs.
        raft.send(Message(_APP_RESP, message.from_, index=log.committed))
        return
    if log.maybe_append(message.index, message.log_term, entries, message.commit):
        raft.send(Message(_APP_RESP, message.from_, index=message.index + len(entries)))
        return
    if raft.note is not None:
        raft.note(
            f"DEBUG {raft.id:x} has term {log.term_or_zero(message.index)} at {message.index}, not {message.log_term}, "
            f"and rejects the append of {message.from_:x}"
        )
    # Guess where the logs may agree: the leader's log before message.index has no term above message.log_term.
    hint_index, hint_term = log.find_conflict_by_term(min(message.index, log.last_index()), message.log_term)
    raft.send(
        Message(
            _APP_RESP,
            message.from_,
            log_term=hint_term,
            index=message.index,
            reject=True,
            reject_hint=hint_index,
        )
    )


def on_heartbeat(raft: "Raft", message: Message) -> None:
    raft.election_elapsed = 0
    raft.lead = message.from_
    raft.log.commit_to(message.commit)
    raft.send(Message(MessageType.HEARTBEAT_RESP, message.from_, context=message.context))


def on_snapshot(raft: "Raft", message: Message) -> None:
    raft.election_elapsed = 0
    raft.lead = message.from_
    snapshot = message.snapshot or Snapshot()
    if _restore(raft, snapshot):
        raft.send(Message(_APP_RESP, message.from_, index=raft.log.last_index()))
    else:
        raft.send(Message(_APP_RESP, message.from_, index=raft.log.committed))


def _restore(raft: "Raft", snapshot: Snapshot) -> bool:
    """Replace log and configuration by the snapshot. False when it brings nothing, or is not for this member."""
    metadata = snapshot.metadata
    if metadata.index <= raft.log.committed:
        return False
    if raft.state is not StateType.FOLLOWER:
        # A leader never gets here, its term is the highest it knows; but if it did, it must not go on leading.
        raft.become_follower(raft.term + 1, NONE)
        return False
    conf_state = metadata.conf_state
    if raft.id not in (*conf_state.voters, *conf_state.learners, *conf_state.voters_outgoing):
        if raft.note is not None:
            raft.note(f"WARN {raft.id:x} ignored a snapshot whose configuration it is not in: {conf_state}")
        return False
    if raft.log.matches(metadata.index, metadata.term):
        # The log has it all; only the commit index was behind.
        raft.log.commit_to(metadata.index)
        return False
    if raft.note is not None:
        raft.note(f"INFO {raft.id:x} takes the snapshot at {metadata.term}/{metadata.index} for its log [{raft.log}]")
    raft.log.restore(snapshot)
    membership.restore_from(raft, conf_state)
    return True


def on_append_as_candidate(raft: "Raft", message: Message) -> None:
    raft.become_follower(message.term, message.from_)
    on_append(raft, message)


def on_heartbeat_as_candidate(raft: "Raft", message: Message) -> None:
    raft.become_follower(message.term, message.from_)
    on_heartbeat(raft, message)


def on_snapshot_as_candidate(raft: "Raft", message: Message) -> None:
    raft.become_follower(message.term, message.from_)
    on_snapshot(raft, message)


def forget_leader(raft: "Raft", message: Message) -> None:
    """Stay in the term and keep the timeout, but grant votes again. With lease reads that would break the lease."""
    if raft.config.read_only == "lease":
        if raft.note is not None:
            raft.note("ERROR a member with lease reads must not forget its leader; ignored")
        return
    if raft.lead != NONE:
        if raft.note is not None:
            raft.note(f"INFO {raft.id:x} no longer believes in leader {raft.lead:x} of term {raft.term}")
        raft.lead = NONE
