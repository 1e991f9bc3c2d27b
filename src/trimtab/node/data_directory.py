"""The data directory as the supervisor sees it: nobody else uses it, and its database can be dropped.

One instance, one directory, one process: the file `lock` in it is locked from before the first child starts until the
last process that could write here has ended. The lock is inherited by the children, so one that is still dying after
its supervisor was killed keeps a new one waiting, for as long as dying may take.

A directory that holds files but no `instance.json` is nobody's we know, and is refused before anything is written. So
everything in a directory that was accepted once has been put there by its instance, and may be removed with the
database. Dropping is finished after a crash in its middle: half a database would be taken for a whole one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from pathlib import Path

from trimtab.storage.store_files import sync_path

IDENTITY_FILE = "instance.json"
LOCK_FILE = "lock"
DROPPING_FILE = "dropping"
# What outlives the database: who this is, and whom it has met.
KEPT_FILES = (IDENTITY_FILE, "discovery.json")
# What may be in a directory that is nobody's yet. A file system of its own begins with lost+found.
_BEFORE_IDENTITY = (LOCK_FILE, DROPPING_FILE, "discovery.json", "lost+found")
_LOCK_POLL_S = 0.02


class DirectoryRefused(Exception):
    """The data directory can't be used, or its database not be dropped; the text says why and what to do."""


class DataDirectory:
    """A locked data directory. Made by `claim`."""

    def __init__(self, path: Path, instance_id: str, lock: int) -> None:
        self.path = path
        self._instance_id = instance_id
        self._lock = lock

    @classmethod
    def claim(cls, path: Path, instance_id: str, *, dying_s: float = 5.0) -> DataDirectory:
        """Make the directory if need be, and lock it. DirectoryRefused: it is not ours, in use, or unusable."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(path)
            lock = _lock(path, dying_s)
        except OSError as error:
            raise DirectoryRefused(
                f"the data directory {path} can't be used: {error.strerror or error}; give --data-dir a directory that "
                "this user may write to"
            ) from error
        directory = cls(path, instance_id, lock)
        try:
            if (path / DROPPING_FILE).exists():
                directory.drop_database()
        except BaseException:
            directory.release()
            raise
        return directory

    @property
    def is_new(self) -> bool:
        """Whether no instance has lived here yet."""
        return not (self.path / IDENTITY_FILE).exists()

    def drop_database(self) -> None:
        """Remove everything but who this instance is and whom it has met; durable when it returns."""
        self._check_ours()
        kept = {*KEPT_FILES, LOCK_FILE, DROPPING_FILE, "lost+found"}
        try:
            (self.path / DROPPING_FILE).touch()
            sync_path(self.path)
            for entry in sorted(self.path.iterdir()):
                if entry.name in kept:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            sync_path(self.path)
            (self.path / DROPPING_FILE).unlink()
            sync_path(self.path)
        except OSError as error:
            raise DirectoryRefused(
                f"the database in {self.path} could not be dropped: {error}; mend that and start the instance again"
            ) from error

    def release(self) -> None:
        """Others may have the directory. The file stays: removing it would let two processes lock two files."""
        os.close(self._lock)

    def _check_ours(self) -> None:
        path = self.path / IDENTITY_FILE
        try:
            found = json.loads(path.read_bytes())["instance_id"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DirectoryRefused(
                f"{path} does not say whose data this is ({error!r}), so nothing in {self.path} is removed; give the "
                "instance its own --data-dir, or restore that file"
            ) from error
        if found != self._instance_id:
            raise DirectoryRefused(
                f"{self.path} holds the data of instance {found!r}, not of {self._instance_id!r}, so nothing in it is "
                "removed; give every instance a --data-dir of its own"
            )


def _refuse_foreign(path: Path) -> None:
    names = sorted(entry.name for entry in path.iterdir())
    if IDENTITY_FILE in names:
        return
    foreign = [name for name in names if name not in _BEFORE_IDENTITY and not name.startswith(".")]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise DirectoryRefused(
            f"the data directory {path} holds files ({shown}) but no {IDENTITY_FILE}, so it is unknown whose they are; "
            f"give the instance an empty --data-dir, or restore its {IDENTITY_FILE}"
        )


def _lock(path: Path, dying_s: float) -> int:
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        give_up_at = time.monotonic() + dying_s
        while not _try_lock(descriptor):
            holder = _holder(descriptor)
            if _alive(holder) or time.monotonic() > give_up_at:
                raise DirectoryRefused(
                    f"the data directory {path} is in use by process {holder or '(unknown)'}; stop that instance "
                    "first, or give this one a --data-dir of its own"
                )
            time.sleep(_LOCK_POLL_S)
        with contextlib.suppress(OSError):
            # The number is only for the message above. An instance may start on a full disk, and wait for space.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> int:
    """The supervisor that took the lock last; 0 where it is not known (yet)."""
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _alive(pid: int) -> bool:
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
