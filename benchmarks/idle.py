"""Nine idle instances, as an operator starts them: what each costs the machine while nothing happens.

There is no peer to compare with; the peer column holds the goal: under a twentieth of a core an instance, and under
130 MB for all its processes (shared pages counted in proportion).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from benchmarks.report import Options, Report, Row, describe_machine
from trimtab.playground.forming import NotOnline, Standing, await_online

INSTANCES = 9
CPU_GOAL_CORES = 0.05
PSS_GOAL_MB = 130.0
ONLINE_TIMEOUT_S = 120.0
# What a start leaves to be done: votes, compaction, connections that are closed again.
SETTLE_S = 5.0
_SEEDS = 3
_TIMES_SECONDS = 4


def run(options: Options, say: Callable[[str], None]) -> Report:
    report = Report("idle", describe_machine(options.folder))
    ports = processes.free_ports(3 * INSTANCES)
    listen = [f"127.0.0.1:{port}" for port in ports[:INSTANCES]]
    http = [f"127.0.0.1:{port}" for port in ports[INSTANCES : 2 * INSTANCES]]
    bulk = [f"127.0.0.1:{port}" for port in ports[2 * INSTANCES :]]
    started: list[subprocess.Popen[str]] = []
    try:
        for number, (address, door) in enumerate(zip(listen, http, strict=True), start=1):
            command = [sys.executable, "-m", "trimtab", "run", "--instance-id", f"i{number}", "--listen", address]
            command += ["--http", door, "--bulk", bulk[number - 1], "--data-dir", str(options.folder / f"i{number}")]
            command += ["--failure-domain", f"host=h{number}"]
            command += [argument for seed in listen[:_SEEDS] for argument in ("--peer", seed)]
            started.append(processes.start(command, options.folder / f"i{number}.log"))
        began = time.monotonic()
        say(f"waiting until {INSTANCES} instances are Online")
        asyncio.run(_online({f"i{number}": address for number, address in enumerate(listen, start=1)}, started))
        took_s = time.monotonic() - began
        time.sleep(SETTLE_S)
        measured_s = options.seconds * _TIMES_SECONDS
        say(f"measuring for {measured_s:g} s")
        pids = [process.pid for process in started]
        before = [processes.cpu_seconds([pid]) for pid in pids]
        time.sleep(measured_s)
        cores = [(processes.cpu_seconds([pid]) - was) / measured_s for pid, was in zip(pids, before, strict=True)]
        memory_mb = [processes.pss_bytes(pid) / 1e6 for pid in pids]
    finally:
        # All at once: one after the other, each would wait for the rest to take note.
        for process in started:
            process.terminate()
        for process in started:
            processes.stop(process)
    case = f"{INSTANCES} idle instances"
    report.rows += [
        Row(case, "share of a core, highest", max(cores), "goal", CPU_GOAL_CORES, "lower"),
        Row(case, "share of a core, mean", sum(cores) / INSTANCES, "goal", CPU_GOAL_CORES, "lower"),
        Row(case, "PSS MB of an instance, highest", max(memory_mb), "goal", PSS_GOAL_MB, "lower"),
        Row(case, "PSS MB of an instance, mean", sum(memory_mb) / INSTANCES, "goal", PSS_GOAL_MB, "lower"),
        Row("start", "seconds until all are Online", took_s, "-", None, "lower"),
    ]
    report.notes.append("the peer column is the goal; the highest is usually the leader's")
    return report


async def _online(wanted: dict[str, str], started: list[subprocess.Popen[str]]) -> None:
    def ended() -> dict[str, str]:
        gone = (name for name, process in zip(wanted, started, strict=True) if process.poll() is not None)
        return dict.fromkeys(gone, "see its log")

    def seen(_standings: dict[str, Standing]) -> None:
        pass

    try:
        await await_online(wanted, timeout_s=ONLINE_TIMEOUT_S, ended=ended, seen=seen)
    except NotOnline as error:
        raise BenchmarkFailed(f"not all instances are Online: {error}") from error
