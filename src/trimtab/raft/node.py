"""The door to one Raft member: what a host calls, and the `Ready` it takes away.

Not thread-safe, and free of time and I/O: the host calls `tick` on its own clock, `step` with what arrives, and works
off `ready` whenever `has_ready`. An input that is refused raises a RaftError and changes nothing that matters, so a
host may log it and go on. InvariantViolated is the exception: stop the member.

With asynchronous writes, messages to LOCAL_APPEND must be carried out in order; so must those to LOCAL_APPLY. After a
write is durable its responses go where they are addressed: back into `step`, or over the network.
"""

from collections.abc import Collection, Sequence

from trimtab.raft import membership, proposals, quiescence
from trimtab.raft.config import Config
from trimtab.raft.core import Raft
from trimtab.raft.errors import LocalMessageRefused, RaftError, UnknownPeer
from trimtab.raft.messages import (
    LOCAL_APPEND,
    LOCAL_APPLY,
    LOCAL_TYPES,
    RESPONSE_TYPES,
    AnyConfChange,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    encode_conf_change,
)
from trimtab.raft.reads import ReadState as ReadState
from trimtab.raft.ready import Ready as Ready
from trimtab.raft.ready import SoftState as SoftState
from trimtab.raft.roles import StateType as StateType
from trimtab.raft.status import Status, status_of
from trimtab.raft.storage import entries_bytes

_LOCAL_SENDERS = (LOCAL_APPEND, LOCAL_APPLY)


