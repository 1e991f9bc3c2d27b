"""Complaints that come again and again are told once, and then only how often they came.

A peer with a wrong certificate tries again for ever. Its first refusal is news, the thousandth hides the news.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NUMBERS = re.compile(r"\d+")
_MAX_KINDS = 256


class Complaints:
    """Passes on the first of each kind, and one more each time a while has passed. Numbers don't make a kind."""

    def __init__(self, tell: Callable[[str], None], now: Callable[[], float], *, quiet_s: float = 60.0) -> None:
        self._tell = tell
        self._now = now
        self._quiet_s = quiet_s
        self._kinds: dict[str, tuple[float, int]] = {}

    def add(self, text: str) -> None:
        kind = _NUMBERS.sub("#", text)
        told_at, withheld = self._kinds.get(kind, (None, 0))
        now = self._now()
        if told_at is not None and now - told_at < self._quiet_s:
            self._kinds[kind] = (told_at, withheld + 1)
            return
        if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            del self._kinds[min(self._kinds, key=lambda each: self._kinds[each][0])]
        self._kinds[kind] = (now, 0)
        self._tell(f"{text} (and {withheld} more like it)" if withheld else text)
