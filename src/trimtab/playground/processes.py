"""Processes of this machine that outlive whoever started them: known again by more than a number, and ended safely.

The kernel gives the numbers of dead processes to new ones. So a process is remembered with the moment it started (and
the boot of the machine that moment belongs to), and a signal goes through a handle that was opened before the moment
was compared: it reaches that very process or nobody.

A zombie counts as gone: it holds no port, no file and no lock, and who reaps it is not our affair.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True)
class Known:
    """A process as it is remembered. `started` counts the kernel's clock ticks since the boot named `boot`."""

    pid: int
    started: int
    boot: str


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    started: int


def boot_id() -> str:
    """Names the present boot of the machine."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> _Stat | None:
    """What the kernel says of a process; None when there is none, or only what is left of it."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    stat = _Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    return None if stat.state in "ZX" else stat


def known(pid: int) -> Known | None:
    """The process that has this number now, to be remembered."""
    stat = _stat(pid)
    return None if stat is None else Known(pid, stat.started, boot_id())


def name_of(pid: int) -> str:
    """What the kernel calls a process; empty when there is none."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def lives(process: Known) -> bool:
    """Whether that very process still runs."""
    stat = _stat(process.pid)
    return stat is not None and stat.started == process.started and process.boot == boot_id()


def uptime_s(process: Known) -> float:
    """How long it has been running."""
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(since_boot_s - process.started / os.sysconf("SC_CLK_TCK"), 0.0)


def send(process: Known, number: signal.Signals) -> bool:
    """Signal that very process; False when it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        # A kernel (or a sandbox) without such handles: then the comparison comes just before the signal.
        if not lives(process):
            return False
        os.kill(process.pid, number)
        return True
    try:
        if not lives(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def session_of(leader: Known) -> list[Known]:
    """All processes of the session that this process leads, itself first; what they started is among them."""
    found = [leader] if lives(leader) else []
    for pid in _pids():
        stat = _stat(pid)
        # Nobody in a session is older than its leader: an older one is of another session with the same number.
        if stat and stat.session == leader.pid and pid != leader.pid and stat.started >= leader.started:
            found.append(Known(pid, stat.started, leader.boot))
    return found


def descendants(pid: int, spared: Collection[int] = ()) -> list[Known]:
    """All that a process has started, directly or not; `spared`: the sessions of these are left out."""
    children: dict[int, list[int]] = {}
    stats: dict[int, _Stat] = {}
    for each in _pids():
        if (stat := _stat(each)) is not None:
            stats[each] = stat
            children.setdefault(stat.parent, []).append(each)
    found, waiting, boot = [], [pid], boot_id()
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child)
            if stats[child].session not in spared:
                found.append(Known(child, stats[child].started, boot))
    return found


def find_leader(*arguments: str) -> Known | None:
    """The session leader whose command line has these arguments in a row, if there is one."""
    wanted = b"\0" + b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"
    for pid in _pids():
        try:
            command = (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        stat = _stat(pid)
        if wanted in b"\0" + command and stat is not None and stat.session == pid:
            return Known(pid, stat.started, boot_id())
    return None


def await_end(leader: Known, timeout_s: float) -> list[Known]:
    """Wait until nobody of its session is left; those that are after `timeout_s`.

    The session is looked up anew each time: its leader may have started somebody in its last moment.
    """
    deadline = time.monotonic() + timeout_s
    while (left := session_of(leader)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def _pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)
