"""Processes of a benchmark: started so that none can outlive it, ended by their ids, and what they cost.

A child is told by the kernel when its parent dies, so a benchmark that is killed leaves no server behind.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import random
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from trimtab.playground.ports import PORTS_EACH, SPACING, usable, why_taken

PR_SET_PDEATHSIG = 1
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_libc = ctypes.CDLL(None)
_turn = itertools.count(random.randrange(1 << 20))


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    talk: bool = False,
    user: int | None = None,
) -> subprocess.Popen[str]:
    """Start a command with its errors (and, unless `talk`, its output) in a log file; `talk` keeps both pipes.

    `user`: the id to run under, for servers that refuse to be run by root.
    """
    with log.open("ab") as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else stream,
            stderr=stream,
            env=environment,
            text=True,
            user=user,
            preexec_fn=_end_with_parent,
        )


def stop(process: subprocess.Popen[str], timeout_s: float = 10) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listens on now, nor on the few above each, which its other doors take."""
    ports = usable()
    places = ports[::SPACING]
    found: list[int] = []
    for _ in range(len(places)):
        # Not again what was given a moment ago and may not be listened on yet.
        port = places[next(_turn) % len(places)]
        if not any(why_taken("127.0.0.1", each) for each in range(port, port + PORTS_EACH)):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(errno.EADDRINUSE, f"there are no {count} free ports in {ports}")


def _stat(pid: int) -> list[str] | None:
    try:
        # The name, in parentheses, may hold spaces; the fields after it don't.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def with_descendants(pids: Sequence[int]) -> list[int]:
    """The processes and everything they started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time that these processes, their descendants, and those that they outlived have used so far."""
    ticks = 0
    for pid in with_descendants(pids):
        if fields := _stat(pid):
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_SECOND


def pss_bytes(pid: int) -> int:
    """Memory of a process and its descendants, shared pages counted in proportion."""
    total = 0
    for each in with_descendants([pid]):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
