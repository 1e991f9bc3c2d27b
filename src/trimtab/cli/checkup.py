"""What `trimtab doctor` looks at on this machine, before an instance is started on it: each look is one function.

A check says ok, warn or fail, what was found, and what to do. `fail` means that an instance could not run, or could
lose data; `warn` that it would run worse than it might. Nothing is changed: the disk is written to in a file that is
gone afterwards, and ports are bound for a moment.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import importlib.metadata
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.playground.ports import PORTS_EACH, why_taken

OLDEST_PYTHON = (3, 11)
_GIB = 1 << 30
_MIB = 1 << 20
_SYNCS = 30
_SYNC_SLOW_MS = 20.0
# File systems whose contents are gone with the machine's power, or whose syncs and locks are those of another machine.
_IN_MEMORY = frozenset(("tmpfs", "ramfs"))
_REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"))
_GOOD_CLOCKS = frozenset(("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"))
_STA_UNSYNC = 0x0040


class Grade(enum.Enum):
    """How it stands."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    grade: Grade
    text: str
    what_to_do: str = ""


def ok(name: str, text: str) -> Check:
    return Check(name, Grade.OK, text)


def warn(name: str, text: str, what_to_do: str) -> Check:
    return Check(name, Grade.WARN, text, what_to_do)


def fail(name: str, text: str, what_to_do: str) -> Check:
    return Check(name, Grade.FAIL, text, what_to_do)


def python() -> Check:
    version = platform.python_version()
    oldest = ".".join(str(part) for part in OLDEST_PYTHON)
    if sys.version_info < OLDEST_PYTHON:
        return fail("python", f"Python {version} is too old", f"use Python {oldest} or newer")
    if platform.python_implementation() != "CPython":
        return warn("python", f"{platform.python_implementation()} {version}", "use CPython: the rest was never tried")
    return ok("python", f"CPython {version}")


def packages(names: Sequence[str] = ("msgspec", "uvloop", "rocksdict", "fastapi", "uvicorn")) -> list[Check]:
    """Whether what an instance is made of can be loaded here."""
    found = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # an extension module may fail in any way
            found.append(
                fail("package", f"{name} can't be loaded: {error}", "run ./trimtab again, it sets up what is missing")
            )
        else:
            found.append(ok("package", f"{name} {importlib.metadata.version(name)}"))
    return found


def ports(host: str, first: int, owners: dict[int, str]) -> list[Check]:
    """The ports of an instance. `owners` are those of instances that run: having them taken is no fault."""
    purposes = ("node", "CQL, later", "HTTP", "bulk")
    found = []
    for port, purpose in zip(range(first, first + PORTS_EACH), purposes, strict=True):
        why = why_taken(host, port)
        if not why:
            found.append(ok("port", f"{port} ({purpose}) is free"))
        elif first in owners:
            found.append(ok("port", f"{port} ({purpose}) belongs to {owners[first]}, which runs"))
        else:
            found.append(fail("port", f"{why} ({purpose})", "end what uses it, or choose another port with --listen"))
    return found


# Disk


def existing(path: Path) -> Path:
    """The directory, or the nearest above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def disk(data_dir: Path) -> list[Check]:
    """The disk a data directory is on, or would be."""
    where = existing(data_dir)
    if not where.is_dir():
        return [fail("disk", f"{where} is no directory", "choose another with --data-dir")]
    kind = file_system(where)
    checks = [_file_system(where, kind), _space(where)]
    try:
        with tempfile.NamedTemporaryFile(prefix=".trimtab-doctor-", dir=where) as file:
            checks.append(ok("disk", f"{where} is writable"))
            checks.append(_syncs(file.fileno(), kind))
    except OSError as error:
        checks.append(
            fail(
                "disk",
                f"can't write in {where}: {error.strerror}",
                "choose another with --data-dir, or mend its rights",
            )
        )
    return checks


def file_system(path: Path) -> str:
    """The type of the file system a path is on; empty if the kernel does not tell."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        # A later mount hides an earlier one at the same place.
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def _file_system(where: Path, kind: str) -> Check:
    if kind in _IN_MEMORY:
        return warn("disk", f"{where} is on {kind}: in memory", "choose a real disk with --data-dir: this one forgets")
    if kind in _REMOTE:
        return warn("disk", f"{where} is on {kind}: on another machine", "choose a local disk with --data-dir")
    return ok("disk", f"{where} is on {kind or 'a file system of unknown type'}")


