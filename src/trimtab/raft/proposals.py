"""Proposals: appended by the leader, passed on by a follower, or dropped with a reason.

A dropped proposal was never in any log. One that was passed on may get lost without a word: whoever proposed it has to
wait for its entry, or for its own timeout.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from trimtab.raft import membership
from trimtab.raft.errors import DropReason, ProposalDropped, StepRefused
from trimtab.raft.messages import NONE, Entry, EntryType, Message, MessageType, decode_conf_change
from trimtab.raft.roles import StateType
from trimtab.raft.sending import broadcast_append
from trimtab.raft.storage import payload_bytes

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

_NORMAL = EntryType.NORMAL


def propose(raft: "Raft", payloads: Sequence[bytes]) -> None:
    """Propose application data. On a leader the entries are made with their final place at once."""
    if raft.state is StateType.LEADER:
        _check_may_append(raft)
        _reserve_uncommitted(raft, sum(map(len, payloads)))
        term = raft.term
        first = raft.log.last_index() + 1
        append(raft, [Entry(term, index, _NORMAL, data) for index, data in enumerate(payloads, first)])
        broadcast_append(raft)
    else:
        raft.step(Message(MessageType.PROP, from_=raft.id, entries=[Entry(data=data) for data in payloads]))


def on_proposal(raft: "Raft", message: Message) -> None:
    """A proposal as message: from a follower, or a configuration change."""
    if not message.entries:
        raise StepRefused(f"a proposal from {message.from_} without entries")
    _check_may_append(raft)
    term = raft.term
    first = raft.log.last_index() + 1
    pending_conf_index = raft.pending_conf_index
    entries = []
    for index, entry in enumerate(message.entries, first):
        if entry.type == _NORMAL:
            entries.append(Entry(term, index, _NORMAL, entry.data))
            continue
        try:
            change = decode_conf_change(entry).as_v2()
        except msgspec.DecodeError as error:
            raft.pending_conf_index = pending_conf_index
            raise ProposalDropped(DropReason.MALFORMED_CHANGE) from error
        refusal = membership.refusal(raft, change)
        if refusal is not None and not raft.config.disable_conf_change_validation:
            # An empty entry in its place: whoever waits for that index sees that nothing came of the change.
            if raft.note is not None:
                raft.note(f"INFO {raft.id:x} puts an empty entry for {change}, in {raft.tracker.config}: {refusal}")
            entries.append(Entry(term, index))
        else:
            raft.pending_conf_index = index
            entries.append(Entry(term, index, entry.type, entry.data))
    try:
        _reserve_uncommitted(raft, payload_bytes(entries))
    except ProposalDropped:
        raft.pending_conf_index = pending_conf_index
        raise
    append(raft, entries)
    broadcast_append(raft)


def _check_may_append(raft: "Raft") -> None:
    if raft.id not in raft.tracker.progress:
        raise ProposalDropped(DropReason.REMOVED)
    if raft.lead_transferee != NONE:
        raise ProposalDropped(DropReason.TRANSFERRING)


def _reserve_uncommitted(raft: "Raft", size_bytes: int) -> None:
    """Bound what waits to be committed. Empty entries always pass; so does anything when nothing waits."""
    if (
        raft.uncommitted_bytes > 0
        and size_bytes > 0
        and raft.uncommitted_bytes + size_bytes > raft.config.max_uncommitted_entries_size
    ):
        raise ProposalDropped(DropReason.TOO_MUCH_UNCOMMITTED)
    raft.uncommitted_bytes += size_bytes


def append(raft: "Raft", entries: Sequence[Entry]) -> None:
    """Append a leader's entries. Its own acknowledgement counts, like anybody's, when they are durable."""
    raft.log.append(entries)
    raft.send(Message(MessageType.APP_RESP, raft.id, index=entries[-1].index))


def forward(raft: "Raft", message: Message) -> None:
    if raft.lead == NONE:
        raise ProposalDropped(DropReason.NO_LEADER)
    if raft.config.disable_proposal_forwarding:
        raise ProposalDropped(DropReason.FORWARDING_DISABLED)
    message.to = raft.lead
    raft.send(message)


def refuse_without_leader(raft: "Raft", message: Message) -> None:
    raise ProposalDropped(DropReason.NO_LEADER)
