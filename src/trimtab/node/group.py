"""One Raft group on this instance: consensus, its log, its state machine, and who waits for what.

The group is the place where an index becomes an answer. A proposal is remembered by the index and term it got; when
that index is applied, an equal term means "yours, here is the result" and another term means "overwritten, certainly
not applied". When leadership is lost in between, nobody can know yet, and the proposer is told just that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trimtab.node.errors import GroupError, LeadershipLost, Overwritten, ProposalRefused
from trimtab.node.machine import StateMachine
from trimtab.node.reads import ReadRounds
from trimtab.raft.errors import ConfChangeRefused
from trimtab.raft.messages import ConfState, Entry, EntryType, HardState, Snapshot, decode_conf_change
from trimtab.raft.node import RawNode
from trimtab.storage.group_log import GroupLog

ProposalDone = Callable[[object, Exception | None], None]


class GroupStorage:
    """The log as Raft sees it when it starts: the configuration and the commit index are at least the machine's.

    The machine's applied index is durable together with its data, while the commit index in the log is written
    without a sync; so after a crash the machine may know more than the log's hard state. What it applied was
    committed, and only entries that were durable here are applied.
    """

    def __init__(self, log: GroupLog, machine: StateMachine) -> None:
        self._log = log
        self._machine = machine
        self.entries = log.entries
        self.term = log.term
        self.first_index = log.first_index
        self.last_index = log.last_index
        self.snapshot: Callable[[], Snapshot] = log.snapshot

    def initial_state(self) -> tuple[HardState, ConfState]:
        hard_state, conf_state = self._log.initial_state()
        applied = self._machine.applied_index
        if hard_state.commit < applied:
            hard_state = HardState(term=hard_state.term, vote=hard_state.vote, commit=applied)
        return hard_state, self._machine.conf_state or conf_state


class Group:
    """Consensus, log and machine of one group, and its waiting requests."""

    __slots__ = (
        "flushed_index",
        "flushing",
        "id",
        "idle_ticks",
        "log",
        "machine",
        "on_applied",
        "proposals",
        "quiesces",
        "raw",
        "reads",
        "was_leader",
    )

    def __init__(
        self, group_id: int, raw: RawNode, log: GroupLog, machine: StateMachine, *, quiesces: bool, first_read: int
    ) -> None:
        self.id = group_id
        self.raw = raw
        self.log = log
        self.machine = machine
        self.quiesces = quiesces
        self.proposals: dict[int, tuple[int, ProposalDone]] = {}
        self.reads = ReadRounds(first_read)
        self.idle_ticks = 0
        self.was_leader = False
        self.flushed_index = machine.applied_index
        self.flushing = False
        # Told after every step forward of the machine; for those who wait for an index. Must be quick.
        self.on_applied: Callable[[], None] | None = None

    def expect(self, index: int, term: int, done: ProposalDone) -> None:
        """Answer `done` when `index` is applied."""
        if index in self.proposals:
            # An entry of an older term stood here; this leader has already overwritten it.
            self.proposals.pop(index)[1](None, Overwritten("another leader's entry took this proposal's place"))
        self.proposals[index] = (term, done)

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries in order: runs of normal ones in one write, configuration changes one by one."""
        run: list[Entry] = []
        for entry in entries:
            if entry.type == EntryType.NORMAL:
                run.append(entry)
                continue
            self._apply_run(run)
            run = []
            self._apply_conf_change(entry)
        self._apply_run(run)
        self.advanced()

    def advanced(self) -> None:
        """The machine stands at a higher index now: by applying entries, or because a snapshot was installed."""
        self.reads.release(self.machine.applied_index)
        if self.on_applied is not None:
            self.on_applied()

    def _apply_conf_change(self, entry: Entry) -> None:
        refusal: Exception | None = None
        try:
            conf_state = self.raw.apply_conf_change(decode_conf_change(entry))
        except ConfChangeRefused as error:
            # Every member refuses it alike, so it is an entry without effect.
            conf_state = self.raw.raft.tracker.config.conf_state()
            refusal = ProposalRefused(str(error))
        self.machine.apply_conf_state(entry.index, entry.term, conf_state)
        self._answer(entry, conf_state, refusal)

    def _apply_run(self, run: list[Entry]) -> None:
        if not run:
            return
        results = self.machine.apply(run)
        if self.proposals:
            for entry, result in zip(run, results, strict=True):
                self._answer(entry, result)

    def _answer(self, entry: Entry, result: object, error: Exception | None = None) -> None:
        waiting = self.proposals.pop(entry.index, None)
        if waiting is None:
            return
        term, done = waiting
        if term == entry.term:
            done(result if error is None else None, error)
        else:
            done(None, Overwritten("another leader's entry took this proposal's place; it was not applied"))

    def lose_leadership(self, leader: int) -> None:
        """Tell every proposer that its outcome is open."""
        waiting, self.proposals = self.proposals, {}
        whom = f"member {leader} leads now" if leader else "no leader is known yet"
        for _, done in waiting.values():
            done(None, LeadershipLost(f"this member stopped leading before the outcome was known; {whom}"))

    def fail(self, error: GroupError) -> None:
        """End everything that waits."""
        waiting, self.proposals = self.proposals, {}
        for _, done in waiting.values():
            done(None, error)
        self.reads.fail(error)
