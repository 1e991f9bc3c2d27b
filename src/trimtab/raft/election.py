"""Elections: who may campaign, how votes are asked for, given and counted.

Guarantees: one vote a term, and only for a candidate whose log has at least everything the voter's has; so whoever is
elected has every committed entry. A member never campaigns while a committed configuration change waits to be applied:
it could count votes by a membership that is two changes old, whose majority need not overlap with the newest one.
"""

from typing import TYPE_CHECKING

from trimtab.raft.messages import NONE, EntryType, Message, MessageType
from trimtab.raft.quorum import VoteResult
from trimtab.raft.roles import StateType
from trimtab.raft.sending import broadcast_append

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

# What the campaign of a transferee carries, so that voters answer although they still hear from their leader.
TRANSFER_CONTEXT = b"CampaignTransfer"

_RESPONSES = {MessageType.VOTE: MessageType.VOTE_RESP, MessageType.PRE_VOTE: MessageType.PRE_VOTE_RESP}


def campaign_when_timed_out(raft: "Raft", message: Message) -> None:
    maybe_campaign(raft, pre_vote=raft.config.pre_vote, context=b"")


def maybe_campaign(raft: "Raft", *, pre_vote: bool, context: bytes) -> None:
    """Campaign, unless this member leads already or must not lead."""
    if raft.state is StateType.LEADER:
        return
    if not raft.promotable():
        if raft.note is not None:
            raft.note(f"WARN {raft.id:x} is not a voter, or awaits a snapshot, and does not campaign")
        return
    if has_unapplied_conf_change(raft):
        if raft.note is not None:
            raft.note(
                f"WARN {raft.id:x} does not campaign in term {raft.term} before it has applied a membership change "
                "that is committed"
            )
        return
    if raft.note is not None:
        raft.note(f"INFO {raft.id:x} wants to be elected, in term {raft.term}")
    _campaign(raft, pre_vote=pre_vote, context=context)


def has_unapplied_conf_change(raft: "Raft") -> bool:
    log = raft.log
    if log.applied >= log.committed:
        return False
    for page in log.scan(log.applied + 1, log.committed + 1, log.max_applying_bytes):
        for entry in page:
            if entry.type != EntryType.NORMAL:
                return True
    return False


def _campaign(raft: "Raft", *, pre_vote: bool, context: bytes) -> None:
    if pre_vote:
        raft.become_pre_candidate()
        request = MessageType.PRE_VOTE
        term = raft.term + 1
    else:
        raft.become_candidate()
        request = MessageType.VOTE
        term = raft.term
    last_index = raft.log.last_index()
    last_term = raft.log.last_term()
    for node in sorted(raft.tracker.config.voters.ids()):
        if node == raft.id:
            # The own vote counts like any other: once it is durable.
            raft.send(Message(_RESPONSES[request], node, term=term))
        else:
            if raft.note is not None:
                raft.note(
                    f"INFO {raft.id:x}, whose log ends at {last_term}/{last_index}, asks {node:x} for {request.name} "
                    f"of term {term}"
                )
            raft.send(Message(request, node, term=term, log_term=last_term, index=last_index, context=context))


def answer_vote_request(raft: "Raft", message: Message) -> None:
    """Vote, or not. Learners vote too: one that was promoted may not know it yet, and its vote may be needed."""
    can_vote = (
        raft.vote == message.from_
        or (raft.vote == NONE and raft.lead == NONE)
        # A pre-vote for a term to come promises nothing.
        or (message.type is MessageType.PRE_VOTE and message.term > raft.term)
    )
    response = _RESPONSES[message.type]
    granted = can_vote and raft.log.is_up_to_date(message.index, message.log_term)
    if raft.note is not None:
        raft.note(
            f"INFO {raft.id:x} {'grants' if granted else 'refuses'} {message.from_:x} its {message.type.name}: its log "
            f"ends at {message.log_term}/{message.index}, ours at {raft.log.last_term()}/{raft.log.last_index()}, "
            f"our vote of term {raft.term} went to {raft.vote:x}"
        )
    if not granted:
        raft.send(Message(response, message.from_, term=raft.term, reject=True))
        return
    # Answer in the term of the question: a pre-candidate would drop a consent in this member's older term.
    raft.send(Message(response, message.from_, term=message.term))
    if message.type is MessageType.VOTE:
        raft.election_elapsed = 0
        raft.vote = message.from_


def on_vote(raft: "Raft", message: Message) -> None:
    raft.tracker.record_vote(message.from_, not message.reject)
    granted, rejected, result = raft.tracker.tally_votes()
    if raft.note is not None:
        raft.note(f"INFO {raft.id:x} counts {granted} for it and {rejected} against, after {message.type.name}")
    if result is VoteResult.WON:
        if raft.state is StateType.PRE_CANDIDATE:
            _campaign(raft, pre_vote=False, context=b"")
        else:
            raft.become_leader()
            broadcast_append(raft)
    elif result is VoteResult.LOST:
        # The term of a pre-vote's answer is one nobody is in; stay in one's own.
        raft.become_follower(raft.term, NONE)
