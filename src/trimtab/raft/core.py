"""The Raft state machine of one member: what it is, and the one door every message passes.

A member is a follower, a pre-candidate, a candidate or a leader. `step` first settles terms, which may turn it into a
follower, then looks up what its role does with the message in the table of `steps`. Everything it wants done is left
in `msgs`, which may leave at once, and in `msgs_after_append`, which must not leave before everything that is unstable
now is durable: votes and acknowledgements, the leader's own included.

Invariants: term never goes back; one vote a term; at most one leader a term (by the quorum); a leader's log only grows.
"""

from collections.abc import Callable

from trimtab.raft import membership, proposals, replication, sending, steps
from trimtab.raft.confchange import restore
from trimtab.raft.config import Config
from trimtab.raft.election import TRANSFER_CONTEXT
from trimtab.raft.errors import InvariantViolated
from trimtab.raft.log import Log
from trimtab.raft.messages import NONE, AnyConfChange, Entry, HardState, Message, MessageType, Snapshot
from trimtab.raft.reads import Reads
from trimtab.raft.roles import StateType as StateType
from trimtab.raft.storage import entries_bytes, payload_bytes
from trimtab.raft.tracker import Tracker

_FOLLOWER = StateType.FOLLOWER
_CANDIDATE = StateType.CANDIDATE
_LEADER = StateType.LEADER
_PRE_CANDIDATE = StateType.PRE_CANDIDATE

_APP = MessageType.APP
_APP_RESP = MessageType.APP_RESP
_HEARTBEAT = MessageType.HEARTBEAT
_HUP = MessageType.HUP
_PRE_VOTE = MessageType.PRE_VOTE
_PRE_VOTE_RESP = MessageType.PRE_VOTE_RESP
_PROP = MessageType.PROP
_READ_INDEX = MessageType.READ_INDEX
_SNAP = MessageType.SNAP
_STORAGE_APPEND_RESP = MessageType.STORAGE_APPEND_RESP
_VOTE = MessageType.VOTE

# These name the term they ask or vote for, which may not be the sender's own.
_CAMPAIGN = frozenset({_VOTE, MessageType.VOTE_RESP, _PRE_VOTE, _PRE_VOTE_RESP})
# Passed on to whoever leads, in whatever term that is.
_TERMLESS = frozenset({_PROP, _READ_INDEX})
# Promises about what is on disk.
_AFTER_APPEND = frozenset({_APP_RESP, MessageType.VOTE_RESP, _PRE_VOTE_RESP})
_FROM_LEADER = frozenset({_APP, _HEARTBEAT, _SNAP})


