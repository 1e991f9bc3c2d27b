"""How much of a delay was a wait for a processor: the machine's doing, and no fault of what runs here.

Linux counts, for each thread, how long it could have run and did not. What it can't count so is a virtual machine that
does not run at all: a thread that had a processor then seems to have used it. Of these times there is a count for each
processor, in steps of ten milliseconds; that of the processor which lost most is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_PER_THREAD = "/proc/thread-self/schedstat"
_PER_PROCESSOR = "/proc/stat"
_STOLEN = 8  # the column, behind the processor's name
_MAX_BYTES = 64 << 10
# Delays from this on are looked at closely, which takes some microseconds for each processor; so do looks now and then,
# for what was lost long before a delay is none of it.
_LONG_S = 0.005
_LOOK_EVERY = 10


def stolen_s(text: bytes) -> list[float]:
    """For how long each processor was taken away, by the text of /proc/stat."""
    found = []
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for line in text.split(b"\n")[1:-1]:  # the first is the sum of all, the last may be cut off
        if not line.startswith(b"cpu"):
            break
        columns = line.split()
        found.append(int(columns[_STOLEN]) * tick_s if len(columns) > _STOLEN else 0.0)
    return found


class ProcessorWaits:
    """Of the thread that makes it."""

    def __init__(self) -> None:
        self._waited = _reader(_PER_THREAD, lambda text: [int(text.split()[1]) / 1e9])
        self._stolen = _reader(_PER_PROCESSOR, stolen_s)
        self._waited_before = self._waited()
        self._stolen_before = self._stolen()
        self._asked = 0

    def within(self, delay_s: float) -> float:
        """How much of a delay that has just ended was such a wait. Asked often: what was before counts as told."""
        waited = self._waited()
        found = _most(self._waited_before, waited)
        self._waited_before = waited
        self._asked += 1
        long = delay_s >= _LONG_S
        if long or self._asked % _LOOK_EVERY == 0:
            stolen = self._stolen()
            if long:
                found += _most(self._stolen_before, stolen)
            self._stolen_before = stolen
        return min(max(delay_s, 0.0), found)


def _most(before: list[float], after: list[float]) -> float:
    return max((late - early for early, late in zip(before, after, strict=False)), default=0.0)


def _reader(path: str, parse: Callable[[bytes], list[float]]) -> Callable[[], list[float]]:
    """Nothing is found where the system does not tell, or not so."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return list

    def read() -> list[float]:
        try:
            return parse(os.pread(descriptor, _MAX_BYTES, 0))
        except (OSError, ValueError, IndexError):
            return []

    return read
