"""A directory for the files of one task attempt, which is gone afterwards, whatever happens.

Spark may kill a task so that not even its `finally` runs. So every folder has a lock that its process holds: whoever
makes the next folder on this machine removes those whose lock nobody holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "trimtab-load-"
_MAKING = ".making-trimtab-load-"
_MAKING_S = 600.0  # one that is still being made then has lost its maker
_LOCK = "lock"
_MAX_SWEPT = 64  # at a time


class WorkFolder:
    """`with WorkFolder() as path`: an empty directory, below `base` or where temporary files go on this machine."""

    def __init__(self, base: str | None = None) -> None:
        self.base = Path(base or _base())
        self.path: Path | None = None
        self._lock = -1

    def __enter__(self) -> Path:
        sweep(self.base)
        # Under another name until the lock is held: else somebody could find it between the two, and remove it.
        made = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self.base))
        self._lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.with_name(PREFIX + made.name.removeprefix(_MAKING))
        made.rename(self.path)
        return self.path

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def sweep(base: Path) -> int:
    """Remove folders whose process is gone; how many."""
    removed = 0
    for made in sorted(base.glob(f"{_MAKING}*"))[:_MAX_SWEPT]:
        with contextlib.suppress(OSError):
            if time.time() - made.stat().st_mtime > _MAKING_S:
                shutil.rmtree(made, ignore_errors=True)
    for folder in sorted(base.glob(f"{PREFIX}*"))[:_MAX_SWEPT]:
        # Somebody else's, or one that is being made or removed right now: not ours to judge.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
            finally:
                os.close(lock)
    return removed


def _base() -> str:
    """Spark's own place for temporary files, where it has one: it is chosen to be large."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return given if given and Path(given).is_dir() else tempfile.gettempdir()
