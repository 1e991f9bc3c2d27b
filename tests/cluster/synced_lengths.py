"""How much of every write-ahead log was synced for certain when its process was killed.

A small library is loaded into the process before all others (LD_PRELOAD). It stands in for fsync and fdatasync: notes
how long the file is when the sync begins, waits a little, syncs, and only then writes the length down, in a file that
outlives a kill. So whatever lies beyond that length was acknowledged to nobody, and may be cut off: that is what a loss
of power can do and a kill alone can't. The waiting makes sure that there is something to cut off.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from trimtab.node.data_directory import LOCK_FILE

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int synced(const char *name, int fd) {
    int (*sync)(int) = (int (*)(int)) dlsym(RTLD_NEXT, name);
    char link[64], path[PATH_MAX], note[PATH_MAX + 32];
    struct stat before;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    const char *notes = getenv("SYNCED_LENGTHS"), *end = strrchr(path, '.');
    int is_log = notes && end && !strcmp(end, ".log") && !fstat(fd, &before);
    if (is_log && getenv("SYNC_DELAY_US")) usleep(atoi(getenv("SYNC_DELAY_US")));
    int result = sync(fd);
    if (is_log && !result) {
        int out = open(notes, O_WRONLY | O_CREAT | O_APPEND, 0644);
        int size = snprintf(note, sizeof note, "%lld %s\n", (long long) before.st_size, path);
        if (out < 0 || write(out, note, size) != size) abort();
        close(out);
    }
    return result;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
"""


class SyncedLengths:
    """For one process: start it with `env`, kill it, then `cut_tail`."""

    def __init__(self, folder: Path, delay_ms: int = 10) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler to make the library with that watches syncs")
        folder.mkdir()
        source, library = folder / "synced.c", folder / "synced.so"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._notes = folder / "lengths"
        self.env = {
            "LD_PRELOAD": str(library),
            "SYNCED_LENGTHS": str(self._notes),
            "SYNC_DELAY_US": str(delay_ms * 1000),
        }

    def synced_bytes(self, log: Path) -> int:
        """What of this log is synced for certain."""
        lengths = [line.split(" ", 1) for line in self._notes.read_text().splitlines()]
        return max((int(length) for length, path in lengths if path == str(log)), default=0)

    def unsynced_bytes(self, directory: Path) -> int:
        """How long the tail is that may be cut off the newest log of a store."""
        newest = newest_log(directory)
        return newest.stat().st_size - self.synced_bytes(newest)

    def cut_tail(self, directory: Path, share: float) -> int:
        """Cut this share of the unsynced tail off the newest log of a store; how many bytes that was."""
        await_end(directory.parent)
        newest = newest_log(directory)
        cut = round(self.unsynced_bytes(directory) * share)
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size - cut)
        return cut


def await_end(data_dir: Path) -> None:
    """Wait until nobody is left who could still write here: who was killed may be dying inside of a write."""
    with (data_dir / LOCK_FILE).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its last process holds it; it is given back with the file


def newest_log(directory: Path) -> Path:
    return max(directory.glob("*.log"), key=lambda path: int(path.stem))
