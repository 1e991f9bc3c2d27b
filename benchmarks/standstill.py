"""When the machine itself stood still: told by processes that only sleep, one on each processor, before all others.

A virtual machine is held up by its host for tens of milliseconds at times, and nothing in it runs then. Whoever is late
by as long did not cause it. The sleepers have a priority that nothing else here has, so that other processes don't make
them late; where the system does not allow that (root may), they would tell of the load, and so there are none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import processes

EVERY_S = 0.004
# Sleepers that are late by less are not told of.
LATE_S = 0.004
_PRIORITY = 50


class Standstill:
    """From `start` to `stop`. Needs a folder for what the sleepers tell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = 0.0
        self._sleepers: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Nothing is told where sleepers are not allowed."""
        if not may_come_first():
            return
        for cpu in sorted(os.sched_getaffinity(0)):
            command = [sys.executable, "-m", "benchmarks.standstill", str(cpu), str(self._told(cpu))]
            self._sleepers.append(processes.start(command, self._folder / "standstill.log"))

    def stop(self) -> None:
        for sleeper in self._sleepers:
            processes.stop(sleeper)
        self._sleepers.clear()

    @property
    def known(self) -> bool:
        return bool(self._sleepers) and all(sleeper.poll() is None for sleeper in self._sleepers)

    def lately(self) -> list[float]:
        """Milliseconds of each standstill since this was asked last, of the processor that stood still the most."""
        now = time.monotonic()
        by_processor = [
            [1000 * late for when, late in self._lines(cpu) if self._seen <= when < now]
            for cpu in sorted(os.sched_getaffinity(0))
        ]
        self._seen = now
        return max(by_processor, key=sum, default=[])

    def _told(self, cpu: int) -> Path:
        return self._folder / f"standstill-{cpu}"

    def _lines(self, cpu: int) -> list[tuple[float, float]]:
        try:
            whole = self._told(cpu).read_text().rpartition("\n")[0]
        except FileNotFoundError:
            return []
        return [(float(when), float(late)) for when, late in (line.split() for line in whole.splitlines())]


def may_come_first() -> bool:
    """Whether this process may have a priority before all others; it has its own again."""
    policy, own = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except OSError:
        return False
    os.sched_setscheduler(0, policy, own)
    return True


def _sleep(cpu: int, told: Path) -> None:
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    with told.open("w", buffering=1) as out:
        while True:
            due = time.monotonic() + EVERY_S
            time.sleep(EVERY_S)
            now = time.monotonic()
            if now - due >= LATE_S:
                out.write(f"{now:.6f} {now - due:.6f}\n")


if __name__ == "__main__":
    _sleep(int(sys.argv[1]), Path(sys.argv[2]))
