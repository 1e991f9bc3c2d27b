"""Judges what readers saw of registers that one writer each raised, step by step.

Of such a register a history is linearizable exactly if every read fits between what was certain when it began and what
was possible when it ended, and no read that began after another ended saw less than that one. A write that was not
acknowledged may count from its beginning on, or never.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Write:
    """Seconds of one clock that all share. `acknowledged`: at `ended`; else it is unknown whether it happened."""

    register: int
    value: int
    began: float
    ended: float
    acknowledged: bool


@dataclass(frozen=True)
class Read:
    """`value` 0: there was no such row."""

    register: int
    value: int
    began: float
    ended: float


def violations(writes: Iterable[Write], reads: Iterable[Read]) -> list[str]:
    """What can't be, in sentences; empty: the history is fine."""
    by_register: dict[int, tuple[list[Write], list[Read]]] = {}
    for write in writes:
        by_register.setdefault(write.register, ([], []))[0].append(write)
    for read in reads:
        by_register.setdefault(read.register, ([], []))[1].append(read)
    return [wrong for register in sorted(by_register) for wrong in _of_register(*by_register[register])]


def _of_register(writes: Sequence[Write], reads: Sequence[Read]) -> list[str]:
    certain = _Rising((write.ended, write.value) for write in writes if write.acknowledged)
    possible = _Rising((write.began, write.value) for write in writes)
    seen = _Rising((read.ended, read.value) for read in reads)
    wrong = []
    for read in reads:
        what = f"register {read.register}: a read from {read.began:.6f} to {read.ended:.6f} gave {read.value}"
        if read.value < (known := certain.before(read.began)):
            wrong.append(f"{what}, but {known} had been acknowledged before it began")
        if read.value > (most := possible.up_to(read.ended)):
            wrong.append(f"{what}, but no more than {most} had been written")
        if read.value < (earlier := seen.before(read.began)):
            wrong.append(f"{what}, but a read that ended before it began had given {earlier}")
    return wrong


class _Rising:
    """The greatest value so far, by time."""

    def __init__(self, points: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(points)
        self._times = [time for time, _ in ordered]
        self._greatest = list(accumulate((value for _, value in ordered), max))

    def before(self, time: float) -> int:
        at = bisect_left(self._times, time)
        return self._greatest[at - 1] if at else 0

    def up_to(self, time: float) -> int:
        at = bisect_right(self._times, time)
        return self._greatest[at - 1] if at else 0
