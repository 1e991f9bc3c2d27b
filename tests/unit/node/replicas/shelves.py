"""A node's shelf on a disk, life after life, without the rest of the node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from trimtab.loads.records import EpochRecord
from trimtab.node.founding import synced
from trimtab.node.replicas.flushing import FlushBounds
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.shelf import Shelf
from trimtab.storage.model import ModelDisk
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Disk

LAZY = FlushBounds(replica_bytes=1 << 30, total_bytes=1 << 30, age_s=1e9, cut_bytes=1 << 30, cut_every_s=1e9)


def key(number: int, stamp: int = 1, kind: int = 2) -> bytes:
    """A key like those of rows: token, key, section, inverted stamp, kind, hash."""
    tail = (2**64 - 1 - stamp).to_bytes(8, "big") + bytes((kind,)) + bytes(8)
    return (number + 1).to_bytes(8, "big") + b"k" + b"\x40" + tail


def number_of(stored: bytes) -> int:
    return int.from_bytes(stored[:8], "big") - 1


def model_disk(**options: Any) -> ModelDisk:
    return ModelDisk(lambda seconds, run: asyncio.get_running_loop().call_later(seconds, run), **options)


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