class RawNode:
    __slots__ = ("_async", "_hard_state", "_lead", "_on_advance", "_state", "quiescent", "raft")

    def __init__(self, config: Config) -> None:
        self.raft = Raft(config)
        # Read it as you like; change it by quiesce(), accept_quiesce() and wake().
        self.quiescent = False
        self._async = config.async_storage_writes
        # What the last Ready told.
        self._hard_state = self.raft.hard_state()
        self._lead = self.raft.lead
        self._state = self.raft.state
        self._on_advance: list[Message] = []

    # Inputs

    def tick(self) -> None:
        """One tick of the host's clock has passed."""
        if not self.quiescent:
            self.raft.tick()

    def step(self, message: Message) -> None:
        """Take in a message from the network, or a response of the local storage.

        Raises LocalMessageRefused, UnknownPeer, StepRefused, or ProposalDropped for a proposal passed on to here.
        """
        kind = message.type
        sender = message.from_
        if sender not in _LOCAL_SENDERS:
            if kind in LOCAL_TYPES:
                raise LocalMessageRefused(kind, sender)
            # Its own acknowledgements come back from storage; a member that was just removed still gets some.
            if sender != self.raft.id:
                if kind in RESPONSE_TYPES and sender not in self.raft.tracker.progress:
                    raise UnknownPeer(kind, sender)
                if self.quiescent:
                    if quiescence.is_echo(self.raft, message):
                        return
                    self.wake()
        self.raft.step(message)

    def campaign(self) -> None:
        """Start an election now, as if the timeout had passed."""
        self.wake()
        self.raft.step(Message(MessageType.HUP, from_=self.raft.id))

    def propose(self, data: bytes) -> None:
        """Propose one entry. Raises ProposalDropped with the reason."""
        self.propose_many((data,))

    def propose_many(self, payloads: Sequence[bytes]) -> None:
        """Propose entries that are appended together, in order, or not at all. Raises ProposalDropped."""
        if payloads:
            self.wake()
            proposals.propose(self.raft, payloads)

    def propose_conf_change(self, change: AnyConfChange) -> None:
        """Propose a membership change. Raises ProposalDropped.

        A leader that finds it untimely (another one under way, already joint) appends an empty entry in its place; ask
        `raft.conf_change_refusal` first to know why.
        """
        self.wake()
        kind, data = encode_conf_change(change)
        self.raft.step(Message(MessageType.PROP, from_=self.raft.id, entries=[Entry(type=kind, data=data)]))

    def apply_conf_change(self, change: AnyConfChange) -> ConfState:
        """A committed membership change was applied: take it up. Returns what snapshots have to carry from now on.

        Raises ConfChangeRefused when it is impossible on top of the current configuration; every member refuses alike.
        """
        self.wake()
        return membership.apply(self.raft, change.as_v2())

    def read_index(self, context: bytes) -> bool:
        """Ask for the index at which a linearizable read is safe; the answer comes as a ReadState with that context.

        False when the question was dropped at once (no leader, or too many pending). It may also get lost later, with
        the leader or on the way to it: ask again after a timeout. Contexts need not differ, but a follower whose
        questions overlap should make them, because the network may reorder the answers.
        """
        raft = self.raft
        if raft.state is not StateType.LEADER and raft.lead == 0:
            return False
        if raft.reads.is_full():
            return False
        self.wake()
        raft.step(Message(MessageType.READ_INDEX, from_=raft.id, entries=(Entry(data=context),)))
        return True

    def transfer_leader(self, to: int) -> None:
        """Hand leadership to that voter. A follower passes the request on to its leader."""
        self.wake()
        self.raft.step(Message(MessageType.TRANSFER_LEADER, from_=to))

    def forget_leader(self) -> None:
        """A follower stops believing in its leader, and so grants votes, without a new term."""
        self.raft.step(Message(MessageType.FORGET_LEADER))

    def report_unreachable(self, peer: int) -> None:
        """A message to the peer could not be sent."""
        self.raft.step(Message(MessageType.UNREACHABLE, from_=peer))

    def report_snapshot(self, peer: int, ok: bool) -> None:
        """The snapshot of a MsgSnap reached the peer, or did not. Must be called for each."""
        self.wake()
        self.raft.step(Message(MessageType.SNAP_STATUS, from_=peer, reject=not ok))

    # Outputs

    def has_ready(self) -> bool:
        raft = self.raft
        log = raft.log
        unstable = log.unstable
        return bool(
            raft.msgs
            or raft.msgs_after_append
            or unstable.has_next_entries
            or log.has_next_committed(allow_unstable=not self._async)
            or log.committed != self._hard_state.commit
            or raft.term != self._hard_state.term
            or raft.vote != self._hard_state.vote
            or raft.lead != self._lead
            or raft.state is not self._state
            or raft.reads.states
            or unstable.next_snapshot() is not None
        )

    def ready(self) -> Ready:
        """Everything there is to do now. Without asynchronous writes `advance` must be called before the next one."""
        if self._on_advance:
            raise RaftError("the last Ready was not finished: call advance() first")
        raft = self.raft
        log = raft.log
        previous = self._hard_state
        ready = Ready(
            entries=log.unstable.next_entries(),
            snapshot=log.unstable.next_snapshot(),
            committed_entries=log.next_committed(allow_unstable=not self._async),
            messages=raft.msgs,
        )
        if raft.lead != self._lead or raft.state is not self._state:
            ready.soft_state = SoftState(raft.lead, raft.state)
            self._lead = raft.lead
            self._state = raft.state
        if raft.term != previous.term or raft.vote != previous.vote or log.committed != previous.commit:
            ready.hard_state = self._hard_state = raft.hard_state()
        if raft.reads.states:
            ready.read_states = raft.reads.states
            raft.reads.states = []
        ready.must_sync = bool(ready.entries) or raft.term != previous.term or raft.vote != previous.vote

        after_append = raft.msgs_after_append
        raft.msgs = []
        raft.msgs_after_append = []
        raft.reads.round_open = False
        if self._async:
            self._storage_messages(ready, after_append)
        else:
            self._later_steps(ready, after_append)
        log.unstable.accept_in_progress()
        if ready.committed_entries:
            log.accept_applying(
                ready.committed_entries[-1].index,
                entries_bytes(ready.committed_entries),
                allow_unstable=not self._async,
            )
        return ready

    def _storage_messages(self, ready: Ready, after_append: list[Message]) -> None:
        messages = ready.messages
        assert isinstance(messages, list)
        if ready.entries or ready.hard_state is not None or ready.snapshot is not None or after_append:
            hard_state = ready.hard_state or HardState()
            # The own acknowledgement comes before the entries leave the unstable log, where their terms are at hand.
            appended = self._append_response(ready)
            messages.append(
                Message(
                    MessageType.STORAGE_APPEND,
                    LOCAL_APPEND,
                    self.raft.id,
                    term=hard_state.term,
                    vote=hard_state.vote,
                    commit=hard_state.commit,
                    entries=ready.entries,
                    snapshot=ready.snapshot,
                    responses=after_append if appended is None else [*after_append, appended],
                )
            )
        if ready.committed_entries:
            messages.append(
                Message(
                    MessageType.STORAGE_APPLY,
                    LOCAL_APPLY,
                    self.raft.id,
                    entries=ready.committed_entries,
                    responses=[self._apply_response(ready)],
                )
            )

    def _later_steps(self, ready: Ready, after_append: list[Message]) -> None:
        """Messages that wait for the write come last, because the host sends after it wrote; own ones on advance."""
        messages = ready.messages
        assert isinstance(messages, list)
        own = self.raft.id
        for message in after_append:
            (self._on_advance if message.to == own else messages).append(message)
        appended = self._append_response(ready)
        if appended is not None:
            self._on_advance.append(appended)
        if ready.committed_entries:
            self._on_advance.append(self._apply_response(ready))

    def _append_response(self, ready: Ready) -> Message | None:
        """What confirms that everything handed out up to now is durable; None when nothing waits for that.

        It names the end of the log and the term, and is believed only in that term (see `Raft.storage_appended`). The
        answer to an earlier write may have been dropped for that reason, so each write confirms all that is unstable.
        """
        log = self.raft.log
        if not log.unstable.entries and ready.snapshot is None:
            return None
        message = Message(
            MessageType.STORAGE_APPEND_RESP,
            self.raft.id,
            LOCAL_APPEND,
            self.raft.term,
            snapshot=ready.snapshot,
        )
        if log.unstable.entries:
            last = log.unstable.entries[-1]
            message.index = last.index
            message.log_term = last.term
        return message

    def _apply_response(self, ready: Ready) -> Message:
        return Message(
            MessageType.STORAGE_APPLY_RESP,
            self.raft.id,
            LOCAL_APPLY,
            entries=ready.committed_entries,
        )

    def advance(self) -> None:
        """The last Ready was written, sent and applied. Not used with asynchronous writes."""
        if self._async:
            raise RaftError("with asynchronous writes the storage responses take the place of advance()")
        steps, self._on_advance = self._on_advance, []
        for message in steps:
            self.raft.step(message)

    def status(self) -> Status:
        return status_of(self.raft)

    # Quiescence

    def may_quiesce(self, down: Collection[int] = ()) -> bool:
        """Whether a leader has nothing to do, and nothing to tell anyone but members whose process is down."""
        return not self.quiescent and not self.has_ready() and quiescence.is_idle(self.raft, down)

    def quiesce(self, down: Collection[int] = ()) -> None:
        """Stop ticking, after may_quiesce() and after telling the followers. wake() when their process is in doubt."""
        if not self.may_quiesce(down):
            raise RaftError(f"member {self.raft.id} has work to do and can't quiesce")
        self.quiescent = True

    def accept_quiesce(self, leader: int, term: int, commit: int) -> bool:
        """The leader goes quiet, with everything up to commit. True when this follower does so too."""
        if quiescence.accept(self.raft, leader, term, commit):
            self.quiescent = True
        return self.quiescent

    def wake(self) -> None:
        if self.quiescent:
            self.quiescent = False
            quiescence.wake(self.raft)
