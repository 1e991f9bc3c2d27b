"""The disk of a simulated machine: the storage model, with latencies from the seed and troubles on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from trimtab.sim.world import Process
from trimtab.storage.model import ModelDisk


class MemberDisk:
    """One machine's disk. It outlives the processes that use it."""

    def __init__(self, process: Process, slow_rate: float = 0.0, disk: type[ModelDisk] = ModelDisk) -> None:
        self._process = process
        self._rng: random.Random = process.world.rng(f"disk/{process.name}")
        self.slow_rate = slow_rate
        self.slow_s = 0.3
        self.model = disk(call_later=self._call_later, sync_latency=self._sync_latency)

    def died(self, *, power: bool) -> str:
        """The process is gone. With the power, what was not synced is gone too, from some point on. What was lost."""
        if power:
            return f"unsynced batches lost: {self.model.crash(self._rng)}"
        self.model.abandon()
        return ""

    def work_takes_time(self) -> None:
        """From now on also what is done off the loop, such as taking over files, takes as long as a sync."""
        self.model.work_latency = self._sync_latency

    def slow_work(self, seconds: float) -> None:
        """What is done off the loop takes so long from now on, but no sync does; 0: as long as a sync again."""
        self.model.work_latency = (lambda: seconds * (0.2 + self._rng.random())) if seconds else self._sync_latency

    def fill(self) -> None:
        self.model.full = True

    def drain(self) -> None:
        self.model.full = False

    def fail_next_sync(self) -> None:
        self.model.fail_next_sync()

    def heal(self) -> None:
        self.slow_rate = 0.0
        self.drain()

    def _sync_latency(self) -> float:
        """Mostly a fraction of a millisecond to two; on a bad day up to a second."""
        if self.slow_rate and self._rng.random() < self.slow_rate:
            return self.slow_s * (0.2 + self._rng.random())
        return 0.000_2 + self._rng.random() * 0.001_8

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.Handle | None:
        """Completions are events of the process: a paused one hears of them later, a dead one never."""
        loop = self._process.loop
        if loop is None:
            return None
        return self._process.world.later(loop, seconds, callback)
