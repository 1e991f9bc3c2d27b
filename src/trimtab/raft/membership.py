"""Who is in the group, as this member has applied it, and what it does when that changes.

A change takes effect when it is applied, not when it is appended. That is safe because only one is under way at a time:
`pending_conf_index` is at or past the last one in the log, and until it is applied no other is appended. A new leader
sets it to the end of its log, because it does not know what is in the tail.
"""

from typing import TYPE_CHECKING

from trimtab.raft import confchange, reads, sending
from trimtab.raft.errors import ConfChangeRefused, ProposalDropped
from trimtab.raft.messages import NONE, ConfChangeV2, ConfState, Entry, EntryType, Message, MessageType
from trimtab.raft.roles import StateType
from trimtab.raft.tracker import Configuration, ProgressMap, Tracker

if TYPE_CHECKING:
    from trimtab.raft.core import Raft


def refusal(raft: "Raft", change: ConfChangeV2) -> str | None:
    """Why a leader should not append this change now.

    When no other change is pending, the active configuration is the newest in this log, so trying the change out on it
    tells exactly what applying it would.
    """
    joint = raft.tracker.config.is_joint
    leaving = not change.changes
    if raft.pending_conf_index > raft.log.applied:
        return (
            f"another change may be under way, up to index {raft.pending_conf_index}, and only {raft.log.applied} is "
            "applied; try again when it is"
        )
    if joint and not leaving:
        return "the configuration is joint; leave it first"
    if not joint and leaving:
        return "there is no joint configuration to leave"
    try:
        confchange.Changer(raft.tracker, raft.log.last_index()).apply(change)
    except ConfChangeRefused as refused:
        return str(refused)
    return None


def apply(raft: "Raft", change: ConfChangeV2) -> ConfState:
    """Take up the change. Raises ConfChangeRefused, and leaves everything as it was, when it is not possible."""
    changer = confchange.Changer(raft.tracker, raft.log.last_index())
    return switch_to(raft, *changer.apply(change))


def restore_from(raft: "Raft", conf_state: ConfState) -> None:
    """Take up the configuration of a snapshot."""
    config = raft.config
    raft.tracker = Tracker(config.max_inflight_msgs, config.max_inflight_bytes)
    switch_to(raft, *confchange.restore(raft.tracker, raft.log.last_index(), conf_state))


def switch_to(raft: "Raft", config: Configuration, progress: ProgressMap) -> ConfState:
    raft.tracker.switch(config, progress)
    if raft.note is not None:
        raft.note(f"INFO {raft.id:x} is in {config} now")
    conf_state = config.conf_state()
    own = progress.get(raft.id)
    raft.is_learner = own is not None and own.is_learner
    if raft.state is not StateType.LEADER:
        return conf_state
    if own is None or own.is_learner:
        # It may lead on until what it has appended is committed, without counting itself; or stop at once.
        if raft.config.step_down_on_removal:
            raft.become_follower(raft.term, NONE)
        return conf_state
    if not conf_state.voters:
        return conf_state
    if sending.maybe_commit(raft):
        # A smaller quorum may have committed more; tell everyone in the new configuration.
        reads.release_postponed(raft)
        sending.broadcast_append(raft)
    else:
        # New members need not wait for the next heartbeat.
        for node in raft.tracker.ids:
            if node != raft.id:
                sending.send_append(raft, node, progress[node], if_empty=False)
    if raft.lead_transferee != NONE and raft.lead_transferee not in config.voters:
        raft.lead_transferee = NONE
    reads.answer_confirmed(raft)
    return conf_state


def maybe_leave_joint(raft: "Raft") -> None:
    """Propose to leave a joint configuration that is to be left automatically, as soon as it is applied.

    Asked after everything applied: a transfer of leadership may be in the way now, and a new leader has to do it too.
    """
    if raft.state is not StateType.LEADER or raft.log.applied < raft.pending_conf_index:
        return
    leave = Message(MessageType.PROP, from_=raft.id, entries=[Entry(type=EntryType.CONF_CHANGE_V2)])
    try:
        raft.step(leave)
    except ProposalDropped as dropped:
        if raft.note is not None:
            raft.note(f"DEBUG can't leave {raft.tracker.config} yet: {dropped}")
    else:
        if raft.note is not None:
            raft.note(f"INFO proposes to leave {raft.tracker.config}")
