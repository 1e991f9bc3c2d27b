"""How tablets are moved, as operators set it for the whole cluster: `settings/rebalance`.

Off, or outside its window, balancing begins nothing new; what is under way goes on, and so does what must not wait:
healing, draining, a changed replication, and what an operator asks for by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trimtab.topology.records import SETTINGS

SETTINGS_KEY = SETTINGS + b"rebalance"
MINUTES = 24 * 60
DEFAULT_HEAL_AFTER_MS = 600_000
MIN_HEAL_AFTER_MS = 1_000
MAX_HEAL_AFTER_MS = 30 * 86_400_000
DEFAULT_MOVING_BYTES = 8 << 30  # to or from one instance at a time
DEFAULT_MOVING = 256  # tablets of the whole cluster at a time


class RebalanceSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """`window`: minutes of the day (UTC) between which balancing may begin moves; it may cross midnight. Empty: always.

    `heal_after_ms`: an instance that was down for so long is not waited for; its replicas are made anew elsewhere.
    """

    enabled: bool = True
    window: tuple[int, ...] = ()
    heal_after_ms: int = DEFAULT_HEAL_AFTER_MS
    moving_bytes: int = DEFAULT_MOVING_BYTES
    moving: int = DEFAULT_MOVING
    set_ms: int = 0

    def keeps_still(self, now_ms: int) -> str:
        """Why balancing begins nothing now; empty: it may."""
        if not self.enabled:
            return "balancing is off (`trimtab rebalance on`)"
        if self.window:
            first, last = self.window
            minute = now_ms // 60_000 % MINUTES
            within = first <= minute < last if first <= last else minute >= first or minute < last
            if not within:
                return f"balancing waits for its window, {clock_text(first)} to {clock_text(last)} UTC"
        return ""


def clock_text(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def wrong_settings(settings: RebalanceSettings) -> str:
    """Why these can't be; empty: they can."""
    window = settings.window
    if window and (len(window) != 2 or not all(0 <= minute < MINUTES for minute in window) or window[0] == window[1]):
        return f"a window is two different times of the day, not {list(window)[:5]}"
    if not MIN_HEAL_AFTER_MS <= settings.heal_after_ms <= MAX_HEAL_AFTER_MS:
        return f"instances are healed after {MIN_HEAL_AFTER_MS // 1000} s to 30 days, not {settings.heal_after_ms} ms"
    if settings.moving_bytes < 1 or settings.moving < 1:
        return "at least one byte and one tablet must be allowed to move"
    return ""


encode: Any = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(RebalanceSettings).decode


@dataclass
class RebalanceView:
    """As applied here. What can't be read counts as not set."""

    settings: RebalanceSettings = field(default_factory=RebalanceSettings)
    revision: int = 0

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value; other keys are ignored."""
        if key != SETTINGS_KEY:
            return
        self.revision = revision if value is not None else 0
        self.settings = _parsed(value)

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = RebalanceView()
        for key, value, revision in entries:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)


def _parsed(value: bytes | None) -> RebalanceSettings:
    try:
        found = decode(value) if value is not None else RebalanceSettings()
    except ValueError:
        return RebalanceSettings()
    return RebalanceSettings() if wrong_settings(found) else found
