"""An instance as an operating-system process: a real loop, a real disk, real signals.

Prints one line when it is ready to be asked, logs quietly to standard error, and ends with exit code 0 when told to
stop (SIGTERM, SIGINT) or 1 when it had to stop, with the reason as its last line. An instance that ran out of disk
space in a place where it can't just refuse ends and starts anew, in the same process, when there is space again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from trimtab.metastore.errors import MetastoreError
from trimtab.net.errors import NetError
from trimtab.node.instance import Instance
from trimtab.node.settings import Settings, SettingsError
from trimtab.raft.errors import RaftError
from trimtab.storage.port import DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk

_SPACE_POLL_S = 0.5


def log_line(instance_id: str, text: str) -> None:
    """One line of the log: when, who, what."""
    now_ms = time.time_ns() // 1_000_000
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000))
    with contextlib.suppress(OSError):
        # A log that can't be written (a full disk, a reader that left) is no reason to stop serving.
        print(f"{when}.{now_ms % 1000:03d}Z {instance_id} {text}", file=sys.stderr, flush=True)


def run(settings: Settings, data_dir: Path) -> int:
    """Run until told to stop; the exit code."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        return uvloop.run(_run(settings, data_dir))
    except (SettingsError, StorageError, MetastoreError, RaftError, NetError, OSError) as error:
        # Settings, certificates, a disk or data that can't be used: a sentence helps the operator, a traceback doesn't.
        log_line(settings.instance_id, f"could not start: {error}")
        return 1


async def _run(settings: Settings, data_dir: Path) -> int:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    waiting = asyncio.ensure_future(told.wait())
    try:
        while True:
            failure = await _live(settings, data_dir, waiting)
            if not isinstance(failure, DiskFull):
                break
            # Everything that was acknowledged is in the files; what only was in memory is replayed from the log.
            log_line(settings.instance_id, f"waiting for space: {failure}")
            if not await _space_returns(data_dir, settings.limits.disk_reserve_bytes, waiting):
                failure = None
                break
            log_line(settings.instance_id, "the disk has space again; starting anew")
    finally:
        waiting.cancel()
    log_line(settings.instance_id, "stopped" if failure is None else f"stopped: {failure}")
    return 0 if failure is None else 1


async def _live(settings: Settings, data_dir: Path, told: asyncio.Future[Any]) -> BaseException | None:
    """One life of the instance; why it had to end, or None if it was told to."""
    disk = RocksDisk(data_dir, reserve_bytes=settings.limits.disk_reserve_bytes)
    instance = Instance(
        settings,
        disk=disk,
        rng=random.Random(random.SystemRandom().getrandbits(64)),
        wall_ms=lambda: time.time_ns() // 1_000_000,
        story=lambda line: log_line(settings.instance_id, line),
    )
    if settings.exposed:
        log_line(
            settings.instance_id,
            f"warning: {settings.listen} is reachable from other machines and TLS is off: whoever connects can read "
            "and change everything; give --tls-authority, --tls-certificate and --tls-key",
        )
    await instance.start()
    # What exists now lives as long as the process; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    log_line(settings.instance_id, f"ready on {settings.listen} as member {instance.raft_id} of {settings.cluster_id}")
    ends: list[asyncio.Future[Any]] = [told, instance.ended]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await instance.stop()
    disk.close()
    return instance.failure


async def _space_returns(data_dir: Path, reserve_bytes: int, told: asyncio.Future[Any]) -> bool:
    """Wait until there is space above the reserve; False if told to stop first."""
    while not told.done():
        state = os.statvfs(data_dir)
        if state.f_bavail * state.f_frsize > reserve_bytes:
            return True
        await asyncio.wait([told], timeout=_SPACE_POLL_S)
    return False
