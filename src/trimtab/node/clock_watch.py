"""Whether this instance's wall clock is fit to stamp writes: what the leader tells with its grants, put to use.

While it is certainly too far from the cluster's time (`topology.common_time`), this instance stamps nothing and begins
no writes; nothing of them would lie on its own replica either, from where a repair could spread it. That is told once
when it begins and once when it is over. Reads go on.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.node.answering import Refused
from trimtab.topology.common_time import OwnClock, Span, wording
from trimtab.topology.protocol import Grant

SKEW = "skew"
_MEND = "set the clock right, or run NTP"


class ClockWatch:
    """Of one instance. `boot_s` is the steady clock."""

    def __init__(
        self,
        max_skew_ms: int,
        wall_ms: Callable[[], int],
        boot_s: Callable[[], float],
        story: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._clock = OwnClock(max_skew_ms)
        self._wall_ms = wall_ms
        self._boot_s = boot_s
        self._story = story
        self._was_off = False

    def steady_ms(self) -> int:
        return int(self._boot_s() * 1000)

    def granted(self, grant: Grant, sent_ms: int) -> None:
        """The leader's answer to a heartbeat that was sent at `sent_ms` of the steady clock."""
        common = Span(grant.time_low_ms, grant.time_high_ms)
        self._clock.told(grant.term, grant.steady_ms, common, sent_ms, self.steady_ms())
        self._off_ms(self._wall_ms())

    def against_leader(self, term: int) -> Span:
        """For the next heartbeat: how far this wall clock is ahead of the leader's steady clock."""
        return self._clock.against_leader(term, self._wall_ms(), self.steady_ms())

    def check(self, now_ms: int) -> None:
        """Refused while this clock, which shows `now_ms`, is too far off to stamp anything."""
        if off_ms := self._off_ms(now_ms):
            how = wording(off_ms, self._clock.max_skew_ms)
            raise Refused(SKEW, f"the clock of this instance is {how}; it takes no writes until it is right: {_MEND}")

    def judged_ms(self) -> int:
        """The time that stamps from elsewhere are judged by."""
        return self._clock.judged_ms(self._wall_ms(), self.steady_ms())

    def _off_ms(self, now_ms: int) -> int:
        off_ms = self._clock.off_ms(now_ms, int(self._boot_s() * 1000))
        if (off_ms != 0) is not self._was_off:
            self._was_off = off_ms != 0
            if off_ms:
                how = wording(off_ms, self._clock.max_skew_ms)
                self._story(f"this machine's clock is {how}: writes are refused here until it is right; {_MEND}")
            else:
                self._story("this machine's clock is near enough to the cluster's again: writes are taken")
        return off_ms
