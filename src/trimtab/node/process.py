"""An instance as an operating-system process: a real loop, a real disk, real signals.

Prints one line when it is ready to be asked, logs quietly to standard error, and ends with exit code 0 when told to
stop (SIGTERM, SIGINT) or 1 when it had to stop, with the reason as its last line.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from trimtab.node.instance import Instance
from trimtab.node.settings import Settings, SettingsError
from trimtab.storage.port import StorageError
from trimtab.storage.rocks import RocksDisk


def log_line(instance_id: str, text: str) -> None:
    """One line of the log: when, who, what."""
    now_ms = time.time_ns() // 1_000_000
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000))
    print(f"{when}.{now_ms % 1000:03d}Z {instance_id} {text}", file=sys.stderr, flush=True)


def run(settings: Settings, data_dir: Path) -> int:
    """Run until told to stop; the exit code."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        return uvloop.run(_run(settings, data_dir))
    except (SettingsError, StorageError, OSError) as error:
        log_line(settings.instance_id, f"could not start: {error}")
        return 1


async def _run(settings: Settings, data_dir: Path) -> int:
    loop = asyncio.get_running_loop()
    instance = Instance(
        settings,
        disk=RocksDisk(data_dir, reserve_bytes=settings.limits.disk_reserve_bytes),
        rng=random.Random(random.SystemRandom().getrandbits(64)),
        wall_ms=lambda: time.time_ns() // 1_000_000,
        story=lambda line: log_line(settings.instance_id, line),
    )
    await instance.start()
    # What exists now lives as long as the process; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    log_line(settings.instance_id, f"ready on {settings.listen} as member {instance.raft_id} of {settings.cluster_id}")
    waiting = asyncio.ensure_future(told.wait())
    ends: list[asyncio.Future[Any]] = [waiting, instance.ended]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if instance.failure is not None:
        log_line(settings.instance_id, f"stopped: {instance.failure}")
        return 1
    await instance.stop()
    log_line(settings.instance_id, "stopped")
    return 0
