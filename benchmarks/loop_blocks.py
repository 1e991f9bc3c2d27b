"""Blocks of the loops of our instances under load, and which of them are the machine's doing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Protocol

from benchmarks.report import Report, Row
from benchmarks.standstill import Standstill

LONG_MS = 20.0


class Watched(Protocol):
    """Instances, each a process with a watchdog."""

    def pids(self) -> list[int]: ...

    def loop_blocks(self) -> Counter[float]:
        """How often so far a loop stood still for at most so many ms, and longer than for those before it."""
        ...


class LoopBlocks:
    """How often the loops of our instances stood still for long under load, round after round.

    In a round in which the machine itself stood still, for at least half as long as is too long, each such standstill
    may have held up every instance once: what their watchdogs know of that is coarse, and incomplete.
    """

    def __init__(self, folder: Path) -> None:
        self._standstill = Standstill(folder)
        self._ours: Watched | None = None
        self._before: Counter[float] = Counter()
        self._told_apart = False
        self._machine_ms = 0.0
        self._longest_ms = 0.0
        self.own = 0
        self.machines = 0

    def begin(self, ours: Watched) -> None:
        """From here on; creating the table is no load."""
        self._standstill.start()
        self._ours, self._before = ours, ours.loop_blocks()
        self._standstill.lately()

    def look(self) -> None:
        """A round has ended."""
        assert self._ours is not None
        now, stood_still_ms = self._ours.loop_blocks(), self._standstill.lately()
        count, longest_ms = long_blocks(self._before, now)
        self._before = now
        self._longest_ms = max(self._longest_ms, longest_ms)
        self._machine_ms = max(self._machine_ms, *stood_still_ms, 0.0)
        standstills = sum(late_ms >= LONG_MS / 2 for late_ms in stood_still_ms)
        machines = min(count, standstills * len(self._ours.pids()))
        self.machines += machines
        self.own += count - machines

    def end(self) -> None:
        self._told_apart = self._standstill.known
        self._standstill.stop()

    def tell(self, report: Report) -> None:
        case = "loops of the instances"
        report.rows += [
            Row(case, "blocks of more than 20 ms", float(self.own), "goal", 0.0, "lower"),
            Row(case, "the same while the machine stood still", float(self.machines), "-", None, "lower"),
            Row(case, "longest of all, ms, at most", self._longest_ms, "-", None, "lower"),
        ]
        verdict = "MISSED" if self.own else "met"
        report.notes.append(f"goal {verdict}: {self.own} blocks of a loop for more than 20 ms, wanted 0")
        if self._told_apart:
            report.notes.append(
                f"{self.machines} more came when the machine itself stood still: a process of the highest priority "
                f"that only sleeps was late by up to {self._machine_ms:.0f} ms"
            )
        else:
            report.notes.append("run by root this would tell blocks of a loop from those of the machine itself")


def long_blocks(before: Counter[float], now: Counter[float]) -> tuple[int, float]:
    """How many came that are longer than they should be, and of the longest of all how many milliseconds at most."""
    new = {up_to_ms: count - before[up_to_ms] for up_to_ms, count in now.items() if count > before[up_to_ms]}
    return sum(count for up_to_ms, count in new.items() if up_to_ms > LONG_MS), max(new, default=0.0)
