"""In a task: copies of replicas on their way, many at a time.

    as it is    all files of one replica's snapshot, from disk to socket, several at once
    merged      every pair that any of the sources has, once, as sorted runs; nothing is hidden, stamps stay
    small       a run of its own as well, even of one source: one file instead of many, and many of them in one pack

A copy is whole when its manifest is there, which comes last and names all files with sizes and checksums. Every file
arrives with its checksum: the target says that it has one only if the whole has the sum that was computed on the way.
What it has already is not sent again. Each copy fails by itself, for a reason that it returns; what may come back (a
bulk server that was killed) is waited for, for a while.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trimtab.bulk import protocol as bulk
from trimtab.bulk.client import BulkCancelled, BulkError, BulkRefused, SmallFile
from trimtab.node import failpoints
from trimtab.pipeline import copies
from trimtab.pipeline.copies import MANIFEST, SMALL_BYTES, Carried, Carry, Source
from trimtab.pipeline.hearing import Done
from trimtab.pipeline.links import Links, NotCopied, Sent, again, in_packs, near
from trimtab.pipeline.relaying import Budget, fetched
from trimtab.rows.ragged import Ragged
from trimtab.spark.work_folder import WorkFolder
from trimtab.storage.file_sums import sum_of
from trimtab.storage.port import StorageError
from trimtab.storage.sorted_streams import merged
from trimtab.storage.sst import Snapshot, small_batches
from trimtab.storage.sst_writing import TableWriter

SENDERS = 3  # of one task
RUN_BYTES = 64 << 20  # of pairs, in one run of a merge
PACKED_BYTES = 256 << 10  # files of less go together, with the manifest
HELD_BYTES = 256 << 20  # of files that pass through memory, in one task
_CODES = {bulk.NO_SESSION: copies.NO_SESSION, bulk.DISK_FULL: copies.DISK_FULL}
_armed = False


@dataclass(frozen=True)
class CarryTask:
    """`tls_files`: authority, certificate and key, where the cluster wants them."""

    carries: tuple[Carry, ...]
    tls_files: tuple[str, str, str] | None = None


def carry(task: CarryTask, done: Done) -> list[Carried]:
    """All of them, each as far as it goes."""
    _arm()
    with Links(task.tls_files, done) as links, WorkFolder() as folder:
        return _Carrier(links, folder, done).carry_all(task.carries)


def _arm() -> None:
    global _armed
    if not _armed:
        failpoints.arm_from_environment()
        _armed = True


class _Carrier:
    def __init__(self, links: Links, folder: Path, done: Done) -> None:
        self._links = links
        self._folder = folder
        self._done = done
        self._budget = Budget(HELD_BYTES)
        self._near: dict[tuple[int, str], bool] = {}

    def carry_all(self, carries: Sequence[Carry]) -> list[Carried]:
        small = [each for each in carries if each.size_bytes <= SMALL_BYTES]
        large = [each for each in carries if each.size_bytes > SMALL_BYTES]
        found: list[Carried] = []
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="carry") as pool:
            copying = [self._begin(each, pool) for each in large]
            sending: list[Future[list[Carried]]] = []
            for packed in self._packs(small, found):
                sending.append(pool.submit(self._send_pack, packed))
                if len(sending) > SENDERS:
                    # No more are made than can be sent.
                    found += sending.pop(0).result()
            for some in sending:
                found += some.result()
            found += [each.result() for each in copying]
        if self._done.stopping:
            raise BulkCancelled("the task was told to stop")
        return sorted(found, key=lambda each: each.number)

    def near(self, source: Source) -> bool:
        """Whether the files that the instance speaks of are those that can be read here."""
        # Not by the snapshot's name: all sources of a merge give theirs the same, and only some may lie here.
        known = source.raft_id, source.proof
        if known not in self._near:
            self._near[known] = near(source)
        return self._near[known]

    # Small ones

    def _packs(self, carries: Sequence[Carry], failed: list[Carried]) -> Iterator[list[_Small]]:
        """As many to one target as fit into a pack."""
        held: dict[str, list[_Small]] = {}
        for each in carries:
            failpoints.hit("stream.task.before", _who(each))
            if self._done.stopping:
                return
            try:
                small = self._made(each)
            except NotCopied as error:
                self._done.add(each.size_bytes)
                failed.append(_not_copied(each, error))
                continue
            waiting = held.setdefault(each.address, [])
            files = sum(len(other.files) for other in waiting) + len(small.files)
            if waiting and (
                files > bulk.PACK_FILES
                or sum(other.size_bytes for other in waiting) + small.size_bytes > bulk.PACK_BYTES
            ):
                yield held.pop(each.address)
                waiting = held.setdefault(each.address, [])
            waiting.append(small)
        yield from held.values()

    def _made(self, each: Carry) -> _Small:
        """The run and the manifest of a small copy."""
        files, listed = [], []
        with self._batches(each) as batches:
            for number, path in enumerate(self._runs(each, batches)):
                data = path.read_bytes()
                path.unlink()
                name = _run_name(each, number)
                files.append(SmallFile(each.ticket, each.session, each.tablet, name, data))
                listed.append(_listed(each, name, len(data), sum_of(data)))
        return _Small(each, [*files, _manifest(each, listed)])

    def _send_pack(self, some: list[_Small]) -> list[Carried]:
        for small in some:
            failpoints.hit("stream.task.half", _who(small.carry))
        try:
            found = self._packed(some[0].carry, [file for small in some for file in small.files])
        except NotCopied as error:
            found = [(0, error.code, str(error))] * sum(len(small.files) for small in some)
        told, at = [], 0
        for small in some:
            results, at = found[at : at + len(small.files)], at + len(small.files)
            each = small.carry
            wrong = next(((code, text) for _, code, text in results if code), None)
            self._done.add(each.size_bytes)
            if wrong is not None:
                told.append(_not_copied(each, NotCopied(*wrong)))
                continue
            sent_bytes = sum(count for count, _, _ in results)
            told.append(self._ended(each, len(small.files) - 1, small.size_bytes, sent_bytes))
        return told

    def _packed(self, each: Carry, files: Sequence[SmallFile]) -> list[tuple[int, str, str]]:
        """Of each file: what was sent of it, and code and text where it is not there."""

        def send() -> list[tuple[int, str, str]]:
            with self._links.to(each.address) as target:
                packed = target.pack(files)
            return [(one.sent_bytes, one.code and _CODES.get(one.code, copies.FAILED), one.text) for one in packed]

        return self._going_on(each, send)

    # Large ones

    def _begin(self, each: Carry, pool: ThreadPoolExecutor) -> Future[Carried]:
        """Begin a copy; its result comes when all of it is there."""
        if not each.as_it_is:
            return pool.submit(self._merge, each)
        return _Copy(self, each, pool).begin()

    def stage(self, each: Carry, name: str, path: Path, checksum: int | None, way: _Way) -> tuple[int, int]:
        """Send a file; its checksum, and what was sent of it."""

        def send() -> tuple[int, int]:
            with self._links.to(each.address) as target:
                staged = target.stage(
                    path, each.session, each.tablet, name, each.ticket, checksum=checksum, progress=way.arrived
                )
            way.arrived(staged.size_bytes, staged.size_bytes)
            return staged.checksum, staged.sent_bytes

        return self._going_on(each, send)

    def carry_file(self, each: Carry, file: str, size_bytes: int, half: _Half) -> tuple[dict[str, object], int]:
        """One file of a snapshot, as it is; how the manifest lists it, and what was sent of it."""
        (source,) = each.sources
        name, way = f"{each.stream}.{file}", _Way(half)
        if self.near(source):
            checksum, sent_bytes = self.stage(each, name, Path(source.directory) / source.path / file, None, way)
        else:
            with self._budget.taking(size_bytes), contextlib.ExitStack() as stack:
                path, known = self._fetched(source, file, size_bytes, stack)
                checksum, sent_bytes = self.stage(each, name, path, known, way)
        return _listed(each, name, size_bytes, checksum), sent_bytes

    def _fetched(self, source: Source, file: str, size_bytes: int, stack: contextlib.ExitStack) -> tuple[Path, int]:
        def fetch() -> tuple[Path, int]:
            with self._links.to(source.bulk_address) as client:
                return stack.enter_context(fetched(client, f"{source.path}/{file}", size_bytes, source.ticket))

        try:
            return again(fetch, self._done)
        except (BulkError, OSError) as error:
            raise _gone(source, error) from error

    def carry_packed(
        self, each: Carry, files: Sequence[tuple[str, int]]
    ) -> tuple[list[dict[str, object]], list[SmallFile]]:
        """Small files of a snapshot, for a pack, and how the manifest lists them."""
        (source,) = each.sources
        listed, packed = [], []
        for file, size_bytes in files:
            with contextlib.ExitStack() as stack:
                path = Path(source.directory) / source.path / file
                if not self.near(source):
                    path, _ = self._fetched(source, file, size_bytes, stack)
                try:
                    data = path.read_bytes()
                except OSError as error:
                    raise _gone(source, error) from error
            name = f"{each.stream}.{file}"
            listed.append(_listed(each, name, len(data), sum_of(data)))
            packed.append(SmallFile(each.ticket, each.session, each.tablet, name, data))
        return listed, packed

    def end_large(
        self,
        each: Carry,
        listed: list[dict[str, object]],
        sent_bytes: int,
        half: _Half,
        packed: Sequence[SmallFile] = (),
    ) -> Carried:
        """All large files are there: now the small ones, and the manifest behind them."""
        for some in in_packs([*packed, _manifest(each, listed)]):
            for count, code, text in self._packed(each, some):
                if code:
                    raise NotCopied(code, text)
                sent_bytes += count
        half.rest()
        return self._ended(each, len(listed), sum(int(str(file["bytes"])) for file in listed), sent_bytes)

    def _merge(self, each: Carry) -> Carried:
        half = _Half(each, self._done)
        try:
            failpoints.hit("stream.task.before", _who(each))
            listed, sent = [], 0
            with self._batches(each) as batches:
                for number, path in enumerate(self._runs(each, batches)):
                    name = _run_name(each, number)
                    size_bytes = path.stat().st_size
                    checksum, sent_bytes = self.stage(each, name, path, None, _Way(half))
                    path.unlink()
                    listed.append(_listed(each, name, size_bytes, checksum))
                    sent += sent_bytes
            return self.end_large(each, listed, sent, half)
        except NotCopied as error:
            half.rest()
            return _not_copied(each, error)

    # Parts

    def _ended(self, each: Carry, files: int, size_bytes: int, sent_bytes: int) -> Carried:
        self._done.finish([each.number, each.size_bytes])
        failpoints.hit("stream.task.after", _who(each))
        manifest = f"{each.stream}.{MANIFEST}"
        return Carried(each.number, each.tablet, each.target, "", "", manifest, files, size_bytes, sent_bytes)

    @contextlib.contextmanager
    def _batches(self, each: Carry) -> Iterator[Iterator[tuple[Ragged, Ragged]]]:
        """Every pair that any of the sources has, in order."""
        with contextlib.ExitStack() as stack:
            try:
                yield merged([self._read(each, source, stack) for source in each.sources])
            except (StorageError, FileNotFoundError) as error:
                if isinstance(error, FileNotFoundError):
                    raise NotCopied(copies.SOURCE_GONE, f"files of tablet {each.tablet} vanished: {error}") from error
                raise NotCopied(copies.DAMAGED, f"a source of tablet {each.tablet} is damaged: {error}") from error

    def _read(self, each: Carry, source: Source, stack: contextlib.ExitStack) -> Iterator[tuple[Ragged, Ragged]]:
        path = self._here(each, source, stack)
        small = small_batches(path) if source.size_bytes <= SMALL_BYTES else None
        return stack.enter_context(Snapshot(path)).batches() if small is None else small

    def _here(self, each: Carry, source: Source, stack: contextlib.ExitStack) -> Path:
        """Where the files of a snapshot can be read."""
        if self.near(source):
            return Path(source.directory) / source.path
        folder = self._folder / f"{each.number}-{source.raft_id}"
        folder.mkdir()
        stack.callback(_remove, folder)

        def fetch() -> None:
            with self._links.to(source.bulk_address) as client:
                for file, size_bytes in source.files:
                    if not (folder / file).exists():
                        path = f"{source.path}/{file}"
                        client.fetch_to(folder / file, path, source.ticket, size_bytes=size_bytes)

        try:
            again(fetch, self._done)
        except (BulkError, OSError) as error:
            raise _gone(source, error) from error
        return folder

    def _runs(self, each: Carry, batches: Iterator[tuple[Ragged, Ragged]]) -> Iterator[Path]:
        """Files of sorted pairs, each yielded when it is whole; the same in every attempt at the same snapshots."""
        number, held_bytes = 0, 0
        writer: TableWriter | None = None
        path = self._folder
        for keys, values in batches:
            if not len(keys):
                continue
            if writer is None:
                path = self._folder / f"{each.number}.{number}"
                path.unlink(missing_ok=True)
                writer, held_bytes = TableWriter(path, identity=f"{each.session}/{each.stream}/{number}"), 0
            writer.add([keys], values)
            held_bytes += keys.size + values.size
            if held_bytes >= RUN_BYTES:
                _finished(writer)
                yield path
                writer, number = None, number + 1
        if writer is not None:
            _finished(writer)
            yield path

    def _going_on(self, each: Carry, send: Callable[[], Sent]) -> Sent:
        """Send to a copy's target, again where that may help."""
        where = f"to {each.target_name}"
        try:
            return again(send, self._done)
        except BulkRefused as error:
            raise NotCopied(_CODES.get(error.code, copies.FAILED), f"{where}: {error}") from error
        except FileNotFoundError as error:
            raise NotCopied(copies.SOURCE_GONE, f"a file of its snapshot has vanished: {error}") from error
        except (BulkError, OSError) as error:
            raise NotCopied(copies.TARGET_GONE, f"{where}: {error}") from error


