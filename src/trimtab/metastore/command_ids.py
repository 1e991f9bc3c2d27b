"""Ids that make a retry harmless: issue time in ms (8 bytes), client (16 bytes), sequence (8 bytes).

The first execution stores its result under the id; a retry gets that result. Results can't be kept for ever, and an id
that was forgotten must not look like a new one: that is why the id begins with the time it was issued. Ids sort by that
time, results are forgotten oldest first, and everything up to the newest forgotten id is refused as expired, never
executed a second time.

A first attempt that is refused as expired was issued by a clock that lags. It was not executed, so the client may
`observe` the time in the answer and issue it again under a new id. A *retry* that is refused must be looked into: its
first attempt may have been executed.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from trimtab.metastore.errors import InvalidRequest
from trimtab.metastore.layout import ID_BYTES

CLIENT_BYTES = 16
_ID = Struct(f">Q{CLIENT_BYTES}sQ")
_TIME = Struct(">Q")

assert _ID.size == ID_BYTES


def issue_time_ms(command_id: bytes) -> int:
    time_ms: int = _TIME.unpack_from(command_id)[0]
    return time_ms


class CommandIds:
    """Makes the ids of one client. Clock and randomness are given by whoever has them.

    No two ids are equal: the sequence never repeats, and the client part is random per object, so a restarted client
    is another client.
    """

    __slots__ = ("_client", "_clock_ms", "_latest_ms", "_sequence")

    def __init__(self, clock_ms: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._clock_ms = clock_ms
        self._client = random_bytes(CLIENT_BYTES)
        if len(self._client) != CLIENT_BYTES:
            raise InvalidRequest(f"a client is {CLIENT_BYTES} random bytes, not {len(self._client)}")
        self._latest_ms = 0
        self._sequence = 0

    def next(self) -> bytes:
        """A new id. Its time never goes back, whatever the clock does."""
        self._latest_ms = max(self._latest_ms, self._clock_ms(), 0)
        self._sequence += 1
        return _ID.pack(self._latest_ms, self._client, self._sequence)

    def observe(self, time_ms: int) -> None:
        """The cluster's time is at least this: later ids are issued no earlier, even if the own clock lags."""
        self._latest_ms = max(self._latest_ms, time_ms)
