"""A directory on a real file system as a Disk: RocksDB stores and small files.

Everything that changes names is durable when it returns: it is prepared under a name that begins with a dot, synced,
renamed, and the directory is synced. A crash leaves either the old or the new; what begins with a dot is swept
away when the disk is opened again.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

import rocksdict

from trimtab.storage import wal
from trimtab.storage.composing import Part, compose
from trimtab.storage.file_sums import FileSum
from trimtab.storage.linking import NO_LINKS
from trimtab.storage.off_loop import OffLoop
from trimtab.storage.port import (
    Corrupt,
    Report,
    StorageError,
    check_ascending,
    check_bytes,
    check_file_name,
    check_name,
)
from trimtab.storage.resting_store import RestingStore
from trimtab.storage.rocks_options import MOST_LOOSE_FILES, RocksOptions, merged_at_once, opened
from trimtab.storage.rocks_store import RocksBatch, RocksStore, explain, let_go
from trimtab.storage.rubbish import Rubbish
from trimtab.storage.sst_file import Unreadable, bounds_of
from trimtab.storage.store_files import (
    CONFIG,
    check_skeleton,
    delete,
    entries,
    is_store,
    may_rest,
    sync_path,
    sync_unless_gone,
)
from trimtab.storage.system import allow_open_files, boot_id

__all__ = ["RocksBatch", "RocksDisk", "RocksOptions", "RocksStore"]

T = TypeVar("T")

DEFAULT_RESERVE_BYTES = 64 * 1024 * 1024
# Besides the data of the logs: a new manifest, options and a log.
_OPEN_OVERHEAD_BYTES = 1024 * 1024
_DIGEST_BYTES = 1024 * 1024
_WAKE_EVERY_S = 0.2  # of stores that have taken much
_OWN_TABLE = "own"
_UNFINISHED = ".unfinished-"


class RocksDisk:
    """One instance's data directory. `report` hears of torn tails when the opener gives no report of its own, and of
    what could not be deleted.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        options: RocksOptions | None = None,
        report: Report | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.boot_id = boot_id()
        self.options = options or RocksOptions()
        self.off_loop = OffLoop(str(self.path))
        self._rubbish = Rubbish(str(self.path), self._say)
        self._reserve_bytes = reserve_bytes
        self._report = report
        self._cache = rocksdict.Cache(self.options.block_cache_bytes)
        self._small_memory = rocksdict.WriteBufferManager(self.options.small_total_bytes, False)
        self._open: dict[str, RocksStore] = {}
        self._reports: dict[str, Report | None] = {}
        self._small: set[str] = set()
        # Stores are opened, and directories removed, on threads too.
        self._unfinished = itertools.count(1)
        self._life = os.urandom(4).hex()  # what an earlier one has left may still be there
        self._making_parents = threading.Lock()
        self._opening = threading.Lock()
        self._template: Path | None = None
        self._links = True  # whether they can be made here, as far as is known
        self._templating = threading.Lock()
        self._wake_at = 0.0
        self.path.mkdir(parents=True, exist_ok=True)
        sync_path(self.path.parent)
        allow_open_files()
        self._sweep()

    @property
    def reserve_bytes(self) -> int:
        return self._reserve_bytes

    def open(
        self,
        name: str,
        *,
        wal: bool,
        report: Report | None = None,
        small: bool = False,
        coming: int = 0,
        resting: bool = False,
    ) -> RocksStore:
        path = self.path_of(name)
        if name in self._open:
            raise StorageError(f"{name!r} is open already; close it first")
        self._make_parent(name)
        self._reports[name] = report
        if small:
            self._small.add(name)
        merging = merged_at_once(coming)
        store: RocksStore
        if resting and small and not wal and coming <= MOST_LOOSE_FILES and may_rest(path):
            database = self._open_for_reading(path)
            store = RestingStore(self, name, merging=merging, database=database)
            try:
                store.wake_to_merge()
            except BaseException:
                database.close()
                raise
        else:
            database = self.open_database(name, self.report_to(name), merging=merging)
            store = RocksStore(self, name, wal=wal, merging=merging, database=database)
        self._open[name] = store
        return store

    def exists(self, name: str) -> bool:
        return self.path_of(name).exists()

    def rename(self, old: str, new: str) -> None:
        source, target = self.path_of(old), self.path_of(new)
        self._refuse_open(old)
        self._refuse_open(new)
        if not source.exists():
            raise StorageError(f"can't rename {old!r}: there is nothing of this name")
        if target.exists() and not (source.is_file() and target.is_file()):
            raise StorageError(f"can't rename {old!r} to {new!r}: the new name is taken; remove it first")
        self._make_parent(new)
        try:
            source.rename(target)
            sync_path(target.parent)
            if source.parent != target.parent:
                sync_unless_gone(source.parent)
        except OSError as error:
            raise explain(error, old, self, "rename") from error

    def remove(self, name: str, *, synced: bool = True) -> None:
        path = self.path_of(name)
        self._refuse_open(name)
        if not path.exists():
            return
        # Gone at once and as a whole; the files themselves may take a while.
        doomed = self._unfinished_path()
        try:
            # Another thread may remove it, or what it lies in, at the same time: gone is gone.
            with suppress(FileNotFoundError):
                path.rename(doomed)
            if synced:
                sync_unless_gone(path.parent)
                sync_path(self.path)
            if doomed.is_dir() and not doomed.is_symlink():
                self._rubbish.add(doomed)
            else:
                doomed.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"can't remove {name!r}: {error}") from error

    def names(self, prefix: str = "") -> list[str]:
        found: list[str] = []
        # Only below the prefix: what others do elsewhere meanwhile does not matter.
        base = self.path / prefix.rpartition("/")[0]
        directories = [] if is_store(base) else [base]
        while directories:
            for path in entries(directories.pop()):
                if path.name.startswith("."):
                    continue
                if path.is_dir() and not is_store(path):
                    directories.append(path)
                elif path.exists():
                    found.append(path.relative_to(self.path).as_posix())
        return sorted(name for name in found if name.startswith(prefix))

    def entries(self, name: str) -> list[str]:
        try:
            return sorted(path.name for path in self.path_of(name).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise explain(error, name, self, "list") from error

    def read_file(self, name: str) -> bytes | None:
        try:
            return self.path_of(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, name, self, "read") from error

    def digest(self, name: str) -> tuple[int, int] | None:
        size, found = 0, FileSum()
        try:
            with self.path_of(name).open("rb", buffering=0) as file:
                while chunk := file.read(_DIGEST_BYTES):
                    # Lets the interpreter go for a piece of this size.
                    found.add(chunk)
                    size += len(chunk)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            raise explain(error, name, self, "read") from error
        return size, found.value

    def write_file(self, name: str, data: bytes, *, synced: bool = True) -> None:
        check_bytes(data, "a file's contents")
        target = self.path_of(name)
        if target.is_dir():
            raise StorageError(f"can't write the file {name!r}: there is a store or directory of this name")
        self._make_parent(name, synced=synced)
        temporary = self._unfinished_path()
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            temporary.rename(target)
            if synced:
                sync_path(target.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise explain(error, name, self, "write") from error

    def write_table(self, name: str, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        target = self.path_of(name)
        if target.exists():
            raise StorageError(f"can't write the table {name!r}: the name is taken")
        self._make_parent(name)
        temporary = self._unfinished_path()
        try:
            self._write_pairs(name, temporary, pairs)
            temporary.rename(target)
            sync_path(target.parent)
        except Exception as error:
            temporary.unlink(missing_ok=True)
            raise explain(error, name, self, "write") from error
        return target.stat().st_size

    def _write_pairs(self, name: str, path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        writer = rocksdict.SstFileWriter(self.options.build_small(self._cache, self._small_memory))
        before: bytes | None = None
        writer.open(str(path))
        for key, value in pairs:
            if before is not None:
                check_ascending(name, (before, key))
            writer[key] = value
            before = key
        writer.finish()
        sync_path(path)

    @property
    def directory(self) -> str:
        return str(self.path)

    def files(self, name: str) -> list[tuple[str, int]]:
        path = self.path_of(name)
        try:
            return sorted((each.name, each.stat().st_size) for each in path.iterdir() if each.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def assemble(self, name: str, files: Mapping[str, str]) -> None:
        target = self.path_of(name)
        sources = {check_file_name(inside): self.path_of(source) for inside, source in files.items()}
        if target.exists():
            raise StorageError(f"can't assemble {name!r}: the name is taken")
        for source in sources.values():
            if not source.is_file():
                raise StorageError(f"can't assemble {name!r}: there is no file {source.relative_to(self.path)}")
        self._make_parent(name)
        temporary = self._unfinished_path()
        try:
            temporary.mkdir()
            for inside, source in sources.items():
                # That one would be written in place when the store is opened. It can be done without.
                if inside != CONFIG:
                    os.link(source, temporary / inside)
            sync_path(temporary)
            temporary.rename(target)
            sync_path(target.parent)
        except OSError as error:
            if temporary.exists():
                delete(temporary)
            raise explain(error, name, self, "assemble") from error

    def compose(self, name: str, tables: Sequence[str], pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        target = self.path_of(name)
        if target.exists():
            raise StorageError(f"can't compose {name!r}: the name is taken")
        parts = []
        for table in tables:
            try:
                parts.append(Part(self.path_of(table), *bounds_of(self.path_of(table))))
            except (OSError, Unreadable):
                return False
        self._make_parent(name)
        begun = self._unfinished_path()
        try:
            begun.mkdir()
            if pairs:
                own = begun / _OWN_TABLE
                self._write_pairs(name, own, pairs)
                parts.append(Part(own, pairs[0][0], pairs[-1][0], own.stat().st_size))
            compose(begun, parts)
            (begun / _OWN_TABLE).unlink(missing_ok=True)
            sync_path(begun)
            begun.rename(target)
            sync_path(target.parent)
        except Exception as error:
            if target.exists():
                target.rename(begun)
            if begun.exists():
                delete(begun)
            if isinstance(error, OSError) and error.errno in NO_LINKS:
                return False
            raise explain(error, name, self, "compose") from error
        return True

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def start(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self.off_loop.start(work, done)

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()

    def await_deleted(self) -> None:
        """Returns when what was removed takes no space any more. Blocking."""
        self._rubbish.await_empty()

    def close(self) -> None:
        """End the threads and close every store, those too that a thread has just opened."""
        self.off_loop.close()
        self._rubbish.close()
        for store in list(self._open.values()):
            store.close()
        self._drop_template()

    # What stores ask of their disk.

    def path_of(self, name: str) -> Path:
        return self.path / check_name(name)

    def report_to(self, name: str) -> Report | None:
        return self._reports.get(name) or self._report

    def forget(self, name: str) -> None:
        self._open.pop(name, None)
        self._reports.pop(name, None)
        self._small.discard(name)

    def turn_to_wake(self, now: float) -> float:
        """When the next resting store may be opened for writing without anybody waiting for it (loop time)."""
        turn = max(now, self._wake_at)
        self._wake_at = turn + _WAKE_EVERY_S
        return turn

    def recovery_bytes(self, name: str) -> int:
        """What opening this store may write: the contents of its logs, as tables."""
        path, size_bytes = self.path_of(name), _OPEN_OVERHEAD_BYTES
        try:
            logs = wal.live_logs(path)
        except FileNotFoundError:
            # It is open, and has just begun another manifest.
            logs = [each for each in path.iterdir() if each.suffix == ".log"]
        for log in logs:
            with suppress(FileNotFoundError):  # its rows are in tables by now
                size_bytes += log.stat().st_size
        return size_bytes

    def adopt_checkpoint(self, name: str, create: Callable[[str], None], *, synced: bool) -> None:
        target = self.path_of(name)
        if target.exists():
            raise StorageError(f"can't make the checkpoint {name!r}: the name is taken")
        self._make_parent(name, synced=synced)
        temporary = self._unfinished_path()
        try:
            create(str(temporary))
            if synced:
                for path in temporary.iterdir():
                    if path.suffix != ".sst":  # tables were synced when they were written
                        sync_path(path)
                sync_path(temporary)
            temporary.rename(target)
            if synced:
                sync_path(target.parent)
        except Exception as error:
            if temporary.exists():
                delete(temporary)
            raise explain(error, name, self, "checkpoint") from error

    def open_database(self, name: str, report: Report | None, *, merging: bool = True) -> rocksdict.Rdict:
        """Open or create, after looking for damage that RocksDB would hide, hang on, or build upon."""
        path = self.path_of(name)
        if path.is_file():
            raise StorageError(f"can't open the store {name!r}: there is a file of this name")
        small = name in self._small
        if not path.exists():
            if small and self._links:
                self._begin_small(path)
            return self._open_raw(path, small, merging)
        check_skeleton(path)
        self._settle(path, report, wal.judge(path, checksums=False))
        try:
            return self._open_raw(path, small, merging)
        except Corrupt as error:
            # The framing was fine, so it is a checksum: find out where, and whether it is the last record.
            verdict = wal.judge(path, checksums=True)
            if verdict is None:
                raise
            self._settle(path, report, verdict, cause=error)
        return self._open_raw(path, small, merging)

    def _begin_small(self, path: Path) -> None:
        """Make the files that a new store begins with, as links to those of one that was made before.

        RocksDB would sync each of them, one after the other, while no thread gets the interpreter. Where no links can
        be made it has to.
        """
        begun = self._unfinished_path()
        try:
            template = self._new_template()
            begun.mkdir()
            if self._link_template(template, begun):
                sync_path(begun)
                begun.rename(path)
                sync_path(path.parent)
            else:
                delete(begun)
        except OSError as error:
            if begun.exists():
                delete(begun)
            raise explain(error, str(path), self, "create") from error

    def _link_template(self, template: Path, begun: Path) -> bool:
        """Whether it could be done. Other errors than those that say it can't are the caller's."""
        try:
            for name in ("IDENTITY", "CURRENT", (template / "CURRENT").read_text().strip()):
                os.link(template / name, begun / name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Somebody may have removed the template: the next one makes it anew. Else there are no links here.
            self._links = not template.exists()
            self._drop_template()
            return False
        return True

    def _new_template(self) -> Path:
        """A store with nothing in it, for as long as this disk is open."""
        with self._templating:
            if self._template is None:
                made = self._unfinished_path()
                try:
                    self._open_raw(made, small=True, merging=True).close()
                except BaseException:
                    with suppress(OSError):
                        delete(made)
                    raise
                self._template = made
            return self._template

    def _link_config(self, path: Path) -> None:
        """One file for all of them. Each could do without, and would make its own; each writes it anew, the same again.
        So half of it may be there after a crash, which does no harm (`check_skeleton`).
        """
        if not self._links:
            return
        with suppress(OSError, StorageError):
            os.link(self._new_template() / CONFIG, path / CONFIG)

    def _drop_template(self) -> None:
        with self._templating:
            template, self._template = self._template, None
        if template is not None:
            with suppress(OSError):  # it is swept away at the next start
                delete(template)

    def _open_raw(self, path: Path, small: bool, merging: bool) -> rocksdict.Rdict:
        created = not path.exists()
        built = self.options.build_small(self._cache, self._small_memory) if small else self.options.build(self._cache)
        built.set_disable_auto_compactions(not merging)
        try:
            # No thread gets the interpreter while this runs, which takes some 5 ms. The loop gets it between two of
            # them: another one that opens a store waits for its turn, and a moment longer.
            with self._opening:
                database = opened(path, built)
                let_go()
        except Exception as error:
            raise explain(error, str(path), self, "open") from error
        if created:
            sync_path(path.parent)
        return database

    def _open_for_reading(self, path: Path) -> rocksdict.Rdict:
        check_skeleton(path)
        built = self.options.build_small(self._cache, self._small_memory)
        # All of them, from now on: they are read to the end even if they are merged into others meanwhile.
        built.set_max_open_files(-1)
        self._link_config(path)
        try:
            return opened(path, built, access_type=rocksdict.AccessType.read_only())
        except Exception as error:
            raise explain(error, str(path), self, "open") from error

    def _settle(
        self, path: Path, report: Report | None, verdict: wal.Verdict | None, cause: Exception | None = None
    ) -> None:
        """Cut off a torn tail and say so; refuse anything worse."""
        if verdict is None:
            return
        damage = verdict.damage
        if verdict.lost is not None:
            raise Corrupt(str(verdict.file), f"{damage.why}, and {verdict.lost}", offset=damage.offset) from cause
        os.truncate(verdict.file, damage.offset)
        sync_path(verdict.file)
        sync_path(path)
        if report is not None:
            report(
                f"torn tail: dropped the last {damage.tail_bytes} bytes of {verdict.file} from byte {damage.offset}: "
                f"{damage.why}; nothing follows, so nothing that was synced is lost"
            )

    def _refuse_open(self, name: str) -> None:
        for other in list(self._open):
            if other == name or other.startswith(name + "/"):
                raise StorageError(f"{other!r} is open; close it first")

    def _make_parent(self, name: str, *, synced: bool = True) -> None:
        directory = self.path
        # Whoever finds a directory that another thread has made finds it synced, unless it is for what need not be.
        with self._making_parents:
            for part in name.split("/")[:-1]:
                directory = directory / part
                if not directory.is_dir():
                    try:
                        directory.mkdir(exist_ok=True)  # the bulk child makes some of them too
                        if synced:
                            sync_path(directory.parent)
                    except OSError as error:
                        raise explain(error, name, self, "create") from error
                elif is_store(directory):
                    raise StorageError(f"{name!r} would lie inside the store {directory.relative_to(self.path)}")

    def _say(self, text: str) -> None:
        if self._report is not None:
            self._report(text)

    def _unfinished_path(self) -> Path:
        return self.path / f"{_UNFINISHED}{self._life}-{next(self._unfinished)}"

    def _sweep(self) -> None:
        for path in self.path.glob(f"{_UNFINISHED}*"):
            if path.is_dir() and not path.is_symlink():
                self._rubbish.add(path)
            else:
                path.unlink()
