"""Handing leadership to a chosen voter: bring it up to date, tell it to campaign at once, take no proposals meanwhile.

The transferee campaigns without pre-vote, in a way that voters answer although they still hear from their leader. If it
does not come to lead within an election timeout, the leader goes on.
"""

from typing import TYPE_CHECKING

from trimtab.raft import election
from trimtab.raft.messages import NONE, Message
from trimtab.raft.sending import send_append, send_timeout_now

if TYPE_CHECKING:
    from trimtab.raft.core import Raft


def on_request(raft: "Raft", message: Message) -> None:
    """`from_` names the transferee. A newer request replaces an older one."""
    to = message.from_
    progress = raft.tracker.progress.get(to)
    if progress is None or progress.is_learner or to == raft.lead_transferee:
        return
    raft.lead_transferee = NONE
    if to == raft.id:
        return
    if raft.note is not None:
        raft.note(f"INFO {raft.id:x} hands leadership of term {raft.term} to {to:x}")
    # The transferee has one election timeout from now.
    raft.election_elapsed = 0
    raft.lead_transferee = to
    if progress.match == raft.log.last_index():
        send_timeout_now(raft, to)
    else:
        send_append(raft, to, progress)


def forward(raft: "Raft", message: Message) -> None:
    if raft.lead != NONE:
        message.to = raft.lead
        raft.send(message)


def campaign_now(raft: "Raft", message: Message) -> None:
    election.maybe_campaign(raft, pre_vote=False, context=election.TRANSFER_CONTEXT)
