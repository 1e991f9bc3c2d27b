"""Directories that a driver makes for files of its tasks, which may be another user's.

A directory whose group may write, and which hands its group on (mode 2775), was made for several users to share. What
is made in it is shared by them, too, whatever the umask of whoever makes it: else only the driver could write where its
tasks have to. Anywhere else nothing is opened to anybody.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

_SHARED = stat.S_ISGID | stat.S_IWGRP


def make(system: Any, path: str) -> None:
    """Make a directory of an Arrow file system, and those above it that are missing. OSError: it can't be made."""
    if system.type_name != "local":
        system.create_dir(path, recursive=True)
        return
    wanted = Path(path)
    missing = [each for each in (wanted, *wanted.parents) if not each.exists()]
    system.create_dir(path, recursive=True)
    for folder in reversed(missing):
        _share(folder)


def _share(folder: Path) -> None:
    if folder.parent.stat().st_mode & _SHARED == _SHARED:
        # Somebody else may have made it a moment ago; then it was for them to share it.
        with contextlib.suppress(PermissionError):
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | _SHARED | stat.S_IRGRP | stat.S_IXGRP)
