"""The hybrid logical clock that stamps writes: microseconds since 1970, never the same twice, never backwards.

A stamp is the wall clock's time, or one more than the greatest stamp that was given or seen, whichever is greater. So
what was written after something was seen has the greater stamp, though the clocks of two instances differ. They may
differ by `max_skew_ms`. A stamp further ahead than that is refused and does not move this clock: one wrong clock must
not carry all others away, and a write from the future would win over everything written until then.

Stamps of loads, which end in 999, are never given: by its stamp a row can be told to be of a load or not.
"""

from __future__ import annotations

DEFAULT_MAX_SKEW_MS = 500
MAX_STAMP_US = (1 << 63) - 1
# Of the stamps of loads: `loads.records.load_stamp`, which is above this ring.
_STEP_US = 1000
_LOADS_REST_US = 999


class SkewRefused(ValueError):
    """A stamp that is too far ahead of this clock. `ahead_ms` by how much."""

    def __init__(self, stamp_us: int, now_us: int, max_skew_ms: int) -> None:
        self.ahead_ms = (stamp_us - now_us) // 1000
        super().__init__(
            f"the timestamp {stamp_us} is {self.ahead_ms} ms ahead of this instance's clock, and at most {max_skew_ms} "
            "ms are allowed; set the clocks right (NTP), or give microseconds since 1970"
        )


class HybridClock:
    """Of one instance, or of one client. Times come in as arguments: `now_us` is the wall clock."""

    def __init__(self, max_skew_ms: int = DEFAULT_MAX_SKEW_MS) -> None:
        self.max_skew_ms = max_skew_ms
        self.last_us = 0

    def stamp(self, now_us: int, after_us: int = 0) -> int:
        """A new stamp, greater than every one before and than `after_us`; SkewRefused if that is too far ahead."""
        if after_us > self.last_us:
            self.observe(after_us, now_us)
        stamp_us = self.last_us + 1
        if now_us > stamp_us:
            stamp_us = now_us
        if stamp_us % _STEP_US == _LOADS_REST_US:
            stamp_us += 1
        self.last_us = stamp_us
        return stamp_us

    def observe(self, stamp_us: int, now_us: int) -> None:
        """Stamps from now on are greater than this one; SkewRefused if it is too far ahead."""
        self.check(stamp_us, now_us)
        self.last_us = max(self.last_us, stamp_us)

    def check(self, stamp_us: int, now_us: int) -> None:
        """SkewRefused if a stamp is too far ahead of now."""
        if stamp_us > now_us + self.max_skew_ms * 1000:
            raise SkewRefused(stamp_us, now_us, self.max_skew_ms)

    def ahead_ms(self, now_us: int) -> int:
        """How far the stamps are ahead of the wall clock, as after it was set back; 0 where they are not."""
        return max(self.last_us - now_us, 0) // 1000
