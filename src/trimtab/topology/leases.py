"""Leases: why an instance that the cluster calls Offline can't be serving.

An instance serves (takes writes, answers above ONE) only under a lease. It asks for one with every heartbeat; the lease
counts from the *sending* of the heartbeat that was granted, on a clock that runs through suspension, and is compared at
the moment an answer leaves. So neither a stopped process, nor a slow network, nor a late timer makes it longer.

Two things end an instance's right to serve as far as the others are concerned: `current` Offline, or Expelled. Barriers
skip it from then on. A leader writes that only when no lease can be left, `Presence.lease_left_ms` = 0. Why that holds:

    s    the instance sends a heartbeat             e    how old the leader's quorum may be when it grants
    g    a leader grants it, g ≥ s                  L    lease: valid until s + L ≤ g + L
    T    the next leader takes office

- *The same leader.* It knows its own last grant g, and grants nothing once its applied row has target (or current)
  Offline or Expelled. So from the later of the two on, g + L is the last moment.
- *The next leader.* The old one grants only if a majority of voters had answered, within e, what it sent: at some
  moment c ≥ g - e it still had a majority of its own term. The votes that made the next leader contain one of these
  voters, given after it answered, so T > c, and g < T + e. Leases of all earlier leaders are over at T + e + L.

L and e are settings, and nothing makes them the same everywhere. But an instance's row has its own, written with the
announcement of its life (`instance.update`) and before its first heartbeat; and whoever leads grants no longer a lease,
on no older a quorum, than the row says (`lease_for`, `confirmed_within_ms`). So the next leader reads in the row how
long to wait, whoever led before, and however it was set.

"Within e" is about the leader's *sending* of what was answered. Were it the receipt: a leader that is stopped for a
minute finds old answers in its sockets, believes that it has a quorum, and grants while another one leads. A new leader
counts from when it has applied the first entry of its own term: before that its rows may be old.

Failure detection sets a *target*: an instance not heard for `offline_after` is told to be Offline, by a leader that has
been in office that long. With L = 3 s, e = 2 s, `offline_after` = 6 s the lease is long over by then, and `current`
follows at once; `check_timing` keeps it so, with clocks that run apart by up to 1 %. An instance that goes by itself
*surrenders* its lease first and says so in its heartbeats: nobody has to wait for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trimtab.topology.grades import Grade
from trimtab.topology.protocol import Grant, Heartbeat
from trimtab.topology.records import InstanceRecord

LEASE_MS = 3_000
OFFLINE_AFTER_MS = 6_000
ELECTION_MAX_MS = 2_000
HEARTBEATS_PER_LEASE = 6
CLOCK_DRIFT = 0.01  # how much faster or slower than true any clock may run
MAX_LEASE_MS = 600_000
MAX_ELECTION_MS = 600_000
MAX_HEARTBEATS = 64  # sent and not answered; more than a lease's worth, so what is forgotten is worthless
DOWN = frozenset((Grade.OFFLINE, Grade.EXPELLED))


def check_timing(lease_ms: int, offline_after_ms: int, election_max_ms: int) -> str | None:
    """Why these numbers would let an Offline instance serve, or make one flap; None if they are fine."""
    if lease_ms <= 0 or offline_after_ms <= 0 or election_max_ms <= 0:
        return "lease_ms, offline_after_ms and the election timeout must be above zero"
    if wrong := too_long(lease_ms, election_max_ms):
        return wrong
    if lease_ms < election_max_ms:
        return (
            f"lease_ms ({lease_ms}) must not be below the longest election timeout ({election_max_ms} ms), or every "
            "change of the leader leaves all instances without a lease"
        )
    least_ms = _longer(lease_ms + election_max_ms)
    if offline_after_ms < least_ms:
        return (
            f"offline_after_ms ({offline_after_ms}) must be at least {least_ms}: lease_ms ({lease_ms}) and the longest "
            f"election timeout ({election_max_ms} ms) together, and {CLOCK_DRIFT:.0%} for each clock"
        )
    return None


def too_long(lease_ms: int, election_max_ms: int) -> str | None:
    """Why nobody should have to wait for the end of such a lease; None if it can be."""
    for what, value, most in (
        ("lease_ms", lease_ms, MAX_LEASE_MS),
        ("the longest election timeout", election_max_ms, MAX_ELECTION_MS),
    ):
        if not 0 <= value <= most:
            return f"{what} ({value}) must be between 0 and {most} ms: nothing moves on while a dead one has a lease"
    return None


def lease_for(record: InstanceRecord, own_ms: int) -> int:
    """The lease that a leader with this setting gives: none longer than the row of the instance says."""
    return min(own_ms, record.lease_ms or LEASE_MS)


def confirmed_within_ms(record: InstanceRecord | None, own_ms: int) -> int:
    """How old a leader's quorum may be for a grant, by its own setting and by the row of the instance."""
    return min(own_ms, record.election_max_ms or ELECTION_MAX_MS) if record is not None else own_ms


