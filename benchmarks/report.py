"""The result of a benchmark: rows that compare ours with a peer's, the machine they were taken on, and what is missing.

The JSON shape is an interface: fields may be added, not renamed. `ratio` is always ours ÷ peer; whether a high or a low
one is good is in `better`.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the person asked for: how long each run measures, how often it is repeated, and where files may go.

    `rows` is for benchmarks that measure a fixed amount of data; 0: as much as they think is right. `quick`: less of
    everything, to see that it works. `quiet_minutes`: how long something is watched that should do nothing.
    """

    seconds: float
    rounds: int
    folder: Path
    root: Path
    rows: int = 0
    quick: bool = False
    quiet_minutes: float = 10.0


@dataclass(frozen=True)
class Row:
    """One figure of ours beside a peer's. None: not measured; `Report.missing` says why."""

    case: str
    metric: str
    ours: float | None
    peer: str
    peer_value: float | None
    better: str = "higher"

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.peer_value:
            return None
        return self.ours / self.peer_value

    def as_json(self) -> dict[str, object]:
        rounded = {name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return {**rounded, "ratio": None if self.ratio is None else round(self.ratio, 3)}


@dataclass
class Report:
    name: str
    machine: dict[str, object]
    rows: list[Row] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "machine": self.machine,
            "rows": [row.as_json() for row in self.rows],
            "missing": self.missing,
            "notes": self.notes,
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of an ordered, non-empty sequence lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def sync_latency_ms(folder: Path, count: int = 200) -> tuple[float, float]:
    """Median and 99th percentile of appending 512 bytes and making them durable: the floor under every synced write."""
    path = folder / "sync-probe"
    took_ms = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(count):
            os.write(descriptor, b"x" * 512)
            started = time.perf_counter()
            os.fdatasync(descriptor)
            took_ms.append((time.perf_counter() - started) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    took_ms.sort()
    return statistics.median(took_ms), percentile(took_ms, 0.99)


def describe_machine(folder: Path) -> dict[str, object]:
    """What the figures depend on, without naming the machine."""
    p50_ms, p99_ms = sync_latency_ms(folder)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "sync_p50_ms": round(p50_ms, 3),
        "sync_p99_ms": round(p99_ms, 3),
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": round(os.getloadavg()[0], 2),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }
