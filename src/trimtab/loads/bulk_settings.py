"""What all bulk children share: the key that tickets are signed with, and one limit for the whole cluster.

    secrets/bulk          BulkSecret: made once, by the first leader that is asked for it; only members read it
    settings/bulk_rate    BulkRate: bytes a second that all bulk children together may move; absent: no limit

The limit is split evenly over the instances that are Online, and counts both directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trimtab.topology.records import SECRETS, SETTINGS

SECRET_KEY = SECRETS + b"bulk"
RATE_KEY = SETTINGS + b"bulk_rate"
# Less would make transfers look dead, and one that waits for its turn time out.
MIN_RATE_BYTES_S = 64_000
MIN_SHARE_BYTES_S = 16_000
MAX_RATE_BYTES_S = 10**15
OFF = "off"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)(?:b|bytes)?(?:/s|ps)?", re.IGNORECASE)


class BulkSecret(msgspec.Struct, frozen=True, omit_defaults=True):
    """`key`: in hexadecimal digits."""

    key: str
    made_ms: int = 0


class BulkRate(msgspec.Struct, frozen=True, omit_defaults=True):
    bytes_s: int
    set_ms: int = 0


encode: Any = msgspec.json.Encoder().encode
_decode_secret = msgspec.json.Decoder(BulkSecret).decode
_decode_rate = msgspec.json.Decoder(BulkRate).decode


@dataclass
class BulkSettings:
    """As applied here. `key` is empty, and `rate_bytes_s` 0, until they are set."""

    key: bytes = field(default=b"", repr=False)
    rate_bytes_s: int = 0

    def change(self, key: bytes, value: bytes | None, _revision: int) -> None:
        """Take note of a key's new value; other keys are ignored. What can't be read counts as not set."""
        if key == SECRET_KEY:
            self.key = _secret(value)
        elif key == RATE_KEY:
            self.rate_bytes_s = _rate(value)

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = BulkSettings()
        for key, value, revision in entries:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)

    def share_bytes_s(self, online: int) -> int:
        """What one of so many instances may move; 0: no limit."""
        if not self.rate_bytes_s:
            return 0
        return max(self.rate_bytes_s // max(online, 1), MIN_SHARE_BYTES_S)


def _secret(value: bytes | None) -> bytes:
    try:
        return bytes.fromhex(_decode_secret(value).key) if value is not None else b""
    except ValueError:
        return b""


def _rate(value: bytes | None) -> int:
    try:
        return max(_decode_rate(value).bytes_s, 0) if value is not None else 0
    except ValueError:
        return 0


def read_rate(text: str) -> int:
    """Bytes a second of `10MB/s`, `500k`, `1.5GiB/s`, `250000` or `off` (0). ValueError says what is wrong."""
    if text.strip().lower() == OFF:
        return 0
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text[:40]}' is no rate; write it as 10MB/s, 500kB/s, 1.5GiB/s, or off")
    exact = float(match[1]) * _UNITS[match[2].lower()]
    # A part of a byte is no wish for no limit, and there are numbers that are more than any.
    rate = max(int(min(exact, 2.0 * MAX_RATE_BYTES_S)), 1 if exact else 0)
    if wrong := wrong_rate(rate):
        raise ValueError(wrong)
    return rate


def wrong_rate(rate_bytes_s: int) -> str:
    """Why this can't be the limit; empty if it can."""
    if rate_bytes_s == 0 or MIN_RATE_BYTES_S <= rate_bytes_s <= MAX_RATE_BYTES_S:
        return ""
    if rate_bytes_s > MAX_RATE_BYTES_S:
        return f"a limit is at most {MAX_RATE_BYTES_S} bytes a second; `off` removes it"
    return f"a limit is at least {MIN_RATE_BYTES_S} bytes a second, not {rate_bytes_s}; `off` removes it"


def show_rate(rate_bytes_s: int) -> str:
    """A rate in words."""
    if rate_bytes_s == 0:
        return OFF
    for unit, size in (("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3)):
        if rate_bytes_s >= size:
            return f"{rate_bytes_s / size:.3g} {unit}"
    return f"{rate_bytes_s} B/s"
