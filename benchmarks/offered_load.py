"""Point reads at a fixed rate, whatever becomes of them: latency counts from when a read was due, not when it began.

A client that waits for its answer before it asks again would hide every pause: it asks less while things are slow.
Runs as a process of its own, beside what it is meant to feel. On a machine whose processors are all busy it is itself
woken up late, before it has asked anything: that is in the latency, and what it is from then on is told apart.

    python -m benchmarks.offered_load PEER TABLE ROWS RATE SECONDS [JOURNAL]

The journal gets a line for each read: when it was due (on the clock that all processes of a machine share), how many
milliseconds it took since, how many since it was begun, and whether it was answered. SIGTERM ends it early.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path
from typing import IO

FROM_DUE, FROM_BEGUN = "p99 ms", "p99 ms from when they are begun"
_MAX_OPEN = 2_000
_ABSOLUTE = 1  # how timers are set


class _Clock:
    """Wakes up when it is told to: timers of event loops are off by up to a millisecond, to either side."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer could be made")
        self._rang = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._ring)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._rang.set()

    async def until(self, due: float) -> None:
        """Returns at that time of `perf_counter`, or at once where it is over."""
        while time.perf_counter() < due:
            seconds, rest = divmod(int(due * 1e9), 1_000_000_000)
            at = struct.pack("=4q", 0, 0, seconds, rest)
            self._rang.clear()
            if self._libc.timerfd_settime(self._fd, _ABSOLUTE, at, None) < 0:
                raise OSError(ctypes.get_errno(), "the timer could not be set")
            await self._rang.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)


async def read_steadily(
    peer: str, table: str, rows: int, rate: float, seconds: float, journal: IO[str] | None = None
) -> dict[str, float]:
    """Milliseconds of the middle and of the slowest, and how many were asked, failed or never begun."""
    import trimtab
    from benchmarks.report import percentile

    db = await trimtab.aio.connect(peer)
    users = db.table(table, consistency="ONE")
    chosen = random.Random(7)
    took_ms: list[float] = []
    begun_took_ms: list[float] = []
    failed = left_out = 0
    open_reads: set[asyncio.Task[None]] = set()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)

    async def read(due: float) -> None:
        nonlocal failed
        begun, good = time.perf_counter(), False
        try:
            good = await users.get(id=chosen.randrange(rows)) is not None
        except trimtab.Error:
            good = False
        failed += not good
        ended = time.perf_counter()
        took_ms.append((ended - due) * 1000)
        begun_took_ms.append((ended - begun) * 1000)
        if journal is not None:
            journal.write(f"{due:.6f} {took_ms[-1]:.4f} {begun_took_ms[-1]:.4f} {good:d}\n")

    for _ in range(200):
        await users.get(id=chosen.randrange(rows))
    clock = _Clock()
    started = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = started + number / rate
        await clock.until(due)
        if told.is_set():
            break
        if len(open_reads) >= _MAX_OPEN:
            left_out += 1
            continue
        task = asyncio.get_running_loop().create_task(read(due))
        open_reads.add(task)
        task.add_done_callback(open_reads.discard)
    await asyncio.gather(*open_reads)
    clock.close()
    await db.close()
    took_ms.sort()
    begun_took_ms.sort()
    return {
        "p50_ms": percentile(took_ms, 0.5),
        "p99_ms": percentile(took_ms, 0.99),
        "begun_p99_ms": percentile(begun_took_ms, 0.99),
        "reads": len(took_ms),
        "failed": failed,
        "left_out": left_out,
    }


if __name__ == "__main__":
    import uvloop

    peer, table, rows, rate, seconds, *journals = sys.argv[1:]
    with Path(journals[0]).open("w", buffering=1) if journals else contextlib.nullcontext() as journal:
        found = uvloop.run(read_steadily(peer, table, int(rows), float(rate), float(seconds), journal))
    print(json.dumps(found))
