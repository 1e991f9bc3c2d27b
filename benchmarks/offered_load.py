"""Point reads at a fixed rate, whatever becomes of them: latency counts from when a read was due, not when it began.

A client that waits for its answer before it asks again would hide every pause: it asks less while things are slow.
Runs as a process of its own, beside what it is meant to feel.

    python -m benchmarks.offered_load PEER TABLE ROWS RATE SECONDS [JOURNAL]

The journal gets a line for each read: when it was due (on the clock that all processes of a machine share), how many
milliseconds it took, and whether it was answered. SIGTERM ends it early.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import IO

_MAX_OPEN = 2_000


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
    failed = left_out = 0
    open_reads: set[asyncio.Task[None]] = set()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)

    async def read(due: float) -> None:
        nonlocal failed
        good = False
        try:
            good = await users.get(id=chosen.randrange(rows)) is not None
        except trimtab.Error:
            good = False
        failed += not good
        took_ms.append((time.perf_counter() - due) * 1000)
        if journal is not None:
            journal.write(f"{due:.6f} {took_ms[-1]:.4f} {good:d}\n")

    for _ in range(200):
        await users.get(id=chosen.randrange(rows))
    started = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = started + number / rate
        if (wait_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        if told.is_set():
            break
        if len(open_reads) >= _MAX_OPEN:
            left_out += 1
            continue
        task = asyncio.get_running_loop().create_task(read(due))
        open_reads.add(task)
        task.add_done_callback(open_reads.discard)
    await asyncio.gather(*open_reads)
    await db.close()
    took_ms.sort()
    return {
        "p50_ms": percentile(took_ms, 0.5),
        "p99_ms": percentile(took_ms, 0.99),
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
