"""The lowest priority, of the processor and of the disk, for what works in bulk beside those who serve.

`nice` alone does not do on machines that share the processor among *sessions* first (Linux with autogroups, which is
the default): there it only counts among the processes of one session, and a session that works in bulk gets as much as
one that serves. So what works in bulk has a session of its own, and that is given a low priority too; not the lowest,
at which a whole session would get nothing for minutes on a machine where others are busy.

A process that leads a group (a shell's job) can't leave its session, and one that was started by hand should not: the
terminal's signals go to its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path

NICE = 19
SESSION_NICE = 10
_IOPRIO_IDLE = 3 << 13
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_AUTOGROUP = Path("/proc/self/autogroup")


def give_way(*, leave: bool) -> None:
    """Run only when nobody else wants to, as far as the machine lets us. `leave`: in a session of its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        # Threads that are started later inherit it. Where it is not known, the disk's scheduler has no such classes.
        ctypes.CDLL(None).syscall(number, 1, 0, _IOPRIO_IDLE)
    if leave and os.getsid(0) != os.getpid():
        with contextlib.suppress(OSError):
            os.setsid()
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            # Where there are no such groups there is no such file.
            _AUTOGROUP.write_text(str(SESSION_NICE))


def session_nice(pid: int) -> int | None:
    """The priority of the session that a process belongs to; None where sessions have none."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition("nice")[2])
    except (OSError, ValueError):
        return None
