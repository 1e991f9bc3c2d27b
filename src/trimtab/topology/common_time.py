"""The cluster's time: the middle of its members' wall clocks. Whose clock is certainly too far from it stamps nothing.

No single clock is the measure, not the leader's either: if that one were wrong, everybody else would have to stop. So
the leader gathers how each member's wall clock stands to its own steady clock (the one leases are counted on, which
nobody sets), takes the median, and tells it with every grant. Every statement about another clock is a span of two
bounds, because a message takes its time: what was read between the sending of a heartbeat and the coming of its answer
was read at some moment in between. The median of the clocks lies between the median of the lower and that of the upper
bounds. A clock is called wrong only where no moment within the bounds would make it right.

Both sides reckon on from their last reading by their own steady clocks, so a wall clock that jumps is noticed with the
next write, not with the next heartbeat; and when it is set right, that is noticed as soon. While no reading comes, the
bounds drift apart.

With fewer than a majority of the members' clocks known the leader tells nothing, and what was told before stands. Of an
even number the two in the middle are the bounds, because those that are not known yet decide between them. If there are
no others, the leader's clock counts twice: of two members that disagree, it is the other one that stops.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

DRIFT = 0.02  # by how much two steady clocks may run apart: twice what one may be wrong by (`leases.CLOCK_DRIFT`)


class Span(NamedTuple):
    """Certainly not below `low_ms`, nor above `high_ms`. Both 0: unknown."""

    low_ms: int
    high_ms: int

    def __bool__(self) -> bool:
        return self.high_ms != 0


UNKNOWN = Span(0, 0)


def difference_ms(one: Span, other: Span) -> int:
    """By how much one is certainly ahead of the other; below 0: behind; 0: they may be the same."""
    if one.low_ms > other.high_ms:
        return one.low_ms - other.high_ms
    return min(one.high_ms - other.low_ms, 0)


def wording(off_ms: int, max_skew_ms: int) -> str:
    """How far a clock is off, and how far it may be."""
    where = "ahead of" if off_ms > 0 else "behind"
    allowed = f"at most {max_skew_ms} ms are allowed"
    return f"{abs(off_ms) / 1000:.1f} s {where} the middle of the cluster's clocks, and {allowed}"


@dataclass(frozen=True)
class _Reading:
    """What a clock elsewhere showed at some moment between two of the own steady clock."""

    shown: Span
    sent_ms: int
    received_ms: int

    def now(self, steady_ms: int) -> Span:
        """What it shows now."""
        least, most = max(steady_ms - self.received_ms, 0), max(steady_ms - self.sent_ms, 0)
        return Span(self.shown.low_ms + int(least * (1 - DRIFT)), self.shown.high_ms + int(most * (1 + DRIFT)) + 1)


class OwnClock:
    """An instance's side. Times come in as arguments: of its wall clock, and of its steady one."""

    def __init__(self, max_skew_ms: int) -> None:
        self.max_skew_ms = max_skew_ms
        self._term = 0
        self._leader: _Reading | None = None
        self._common: _Reading | None = None
        self._least_ms = self._most_ms = 0  # by so much the wall clock may be ahead of the steady one

    def told(self, term: int, leader_ms: int, common: Span, sent_ms: int, received_ms: int) -> None:
        """The answer to a heartbeat: the leader's steady clock, and the cluster's time, if it is known there."""
        if term < self._term or not leader_ms:
            return
        self._term = term
        self._leader = _Reading(Span(leader_ms, leader_ms), sent_ms, received_ms)
        if common:
            self._common = _Reading(common, sent_ms, received_ms)
            self._least_ms = common.low_ms - received_ms - self.max_skew_ms
            self._most_ms = common.high_ms - sent_ms + self.max_skew_ms

    def against_leader(self, term: int, wall_ms: int, steady_ms: int) -> Span:
        """How far this wall clock is ahead of the steady clock of the leader of that term."""
        if self._leader is None or term != self._term:
            return UNKNOWN
        low_ms, high_ms = self._leader.now(steady_ms)
        return Span(wall_ms - high_ms, wall_ms - low_ms)

    def off_ms(self, wall_ms: int, steady_ms: int) -> int:
        """How far this clock is from the cluster's time, where that is certainly further than clocks may differ."""
        # Bounds only drift apart, so what is within those of the reading is within those of now: every write asks this.
        if self._common is None or self._least_ms <= wall_ms - steady_ms <= self._most_ms:
            return 0
        off_ms = difference_ms(Span(wall_ms, wall_ms), self._common.now(steady_ms))
        return off_ms if abs(off_ms) > self.max_skew_ms else 0

    def judged_ms(self, wall_ms: int, steady_ms: int) -> int:
        """The time that stamps are judged by: this clock's, but none later than the cluster's may be."""
        if self._common is None or wall_ms - steady_ms <= self._most_ms - self.max_skew_ms:
            return wall_ms
        return min(wall_ms, self._common.now(steady_ms).high_ms)


class CommonTime:
    """The leader's side. `now_ms` is its steady clock; what a member says counts for `valid_ms`."""

    def __init__(self, max_skew_ms: int, valid_ms: int) -> None:
        self.max_skew_ms = max_skew_ms
        self._valid_ms = valid_ms
        self._known: dict[int, tuple[Span, int]] = {}  # ahead of the own steady clock, and when that was said
        self.off: dict[int, int] = {}  # members whose clocks are wrong, and by how much

    def clear(self) -> None:
        """Another term: what was said was about another clock."""
        self._known.clear()
        self.off.clear()

    def note(self, raft_id: int, ahead: Span, now_ms: int) -> None:
        """A member says how far its wall clock is ahead of this steady clock."""
        if ahead:
            self._known[raft_id] = (ahead, now_ms)

    def at(self, now_ms: int, members: Collection[int], leader: int) -> Span:
        """The cluster's time, by the clocks of these members (who should all be there); UNKNOWN without a majority."""
        for gone in [each for each in self._known if each not in members]:
            del self._known[gone]
            self.off.pop(gone, None)
        spans = [span for each in self._known if (span := self._ahead(each, now_ms))]
        if 2 * len(spans) <= len(members):
            return UNKNOWN
        if len(spans) == len(members) and len(spans) % 2 == 0:
            spans.append(self._ahead(leader, now_ms) or spans[0])
        lows, highs = sorted(span.low_ms for span in spans), sorted(span.high_ms for span in spans)
        return Span(lows[(len(lows) - 1) // 2] + now_ms, highs[len(highs) // 2] + now_ms)

    def judge(self, raft_id: int, common: Span, now_ms: int) -> int:
        """By how much a member's clock is off, when it is found so; 0 as long as that is no news.

        One that was off is right again when it may be within half of the limit: at the limit it would come and go.
        """
        ahead = self._ahead(raft_id, now_ms)
        if not common or not ahead:
            return 0
        off_ms = difference_ms(Span(ahead.low_ms + now_ms, ahead.high_ms + now_ms), common)
        if abs(off_ms) > self.max_skew_ms or (raft_id in self.off and abs(off_ms) > self.max_skew_ms // 2):
            news = raft_id not in self.off
            self.off[raft_id] = off_ms
            return off_ms if news else 0
        self.off.pop(raft_id, None)
        return 0

    def _ahead(self, raft_id: int, now_ms: int) -> Span:
        span, said_ms = self._known.get(raft_id, (UNKNOWN, 0))
        age_ms = max(now_ms - said_ms, 0)
        if not span or age_ms > self._valid_ms:
            return UNKNOWN
        apart_ms = int(age_ms * DRIFT)
        return Span(span.low_ms - apart_ms, span.high_ms + apart_ms)
