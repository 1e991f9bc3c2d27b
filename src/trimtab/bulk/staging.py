"""Files that come in: `staging/<session>/<tablet>/<name>`, whole and durable, or not there under that name.

    .<name>.<size>-<checksum>.part what has come so far; going on with it needs the same size and checksum
    .<name>.<thread>.part          a small file that is just being written
    <name>                         whole: the checksum is right, file and directory are synced

A crash leaves parts, which the next attempt goes on with, or the node removes with the session. Before a byte is taken
there has to be room for all of it beyond the node's reserve, what others are just sending counted. A file that is there
already, with the same size and checksum, is success at once: asking again is harmless. Another one under its name is
in the way, unless the sender says that it is damaged: then it is replaced, in the moment the new one is whole.

Small files that come together (`take_all`) wait for the disk together: it makes many durable in the time of one.

The directories are made by whoever comes first, and may vanish at any time: the node removes a session's when it ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from trimtab.storage.file_sums import FileSum, sum_of_file
from trimtab.storage.store_files import sync_path

ROOT = "staging"
_AHEAD_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_REMEMBERED = 10_000
_SYNCS = 8  # at a time
T = TypeVar("T")
R = TypeVar("R")


class NoRoom(Exception):
    """There is not enough space on the disk; the text says how much there is."""


class Differs(Exception):
    """Another file of that name is there; the text says which."""


class WrongSum(Exception):
    """What came is not what was announced."""


class SessionGone(Exception):
    """Its directory has vanished: the node has removed it."""


class Incoming:
    """One file on its way in. `have` bytes of it are here."""

    def __init__(self, part: Path, target: Path, size_bytes: int, checksum: int) -> None:
        self.have = 0
        self._on_its_way = 0  # so much of it has been given to the disk
        self.size_bytes = size_bytes
        self._part, self._target = part, target
        self._wanted = checksum
        self._sum = FileSum()
        try:
            self._file = part.open("a+b", buffering=0)
        except FileNotFoundError:
            raise SessionGone(f"{part.parent} has vanished") from None
        try:
            self._take_up()
        except BaseException:
            self.close()
            raise

    def _take_up(self) -> None:
        """Go on where an earlier attempt ended."""
        self._file.seek(0)
        while piece := self._file.read(_READ_BYTES):
            self._sum.add(piece)
            self.have += len(piece)
        if self.have > self.size_bytes:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._file.truncate(0)
        self.have = self._on_its_way = 0
        self._sum = FileSum()

    @property
    def left(self) -> int:
        return self.size_bytes - self.have

    def write(self, data: memoryview) -> None:
        rest = data
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._sum.add(data)
        self.have += len(data)
        if self.have - self._on_its_way >= _AHEAD_BYTES:
            # The disk begins with it now. All at once at the end, whatever the node syncs meanwhile would wait for it.
            length = self.have - self._on_its_way
            os.posix_fadvise(self._file.fileno(), self._on_its_way, length, os.POSIX_FADV_DONTNEED)
            self._on_its_way = self.have

    def finish(self) -> None:
        """All of it has come: under its name, durable. WrongSum: it is not what was announced, and is gone."""
        if (found := self._sum.value) != self._wanted:
            self.discard()
            raise WrongSum(f"the checksum of what came is {found:016x}, and {self._wanted:016x} was announced")
        os.fsync(self._file.fileno())
        try:
            self._part.rename(self._target)
            sync_path(self._target.parent)
        except FileNotFoundError:
            raise SessionGone(f"{self._target.parent} has vanished") from None

    def discard(self) -> None:
        """Leave nothing of it."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self._part.unlink()

    def close(self) -> None:
        self._file.close()