def quorum_confirmed(
    contacts: Mapping[int, float],
    incoming: Collection[int],
    outgoing: Collection[int],
    own_id: int,
    now_s: float,
    within_s: float,
) -> bool:
    """Whether a majority of voters (of both sets, in a joint change) answered what was sent no longer ago than that.

    `contacts` are the times of *sending* of the newest message each voter has answered in this term.
    """
    return all(_majority(contacts, voters, own_id, now_s - within_s) for voters in (incoming, outgoing) if voters)


def grant_for(
    beat: Heartbeat,
    record: InstanceRecord | None,
    *,
    term: int,
    commit: int,
    lease_ms: int,
    confirmed: bool,
) -> Grant:
    """The leader's answer to a heartbeat, by its applied row of the instance and `quorum_confirmed`."""
    reason = refusal(beat, record, confirmed)
    given_ms = 0 if reason or record is None else lease_for(record, lease_ms)
    return Grant(beat.number, term, given_ms, commit, reason)


def refusal(beat: Heartbeat, record: InstanceRecord | None, confirmed: bool) -> str:
    """Why an instance gets no lease; empty if it gets one."""
    if record is None:
        return f"there is no instance with raft id {beat.raft_id}"
    if record.uuid != beat.uuid:
        return f"{record.instance_id} (raft id {beat.raft_id}) belongs to another data directory"
    if record.left or record.grades.target.grade is Grade.EXPELLED or record.grades.current.grade is Grade.EXPELLED:
        return f"{record.instance_id} has left the cluster"
    if record.grades.target.grade in DOWN:
        return f"{record.instance_id} should be Offline{f': {record.reason}' if record.reason else ''}"
    if record.grades.current.grade in DOWN:
        return f"{record.instance_id} is Offline, and has to catch up first"
    if beat.surrendered:
        return f"{record.instance_id} asked for none"
    if not confirmed:
        return "the leader has not heard from a majority of voters lately"
    return ""


class LeaseHolder:
    """An instance's own lease. `first_number` is its wall clock in ms: numbers grow from one life to the next."""

    def __init__(self, first_number: int = 0) -> None:
        self._number = first_number
        self._sent: dict[int, float] = {}  # heartbeats not answered yet -> when they were sent
        self._until_s = float("-inf")
        self._term = 0
        self._surrendered = ""
        self._refused = ""

    @property
    def surrendered(self) -> bool:
        """To be said in every heartbeat."""
        return bool(self._surrendered)

    def sent(self, now_s: float) -> int:
        """A heartbeat is about to be sent; its number."""
        self._number += 1
        self._sent[self._number] = now_s
        while len(self._sent) > MAX_HEARTBEATS:
            del self._sent[next(iter(self._sent))]
        return self._number

    def granted(self, grant: Grant, now_s: float) -> bool:
        """The leader's answer. True: the lease is valid, and longer than before.

        Answers to what was not asked, asked twice or long ago, or from an older term than one seen, change nothing. A
        refusal does not end a lease that was granted: it runs out, and the leader waits for that.
        """
        if grant.term < self._term:
            return False
        sent_s = self._sent.pop(grant.number, None)
        self._term = grant.term
        if sent_s is None:
            return False
        if grant.lease_ms <= 0:
            self._refused = grant.reason or "the leader did not say why"
            return False
        if self._surrendered:
            return False
        until_s = sent_s + grant.lease_ms / 1000
        longer = until_s > self._until_s
        if longer:
            self._until_s, self._refused = until_s, ""
        return longer and now_s < until_s

    def heard_of(self, term: int) -> None:
        """The own row was written in this term: grants of earlier ones may go by what it was before."""
        self._term = max(self._term, term)

    def surrender(self, reason: str) -> None:
        """Stop serving now, and don't begin again before `resume`. To be done before the cluster is told."""
        self._surrendered = reason or "it was given up"
        self._until_s = float("-inf")
        self._sent.clear()

    def resume(self) -> None:
        """Ask for a lease again; only answers to heartbeats sent from now on count."""
        self._surrendered = ""
        self._sent.clear()

    def valid(self, now_s: float) -> bool:
        """Whether it may serve at this moment. To be asked when an answer leaves."""
        return now_s < self._until_s

    def left_ms(self, now_s: float) -> int:
        """What is left of the lease; 0: nothing."""
        left_s = self._until_s - now_s
        return int(left_s * 1000) if left_s > 0 else 0

    def why_not(self, now_s: float) -> str:
        """Why there is no valid lease, in half a sentence; empty if there is one."""
        if self.valid(now_s):
            return ""
        if self._surrendered:
            return f"it gave its lease up: {self._surrendered}"
        if self._refused:
            return f"the leader refuses: {self._refused}"
        if self._until_s == float("-inf"):
            return "no leader has granted it a lease yet"
        return f"no leader has renewed it; it ran out {now_s - self._until_s:.1f} s ago"


@dataclass(frozen=True)
class Seen:
    """What the leader knows of an instance from its heartbeats. `stalled_ms`: behind, and no progress for so long.

    `lease_left_ms` is how long it may still be serving: `current` must not become Offline or Expelled before it is 0.
    """

    age_ms: int
    applied: int
    version: int
    uuid: str
    stalled_ms: int
    lease_left_ms: int