class Raft:
    __slots__ = (
        "config",
        "election_elapsed",
        "heartbeat_elapsed",
        "id",
        "is_learner",
        "lead",
        "lead_transferee",
        "log",
        "msgs",
        "msgs_after_append",
        "note",
        "pending_conf_index",
        "randomized_election_timeout",
        "reads",
        "state",
        "term",
        "tracker",
        "uncommitted_bytes",
        "vote",
    )

    def __init__(self, config: Config) -> None:
        self.config = config
        self.id = config.id
        self.note: Callable[[str], None] | None = config.log
        self.term = 0
        self.vote = NONE
        self.state = _FOLLOWER
        self.lead = NONE
        self.lead_transferee = NONE
        self.is_learner = False
        # At or past the last configuration change in the log that may not be applied yet; see membership.
        self.pending_conf_index = 0
        # Payload bytes this leader appended that were not applied yet; an underestimate after an election.
        self.uncommitted_bytes = 0
        # Ticks since the leader was last heard from, or, on a leader, since the last quorum check.
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.randomized_election_timeout = config.election_tick
        self.msgs: list[Message] = []
        self.msgs_after_append: list[Message] = []
        self.reads = Reads()
        self.log = Log(config.storage, config.max_committed_size_per_ready)
        self.tracker = Tracker(config.max_inflight_msgs, config.max_inflight_bytes)

        hard_state, conf_state = config.storage.initial_state()
        membership.switch_to(self, *restore(self.tracker, self.log.last_index(), conf_state))
        self._load(hard_state)
        if config.applied > 0:
            self._resume_applied(config.applied)
        self.become_follower(self.term, NONE)

    def _load(self, hard_state: HardState) -> None:
        if hard_state == HardState():
            return
        if hard_state.commit > self.log.last_index():
            raise InvariantViolated(
                f"member {self.id}: the stored commit index {hard_state.commit} is past the end of the log, "
                f"{self.log.last_index()}: the log lost what it had acknowledged"
            )
        # A compacted log may begin past it: what was compacted was applied, so it was committed.
        self.log.commit_to(hard_state.commit)
        self.term = hard_state.term
        self.vote = hard_state.vote

    def _resume_applied(self, index: int) -> None:
        """The state machine kept its own applied index.

        It may be ahead of the stored commit index, which need not be durable before entries are applied: what was
        applied was committed. It can't be outside the log.
        """
        log = self.log
        if not log.applied <= index <= log.last_index():
            raise InvariantViolated(
                f"member {self.id}: the state machine is at {index}, which the log does not reach: it goes from "
                f"{log.applied + 1} to {log.last_index()}; they are not of one member, or one of them lost data"
            )
        log.commit_to(index)
        log.applied_to(index, 0)

    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    # Messages out

    def send(self, message: Message) -> None:
        kind = message.type
        if message.from_ == NONE:
            message.from_ = self.id
        if kind in _CAMPAIGN:
            assert message.term != 0, "a campaign message must name its term"
        elif kind not in _TERMLESS:
            message.term = self.term
        if kind in _AFTER_APPEND:
            self.msgs_after_append.append(message)
        else:
            assert message.to != self.id, "only acknowledgements are sent to oneself"
            self.msgs.append(message)

    # Time

    def tick(self) -> None:
        self.election_elapsed += 1
        if self.state is _LEADER:
            self._tick_leader()
        elif self.election_elapsed >= self.randomized_election_timeout and self.promotable():
            self.election_elapsed = 0
            self.step(Message(_HUP, from_=self.id))

    def _tick_leader(self) -> None:
        self.heartbeat_elapsed += 1
        if self.election_elapsed >= self.config.election_tick:
            self.election_elapsed = 0
            if self.config.check_quorum:
                replication.check_quorum(self)
                if self.state is not _LEADER:
                    return
            # The transferee had its time; take proposals again.
            self.lead_transferee = NONE
        if self.heartbeat_elapsed >= self.config.heartbeat_tick:
            self.heartbeat_elapsed = 0
            sending.broadcast_heartbeat(self)

    # Roles

    def _reset(self, term: int) -> None:
        if self.term != term:
            assert term > self.term, f"the term went back from {self.term} to {term}"
            self.term = term
            self.vote = NONE
        self.lead = NONE
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.randomized_election_timeout = self.config.election_tick + self.config.random(self.config.election_tick)
        self.lead_transferee = NONE
        self.tracker.reset_votes()
        last_index = self.log.last_index()
        for node, progress in self.tracker.progress.items():
            progress.restart(match=last_index if node == self.id else 0, next_index=last_index + 1)
        self.pending_conf_index = 0
        self.uncommitted_bytes = 0
        self.reads.reset()

    def become_follower(self, term: int, lead: int) -> None:
        self._reset(term)
        self.state = _FOLLOWER
        self.lead = lead
        if self.note is not None:
            self.note(f"INFO {self.id:x} follows in term {self.term}")

    def become_candidate(self) -> None:
        assert self.state is not _LEADER, "a leader does not campaign"
        self._reset(self.term + 1)
        self.vote = self.id
        self.state = _CANDIDATE
        if self.note is not None:
            self.note(f"INFO {self.id:x} campaigns in term {self.term}")

    def become_pre_candidate(self) -> None:
        """Term and vote stay: a pre-candidate only asks whether it would be elected."""
        assert self.state is not _LEADER, "a leader does not campaign"
        self.tracker.reset_votes()
        self.lead = NONE
        self.state = _PRE_CANDIDATE
        if self.note is not None:
            self.note(f"INFO {self.id:x} asks for pre-votes in term {self.term}")

    def become_leader(self) -> None:
        assert self.state is _CANDIDATE, "only a candidate can be elected"
        self._reset(self.term)
        self.lead = self.id
        self.state = _LEADER
        own = self.tracker.progress[self.id]
        own.become_replicate()
        own.recent_active = True
        # There may be a configuration change in the tail; looking would cost more than waiting until it is applied.
        self.pending_conf_index = self.log.last_index()
        # An entry of this term, so that what older terms left can be committed, and reads be answered.
        proposals.append(self, [Entry(self.term, self.log.last_index() + 1)])
        if self.note is not None:
            self.note(f"INFO {self.id:x} leads in term {self.term}")

    def promotable(self) -> bool:
        """Whether this member may campaign: a voter, and not about to be replaced by a snapshot."""
        own = self.tracker.progress.get(self.id)
        return own is not None and not own.is_learner and self.log.unstable.snapshot is None

    # Messages in

    def step(self, message: Message) -> None:
        """Take in one message. Raises ProposalDropped or StepRefused; then it had no effect but that of its term."""
        term = message.term
        if term != self.term and term != 0:
            if term > self.term:
                if not self._meet_higher_term(message):
                    return
            else:
                self._answer_lower_term(message)
                return
        steps.TABLE[self.state][message.type](self, message)

    def _meet_higher_term(self, message: Message) -> bool:
        """Follow into the newer term, except where that would only disturb. False when the message is ignored."""
        kind = message.type
        if kind is _VOTE or kind is _PRE_VOTE:
            in_lease = (
                self.config.check_quorum and self.lead != NONE and self.election_elapsed < self.config.election_tick
            )
            if in_lease and message.context != TRANSFER_CONTEXT:
                # Someone who was removed, or cut off, must not depose a leader that is heard from.
                if self.note is not None:
                    self.note(
                        f"INFO {self.id:x} [term {self.term}] ignored {kind.name} from {message.from_:x}: "
                        f"leader {self.lead:x} was heard from {self.election_elapsed} ticks ago"
                    )
                return False
        if kind is _PRE_VOTE or (kind is _PRE_VOTE_RESP and not message.reject):
            # A question about a term that nobody is in yet, and a consent to it.
            return True
        if self.note is not None:
            self.note(
                f"INFO {self.id:x} goes from term {self.term} to {message.term}, "
                f"because of {kind.name} from {message.from_:x}"
            )
        self.become_follower(message.term, message.from_ if kind in _FROM_LEADER else NONE)
        return True

    def _answer_lower_term(self, message: Message) -> None:
        kind = message.type
        if kind is _STORAGE_APPEND_RESP:
            # The entries may have been replaced in a newer term while they were being written, see storage_appended.
            # A snapshot is committed state and holds in every term.
            if message.snapshot is not None:
                self.snapshot_applied(message.snapshot)
        elif kind is _PRE_VOTE:
            # Silence could leave a member that lags in its term campaigning for ever.
            self.send(Message(_PRE_VOTE_RESP, message.from_, term=self.term, reject=True))
        elif (kind is _APP or kind is _HEARTBEAT) and (self.config.check_quorum or self.config.pre_vote):
            # This member went ahead in its term while it was cut off. With leases and pre-vote nobody listens to its
            # votes, so the leader has to learn of the term in another way, or they never get together again.
            self.send(Message(_APP_RESP, message.from_))
        elif self.note is not None:
            self.note(
                f"INFO {self.id:x} in term {self.term} drops {kind.name} of term {message.term} from {message.from_:x}"
            )

    # Storage and state machine

    def storage_appended(self, message: Message) -> None:
        """What the host was asked to write, up to (index, log_term), is durable.

        Only believed in the term in which it was asked for. Else: a follower writes entries of A; in a newer term B
        replaces them, and in a newer one still A's successor restores the first ones, same index and term. The answer
        to the first write would make them stable, while the write of B's is still on its way to replace them.
        """
        if message.index != 0:
            self.log.unstable.stable_to(message.index, message.log_term)
        if message.snapshot is not None:
            self.snapshot_applied(message.snapshot)

    def storage_applied(self, message: Message) -> None:
        if message.entries:
            self.applied_to(message.entries[-1].index, entries_bytes(message.entries))
            self.uncommitted_bytes = max(self.uncommitted_bytes - payload_bytes(message.entries), 0)

    def snapshot_applied(self, snapshot: Snapshot) -> None:
        index = snapshot.metadata.index
        self.log.unstable.stable_snapshot_to(index)
        self.applied_to(index, 0)

    def applied_to(self, index: int, size_bytes: int) -> None:
        self.log.applied_to(max(index, self.log.applied), size_bytes)
        if self.tracker.config.auto_leave:
            membership.maybe_leave_joint(self)

    def committed_in_term(self) -> bool:
        """Whether anything of this term is committed; before that a leader does not know what is."""
        return self.log.term_or_zero(self.log.committed) == self.term

    def conf_change_refusal(self, change: AnyConfChange) -> str | None:
        """Why a leader would not append this configuration change now; None when it would."""
        return membership.refusal(self, change.as_v2())
