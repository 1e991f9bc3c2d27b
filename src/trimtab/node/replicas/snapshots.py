"""Named, leased copies of replicas: hard links to their files as they are at one known position.

    snapshots/<name>/record                           which replicas, at which positions, and until when
    snapshots/<name>/<table id>/<tablet>.<generation>/     a store that others may open

A copy is taken of a flushed store, and nothing is applied to the replica meanwhile (what is synced waits for the few
milliseconds), so it holds exactly what was applied up to its position. A snapshot whose lease ended is removed, at a
start too; one that was only half made is removed at the start. Whoever reads a snapshot renews its lease.

Nothing of it is synced: it outlives the process, but not the machine, and one of an earlier boot is removed likewise.
Whoever wanted it takes another. To sync a few small files for each of many replicas took longer than to link them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from trimtab.node.answering import Refused
from trimtab.node.background import telling
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.waiting import off_loop, outcome
from trimtab.storage.port import Disk, StorageError

ROOT = "snapshots"
SWEEP_EVERY_S = 1.0
MAX_SNAPSHOTS = 100
MAX_LEASE_MS = 24 * 3_600_000
# At a time: each waits for the disk again and again, and those that wait together are served together.
_COPIES = 8
T = TypeVar("T")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}")


class Copied(msgspec.Struct, frozen=True, array_like=True):
    """One replica of a snapshot: where its copy lies, and up to which position of its log it reaches."""

    path: str
    table: int
    tablet: int
    generation: int
    incarnation: int
    position: int
    adopted: int = 0
    repaired_through_ms: int = 0
    forgot_us: int = 0


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True):
    """`replicas` is empty while it is being made. `boot_id`: see Disk."""

    name: str
    expires_ms: int
    replicas: tuple[Copied, ...] = ()
    complete: bool = False
    boot_id: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SnapshotRecord).decode


class ReplicaSnapshots:
    """Of one node."""

    def __init__(
        self,
        disk: Disk,
        *,
        wall_ms: Callable[[], int],
        complain: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self.taken = 0
        self._disk = disk
        self._wall_ms = wall_ms
        self._complain = complain
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._records: dict[str, SnapshotRecord] = {}
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        # Of renewals and removals: a record that is written beside a removal comes after it, and stays for good.
        self._turn = asyncio.Lock()

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="snapshots")
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        for task in [*self._under_way, *((self._task,) if self._task is not None else ())]:
            task.cancel()

    def known(self) -> list[SnapshotRecord]:
        return [record for record in self._records.values() if record.complete]

    def get(self, name: str) -> SnapshotRecord | None:
        record = self._records.get(name)
        return record if record is not None and record.complete else None

    async def take(
        self,
        name: str,
        replicas: Sequence[Replica],
        lease_ms: int,
        *,
        through: Mapping[int, int] | None = None,
        refused: list[tuple[int, Refused]] | None = None,
    ) -> SnapshotRecord:
        """Copy the replicas. Refused: a name that is wrong or taken, or a replica that is gone.

        `through`: for each tablet how far its replica is repaired; one that is repaired further by now is not copied.
        Given `refused`, replicas that can't be copied are noted there, with their tablets, and the others are copied.

        """
        return await self._to_the_end(self._take(name, replicas, lease_ms, through or {}, refused))

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Finished though nobody waits for it any more: what a thread writes later than that would stay for good."""
        task = self._loop.create_task(work, name="snapshots under way")
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits is told

    async def _take(
        self,
        name: str,
        replicas: Sequence[Replica],
        lease_ms: int,
        through: Mapping[int, int],
        refused: list[tuple[int, Refused]] | None,
    ) -> SnapshotRecord:
        if not _NAME.fullmatch(name):
            raise Refused("invalid", f"{name!r} is no name for a snapshot: use letters, digits, _ and -")
        if name in self._records:
            raise Refused("exists", f"there is a snapshot {name} already")
        if len(self._records) >= MAX_SNAPSHOTS:
            raise Refused("overloaded", f"there are {MAX_SNAPSHOTS} snapshots already; drop some first")
        record = SnapshotRecord(name, self._expiry(lease_ms))
        self._records[name] = record
        try:
            # Known before it has files, so that whatever a crash leaves is found and removed.
            await self._store(record)
            copies = await self._copy_all(name, replicas, through, refused)
            record = SnapshotRecord(name, self._expiry(lease_ms), tuple(copies), True, self._disk.boot_id)
            if copies or not replicas:
                await self._store(record)
        except BaseException as error:
            self._records[name] = SnapshotRecord(name, 0)  # the next sweep removes it
            if isinstance(error, StorageError):
                raise Refused("failed", f"the snapshot {name} could not be taken: {error}") from error
            raise
        if replicas and not copies:
            await self.drop(name)
            return record
        self._records[name] = record
        self.taken += 1
        return record

    async def renew(self, name: str, lease_ms: int) -> SnapshotRecord:
        """Keep a snapshot for longer; Refused where there is none."""
        return await self._to_the_end(self._renew(name, lease_ms))

    async def _renew(self, name: str, lease_ms: int) -> SnapshotRecord:
        async with self._turn:
            record = self.get(name)
            if record is None:
                raise Refused("not_found", f"there is no snapshot {name}; its lease may have ended")
            renewed = msgspec.structs.replace(record, expires_ms=max(record.expires_ms, self._expiry(lease_ms)))
            self._records[name] = renewed
            await self._store(renewed)
            return renewed

    async def drop(self, name: str) -> None:
        """Remove a snapshot; nothing where there is none."""
        await self._to_the_end(self._drop(name))

    async def _drop(self, name: str, *, expired_alone: bool = False) -> None:
        """`expired_alone`: not one that was renewed while this waited for its turn."""
        async with self._turn:
            record = self._records.get(name)
            if record is None or (expired_alone and record.expires_ms > self._wall_ms()):
                return
            await off_loop(self._disk, partial(self._disk.remove, f"{ROOT}/{name}", synced=False))
            self._records.pop(name, None)

    def _expiry(self, lease_ms: int) -> int:
        if not 0 < lease_ms <= MAX_LEASE_MS:
            raise Refused("invalid", f"a lease lasts for 1 to {MAX_LEASE_MS} ms, not {lease_ms}")
        return self._wall_ms() + lease_ms

    async def _copy_all(
        self,
        name: str,
        replicas: Sequence[Replica],
        through: Mapping[int, int],
        refused: list[tuple[int, Refused]] | None,
    ) -> list[Copied]:
        turns = asyncio.Semaphore(_COPIES)

        async def copy(replica: Replica) -> Copied | Exception:
            async with turns:
                try:
                    return await self._copy(name, replica, through.get(replica.tablet))
                except (Refused, StorageError) as error:
                    return error

        copies = []
        for replica, found in zip(replicas, await asyncio.gather(*map(copy, replicas)), strict=True):
            if isinstance(found, Copied):
                copies.append(found)
            elif refused is None:
                raise found
            elif isinstance(found, Refused):
                refused.append((replica.tablet, found))
            else:
                refused.append((replica.tablet, Refused("failed", f"{replica.title} could not be copied: {found}")))
        return copies

    async def _copy(self, name: str, replica: Replica, through_ms: int | None) -> Copied:
        path = f"{ROOT}/{name}/{replica.table}/{replica.tablet}.{replica.generation}"
        if not replica.readable or replica.held:
            raise Refused("not_ready", f"the replica of {replica.title} can't be copied now; try again")
        if replica.unflushed:
            # First, because it runs beside everything else; a copy of a store with much in memory does not.
            await outcome(replica.flush)
        if replica.closed or replica.held:
            raise Refused("not_ready", f"the replica of {replica.title} can't be copied now; try again")
        if through_ms not in (None, replica.repaired_through_ms):
            raise Refused("repaired", f"the replica of {replica.title} was repaired further meanwhile; look again")
        replica.hold()
        try:
            copied = Copied(
                path,
                replica.table,
                replica.tablet,
                replica.generation,
                replica.incarnation,
                replica.position,
                replica.adopted,
                replica.repaired_through_ms,
                replica.forgot_us,
            )
            await off_loop(self._disk, partial(replica.store.checkpoint, path, synced=False))
        finally:
            replica.release()
        return copied

    async def _store(self, record: SnapshotRecord) -> None:
        name = f"{ROOT}/{record.name}/record"
        await off_loop(self._disk, partial(self._disk.write_file, name, _encode(record), synced=False))

    # Sweeping

    async def _run(self) -> None:
        try:
            await self._load()
        except StorageError as error:
            self._complain(f"old snapshots could not be looked at: {error}")
        while True:
            for name, record in list(self._records.items()):
                # One that is being made has a lease too, and is complete long before it ends.
                if record.expires_ms <= self._wall_ms():
                    try:
                        await self._drop(name, expired_alone=True)
                    except StorageError as error:
                        self._complain(f"the snapshot {name} could not be removed: {error}; it is tried again")
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _load(self) -> None:
        """What earlier lives left."""
        # Also of a directory that a crash left empty.
        for name in await off_loop(self._disk, lambda: self._disk.entries(ROOT)):
            if name in self._records or name.startswith("."):
                continue
            data = self._disk.read_file(f"{ROOT}/{name}/record")
            try:
                record = _decode(data) if data is not None else None
            except msgspec.DecodeError:
                record = None
            if record is None or not record.complete or record.name != name or record.boot_id != self._disk.boot_id:
                record = SnapshotRecord(name, 0)
            self._records[name] = record
