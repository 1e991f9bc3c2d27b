"""Leases in a hostile world: three voters, leaders that follow each other, one instance that wants to serve.

Every clock runs at a rate of its own, within 1 %. Messages are lost, or take up to many seconds. Elections happen at
any moment, without regard to any timeout. A leader may be stopped for a while: what comes to it then waits for it.
Each was started with a timing of its own.
The world notes each moment at which the instance held a valid lease although its committed row was `current` Offline.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.topology.leases import LeaseHolder, Presence, confirmed_within_ms, lease_for, quorum_confirmed
from trimtab.topology.protocol import Grant, Heartbeat
from trimtab.topology.records import InstanceRecord

# Leases, silence before a mark, and the longest election timeouts.
TIMINGS = ((3_000, 6_000, 2_000), (12_000, 15_000, 2_000), (5_000, 11_000, 5_000))
VOTERS = (1, 2, 3)
SUBJECT = 9
END_S = 40.0
BUGS = (
    "counted from receipt",
    "confirmed by receipt",
    "current follows target at once",
    "no waiting in office",
    "inherits by its own settings",
    "grants by its own settings",
)


class ReceiptHolder(LeaseHolder):
    """The bug: counts the lease from the receipt of the grant."""

    def granted(self, grant: Grant, now_s: float) -> bool:
        if grant.number in self._sent:
            self._sent[grant.number] = now_s
        return super().granted(grant, now_s)


@dataclass
class Clock:
    """Runs at its own rate, from its own beginning."""

    rate: float
    offset_s: float

    def at(self, true_s: float) -> float:
        return self.offset_s + true_s * self.rate


@dataclass
class Leader:
    """One leader in its term; `raft_id` is its own vote."""

    raft_id: int
    term: int
    clock: Clock
    presence: Presence
    target_offline: bool  # its applied row
    current_offline: bool
    took_office_s: float
    lease_ms: int
    offline_after_ms: int
    election_max_ms: int
    contacts: dict[int, float] = field(default_factory=dict)
    stopped_until_s: float = 0.0
    writing: bool = False


class World:
    def __init__(self, seed: int, bug: str = "") -> None:
        self.rng = random.Random(seed)
        self.bug = bug
        self.now_s = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.terms = dict.fromkeys(VOTERS, 1)
        self.clocks = {raft_id: self._clock() for raft_id in (*VOTERS, SUBJECT)}
        self.timings = {raft_id: self.rng.choice(TIMINGS) for raft_id in (*VOTERS, SUBJECT)}
        lease_ms, _, election_max_ms = self.timings[SUBJECT]
        self.row = InstanceRecord("i9", "h:9", uuid="u", lease_ms=lease_ms, election_max_ms=election_max_ms)
        self.holder = ReceiptHolder() if bug == "counted from receipt" else LeaseHolder()
        self.target_offline = False  # committed
        self.current_offline = False
        self.marked = 0
        self.violations: list[str] = []
        self.loss = self.rng.choice((0.0, 0.1, 0.5))
        self.slow = self.rng.choice((0.0, 0.05, 0.3))
        self.leaders = [self._leader(1, 1)]
        self.after(0.0, self.beat)
        self.after(self.rng.uniform(0.5, 20.0), self.elect)
        self.after(self.rng.uniform(0.5, 20.0), self.cut)
        self.heart_beats = True
        if self.rng.random() < 0.4:
            self.after(self.rng.uniform(1.0, 20.0), self.operator)
        if self.rng.random() < 0.3:
            self.after(self.rng.uniform(1.0, 20.0), lambda: self.holder.surrender("it shuts down"))

    def run(self) -> World:
        while self.queue and self.now_s < END_S:
            self.now_s, _, act = heapq.heappop(self.queue)
            act()
            if self.current_offline and self.holder.valid(self.clocks[SUBJECT].at(self.now_s)):
                self.violations.append(f"at {self.now_s:.3f} s it is Offline, and holds a lease")
        return self

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.count, act))

    def send(self, act: Callable[[], None], to: Leader | None = None) -> None:
        """Deliver later, or never. What comes to a stopped leader waits until it goes on."""
        if self.rng.random() < self.loss:
            return
        delay_s = self.rng.uniform(0.0, 12.0) if self.rng.random() < self.slow else self.rng.uniform(0.0, 0.05)

        def deliver() -> None:
            if to is not None and to.stopped_until_s > self.now_s:
                self.after(to.stopped_until_s - self.now_s, deliver)
            else:
                act()

        self.after(delay_s, deliver)

    # The instance

    def beat(self) -> None:
        self.after(0.5, self.beat)
        if not self.heart_beats:
            return
        leader = self.rng.choice(self.leaders)  # it may not know the newest
        number = self.holder.sent(self.clocks[SUBJECT].at(self.now_s))
        beat = Heartbeat(SUBJECT, "u", number, leader.term, 10, 1, self.holder.surrendered)
        self.send(lambda: self.heard(leader, beat), leader)

    def cut(self) -> None:
        self.heart_beats = not self.heart_beats
        self.after(self.rng.uniform(0.5, 15.0), self.cut)

    def operator(self) -> None:
        """Somebody who does not ask the instance wants it Offline: a stall, an operator."""
        self.propose_target(self.leaders[-1])

    # The leaders

    def deposed(self, leader: Leader) -> bool:
        """It has voted for another itself, so it knows."""
        return self.terms[leader.raft_id] > leader.term

    def heard(self, leader: Leader, beat: Heartbeat) -> None:
        if self.deposed(leader):
            return
        now_s = leader.clock.at(self.now_s)
        leader.presence.heard(beat, 10, now_s)
        lease_ms, within_ms = leader.lease_ms, leader.election_max_ms
        if self.bug != "grants by its own settings":
            lease_ms, within_ms = lease_for(self.row, lease_ms), confirmed_within_ms(self.row, within_ms)
        confirmed = quorum_confirmed(leader.contacts, VOTERS, (), leader.raft_id, now_s, within_ms / 1000)
        refused = leader.target_offline or leader.current_offline or beat.surrendered or not confirmed
        if not refused:
            leader.presence.granted(SUBJECT, now_s)
        grant = Grant(beat.number, leader.term, 0 if refused else lease_ms, 10)
        self.send(lambda: self.take(grant))

    def take(self, grant: Grant) -> None:
        self.holder.granted(grant, self.clocks[SUBJECT].at(self.now_s))

    def ping(self, leader: Leader) -> None:
        self.after(0.2, lambda: self.ping(leader))
        if leader.stopped_until_s > self.now_s or self.deposed(leader):
            return
        sent_s = leader.clock.at(self.now_s)
        for voter in VOTERS:
            if voter != leader.raft_id:
                self.send(lambda voter=voter: self.pinged(leader, voter, sent_s))  # type: ignore[misc]

    def pinged(self, leader: Leader, voter: int, sent_s: float) -> None:
        if self.terms[voter] > leader.term:
            return

        def answered() -> None:
            when_s = leader.clock.at(self.now_s) if self.bug == "confirmed by receipt" else sent_s
            leader.contacts[voter] = max(leader.contacts.get(voter, when_s), when_s)

        self.send(answered, leader)

    def govern(self, leader: Leader) -> None:
        self.after(0.1, lambda: self.govern(leader))
        if leader.stopped_until_s > self.now_s or self.deposed(leader):
            return
        if self.rng.random() < 0.002:
            leader.stopped_until_s = self.now_s + self.rng.uniform(0.5, 12.0)
        seen = leader.presence.of(SUBJECT, leader.clock.at(self.now_s))
        office_ms = leader.presence.in_office_ms(leader.clock.at(self.now_s))
        patient = self.bug == "no waiting in office" or office_ms >= leader.offline_after_ms
        if not leader.target_offline and patient and seen.age_ms >= leader.offline_after_ms:
            self.propose_target(leader)
        may_mark = seen.lease_left_ms == 0 or self.bug == "current follows target at once"
        if self.bug == "no waiting in office":
            may_mark = True
        if leader.target_offline and not leader.current_offline and may_mark:
            self.write(leader, self._mark)

    def propose_target(self, leader: Leader) -> None:
        self.write(leader, self._want)

    def write(self, leader: Leader, change: Callable[[Leader], None]) -> None:
        """Committed, and applied by the leader, if a majority is still of its term then."""
        if leader.writing:
            return
        leader.writing = True

        def commit() -> None:
            leader.writing = False
            if sum(self.terms[voter] == leader.term for voter in VOTERS) * 2 > len(VOTERS):
                change(leader)

        self.after(self.rng.uniform(0.01, 2.0), commit)

    def _want(self, leader: Leader) -> None:
        self.target_offline = leader.target_offline = True

    def _mark(self, leader: Leader) -> None:
        self.current_offline = leader.current_offline = True
        self.marked += 1

    def elect(self) -> None:
        """Another voter gets a majority, whenever it likes."""
        last = self.leaders[-1]
        raft_id = self.rng.choice([voter for voter in VOTERS if voter != last.raft_id])
        term = last.term + 1
        for voter in {raft_id, self.rng.choice([voter for voter in VOTERS if voter != raft_id])}:
            self.terms[voter] = term
        self.leaders.append(self._leader(raft_id, term))
        if len(self.leaders) < 5:
            self.after(self.rng.uniform(0.5, 20.0), self.elect)

    def _leader(self, raft_id: int, term: int) -> Leader:
        clock = self.clocks[raft_id]
        lease_ms, offline_after_ms, election_max_ms = self.timings[raft_id]
        presence = Presence(lease_ms, election_max_ms)
        rows = {} if self.bug == "inherits by its own settings" else {SUBJECT: self.row}
        presence.took_office(clock.at(self.now_s), rows)
        leader = Leader(
            raft_id,
            term,
            clock,
            presence,
            self.target_offline,
            self.current_offline,
            self.now_s,
            lease_ms,
            offline_after_ms,
            election_max_ms,
        )
        self.after(0.0, lambda: self.ping(leader))
        self.after(0.0, lambda: self.govern(leader))
        return leader

    def _clock(self) -> Clock:
        return Clock(self.rng.uniform(0.99, 1.01), self.rng.uniform(0.0, 1e6))