@dataclass(frozen=True)
class _Small:
    """A copy that goes into a pack: its runs, and its manifest last."""

    carry: Carry
    files: list[SmallFile]

    @property
    def size_bytes(self) -> int:
        return sum(len(file.data) for file in self.files)


class _Copy:
    """All files of one snapshot, several at a time."""

    def __init__(self, carrier: _Carrier, each: Carry, pool: ThreadPoolExecutor) -> None:
        self._carrier = carrier
        self._carry = each
        self._pool = pool
        self._half = _Half(each, carrier._done)
        self._lock = threading.Lock()
        self._files = [file for file in each.sources[0].files if file[1] > PACKED_BYTES]
        self._small = [file for file in each.sources[0].files if file[1] <= PACKED_BYTES]
        self._left = len(self._files)
        self._listed: list[dict[str, object]] = []
        self._sent_bytes = 0
        self._failed: NotCopied | None = None
        self._result: Future[Carried] = Future()

    def begin(self) -> Future[Carried]:
        for file, size_bytes in self._files:
            self._pool.submit(self._one, file, size_bytes)
        if not self._files:
            self._pool.submit(self._end)
        return self._result

    def _one(self, file: str, size_bytes: int) -> None:
        try:
            self._half.before()
            if self._failed is None:
                listed, sent_bytes = self._carrier.carry_file(self._carry, file, size_bytes, self._half)
                with self._lock:
                    self._listed.append(listed)
                    self._sent_bytes += sent_bytes
        except NotCopied as error:
            self._failed = error
        except BaseException as error:
            self._failed = self._failed or NotCopied(copies.FAILED, f"{type(error).__name__}: {error}")
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._end()

    def _end(self) -> None:
        try:
            if self._failed is not None:
                raise self._failed
            self._half.before()
            listed, packed = self._carrier.carry_packed(self._carry, self._small)
            listed = sorted([*self._listed, *listed], key=lambda file: str(file["name"]))
            self._result.set_result(self._carrier.end_large(self._carry, listed, self._sent_bytes, self._half, packed))
        except NotCopied as error:
            self._half.rest()
            self._result.set_result(_not_copied(self._carry, error))
        except BaseException as error:
            self._result.set_exception(error)


