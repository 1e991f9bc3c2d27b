"""Linearizable reads without writing: the read index.

A read is safe at an index once the leader knows that it still led after the read arrived. It learns that from a round
of heartbeats. Rounds have numbers of the leader's own, which heartbeats carry and answers return; a peer that has
answered round n has answered all before it. So reads are batched (all that arrive before a round's heartbeats are
handed out share it), any later heartbeat confirms them too, and what the application calls its reads does not matter:
two reads with the same context never stand in for one another.

Before a new leader has committed an entry of its own term it does not know what is committed; reads wait for that.
Reads that are pending when leadership ends are forgotten: whoever asked has to ask again.
"""

from typing import TYPE_CHECKING

import msgspec

from trimtab.raft.messages import NONE, Entry, Message, MessageType
from trimtab.raft.sending import broadcast_heartbeat

if TYPE_CHECKING:
    from trimtab.raft.core import Raft

# More than a host asks for between two heartbeats; past it reads are dropped, as if the network had lost them.
MAX_PENDING_READS = 1 << 16


class ReadState(msgspec.Struct, frozen=True, gc=False):
    """The read called `context` may be answered by any state that has applied `index`."""

    index: int
    context: bytes


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    round: int
    index: int
    sender: int
    context: bytes


class Reads:
    __slots__ = ("_acked", "_waiting", "postponed", "round", "round_open", "states")

    def __init__(self) -> None:
        # Answered reads of this member, for the next Ready.
        self.states: list[ReadState] = []
        # Requests that wait for the first commit of the term.
        self.postponed: list[Message] = []
        # Never goes back while the process lives: an answer to a round of an earlier term confirms nothing.
        self.round = 0
        # The heartbeats of the newest round were not handed out yet: reads may still join it.
        self.round_open = False
        self._waiting: list[_Waiting] = []
        # Peer -> newest round it has answered.
        self._acked: dict[int, int] = {}

    @property
    def pending(self) -> bool:
        return bool(self._waiting or self.postponed)

    def reset(self) -> None:
        """Leadership began or ended. Answered reads stay answered."""
        if self.pending or self._acked:
            self.postponed = []
            self._waiting = []
            self._acked = {}
        self.round_open = False

    def heartbeat_context(self) -> bytes:
        """What heartbeats carry now: the newest round, while anyone waits for it."""
        return self.round.to_bytes(8, "big") if self._waiting else b""

    def is_full(self) -> bool:
        return len(self._waiting) + len(self.postponed) >= MAX_PENDING_READS

    def wait(self, index: int, sender: int, context: bytes) -> bool:
        """Join the open round, or begin one. True when its heartbeats have to be sent."""
        begins = not self.round_open
        if begins:
            self.round += 1
            self.round_open = True
        self._waiting.append(_Waiting(self.round, index, sender, context))
        return begins

    def acknowledge(self, peer: int, round_: int) -> None:
        if self._acked.get(peer, 0) < round_ <= self.round:
            self._acked[peer] = round_

    def confirmed(self, raft: "Raft") -> list[_Waiting]:
        """Take out the reads whose round a quorum has answered, the leader itself included."""
        if not self._waiting:
            return []
        self._acked[raft.id] = self.round
        reached = raft.tracker.config.voters.committed_index(self._acked)
        count = 0
        for waiting in self._waiting:
            if waiting.round > reached:
                break
            count += 1
        ready = self._waiting[:count]
        del self._waiting[:count]
        return ready


def on_request(raft: "Raft", message: Message) -> None:
    """A read reached the leader, from here or from a follower. Its context is the data of its only entry."""
    if len(message.entries) != 1 or raft.reads.is_full():
        return
    if not raft.committed_in_term():
        raft.reads.postponed.append(message)
        return
    _begin(raft, message)


def _begin(raft: "Raft", message: Message) -> None:
    committed = raft.log.committed
    context = message.entries[0].data
    if raft.config.read_only == "lease" or raft.tracker.sole_voter(raft.id):
        _answer(raft, message.from_, committed, context)
    elif raft.reads.wait(committed, message.from_, context):
        broadcast_heartbeat(raft)


def release_postponed(raft: "Raft") -> None:
    """Something was committed; if it is of this term, the reads that waited for that can begin."""
    reads = raft.reads
    if reads.postponed and raft.committed_in_term():
        postponed, reads.postponed = reads.postponed, []
        for message in postponed:
            _begin(raft, message)


def on_heartbeat_ack(raft: "Raft", peer: int, context: bytes) -> None:
    raft.reads.acknowledge(peer, int.from_bytes(context, "big"))
    answer_confirmed(raft)


def answer_confirmed(raft: "Raft") -> None:
    """Answer the reads whose round a quorum has answered. A change of the quorum can make it so, too."""
    for waiting in raft.reads.confirmed(raft):
        _answer(raft, waiting.sender, waiting.index, waiting.context)


def _answer(raft: "Raft", sender: int, index: int, context: bytes) -> None:
    if sender in (NONE, raft.id):
        raft.reads.states.append(ReadState(index, context))
    else:
        raft.send(Message(MessageType.READ_INDEX_RESP, sender, index=index, entries=[Entry(data=context)]))


def forward(raft: "Raft", message: Message) -> None:
    """A follower asks its leader. The answer is as good as one of the leader's own."""
    if raft.lead != NONE:
        message.to = raft.lead
        raft.send(message)


def on_answer(raft: "Raft", message: Message) -> None:
    if len(message.entries) == 1 and len(raft.reads.states) < MAX_PENDING_READS:
        raft.reads.states.append(ReadState(message.index, message.entries[0].data))
