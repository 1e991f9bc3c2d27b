"""Ten thousand Raft groups on three processes: what they cost when idle, and how fast they find new leaders.

There is no peer to compare with that runs on this machine; the peer column holds the goal: under a fifth of a core a
process when idle, every group led again within ten seconds of a process's death.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from benchmarks.report import Options, Report, Row, describe_machine
from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello

GROUPS = 10_000
MEMBERS = 3
SETTLE_TIMEOUT_S = 120.0
IDLE_GOAL_CORES = 0.2
ELECTION_GOAL_S = 10.0


def run(options: Options, say: Callable[[str], None]) -> Report:
    report = Report("groups", describe_machine(options.folder))
    addresses = [f"127.0.0.1:{port}" for port in processes.free_ports(MEMBERS)]
    started = []
    try:
        for member in range(1, MEMBERS + 1):
            command = [sys.executable, "-m", "benchmarks.groups_member", str(member), ",".join(addresses)]
            command += [str(GROUPS), str(options.folder / f"groups-{member}")]
            started.append(processes.start(command, options.folder / f"groups-{member}.log"))
        asyncio.run(_measure(report, options, addresses, started, say))
    finally:
        for process in started:
            processes.stop(process)
    report.notes.append(f"{GROUPS:,} groups with three replicas each; the peer column is the goal")
    return report


async def _measure(
    report: Report, options: Options, addresses: list[str], started: list[Any], say: Callable[[str], None]
) -> None:
    rng = random.Random(0)
    channels = [Channel(address, Hello(), rng) for address in addresses]
    began = time.monotonic()
    say("waiting until every group has a leader and is quiescent")
    statuses = await _until(channels, lambda each: each["leaderless"] == 0 and each["quiescent"] == GROUPS)
    report.rows.append(Row("start", "seconds until all are led and idle", time.monotonic() - began, "-", None, "lower"))
    report.rows.append(
        Row("start", "most groups led by one process", max(each["leading"] for each in statuses), "-", None, "lower")
    )
    pids = [process.pid for process in started]
    before = [processes.cpu_seconds([pid]) for pid in pids]
    await asyncio.sleep(options.seconds * 2)
    spent = [
        (processes.cpu_seconds([pid]) - was) / (options.seconds * 2) for pid, was in zip(pids, before, strict=True)
    ]
    report.rows.append(Row("idle", "cores a process (highest)", max(spent), "goal", IDLE_GOAL_CORES, "lower"))
    memory_mb = max(processes.pss_bytes(pid) for pid in pids) / 1e6
    report.rows.append(Row("idle", "PSS MB a process (highest)", memory_mb, "-", None, "lower"))
    victim = max(range(MEMBERS), key=lambda member: statuses[member]["leading"])
    say(f"killing member {victim + 1}, which leads {statuses[victim]['leading']:,} groups")
    started[victim].kill()
    died = time.monotonic()
    survivors = [channel for member, channel in enumerate(channels) if member != victim]
    dead = str(victim + 1)
    await _until(survivors, lambda each: each["leaderless"] == 0 and each["led"][dead] == 0)
    report.rows.append(
        Row(
            "one process killed", "seconds until all are led", time.monotonic() - died, "goal", ELECTION_GOAL_S, "lower"
        )
    )
    for channel in channels:
        channel.close()


async def _until(channels: list[Channel], holds: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    statuses: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        try:
            answers = await asyncio.gather(*[_ask(channel) for channel in channels])
            statuses = [msgspec.json.decode(answer) for answer in answers]
            if all(holds(each) for each in statuses):
                return statuses
        except NetError:
            statuses = []
        await asyncio.sleep(0.1)
    raise BenchmarkFailed(f"the groups did not settle within {SETTLE_TIMEOUT_S:.0f} s: {statuses}")


async def _ask(channel: Channel) -> bytes:
    await channel.wait_connected(10)
    return await channel.call("groups.status", b"", 10)