def _space(where: Path) -> Check:
    state = os.statvfs(where)
    free, total = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    text = f"{free / _GIB:.1f} GiB of {total / _GIB:.1f} GiB are free"
    if free < 128 * _MIB:
        return fail("disk", text, "make space: an instance refuses writes below 64 MiB")
    if free < 5 * _GIB or free < total // 20:
        return warn("disk", text, "make space: moving and compacting data need some of their own")
    if state.f_files and state.f_favail < 10_000:
        return warn("disk", f"{state.f_favail} files can still be made", "free inodes: RocksDB makes many files")
    return ok("disk", text)


def _syncs(descriptor: int, kind: str) -> Check:
    times_ms = []
    for _ in range(_SYNCS):
        os.write(descriptor, b"\0" * 4096)
        began = time.perf_counter()
        os.fdatasync(descriptor)
        times_ms.append((time.perf_counter() - began) * 1000)
        if sum(times_ms) > 3000:
            break
    median, worst = statistics.median(times_ms), max(times_ms)
    text = f"a sync takes {median:.2f} ms (median of {len(times_ms)}), at worst {worst:.1f} ms"
    if median > _SYNC_SLOW_MS:
        return warn("disk", text, "use a faster disk: every write waits for a sync")
    if median < 0.01 and kind not in _IN_MEMORY:
        return warn("disk", text, "find out whether syncs reach the disk at all: this is too fast to be true")
    return ok("disk", text)


# Limits and memory


def limits() -> list[Check]:
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = []
    text = f"{_number(files)} open files are allowed"
    raise_it = f"raise it: ulimit -n {min(65_536, most_files) if most_files > 0 else 65_536}"
    if 0 <= files < 512:
        found.append(fail("limits", text, raise_it))
    elif 0 <= files < 4096:
        found.append(warn("limits", text, raise_it))
    else:
        found.append(ok("limits", text))
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    text = f"{_number(processes)} processes are allowed"
    if 0 <= processes < 256:
        found.append(warn("limits", text, "raise it: ulimit -u 4096; threads count, too"))
    else:
        found.append(ok("limits", text))
    return found


def _number(limit: int) -> str:
    return "unlimited" if limit < 0 else f"{limit:,}"


def memory() -> Check:
    available = _memory_available()
    if available is None:
        return warn("memory", "the kernel does not tell how much is available", "make sure an instance has 256 MiB")
    text = f"{available / _GIB:.1f} GiB are available"
    if available < 192 * _MIB:
        return fail("memory", text, "an instance needs about 130 MiB to begin with; end something, or add memory")
    if available < _GIB:
        return warn("memory", text, "add memory before data is loaded: caches and memtables need some")
    return ok("memory", text)


def _memory_available() -> int | None:
    """What the machine has left; less, where a control group allows less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return min(available, int(most) - used) if most.isdigit() else available


# Clocks


class _Timex(ctypes.Structure):
    """The beginning of the kernel's `struct timex`, and room for the rest of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def clocks(watch_s: float = 0.3) -> list[Check]:
    return [_synchronised(), _steady(watch_s), _source()]


def _synchronised() -> Check:
    asked = _Timex()
    state = ctypes.CDLL(None).adjtimex(ctypes.byref(asked))
    if state < 0:
        return warn("clock", "the kernel does not tell whether the clock is synchronised", "make sure that it is")
    if state == 5 or asked.status & _STA_UNSYNC:
        return warn("clock", "is not synchronised", "run chrony or another NTP client: stamps of writes come from it")
    return ok("clock", f"is synchronised (at most {asked.maxerror / 1000:.0f} ms off)")


def _steady(watch_s: float) -> Check:
    """The wall clock against the one that nobody sets: they should advance alike."""
    wall, steady = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    time.sleep(watch_s)
    jumped_ms = abs((time.time() - wall) - (time.clock_gettime(time.CLOCK_BOOTTIME) - steady)) * 1000
    if jumped_ms > 10:
        text = f"the wall clock jumped by {jumped_ms:.0f} ms in {watch_s:g} s"
        return warn("clock", text, "let an NTP client slew the clock instead of setting it")
    return ok("clock", f"runs steadily ({jumped_ms:.2f} ms off in {watch_s:g} s)")


def _source() -> Check:
    try:
        name = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        return ok("clock", "its source is not known")
    if name not in _GOOD_CLOCKS:
        return warn("clock", f"its source is {name}", "reading it may be slow; tsc or a paravirtual clock is faster")
    return ok("clock", f"its source is {name}")
