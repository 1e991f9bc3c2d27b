"""How much of a delay was a wait for a processor: the machine's doing, and no fault of what runs here.

Linux counts, for each thread, how long it could have run and did not. What it can't count so is a virtual machine that
does not run at all: a thread that had a processor then seems to have used it. Of these times there is a count for each
processor, in steps of ten milliseconds; that of the thread's own is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PER_THREAD = "/proc/thread-self/schedstat"
_OF_THREAD = "/proc/thread-self/stat"
_PER_PROCESSOR = "/proc/stat"
_STOLEN = 8  # the column, behind the processor's name
_PROCESSOR = 36  # the column behind the command's name
_MAX_BYTES = 64 << 10
# Shorter delays are not worth a look at what was lost.
_LONG_S = 0.005
# Where there are many processors it takes long to look at all. It is done less often then, and what is found may have
# been lost a while before the delay.
_FEW = 16
_SELDOM = 10


def stolen_s(text: bytes) -> list[float]:
    """For how long each processor was taken away, by the text of /proc/stat."""
    found: dict[int, float] = {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for line in text.split(b"\n")[1:-1]:  # the first is the sum of all, the last may be cut off
        if not line.startswith(b"cpu"):
            break
        columns = line.split()
        found[int(columns[0][3:])] = int(columns[_STOLEN]) * tick_s if len(columns) > _STOLEN else 0.0
    return [found.get(each, 0.0) for each in range(max(found, default=-1) + 1)]


def processor_of(text: bytes) -> int:
    """Where a thread ran last, by the text of /proc/.../stat."""
    return int(text.rpartition(b")")[2].split()[_PROCESSOR])


class ProcessorWaits:
    """Of the thread that makes it."""

    def __init__(self) -> None:
        self._waited = _reader(_PER_THREAD, lambda text: int(text.split()[1]) / 1e9, 0.0)
        self._processor = _reader(_OF_THREAD, processor_of, -1)
        self._stolen = _reader(_PER_PROCESSOR, stolen_s, list[float]())
        self._waited_before = self._waited()
        self._stolen_before = self._stolen()
        self._every = 1 if len(self._stolen_before) <= _FEW else _SELDOM
        self._asked = 0

    def within(self, delay_s: float) -> float:
        """How much of a delay that has just ended was such a wait. Asked often: what was before counts as told."""
        waited = self._waited()
        found, self._waited_before = waited - self._waited_before, waited
        self._asked += 1
        long = delay_s - found >= _LONG_S
        if self._asked % self._every == 0 or long:
            stolen, before = self._stolen(), self._stolen_before
            processor = self._processor() if long else -1
            if 0 <= processor < min(len(stolen), len(before)):
                # What it lost while it waited is in both.
                found = max(found, stolen[processor] - before[processor])
            self._stolen_before = stolen
        return min(max(delay_s, 0.0), found)


def _reader(path: str, parse: Callable[[bytes], T], nothing: T) -> Callable[[], T]:
    """Nothing is found where the system does not tell, or not so."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: nothing

    def read() -> T:
        try:
            return parse(os.pread(descriptor, _MAX_BYTES, 0))
        except (OSError, ValueError, IndexError):
            return nothing

    return read
