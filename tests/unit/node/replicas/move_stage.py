"""An instance that tablets move to, without the rest of it: shelf, views, staged copies, and the leader's word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from tests.unit.node.replicas.shelves import Life, flushed, key, model_disk, written

from trimtab.loads import records as load_records
from trimtab.loads.records import SessionKind, SessionRecord, epoch_key, session_key
from trimtab.loads.view import LoadView
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked
from trimtab.node.replicas.arrivals import Arrivals
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.staging import path_of
from trimtab.node.waits import Waits
from trimtab.storage.file_sums import sum_of
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Disk
from trimtab.storage.rocks import RocksDisk
from trimtab.tablets import move_protocol as protocol
from trimtab.tablets import transitions
from trimtab.tablets.move_protocol import MovesCall, MovesReply, MovingTablet
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import ADJUSTABLE, TabletTransition, TransitionKind, transition_key
from trimtab.tablets.view import TableView

OWN, TABLE, TABLETS = 4, 1, 4
OLD, NEW = (1, 2, 3), (1, 2, OWN)
FOREIGN_POSITION = 77


class Views:
    """The metastore, as it is for all lives of the instance."""

    def __init__(self, tablets: int = TABLETS) -> None:
        self.tables = TableView()
        self.loads = LoadView()
        self.tablets = tablets
        self.tables.change(chunk_key(TABLE, 0), pack([OLD] * tablets), 1)

    def move(self, tablet: int = 0, session: str = "s1", stage: Stage = Stage.STREAMING, **fields: Any) -> None:
        kind = TransitionKind.MIGRATION
        record = TabletTransition(NEW, kind, stage, session, **fields)
        self.tables.change(transition_key(TABLE, tablet), transitions.encode(record), 2)
        open_now = stage in (Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING)
        value = load_records.encode(SessionRecord(SessionKind.STREAM, TABLE, 1)) if open_now else None
        self.loads.change(session_key(session), value, 2)

    def stage(self, stage: Stage, tablet: int = 0) -> None:
        current = self.tables.transition(TABLE, tablet)
        assert current is not None
        self.move(tablet, current.session, stage)

    def end(self, tablet: int = 0, stable: tuple[int, ...] = NEW) -> None:
        current = self.tables.transition(TABLE, tablet)
        assert current is not None
        self.loads.change(session_key(current.session), None, 3)
        chosen = [stable if each == tablet else OLD for each in range(self.tablets)]
        self.tables.change(chunk_key(TABLE, 0), pack(chosen), 3)
        self.tables.change(transition_key(TABLE, tablet), None, 3)

    def epochs(self, **fields: Any) -> None:
        record = replace(self.loads.epoch_record(TABLE), **fields)
        self.loads.change(epoch_key(TABLE), load_records.encode(record), 3)

    def wanted(self) -> dict[tuple[int, int], int]:
        return {
            (table, tablet): self.loads.generation(table)
            for table, tablets in self.tables.held_by(OWN).items()
            for tablet in tablets
        }

    def arriving(self) -> dict[tuple[int, int], str | None]:
        left_over = {
            (table, tablet): None
            for table, under_way in self.tables.transitions.items()
            for tablet, current in under_way.items()
            if OWN in current.leftovers and current.stage in ADJUSTABLE
        }
        return {**left_over, **self.tables.arriving_at(OWN)}


class MoveStage:
    """One life."""

    def __init__(self, disk: Disk, views: Views) -> None:
        self.disk = disk
        self.views = views
        self.said: list[str] = []
        self.mended: list[Replica] = []
        self.enough_peers = True
        self.settled = True
        self.term = 3

    async def _mend(self, replica: Replica) -> bool:
        self.mended.append(replica)
        return self.enough_peers

    async def start(self) -> MoveStage:
        self.life = Life(self.disk, {})
        self.life.said = self.said
        self.waits = Waits()
        await self.life.start()
        shelf = self.shelf = self.life.shelf
        shelf._ask_wanted, shelf._ask_arriving = self.views.wanted, self.views.arriving
        shelf._kept, shelf._epochs = self.views.loads.generations, self.views.loads.epoch_record
        shelf.look()
        group: Any = SimpleNamespace(
            machine=SimpleNamespace(applied_index=10), raw=SimpleNamespace(raft=SimpleNamespace(term=self.term))
        )
        self.arrivals = Arrivals(
            OWN,
            self.disk,
            group,
            self.views.tables,
            self.views.loads,
            shelf,
            self.waits,
            mend=self._mend,
            settled=lambda: self.settled,
            name="i4",
            story=self.said.append,
            complain=self.said.append,
        )
        return self

    def stop(self) -> None:
        self.arrivals.stop()
        self.life.stop()

    # The leader's word

    async def ask(
        self, method: str, *tablets: MovingTablet | int, session: str = "s1", term: int = 3, within_s: float = 20.0
    ) -> MovesReply:
        self.shelf.look()
        chosen = [each if isinstance(each, MovingTablet) else MovingTablet(TABLE, each, session) for each in tablets]
        body = protocol.encode(MovesCall(term, 10, chosen or [MovingTablet(TABLE, 0, session)]))
        deadline = asyncio.get_running_loop().time() + within_s
        answer = await self.arrivals.methods()[method](Asked(body, deadline, Hello()))
        return protocol.decode_reply(answer)

    async def prepare(self, *tablets: int, **options: Any) -> MovesReply:
        return await self.ask(protocol.PREPARE, *tablets, **options)

    async def adopt(self, *tablets: int, **options: Any) -> MovesReply:
        return await self.ask(protocol.ADOPT, *tablets, **options)

    async def clean(self, *tablets: int, **options: Any) -> MovesReply:
        return await self.ask(protocol.CLEAN, *tablets, **options)

    def replica(self, tablet: int = 0, generation: int = 1) -> Replica:
        found = self.shelf.find(TABLE, tablet, generation)
        assert found is not None
        return found


def code_of(reply: MovesReply) -> str:
    """Of the only tablet asked for; empty: it is done."""
    assert len(reply.done) + len(reply.failed) == 1
    return reply.failed[0].code if reply.failed else ""


# Copies


async def copied_store(disk: Disk, tablet: int, numbers: Iterable[int], **meta: Any) -> list[tuple[str, bytes]]:
    """The files of a replica elsewhere that holds these rows; `disk` is of the same kind as the target's."""
    # Another instance has another log.
    life = await (await Life(disk, {(TABLE, tablet): 1}, seed=99).start()).ready()
    replica = await life.replica(TABLE, tablet)
    generation = meta.pop("generation", 1)
    replica.meta = replace(replica.meta, generation=generation, **meta)
    for number in range(FOREIGN_POSITION):
        assert await written(replica, 1_000, stamp=number + 1) is None
    for number in numbers:
        assert await written(replica, number) is None
    assert replica.change_meta(repaired_through_ms=replica.meta.repaired_through_ms + 1)
    replica.set_adopted(50, lambda _error: None)
    assert await flushed(replica) is None
    replica.store.checkpoint("copy")
    files = [(name, _bytes_of(disk, f"copy/{name}")) for name, _size in disk.files("copy")]
    life.stop()
    return files