class _Half:
    """How far a copy is, for the job's progress and for who wants to stop it in the middle."""

    def __init__(self, each: Carry, done: Done) -> None:
        self._carry = each
        self._done = done
        self._told = 0
        self._begun = self._passed = False
        self._lock = threading.Lock()

    def before(self) -> None:
        with self._lock:
            if not self._begun:
                self._begun = True
                failpoints.hit("stream.task.before", _who(self._carry))

    def add(self, count: int) -> None:
        # All threads of this copy wait while one is held.
        with self._lock:
            count = min(count, self._carry.size_bytes - self._told)
            self._told += count
            self._done.add(max(count, 0))
            if not self._passed and 2 * self._told >= self._carry.size_bytes:
                self._passed = True
                failpoints.hit("stream.task.half", _who(self._carry))

    def rest(self) -> None:
        """It is over, however it ended."""
        with self._lock:
            self._done.add(max(self._carry.size_bytes - self._told, 0))
            self._told = self._carry.size_bytes


class _Way:
    """How far one file is."""

    def __init__(self, half: _Half) -> None:
        self._half = half
        self._farthest = 0

    def arrived(self, offset: int, _size_bytes: int) -> None:
        if offset > self._farthest:
            count, self._farthest = offset - self._farthest, offset
            self._half.add(count)


def _who(each: Carry) -> str:
    return f"{each.table}/{each.tablet}"


def _not_copied(each: Carry, error: NotCopied) -> Carried:
    return Carried(each.number, each.tablet, each.target, error.code, str(error))


def _gone(source: Source, error: BaseException) -> NotCopied:
    return NotCopied(copies.SOURCE_GONE, f"from {source.name}: {error}")


def _run_name(each: Carry, number: int) -> str:
    return f"{each.stream}.{number:06d}.sst"


def _listed(each: Carry, name: str, size_bytes: int, checksum: int) -> dict[str, object]:
    return {"name": name, "file": name.removeprefix(f"{each.stream}."), "bytes": size_bytes, "checksum": checksum}


def _manifest(each: Carry, listed: list[dict[str, object]]) -> SmallFile:
    data = json.dumps(each.manifest(listed), sort_keys=True).encode()
    return SmallFile(each.ticket, each.session, each.tablet, f"{each.stream}.{MANIFEST}", data)


def _finished(writer: TableWriter) -> None:
    with writer:
        writer.finish(durable=False)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
