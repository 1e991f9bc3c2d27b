"""How long the metastore's history is kept: the leader forgets what is older than an hour, by itself.

Every member writes down once in a while which revision it is at, by the clock of its own loop, so that whoever leads
knows which revision is old enough. After a restart it knows nothing and waits the full time again: history is kept
longer than promised, never shorter. Live values always stay; compaction removes what they replaced.
"""

from __future__ import annotations

from collections import deque

_SAMPLES = 60


class HistoryKeeping:
    """Revisions by age, in samples a sixtieth of the time apart. `keep_ms` 0 keeps everything."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_s = keep_ms / 1000
        self._every_s = self._keep_s / _SAMPLES
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES + 2)
        self._proposed_at: float | None = None

    def look(self, now: float, revision: int, compacted_revision: int, *, leads: bool) -> int | None:
        """Now and then: the revision to compact up to, if this member should propose that now."""
        if not self._keep_s:
            return None
        if not self._samples or now - self._samples[-1][0] >= self._every_s:
            self._samples.append((now, revision))
        if not leads or (self._proposed_at is not None and now - self._proposed_at < self._every_s):
            return None
        old = max((revision for at, revision in self._samples if now - at >= self._keep_s), default=0)
        if old <= compacted_revision:
            return None
        self._proposed_at = now
        return old