class Staging:
    """Of one data directory. `free_bytes`: what the disk has left beyond the reserve."""

    def __init__(self, directory: Path, free_bytes: Callable[[], int]) -> None:
        self._root = directory / ROOT
        self._free_bytes = free_bytes
        self._lock = threading.Lock()
        self._promised: dict[Path, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._sums: dict[Path, tuple[int, int, int]] = {}  # size, time, checksum of files that are whole

    def target(self, session: str, tablet: int, name: str) -> Path:
        """Where a file ends up; the names have been checked."""
        return self._root / session / str(tablet) / name

    def is_there(self, target: Path, size_bytes: int, checksum: int, *, replace: bool = False) -> bool:
        """Whether exactly this file is there, whole. Differs: another one is, and it is not to be replaced."""
        if replace:
            # A file goes bad without its time changing.
            with self._lock:
                self._sums.pop(target, None)
        try:
            found = target.stat()
            if found.st_size == size_bytes and self._sum_of(target, found) == checksum:
                return True
        except (FileNotFoundError, NotADirectoryError):
            # Perhaps just now: the node takes files over, and sweeps.
            return False
        if replace:
            return False
        raise Differs(f"{target.name} is there already with {found.st_size} bytes and another content; use a new name")

    def part_bytes(self, target: Path, size_bytes: int, checksum: int) -> int:
        """How much of it has come."""
        try:
            return _part(target, size_bytes, checksum).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    @contextlib.contextmanager
    def take(self, target: Path, size_bytes: int, checksum: int) -> Iterator[Incoming]:
        """A file that comes in now, by one sender at a time. NoRoom: it does not fit, and nothing was begun."""
        self._promise(target, size_bytes - self.part_bytes(target, size_bytes, checksum))
        try:
            make_directories(target.parent, self._root.parent)
            incoming = Incoming(_part(target, size_bytes, checksum), target, size_bytes, checksum)
            try:
                yield incoming
            finally:
                incoming.close()
        finally:
            with self._lock:
                self._promised.pop(target, None)

    def take_all(self, files: Sequence[tuple[Path, bytes]]) -> list[Exception | None]:
        """Small files, whole and checked: all of them durable under their names, in this order. Of each why it is not:
        NoRoom, SessionGone, OSError. Of a directory none comes after one that failed: a manifest is the last of its
        files, and says that the others are there.
        """
        failed: list[Exception | None] = [None] * len(files)
        wanted_bytes = sum(len(data) for _, data in files)
        place = files[0][0]
        try:
            self._promise(place, wanted_bytes)
        except NoRoom as error:
            return [error] * len(files)
        try:
            directories = dict.fromkeys(target.parent for target, _ in files)
            made = dict(zip(directories, self._together(self._make, directories), strict=True))
            parts = self._together(lambda each: made[each[0].parent] or _written(*each), files)
            broken: dict[Path, Exception] = {}
            for number, ((target, _), found) in enumerate(zip(files, parts, strict=True)):
                why_not = _renamed(found, target, broken.get(target.parent))
                if why_not is not None:
                    failed[number] = broken[target.parent] = why_not
            synced = dict(zip(directories, self._together(_synced, directories), strict=True))
            return [error or synced[target.parent] for error, (target, _) in zip(failed, files, strict=True)]
        finally:
            with self._lock:
                self._promised.pop(place, None)

    def _make(self, directory: Path) -> Exception | None:
        try:
            make_directories(directory, self._root.parent)
        except (SessionGone, OSError) as error:
            return error
        return None

    def _together(self, work: Callable[[T], R], things: Iterable[T]) -> list[R]:
        """Of each what the work gives; several at a time, because what they wait for is the disk."""
        some = list(things)
        if len(some) == 1:
            return [work(some[0])]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SYNCS, thread_name_prefix="bulk sync")
            pool = self._pool
        return list(pool.map(work, some))

    def _promise(self, target: Path, wanted_bytes: int) -> None:
        with self._lock:
            free_bytes = self._free_bytes() - sum(self._promised.values())
            if wanted_bytes > free_bytes:
                raise NoRoom(
                    f"{target.name} needs {wanted_bytes} bytes more, and the disk has {max(free_bytes, 0)} left beyond "
                    "its reserve and what others are sending; free some space there"
                )
            self._promised[target] = max(wanted_bytes, 0)

    def _sum_of(self, target: Path, found: os.stat_result) -> int:
        with self._lock:
            known = self._sums.get(target)
        if known is not None and known[:2] == (found.st_size, found.st_mtime_ns):
            return known[2]
        with target.open("rb", buffering=0) as file:
            checksum = sum_of_file(file)
        with self._lock:
            if len(self._sums) >= _REMEMBERED:
                self._sums.clear()
            self._sums[target] = (found.st_size, found.st_mtime_ns, checksum)
        return checksum


def _part(target: Path, size_bytes: int, checksum: int) -> Path:
    return target.with_name(f".{target.name}.{size_bytes}-{checksum:016x}.part")


def _written(target: Path, data: bytes) -> Path | Exception:
    """The file under a name of its own, durable."""
    # Of this thread alone: the same file may come from two senders at once.
    part = target.with_name(f".{target.name}.{threading.get_ident():x}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return SessionGone(f"{target.parent} has vanished")
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        return error
    return part


def _renamed(part: Path | Exception, target: Path, earlier: Exception | None) -> Exception | None:
    """Why it is not under its name: it was not written, or an `earlier` one of its directory was not."""
    if isinstance(part, Exception):
        return part
    if earlier is not None:
        with contextlib.suppress(OSError):
            part.unlink()
        return earlier
    try:
        part.rename(target)
    except FileNotFoundError:
        return SessionGone(f"{target.parent} has vanished")
    except OSError as error:
        return error
    return None


def _synced(directory: Path) -> Exception | None:
    try:
        sync_path(directory)
    except FileNotFoundError:
        return SessionGone(f"{directory} has vanished")
    except OSError as error:
        return error
    return None


def make_directories(directory: Path, base: Path) -> None:
    """Make a directory below `base`, durably."""
    if directory.is_dir():
        return
    missing = [directory]
    while missing[-1].parent != base and not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    try:
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            sync_path(each.parent)
    except FileNotFoundError:
        raise SessionGone(f"{directory} has vanished") from None
