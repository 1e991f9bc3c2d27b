"""The office of the leader: since when this instance governs, and when a majority last confirmed that it leads.

It is in office from the moment it has applied an entry of its own term: then it knows everything its predecessors
decided. A confirmation is dated by the *beginning* of the round that brought it, not by its answers: an answer may have
been on its way for long, and its sender may have elected another meanwhile.

A process that was stopped for a while (SIGSTOP, a suspended machine) has heard nobody, and must not conclude that
nobody was there. So a gap in the ticking of its own clock begins the time in office anew.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.group import Group
from trimtab.node.host import Host
from trimtab.raft.roles import StateType

Confirmed = Callable[[Exception | None], None]


class Office:
    """Of this instance in the cluster group. `clock_s` runs through suspension."""

    def __init__(self, host: Host, group: Group, clock_s: Callable[[], float], *, gap_s: float) -> None:
        self._host = host
        self._group = group
        self._clock_s = clock_s
        self._gap_s = gap_s
        self._confirmed_s = float("-inf")
        self._asked_s: float | None = None
        self._waiting: list[Confirmed] = []
        self._ticked_s = 0.0
        self._since_s = 0.0
        self.term = 0

    @property
    def leads(self) -> bool:
        """Whether this member leads, as far as it knows, and has applied an entry of its own term."""
        raft = self._group.raw.raft
        return raft.state is StateType.LEADER and self._group.machine.applied_term == raft.term

    def look(self) -> bool:
        """Take or leave office as Raft has it; whether that changed anything."""
        term = self._group.raw.raft.term if self.leads else 0
        if term == self.term:
            return False
        self.term = term
        self._since_s = self._ticked_s = self._clock_s()
        self._confirmed_s = float("-inf")
        return True

    def tick(self) -> bool:
        """Called every now and then; True: this process stood still meanwhile, and its time in office begins anew."""
        now = self._clock_s()
        stood_still = now - self._ticked_s > self._gap_s
        if stood_still:
            self._since_s = now
        self._ticked_s = now
        return stood_still

    @property
    def in_office_ms(self) -> int:
        return int((self._clock_s() - self._since_s) * 1000)

    def confirmed_ms_ago(self) -> float:
        """How long ago the last round began by which a majority confirmed this leader."""
        return (self._clock_s() - self._confirmed_s) * 1000

    def confirm(self, within_ms: float, done: Confirmed) -> None:
        """`done(None)` when a majority has confirmed this leader by a round that began at most `within_ms` ago."""
        if self.confirmed_ms_ago() <= within_ms:
            done(None)
            return
        self._waiting.append(done)
        if self._asked_s is None:
            self._asked_s = self._clock_s()
            self._host.read(self._group, self._answered)

    def _answered(self, error: Exception | None) -> None:
        asked, self._asked_s = self._asked_s, None
        if error is None and asked is not None and self.leads:
            self._confirmed_s = max(self._confirmed_s, asked)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)
