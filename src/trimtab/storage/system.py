"""What a disk wants of the operating system."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_OPEN_FILES = 65_536
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Where the system does not tell, each life of the process is one."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return os.urandom(16).hex()


def allow_open_files() -> None:
    """A tablet store has about eight files open; the usual soft limit of 1,024 would do for a hundred of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
