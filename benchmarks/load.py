"""Puts a closed-loop load on a cluster from several client processes, and measures both sides.

The clients of a case are spread over as many processes as the target says it needs for the client not to be what is
measured; CPU seconds of servers and clients are taken in the same window, so that one can see whether it was.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks import processes
from benchmarks.report import percentile


class BenchmarkFailed(Exception):
    """The benchmark can't go on; the text says why."""


class Target(Protocol):
    """A cluster that can be put under load."""

    name: str
    client: str  # the module of this package that makes its clients
    python: Path  # the interpreter that has them
    client_processes: int  # for many clients
    uvloop: bool  # whether its client gains from it

    def start(self) -> None:
        """Start the cluster; returns when it serves."""

    def endpoints(self) -> list[str]:
        """Addresses for clients, the leader's first."""

    def pids(self) -> list[int]:
        """The processes of the members, in their order."""

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Case:
    kind: str  # put, get or get_many
    clients: int
    value_bytes: int = 256
    distribution: str = "uniform"  # or zipfian
    keys: int = 1000
    shared: bool = False  # all requests in flight go through one client of each process
    name: str = ""

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        what = f"put {self.value_bytes} B, synced" if self.kind == "put" else f"get {self.value_bytes} B, linearizable"
        return f"{what}, {self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass(frozen=True)
class Measurement:
    """One run: throughput, latency, and what both sides used a second of it."""

    operations_per_s: float
    p50_ms: float
    p99_ms: float
    server_cores: float
    client_cores: float
    server_cpu_us_per_operation: float


def median_of(runs: Sequence[Measurement]) -> Measurement:
    fields = Measurement.__dataclass_fields__
    return Measurement(**{name: statistics.median(getattr(run, name) for run in runs) for name in fields})


def _answer(worker: subprocess.Popen[str], log: Path) -> Any:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        worker.wait()
        tail = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise BenchmarkFailed(f"a client process ended early: {tail[0]} (see {log})")
    return json.loads(line)


def _tell(worker: subprocess.Popen[str], text: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(text + "\n")
    worker.stdin.flush()


def run_case(
    target: Target, case: Case, *, seconds: float, root: Path, folder: Path, seed: int, fill: bool | None = None
) -> Measurement:
    """One run of a case against a target. `fill`: write all keys before; by default, if the case reads."""
    if fill is None:
        fill = case.kind != "put"
    count = min(case.clients, target.client_processes)
    shares = [case.clients // count + (n < case.clients % count) for n in range(count)]
    log = folder / f"{target.name}-clients.log"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    workers = [
        processes.start([str(target.python), "-m", "benchmarks.worker"], log, environment=environment, talk=True)
        for _ in shares
    ]
    try:
        for number, (worker, clients) in enumerate(zip(workers, shares, strict=True)):
            order = {
                "client": target.client,
                "endpoints": target.endpoints(),
                "clients": clients,
                "kind": case.kind,
                "value_bytes": case.value_bytes,
                "fill": fill and number == 0,
                "distribution": case.distribution,
                "keys": case.keys,
                "shared": case.shared,
                "seconds": seconds,
                "warm_up_seconds": min(1.0, seconds / 2),
                "seed": seed * 1000 + number,
                "uvloop": target.uvloop,
            }
            _tell(worker, json.dumps(order))
            if order["fill"]:
                _answer(worker, log)  # its keys must be there before the others read them
        for worker in workers[1 if fill else 0 :]:
            _answer(worker, log)
        cpu_before = processes.cpu_seconds(target.pids())
        for worker in workers:
            _tell(worker, "go")
        results = [_answer(worker, log) for worker in workers]
        server_cpu = processes.cpu_seconds(target.pids()) - cpu_before
    finally:
        for worker in workers:
            processes.stop(worker)
    took_ms = sorted(us / 1000 for result in results for us in result["took_us"])
    elapsed = max(result["seconds"] for result in results)
    if not took_ms:
        raise BenchmarkFailed(f"{target.name} answered nothing within {seconds} s of '{case.title}'")
    return Measurement(
        operations_per_s=sum(result["operations"] / result["seconds"] for result in results),
        p50_ms=statistics.median(took_ms),
        p99_ms=percentile(took_ms, 0.99),
        server_cores=server_cpu / elapsed,
        client_cores=sum(result["cpu_seconds"] for result in results) / elapsed,
        server_cpu_us_per_operation=server_cpu / len(took_ms) * 1e6,
    )