class _Known:
    """One instance, as the leader has heard it since it took office."""

    __slots__ = ("applied", "heard_s", "lease_until_s", "number", "stalled_since_s", "uuid", "version")

    def __init__(self, now_s: float, lease_until_s: float) -> None:
        self.heard_s = now_s
        self.applied = 0
        self.version = 0
        self.uuid = ""
        self.number = 0
        self.stalled_since_s: float | None = None
        self.lease_until_s = lease_until_s


class Presence:
    """The leader's side: who was heard when, how far each has applied, and what leases may be out.

    All times are of the leader's own clock, the one that runs through suspension.
    """

    def __init__(self, lease_ms: int = LEASE_MS, election_max_ms: int = ELECTION_MAX_MS) -> None:
        self._lease_ms = lease_ms
        self._election_max_ms = election_max_ms
        self._known: dict[int, _Known] = {}
        self._inherited_s: dict[int, float] = {}  # how long leases of earlier leaders may last from taking office on
        self._office_s = 0.0

    def took_office(self, now_s: float, rows: Mapping[int, InstanceRecord]) -> None:
        """This instance leads, and has applied the first entry of its term. What it knew before is forgotten.

        `rows` are those of all instances at this moment: what changes later was not granted by anybody else.
        """
        self._office_s = now_s
        self._known.clear()
        self._inherited_s = {raft_id: self._inheritance_s(row) for raft_id, row in rows.items() if not row.left}

    def in_office_ms(self, now_s: float) -> int:
        return _ms(now_s - self._office_s)

    def heard(self, beat: Heartbeat, commit: int, now_s: float, *, catching_up: bool = False) -> None:
        """A heartbeat of an instance that is what it says (its uuid is that of its row) arrived.

        `catching_up`: it has yet to climb. It may be loading a snapshot, for as long as that takes: that is no stall.
        """
        known = self._of(beat.raft_id)
        known.heard_s = now_s
        # Whether it gets on: it has all there is, or more than before.
        if catching_up or beat.applied >= commit:
            known.stalled_since_s = None
        elif beat.applied > known.applied or known.stalled_since_s is None:
            known.stalled_since_s = now_s
        known.applied, known.version, known.uuid = beat.applied, beat.version, beat.uuid
        if beat.number > known.number:
            # An older heartbeat that comes late must not take back what a newer one was granted.
            known.number = beat.number
            if beat.surrendered:
                known.lease_until_s = float("-inf")

    def granted(self, raft_id: int, now_s: float) -> None:
        """It was given a lease at this moment."""
        known = self._of(raft_id)
        known.lease_until_s = max(known.lease_until_s, now_s + _longer(self._lease_ms) / 1000)

    def forget(self, raft_ids: Iterable[int]) -> None:
        """These left for good."""
        for raft_id in raft_ids:
            self._known.pop(raft_id, None)

    def of(self, raft_id: int, now_s: float) -> Seen:
        """What is known of one; where nothing was heard, it counts from taking office."""
        known = self._known.get(raft_id) or self._unheard(raft_id)
        stalled_s = 0.0 if known.stalled_since_s is None else now_s - known.stalled_since_s
        return Seen(
            _ms(now_s - known.heard_s),
            known.applied,
            known.version,
            known.uuid,
            _ms(stalled_s),
            _ms(max(0.0, known.lease_until_s - now_s), up=True),
        )

    def all(self, raft_ids: Iterable[int], now_s: float) -> dict[int, Seen]:
        return {raft_id: self.of(raft_id, now_s) for raft_id in raft_ids}

    def _of(self, raft_id: int) -> _Known:
        known = self._known.get(raft_id)
        if known is None:
            known = self._known[raft_id] = self._unheard(raft_id)
        return known

    def _unheard(self, raft_id: int) -> _Known:
        inherited_s = self._inherited_s.get(raft_id)
        if inherited_s is None:
            inherited_s = self._inheritance_s(None)
        return _Known(self._office_s, self._office_s + inherited_s)

    def _inheritance_s(self, row: InstanceRecord | None) -> float:
        lease_ms, election_max_ms = self._lease_ms, self._election_max_ms
        if row is not None:
            lease_ms = max(lease_ms, row.lease_ms or LEASE_MS)
            election_max_ms = max(election_max_ms, row.election_max_ms or ELECTION_MAX_MS)
        return _longer(lease_ms + election_max_ms) / 1000


def _majority(contacts: Mapping[int, float], voters: Collection[int], own_id: int, since_s: float) -> bool:
    answered = sum(1 for voter in voters if voter == own_id or contacts.get(voter, float("-inf")) >= since_s)
    return answered > len(voters) // 2


def _longer(duration_ms: int) -> int:
    """A duration of one clock, as another clock may measure it at worst."""
    return -int(-duration_ms * (1 + CLOCK_DRIFT) / (1 - CLOCK_DRIFT) // 1)


def _ms(duration_s: float, up: bool = False) -> int:
    """Milliseconds, never below zero; rounded up where something must surely be over."""
    return max(0, -int(-duration_s * 1000 // 1) if up else int(duration_s * 1000))
