"""An instance that takes part in loads, without the rest of it: shelf, views, and the leader's word."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from tests.unit.node.replicas.shelves import Life, key, write_run

from trimtab.loads import protocol
from trimtab.loads.protocol import AdoptCall, SealReply, SealRequest, StagedFile
from trimtab.loads.records import (
    EpochRecord,
    LoadKind,
    LoadRecord,
    LoadState,
    SessionKind,
    SessionRecord,
    encode,
    epoch_key,
    load_key,
    session_key,
)
from trimtab.loads.view import LoadView
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.replicas.adopting import Adopting
from trimtab.node.replicas.merging import Merging
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.sealing import Sealing
from trimtab.node.replicas.staging import Sweeping, path_of
from trimtab.node.waits import Waits
from trimtab.storage.port import Disk
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.view import TableView

OWN, TABLE, TABLETS = 1, 1, 4
STAMP = 5_999


class Stage:
    """One life of an instance; the metastore of all lives is `views`."""

    def __init__(self, disk: Disk, views: Stage | None = None) -> None:
        self.disk = disk
        self.loads = views.loads if views is not None else LoadView()
        self.tables = TableView()
        self.tables.change(chunk_key(TABLE, 0), pack([(OWN,)] * TABLETS), 1)
        self.waits = Waits()
        self.term = 3
        self.mended: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.gone: list[str] = []
        self.current = True

    async def start(self) -> Stage:
        wanted = {(TABLE, tablet): self.loads.generation(TABLE) for tablet in range(TABLETS)}
        self.life = Life(self.disk, wanted)
        await self.life.start()
        self.shelf = self.life.shelf
        self.shelf._kept = self.loads.generations
        await self.life.ready()
        group: Any = SimpleNamespace(
            machine=SimpleNamespace(applied_index=10), raw=SimpleNamespace(raft=SimpleNamespace(term=self.term))
        )
        self.merging = Merging(
            self.disk,
            self.shelf.held,
            lambda: bool(self.loads.open_loads),
            complain=self.said.append,
            defect=self.life.failures.append,
        )
        self.sealing = Sealing(OWN, self.disk, self.tables, self.loads, self.waits, name="i1")
        self.adopting = Adopting(
            OWN,
            self.disk,
            group,
            self.tables,
            self.loads,
            self.shelf,
            self.waits,
            mend=self._mend,
            merging=self.merging,
            name="i1",
            story=self.said.append,
        )
        self.sweeping = Sweeping(
            self.disk,
            self.loads,
            current=lambda: self.current,
            busy=lambda session: self.adopting.busy(session) or self.sealing.busy(session),
            on_gone=self.gone.append,
            name="i1",
            complain=self.said.append,
            defect=self.life.failures.append,
        )
        return self

    async def _mend(self, replica: Replica, epoch: int) -> None:
        self.mended.append((replica.tablet, epoch))

    def stop(self) -> None:
        self.adopting.stop()
        self.merging.stop()
        self.life.stop()

    # The metastore

    def begin(self, id: str, kind: LoadKind = LoadKind.APPEND, generation: int = 1) -> LoadRecord:
        load = LoadRecord(id, TABLE, kind, LoadState.STAGING, STAMP, generation=generation)
        self.put(load)
        self.loads.change(session_key(id), encode(SessionRecord(SessionKind.LOAD, TABLE, 1)), 2)
        self.waits.look()
        return load

    def put(self, load: LoadRecord) -> LoadRecord:
        self.loads.change(load_key(TABLE, load.id), encode(load), 2)
        return load

    def commit(self, load: LoadRecord, epoch: int = 1, sealed: tuple[int, ...] = (OWN,), nonce: str = "") -> LoadRecord:
        known = self.loads.epoch_record(TABLE)
        record = replace(known, committed=epoch, next_generation=max(known.next_generation, load.generation + 1))
        self.loads.change(epoch_key(TABLE), encode(record), 3)
        return self.put(replace(load, state=LoadState.COMMITTED, epoch=epoch, sealed=sealed, nonce=nonce))

    def publish(self, load: LoadRecord) -> None:
        known = self.loads.epoch_record(TABLE)
        generations = known.generations
        if load.kind is LoadKind.OVERWRITE:
            generations = (*generations, (load.epoch, load.generation))[-2:]
        record = EpochRecord(known.committed, load.epoch, generations, known.next_generation)
        self.put(replace(load, state=LoadState.PUBLISHED, published_ms=1))
        self.loads.change(epoch_key(TABLE), encode(record), 4)
        self.close_session(load.id)
        self._serve_newest()

    def _serve_newest(self) -> None:
        self.life.wanted = {place: self.loads.generation(TABLE) for place in self.life.wanted}
        self.shelf.look()

    def roll_back(self, load: LoadRecord) -> None:
        """The generation before is served again."""
        known = self.loads.epoch_record(TABLE)
        epoch, back_to = known.committed + 1, known.generations[-2][1]
        generations = (*known.generations, (epoch, back_to))
        record = replace(known, committed=epoch, visible=epoch, generations=generations)
        self.put(replace(load, state=LoadState.ROLLED_BACK))
        self.loads.change(epoch_key(TABLE), encode(record), 6)
        self._serve_newest()

    def close_session(self, id: str) -> None:
        self.loads.change(session_key(id), None, 5)

    # Files and orders

    def stage(self, id: str, tablet: int, *numbers: int, name: str = "a", older: bool = False) -> StagedFile:
        """`older`: by a writer whose files don't say what their first and last key are."""
        path, pairs = path_of(id, tablet, name), [(key(number, STAMP), b"loaded") for number in numbers]
        if older:
            self.disk.write_table(path, pairs)
        else:
            write_run(self.disk, path, pairs)
        found = self.disk.digest(path)
        assert found is not None
        return StagedFile(tablet, name, *found)

    async def seal(self, id: str, *files: StagedFile, part: int = 0, last: bool = True, nonce: str = "") -> SealReply:
        body = protocol.encode(SealRequest(id, TABLE, list(files), part, last, nonce))
        return protocol.decode_seal_reply(await self.sealing.seal(asked(body)))

    async def adopt(self, id: str, term: int = 3, within_s: float = 20.0) -> None:
        body = protocol.encode(AdoptCall(term, 10, TABLE, id))
        assert await self.adopting.adopt(asked(body, within_s)) == b""

    async def refused(self, asking: Any) -> Refused:
        """How it is refused."""
        try:
            await asking
        except Refused as refused:
            return refused
        raise AssertionError("it was not refused")

    def replica(self, tablet: int, generation: int = 1) -> Replica:
        found = self.shelf.find(TABLE, tablet, generation)
        assert found is not None
        return found


def asked(body: bytes, within_s: float = 20.0) -> Asked:
    return Asked(body, asyncio.get_running_loop().time() + within_s, Hello())
