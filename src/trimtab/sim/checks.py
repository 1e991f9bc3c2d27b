"""The invariants of consensus, looked at after every event.

Nothing here knows of a particular bug. The checker sees each member's Raft state and state machine after every event
of that member, the messages that leave it, and what it comes back with after a crash, and keeps one account of the
whole run: which entry stood where, who led which term, what was committed, what was promised. It states:

- one leader a term, elected by the votes of a quorum; one vote a member and term; terms never go back (promises outlive
  a crash);
- log matching: (index, term) names one entry with one predecessor, on all members, for ever;
- what is committed was acknowledged by a quorum, is never another entry, is never dropped by a member that had it, and
  no member that lacks it could be elected (leader completeness, looked at before the election that would show it);
- applied <= committed <= last; positions never go back while a process lives;
- what a member acknowledged is in its log afterwards, crash or not, unless a later leader replaced it;
- for one applied index there is one state (revision, checksum, configuration), that of a reference machine which
  applies every committed entry once, in order; what a restarted member finds on its disk included;
- whoever campaigns has applied all changes of membership that it knows to be committed.

The cost of an event that changed nothing is one tuple comparison.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, Protocol

from trimtab.raft.core import StateType
from trimtab.raft.messages import ConfState, Entry, EntryType, Message, MessageType
from trimtab.raft.quorum import VoteResult

_LEADER = StateType.LEADER
_CAMPAIGNING = (StateType.CANDIDATE, StateType.PRE_CANDIDATE)
# Read all that is asked for.
_NO_LIMIT = 1 << 62

State = tuple[int, object]  # revision, checksum


class Reference(Protocol):
    """A state machine that applies every committed entry once, in order."""

    def apply(self, entry: Entry) -> State: ...


class Violation(Exception):
    """An invariant does not hold. `why` is one line, `evidence` what it was seen from."""

    def __init__(self, why: str, evidence: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.evidence = evidence


class MemberState:
    """What is known about one member, across its lives."""

    def __init__(self, member: int) -> None:
        self.member = member
        self.alive = False
        self.life = 0
        self.key: tuple[object, ...] = ()
        # The log as last seen: terms[i - base] is the term of index i; base itself is a snapshot's (or 0).
        self.base = 0
        self.terms: list[int] = [0]
        self.committed = 0
        self.raft_applied = 0
        self.applied = 0
        self.term = 0
        self.state: StateType | None = None
        self.voters: Any = None
        # Promises that were sent: the highest term of any, and the highest acknowledged entry with its leader's term.
        self.promised_term = 0
        self.acked_index = 0
        self.acked_entry_term = 0
        self.acked_term = 0

    @property
    def last_index(self) -> int:
        return self.base + len(self.terms) - 1

    def term_at(self, index: int) -> int | None:
        """The term of an entry as last seen; None where the log has no such position."""
        position = index - self.base
        return self.terms[position] if 0 <= position < len(self.terms) else None

    def has(self, index: int, term: int) -> bool:
        """Whether the log holds that entry, or has compacted it away (then it was applied, and compared there)."""
        return index < self.base or self.term_at(index) == term

    def position(self) -> tuple[int, int]:
        """How Raft compares logs: last term, then last index."""
        return self.terms[-1], self.last_index


class Checks:
    """All invariants over one group of one run. Raises Violation."""

    def __init__(self, reference: Reference, *, tell: Callable[[int, str], None] = lambda _member, _text: None) -> None:
        self.members: dict[int, MemberState] = {}
        # term -> the member that leads it, and in which of its lives.
        self.leaders: dict[int, tuple[int, int]] = {}
        # (member, term) -> whom it voted for; the highest index it acknowledged to the leader of that term.
        self.votes: dict[tuple[int, int], int] = {}
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        # committed[i] = (term of the entry, term in which it was committed); index 0 and 1 are the founding.
        self.committed: list[tuple[int, int]] = [(0, 0)]
        self.states: dict[int, State] = {}
        # Committed changes of membership, and the configuration after each of them as the first member showed it.
        self.changes: list[int] = [0]
        self.configs: dict[int, tuple[int, ConfState]] = {}
        self._reference = reference
        self._referred = 0
        self._tell = tell

    # -- what members do -------------------------------------------------------------------------------------------

    def founded(self, index: int, term: int, state: State) -> None:
        """The log of a new cluster begins after (index, term), which all founders hold from the start."""
        self.committed = [(term, 0)] * (index + 1)
        self.states[index] = state
        self._referred = index

    def died(self, member: int) -> None:
        known = self.members.get(member)
        if known is not None:
            known.alive = False
            known.key = ()

    def observe(self, member: int, group: Any) -> None:
        """Look at one member after an event of its process."""
        raft = group.raw.raft
        log = raft.log
        machine_applied = group.machine.applied_index
        known = self.members.get(member)
        if known is None:
            known = self.members[member] = MemberState(member)
        last = log.last_index()
        key = (raft.term, raft.state, last, log.term_or_zero(last), log.committed, log.applied, machine_applied)
        config = raft.tracker.config
        if key == known.key and config is known.voters:
            return
        shrunk = not known.alive
        if not known.alive:
            self._returned(known, raft, log)
        else:
            self._went_on(known, raft, log, machine_applied)
        first_time_leading = raft.state is _LEADER and (known.state is not _LEADER or known.term != raft.term)
        campaigns = raft.state in _CAMPAIGNING and (known.state is not raft.state or known.term != raft.term)
        before = known.voters
        known.key, known.term, known.state, known.voters = key, raft.term, raft.state, config
        shrunk = self._follow_log(known, log, returned=shrunk) or shrunk
        if first_time_leading:
            self._leads(known, log)
        if campaigns:
            self._campaigns(known, log)
        if log.committed > known.committed:
            self._commits(known, log, raft)
            if raft.state is _LEADER:
                self._counts(known, log.committed, before)
            shrunk = True
        known.raft_applied = log.applied
        if shrunk:
            self.electable()
        if machine_applied != known.applied:
            known.applied = machine_applied
            self._applied(known, group, log)

    def message(self, member: int, message: Message) -> None:
        """A message leaves a member for another: what it promises must hold from now on."""
        kind = message.type
        if kind == MessageType.VOTE_RESP and not message.reject:
            self._voted(member, message.term, message.to)
            self._promise_term(member, message.term)
        elif kind == MessageType.APP_RESP and not message.reject and message.index:
            self._promise_term(member, message.term)
            acknowledged = self.acknowledged.get((member, message.term), 0)
            self.acknowledged[member, message.term] = max(acknowledged, message.index)
            known = self.members[member]
            if message.term < known.term:
                # Late, for a slow disk: a newer leader may have replaced the entry. Whoever elected that one did not
                # have the entry when it voted, so no quorum can be made of such answers.
                return
            entry_term = known.term_at(message.index)
            if entry_term is None:
                if message.index > known.last_index:
                    raise Violation(
                        f"member {member} acknowledged entry {message.index}, which is not in its log",
                        f"its log ends at {known.last_index}; the acknowledgement is of term {message.term}",
                    )
                return
            if (message.term, message.index) >= (known.acked_term, known.acked_index):
                known.acked_term, known.acked_index, known.acked_entry_term = message.term, message.index, entry_term

    # -- elections -------------------------------------------------------------------------------------------------

    def _voted(self, member: int, term: int, candidate: int) -> None:
        before = self.votes.setdefault((member, term), candidate)
        if before != candidate:
            raise Violation(
                f"member {member} voted twice in term {term}: for {before} and for {candidate}",
                f"leaders so far: {self._recent_leaders()}",
            )

    def _promise_term(self, member: int, term: int) -> None:
        known = self.members[member]
        known.promised_term = max(known.promised_term, term)

    def _leads(self, known: MemberState, log: Any) -> None:
        term = known.term
        leader, life = self.leaders.setdefault(term, (known.member, known.life))
        if leader != known.member:
            raise Violation(
                f"two leaders in term {term}: {leader} and {known.member}", f"leaders: {self._recent_leaders()}"
            )
        if life != known.life:
            raise Violation(
                f"member {leader} was elected twice in term {term}: it forgot the term in a crash, and whatever it had "
                "appended as its leader",
                self._logs(known.last_index),
            )
        votes = {
            voter: voter == leader or self.votes.get((voter, term)) == leader for voter in known.voters.voters.ids()
        }
        if known.voters.voters.vote_result(votes) is not VoteResult.WON:
            raise Violation(
                f"member {leader} leads term {term} without the votes of a quorum",
                f"voters and who of them voted for it: {votes}; leaders: {self._recent_leaders()}",
            )
        self._tell(known.member, f"leads term {term} (log ends at {known.last_index}, committed {log.committed})")
        for index in range(len(self.committed) - 1, 0, -1):
            entry_term, committed_in = self.committed[index]
            if committed_in < term:
                if not known.has(index, entry_term):
                    raise Violation(
                        f"the leader of term {term}, member {known.member}, lacks entry {index} of term {entry_term}, "
                        f"which was committed in term {committed_in}",
                        self._logs(index),
                    )
                # Log matching, checked as entries appear, makes everything before it equal as well.
                break

    def _campaigns(self, known: MemberState, log: Any) -> None:
        for index in range(log.applied + 1, log.committed + 1):
            term = known.term_at(index)
            entry = self.entries.get((index, term)) if term is not None else None
            if entry is not None and entry[0].type != EntryType.NORMAL:
                raise Violation(
                    f"member {known.member} campaigns in term {known.term} although it has not applied the change of "
                    f"membership at index {index}, which it knows to be committed",
                    f"applied {log.applied}, committed {log.committed}, voters it counts: {known.voters}",
                )

    def _recent_leaders(self) -> str:
        return ", ".join(f"{term}: {leader}" for term, (leader, _) in sorted(self.leaders.items())[-6:])

    # -- lives -----------------------------------------------------------------------------------------------------

    def _went_on(self, known: MemberState, raft: Any, log: Any, machine_applied: int) -> None:
        for what, before, now in (
            ("term", known.term, raft.term),
            ("commit index", known.committed, log.committed),
            ("applied index of Raft", known.raft_applied, log.applied),
            ("applied index of the state machine", known.applied, machine_applied),
        ):
            if now < before:
                raise Violation(f"the {what} of member {known.member} went back from {before} to {now}")
        if not log.applied <= log.committed <= log.last_index():
            raise Violation(
                f"positions of member {known.member} are out of order: applied {log.applied}, "
                f"committed {log.committed}, last {log.last_index()}"
            )

    def _returned(self, known: MemberState, raft: Any, log: Any) -> None:
        """The first look at a new life: what it found on its disk must cover what it had promised."""
        known.alive = True
        known.life += 1
        if raft.term < known.promised_term:
            raise Violation(
                f"member {known.member} came back in term {raft.term}, but had made promises in {known.promised_term}"
            )
        last = log.last_index()
        if log.first_index() <= known.acked_index and not log.matches(known.acked_index, known.acked_entry_term):
            self._lost_promise(known, last)
        known.committed = min(known.committed, log.committed)
        known.applied = -1
        known.state = None

    def _lost_promise(self, known: MemberState, last: int) -> None:
        raise Violation(
            f"member {known.member} acknowledged entry {known.acked_index} of term {known.acked_entry_term} to the "
            f"leader of term {known.acked_term}, and does not have it any more (its log ends at {last})",
            self._logs(known.acked_index),
        )

    # -- logs ------------------------------------------------------------------------------------------------------

    def _follow_log(self, known: MemberState, log: Any, *, returned: bool) -> bool:
        """Bring our copy of a member's log up to date, and enter new entries into the account. True if it shrank."""
        first, last = log.first_index(), log.last_index()
        if first - 1 != known.base:
            base_term = log.term_or_zero(first - 1)
            if known.term_at(first - 1) == base_term:
                del known.terms[: first - 1 - known.base]
            else:
                # A snapshot took the place of the log, or a restart found a disk that had not kept a compaction.
                known.terms = [base_term]
            known.base = first - 1
        same = min(last, known.last_index)
        while same > known.base and known.terms[same - known.base] != log.term(same):
            same -= 1
        if same == known.last_index and same == last:
            return False
        truncated: bool = same < known.last_index
        # What a crash took had not been acknowledged (see `_returned`), so it may well be committed by others.
        if truncated and not returned:
            self._truncates(known, same, last)
        del known.terms[same - known.base + 1 :]
        if same < last:
            self._appends(known, log.slice(same + 1, last + 1, _NO_LIMIT))
        return truncated

    def _truncates(self, known: MemberState, same: int, last: int) -> None:
        top = len(self.committed) - 1
        index = min(known.last_index, top)
        if index > same and known.term_at(index) == self.committed[index][0]:
            raise Violation(
                f"member {known.member} dropped entry {index} of term {self.committed[index][0]}, which is committed",
                f"its log had {known.last_index} entries, the first {same} are left (it ends at {last} now)\n"
                + self._logs(index),
            )
        if same < known.acked_index:
            if known.acked_term == known.term:
                self._lost_promise(known, last)
            known.acked_index = 0

    def _appends(self, known: MemberState, entries: list[Entry]) -> None:
        before = known.terms[-1]
        for entry in entries:
            account = self.entries.get((entry.index, entry.term))
            if account is None:
                self.entries[entry.index, entry.term] = (entry, before)
            else:
                seen, seen_before = account
                if seen.type != entry.type or seen.data != entry.data or seen_before != before:
                    raise Violation(
                        f"log matching: member {known.member} holds another entry at index {entry.index} of term "
                        f"{entry.term} than was seen before",
                        f"seen: {_describe(seen)} after term {seen_before}\n"
                        f"here: {_describe(entry)} after term {before}",
                    )
            if entry.term < before:
                raise Violation(
                    f"the terms of member {known.member}'s log go back at index {entry.index}: {before}, {entry.term}"
                )
            known.terms.append(entry.term)
            before = entry.term

    # -- commitment ------------------------------------------------------------------------------------------------

    def _commits(self, known: MemberState, log: Any, raft: Any) -> None:
        committed: int = log.committed
        top = len(self.committed) - 1
        for index in range(max(known.committed, known.base) + 1, committed + 1):
            term = known.term_at(index)
            if term is None:
                raise Violation(f"member {known.member} committed index {index}, which is not in its log")
            if index <= top:
                if self.committed[index][0] != term:
                    raise Violation(
                        f"two entries were committed at index {index}: of term {self.committed[index][0]}, and of term "
                        f"{term} by member {known.member}",
                        self._logs(index),
                    )
                continue
            if index != len(self.committed):
                raise Violation(f"member {known.member} committed index {index}, but nobody ever committed {index - 1}")
            self.committed.append((term, raft.term))
        known.committed = committed
        if len(self.committed) - 1 > top:
            self._refer()

    def _counts(self, known: MemberState, index: int, before: Any) -> None:
        """A leader commits what a quorum has acknowledged to it, in its term.

        In one event it may commit, apply a change of membership, and commit more: either membership's quorum will do.
        """
        told = []
        for config in (before, known.voters):
            voters = config.voters
            acknowledged = {
                voter: index if voter == known.member else self.acknowledged.get((voter, known.term), 0)
                for voter in sorted(voters.ids())
            }
            if voters.committed_index(acknowledged) >= index:
                return
            told.append(f"voters {voters} acknowledged to it in this term: {acknowledged}")
        raise Violation(
            f"member {known.member} committed entry {index} in term {known.term} without a quorum of acknowledgements",
            "\n".join(told),
        )

    def electable(self) -> None:
        """Nobody who lacks the newest committed entry could win an election among the logs as they are.

        A member that is down counts with the log it was last seen with, which is at least what its disk holds: that
        can only make it refuse more, so there are no false alarms.
        """
        index = len(self.committed) - 1
        term = self.committed[index][0]
        for candidate in self.members.values():
            if not candidate.alive or candidate.has(index, term):
                continue
            voters = candidate.voters.voters
            if candidate.member not in voters or candidate.raft_applied < candidate.committed:
                continue
            position = candidate.position()
            votes: dict[int, bool] = {}
            for voter in voters.ids():
                other = self.members.get(voter)
                votes[voter] = other is not None and other.position() <= position
            if voters.vote_result(votes) is VoteResult.WON:
                raise Violation(
                    f"entry {index} of term {term} is committed, but member {candidate.member} lacks it and could be "
                    f"elected by {sorted(voter for voter, granted in votes.items() if granted)}",
                    self._logs(index),
                )

    def _refer(self) -> None:
        """Let the reference machine apply what is newly committed."""
        while self._referred < len(self.committed) - 1:
            self._referred += 1
            entry, _ = self.entries[self._referred, self.committed[self._referred][0]]
            self.states[self._referred] = self._reference.apply(entry)
            if entry.type != EntryType.NORMAL:
                self.changes.append(self._referred)

    # -- application -----------------------------------------------------------------------------------------------

    def _applied(self, known: MemberState, group: Any, log: Any) -> None:
        index = known.applied
        if index == 0:
            return
        if index > len(self.committed) - 1:
            raise Violation(f"member {known.member} applied index {index}, which nobody has committed")
        metastore = group.machine.metastore
        state = (metastore.revision, metastore.checksum)
        right = self.states.get(index)
        if right is not None and state != right:
            raise Violation(
                f"the state of member {known.member} after applying index {index} is not that of the log",
                f"it has revision {state[0]} and checksum {state[1]!r}; the log gives {right[0]} and {right[1]!r}",
            )
        # While a snapshot is being written Raft goes by its configuration already, and the machine is still behind.
        if log.applied == index and log.unstable.snapshot is None:
            change = self.changes[bisect.bisect_right(self.changes, index) - 1]
            config = known.voters.conf_state()
            member, seen = self.configs.setdefault(change, (known.member, config))
            if seen != config:
                raise Violation(
                    f"members {member} and {known.member} disagree about the membership after the change at {change}",
                    f"{member}: {seen}\n{known.member} (applied {index}): {config}",
                )

    # -- evidence --------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Where every member stands."""
        return self._logs(len(self.committed) - 1)

    def _logs(self, index: int) -> str:
        """Everybody's log around an index."""
        lines = []
        for known in self.members.values():
            low = max(known.base, index - 4)
            terms = " ".join(f"{i}:{known.term_at(i)}" for i in range(low, min(known.last_index, index + 4) + 1))
            lines.append(
                f"member {known.member}{'' if known.alive else ' (down)'}: term {known.term}, committed "
                f"{known.committed}, log {low}..{known.last_index} index:term {terms}"
            )
        return "\n".join(lines)


def _describe(entry: Entry) -> str:
    return f"{entry.type.name} of {len(entry.data)} bytes {entry.data[:24]!r}"