def _bytes_of(disk: Disk, name: str) -> bytes:
    data = disk.read_file(name)
    assert data is not None
    return data


def merged_run(disk: Disk, numbers: Iterable[int], stamp: int = 1) -> list[tuple[str, bytes]]:
    """Sorted rows in one run, as a merge gives them."""
    disk.write_table("run", [(key(number, stamp), b"v") for number in sorted(numbers)])
    data = _bytes_of(disk, "run")
    disk.remove("run")
    return [("000000.sst", data)]


def stage_copy(
    disk: Disk,
    files: list[tuple[str, bytes]],
    *,
    tablet: int = 0,
    session: str = "s1",
    stream: str = "abc",
    kind: str = "copy",
    generation: int = 1,
    epoch: int = 0,
    **more: Any,
) -> None:
    told = []
    for file, data in files:
        name = f"{stream}.{file}"
        disk.write_file(path_of(session, tablet, name), data)
        told.append({"name": name, "file": file, "bytes": len(data), "checksum": sum_of(data)})
    manifest = {
        "stream": stream,
        "tablet": tablet,
        "sources": [3],
        "kind": kind,
        "generation": generation,
        "epoch": epoch,
        "files": told,
        **more,
    }
    disk.write_file(path_of(session, tablet, f"{stream}.manifest.json"), json.dumps(manifest).encode())


def disk_of(kind: str, path: Any) -> ModelDisk | RocksDisk:
    return model_disk() if kind == "model" else RocksDisk(path, reserve_bytes=0)


async def arriving(disk, views=None, **move):
    """A life in which tablet 0 has an arriving replica for session s1, and streaming has begun."""
    views = views or Views()
    views.move(stage=Stage.ALLOW_WRITE_BOTH_READ_OLD)
    stage = await MoveStage(disk, views).start()
    assert code_of(await stage.prepare()) == ""
    views.move(**move)
    return stage
