"""Named, leased copies of replicas: hard links to their files as they are at one known position.

    snapshots/<name>/record                           which replicas, at which positions, and until when
    snapshots/<name>/<table id>/<tablet>.<generation>/     a store that others may open

A copy is taken of a flushed store, and nothing is applied to the replica meanwhile (what is synced waits for the few
milliseconds), so it holds exactly what was applied up to its position. A snapshot whose lease ended is removed, at a
start too; one that was only half made is removed at the start. Whoever reads a snapshot renews its lease.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from trimtab.node.answering import Refused
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.waiting import off_loop, outcome
from trimtab.storage.port import Disk, StorageError

ROOT = "snapshots"
SWEEP_EVERY_S = 1.0
MAX_SNAPSHOTS = 100
MAX_LEASE_MS = 24 * 3_600_000
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}")


class Copied(msgspec.Struct, frozen=True, array_like=True):
    """One replica of a snapshot: where its copy lies, and up to which position of its log it reaches."""

    path: str
    table: int
    tablet: int
    generation: int
    incarnation: int
    position: int


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True):
    """`replicas` is empty while it is being made."""

    name: str
    expires_ms: int
    replicas: tuple[Copied, ...] = ()
    complete: bool = False


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

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="snapshots")
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defect(error)

    def known(self) -> list[SnapshotRecord]:
        return [record for record in self._records.values() if record.complete]

    def get(self, name: str) -> SnapshotRecord | None:
        record = self._records.get(name)
        return record if record is not None and record.complete else None

    async def take(self, name: str, replicas: Sequence[Replica], lease_ms: int) -> SnapshotRecord:
        """Copy the replicas, one after the other. Refused: a name that is wrong or taken, or a replica that is gone."""
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
            copies = [await self._copy(name, replica) for replica in replicas]
            record = SnapshotRecord(name, self._expiry(lease_ms), tuple(copies), True)
            await self._store(record)
        except BaseException as error:
            self._records[name] = SnapshotRecord(name, 0)  # the next sweep removes it
            if isinstance(error, StorageError):
                raise Refused("failed", f"the snapshot {name} could not be taken: {error}") from error
            raise
        self._records[name] = record
        self.taken += 1
        return record

    async def renew(self, name: str, lease_ms: int) -> SnapshotRecord:
        """Keep a snapshot for longer; Refused where there is none."""
        record = self.get(name)
        if record is None:
            raise Refused("not_found", f"there is no snapshot {name}; its lease may have ended")
        renewed = msgspec.structs.replace(record, expires_ms=max(record.expires_ms, self._expiry(lease_ms)))
        self._records[name] = renewed
        await self._store(renewed)
        return renewed

    async def drop(self, name: str) -> None:
        """Remove a snapshot; nothing where there is none."""
        if name in self._records:
            await off_loop(self._disk, partial(self._disk.remove, f"{ROOT}/{name}"))
            self._records.pop(name, None)

    def _expiry(self, lease_ms: int) -> int:
        if not 0 < lease_ms <= MAX_LEASE_MS:
            raise Refused("invalid", f"a lease lasts for 1 to {MAX_LEASE_MS} ms, not {lease_ms}")
        return self._wall_ms() + lease_ms

    async def _copy(self, name: str, replica: Replica) -> Copied:
        path = f"{ROOT}/{name}/{replica.table}/{replica.tablet}.{replica.generation}"
        if not replica.readable or replica.held:
            raise Refused("not_ready", f"the replica of {replica.title} can't be copied now; try again")
        # First, because it runs beside everything else; a copy of a store with much in memory does not.
        await outcome(replica.flush)
        if replica.closed or replica.held:
            raise Refused("not_ready", f"the replica of {replica.title} can't be copied now; try again")
        replica.hold()
        try:
            position = replica.position
            await off_loop(self._disk, partial(replica.store.checkpoint, path))
        finally:
            replica.release()
        return Copied(path, replica.table, replica.tablet, replica.generation, replica.incarnation, position)

    async def _store(self, record: SnapshotRecord) -> None:
        name = f"{ROOT}/{record.name}/record"
        await off_loop(self._disk, partial(self._disk.write_file, name, _encode(record)))

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
                        await self.drop(name)
                    except StorageError as error:
                        self._complain(f"the snapshot {name} could not be removed: {error}; it is tried again")
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _load(self) -> None:
        """What earlier lives left."""
        for path in await off_loop(self._disk, lambda: self._disk.names(ROOT + "/")):
            name = path.split("/")[1]
            if name in self._records:
                continue
            data = self._disk.read_file(f"{ROOT}/{name}/record")
            try:
                record = _decode(data) if data is not None else None
            except msgspec.DecodeError:
                record = None
            if record is None or not record.complete or record.name != name:
                record = SnapshotRecord(name, 0)
            self._records[name] = record
