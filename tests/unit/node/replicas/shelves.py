"""A node's shelf on a disk, life after life, without the rest of the node."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.loads.records import EpochRecord
from trimtab.node.founding import synced
from trimtab.node.replicas.flushing import FlushBounds
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.shelf import Shelf
from trimtab.rows.ragged import from_list
from trimtab.storage.model import ModelDisk
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Disk
from trimtab.storage.resting_store import RestingStore
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.sst_writing import TableWriter

_MAX_COPIES = 50
LAZY = FlushBounds(replica_bytes=1 << 30, total_bytes=1 << 30, age_s=1e9, cut_bytes=1 << 30, cut_every_s=1e9)


def key(number: int, stamp: int = 1, kind: int = 2) -> bytes:
    """A key like those of rows: token, key, section, inverted stamp, kind, hash."""
    tail = (2**64 - 1 - stamp).to_bytes(8, "big") + bytes((kind,)) + bytes(8)
    return (number + 1).to_bytes(8, "big") + b"k" + b"\x40" + tail


def number_of(stored: bytes) -> int:
    return int.from_bytes(stored[:8], "big") - 1


def model_disk(**options: Any) -> ModelDisk:
    return ModelDisk(lambda seconds, run: asyncio.get_running_loop().call_later(seconds, run), **options)


def write_run(disk: Disk, name: str, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """A table as loads bring them. RocksDB's own (`write_table`) don't say what their first and last key are."""
    if not isinstance(disk, RocksDisk):
        disk.write_table(name, pairs)
        return
    path = disk.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TableWriter(path) as writer:
        writer.add([from_list([stored for stored, _ in pairs])], from_list([value for _, value in pairs]))
        writer.finish(durable=True)


def killed(disk: RocksDisk, path: Path) -> RocksDisk:
    """What a process that is killed now leaves behind; the disk that is given goes on."""
    for _ in range(_MAX_COPIES):
        try:
            shutil.copytree(disk.path, path)
        except shutil.Error:
            # Something was just being removed there: the process is killed a moment later.
            shutil.rmtree(path)
        else:
            return RocksDisk(path, reserve_bytes=0)
    raise AssertionError(f"{disk.path} does not come to rest")


def resting(replica: Replica) -> bool:
    """Whether its files are only read so far."""
    return isinstance(replica.store, RestingStore) and replica.store.resting


class Life:
    """One life of a node: its log, its shelf, and what was told. `wanted` may be changed; then call `look`."""

    def __init__(
        self, disk: Disk, wanted: Mapping[tuple[int, int], int], *, bounds: FlushBounds = LAZY, seed: int = 1
    ) -> None:
        self.disk = disk
        self.wanted = dict(wanted)
        self.arriving: dict[tuple[int, int], str | None] = {}
        self.epochs = EpochRecord()
        self.settled = True
        self.failures: list[BaseException] = []
        self.said: list[str] = []
        self.rebuilds: list[Replica] = []
        self._bounds = bounds
        self._rng = random.Random(seed)

    async def start(self) -> Life:
        loop = asyncio.get_running_loop()
        self.log = NodeLog.open(self.disk, "log")
        await synced(self.log)
        self.mutations = MutationLog.open(
            self.log, new_id=lambda: self._rng.getrandbits(63), call_soon=loop.call_soon, fatal=self.failures.append
        )
        self.shelf = Shelf(
            self.disk,
            self.mutations,
            lambda: self.wanted,
            bounds=self._bounds,
            arriving=lambda: self.arriving,
            epochs=lambda _table: self.epochs,
            settled=lambda: self.settled,
            fatal=self.failures.append,
            story=self.said.append,
            complain=self.said.append,
        )
        self.shelf.on_rebuild = self.rebuilds.append
        self.shelf.start()
        return self

    async def ready(self, within_s: float = 20.0) -> Life:
        await self.shelf.all_open(asyncio.get_running_loop().time() + within_s)
        assert self.failures == []
        return self

    async def replica(self, table: int = 1, tablet: int = 0, within_s: float = 20.0) -> Replica:
        return await self.shelf.opened(table, tablet, asyncio.get_running_loop().time() + within_s)

    def stop(self) -> None:
        """An orderly end; the disk stays."""
        self.shelf.close()
        self.mutations.close()
        self.log.close()


async def written(replica: Replica, *numbers: int, value: bytes = b"v", stamp: int = 1) -> BaseException | None:
    """Write a row for each number, in one write; the outcome."""
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    pairs: list[bytes] = []
    for number in numbers:
        pairs += [key(number, stamp), value]
    replica.write(pairs, lambda error: done.done() or done.set_result(error))
    return await done


async def flushed(replica: Replica) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    replica.flush(done.set_result)
    return await done


async def until(so: Any, what: str = "it", within_s: float = 20.0) -> None:
    """For what nobody tells of: look at every turn of the loop."""
    give_up = asyncio.get_running_loop().time() + within_s
    while not so():
        assert asyncio.get_running_loop().time() < give_up, f"waited in vain for {what}"
        await asyncio.sleep(0.001)


def rows(replica: Replica) -> list[int]:
    return [number_of(stored) for stored, _ in replica.scan(b"", None)]
