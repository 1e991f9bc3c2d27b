"""Drivers of loads in a simulation: they begin, stage, seal, commit and wait; and die, stop or go on too late.

They speak the protocol of `loads.protocol` to whichever member they choose. What they stage goes through the bulk
servers (`loads_bulk`). Where an instance that holds replicas by then has not sealed, the commit is refused as `moved`:
they bring what is missing there and try again, as any driver has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, Command, CreateTable, DropTable
from trimtab.catalog.schema import ColumnKind, Table
from trimtab.loads import protocol
from trimtab.loads.protocol import (
    AbortRequest,
    BeginRequest,
    CommitRequest,
    RenewRequest,
    RollbackRequest,
    SealRequest,
    ShowRequest,
    StagedFile,
)
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.net.errors import NetError, RpcError
from trimtab.rows import protocol as rows_protocol
from trimtab.rows.protocol import ChangeRequest, PutRequest, SchemaRequest
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_bulk import BulkServers, NotStaged, Pairs, in_files, tables_of, told_of
from trimtab.sim.loads_history import Key, Load, LoadsHistory
from trimtab.sim.loads_plan import LoadsPlan
from trimtab.sim.machines import Machine
from trimtab.sim.tables_history import Outcome, Put, Row, TablesHistory, Write
from trimtab.sim.tables_workload import FLAT, ROWS, Shared, TablesClient, cell
from trimtab.tablets.consistency import Level
from trimtab.tablets.tablet_map import TabletMap

GEN, MOVED = "sim.gen", "sim.moved"
PARTITIONS = 6
_TRIES = 6
_COMMIT_TRIES = 10
_ASK_S = 2.0
_PAUSE_S = 0.1
_BRIEF, _BRIEF_S = 0.1, 0.03  # of a driver's loads are of tables that live shortly; so long at most after the commit
# Whoever is told one of these need not ask again.
_DEFINITE = frozenset(
    (
        *(
            "invalid",
            "schema",
            "conflict",
            "ended",
            "not_found",
            "version_mismatch",
            "too_many_loads",
            "session_closed",
        ),
        *("moved", "stale_term", "taken", "swapped", "committed"),
    )
)


class Gone(Exception):
    """The driver has died, or given up."""


@dataclass
class Loaders:
    """What drivers of loads share."""

    cluster: GovernedCluster
    plan: LoadsPlan
    bulk: BulkServers
    history: LoadsHistory
    rows: TablesHistory
    count: int = 0
    committed: int = 0
    moved: int = 0
    mishaps: dict[str, int] = field(default_factory=dict)

    def next_number(self) -> int:
        self.count += 1
        return self.count


@dataclass
class _Run:
    """One load as its driver has it."""

    load: Load
    record: LoadRecord
    files: list[tuple[int, str, Pairs]]
    renewed_s: float
    staged: set[tuple[int, int, str]] = field(default_factory=set)


class LoadWorker:
    """Does loads, one at a time, in a process of its own."""

    def __init__(self, loaders: Loaders, number: int, client: TablesClient) -> None:
        self.loaders = loaders
        self.cluster = loaders.cluster
        self.world = loaders.cluster.world
        self.client = client
        self.rng: random.Random = self.world.rng(f"loads/{number}")
        self.clumsy = True

    # -- asking ----------------------------------------------------------------------------------------------------

    async def ask(self, method: str, request: Any, *, at: Machine | None = None, tries: int = _TRIES) -> bytes:
        """Of any member, again and again. RpcError: it says no. Gone: nobody has answered."""
        for _ in range(tries):
            machine = at or self.rng.choice(list(self.cluster.machines.values()))
            try:
                return await self.client.ask(machine, method, protocol.encode(request), _ASK_S)
            except RpcError as error:
                if error.code in _DEFINITE:
                    raise
            except NetError:
                pass
            await asyncio.sleep(_PAUSE_S * (0.5 + self.rng.random()))
        raise Gone(f"nobody answers {method}")

    async def places(self, table: Table) -> TabletMap:
        """Where the replicas are, as some member knows it."""
        machine = self.rng.choice(list(self.cluster.machines.values()))
        try:
            body = await self.client.ask(machine, rows_protocol.SCHEMA, protocol.encode(SchemaRequest((0, 0))), _ASK_S)
        except NetError as error:
            raise NotStaged(f"{machine.name} does not tell where replicas are: {error}") from error
        reply = rows_protocol.decode_schema_reply(body)
        return TabletMap.unpacked(reply.held.get(table.id) or reply.tablets.get(table.id, []))

    async def table(self, name: str) -> Table:
        for _ in range(_TRIES):
            found = self.client.catalog.find(name)
            if found is not None:
                return found
            await self.client.refresh(self.rng.choice(list(self.cluster.machines.values())))
            await asyncio.sleep(_PAUSE_S)
        raise Gone("nobody tells the schema")

    # -- mishaps ---------------------------------------------------------------------------------------------------

    async def _step(self, run: _Run, what: str) -> None:
        """Between two steps: the driver renews its lease, or something happens to it."""
        plan = self.loaders.plan
        if self.clumsy and self.rng.random() < plan.mishap:
            kind = self.rng.choice(("dies", "stops", "stops", "gives up"))
            self.loaders.mishaps[kind] = self.loaders.mishaps.get(kind, 0) + 1
            self.world.tell(self.client.name, f"{kind} in load {run.load.id}, before it is to {what}")
            if kind == "dies":
                raise Gone("it died")
            if kind == "gives up":
                answer = await self.ask(protocol.ABORT, AbortRequest(run.record.table, run.load.id, "given up"))
                self._hear(run, answer)
                if self.rng.random() < 0.5:
                    raise Gone("it gave up")
                return  # and goes on all the same, as a task does that nobody has told
            await asyncio.sleep(plan.load_lease_ms / 1000 * (1.0 + 2.0 * self.rng.random()))
            return
        if self.world.now - run.renewed_s > plan.load_lease_ms / 3000:
            run.renewed_s = self.world.now
            # Where nobody answers the lease may end; that is told soon enough.
            with contextlib.suppress(Gone, RpcError):
                self._hear(run, await self.ask(protocol.RENEW, RenewRequest(run.record.table, run.load.id), tries=2))

    def _hear(self, run: _Run, answer: bytes) -> LoadRecord:
        record: LoadRecord = protocol.decode_load_reply(answer).load
        run.load.told.append(record.state)
        return record

    # -- loads -----------------------------------------------------------------------------------------------------

    async def load(
        self, table: Table, id: str, kind: LoadKind, rows: Mapping[Key, Mapping[int, bytes]], *, patient: bool = True
    ) -> LoadRecord:
        """A load of files, from its beginning to where it can be seen. Gone, RpcError: it came to nothing, perhaps."""
        request = BeginRequest(id, table.id, table.version, kind, lease_ms=self.loaders.plan.load_lease_ms)
        answer = await self.ask(protocol.BEGIN, request)
        record: LoadRecord = protocol.decode_load_reply(answer).load
        run = self._begun(table, record, rows)
        if record.state is LoadState.STAGING:
            await self._commit(run, table)
        return await self._published(run) if patient else record

    def _begun(self, table: Table, record: LoadRecord, rows: Mapping[Key, Mapping[int, bytes]]) -> _Run:
        history = self.loaders.history
        load = history.loads.get(record.id)
        columns, cells = _cells(table, rows)
        if load is None:
            load = Load(record.id, table.id, record.kind, False, record.stamp_us)
            load.tablets = tables_of(table, record, columns, cells)
            if table.full_name in (GEN, MOVED):
                load.rows = {key: next(iter(each.values())) for key, each in rows.items()}
            else:
                load.write = self._write(table, record, rows)
            history.loads[record.id] = load
            self.world.tell(self.client.name, f"{record.kind.value} {record.id} into {table.full_name} begins")
        load.told.append(record.state)
        attempt = f"t{self.loaders.next_number()}"
        return _Run(load, record, in_files(load.tablets, self.loaders.plan.bulk_files, attempt), self.world.now)

    def _write(self, table: Table, record: LoadRecord, rows: Mapping[Key, Mapping[int, bytes]]) -> Write:
        """The load as a write of which nothing is known yet: it counts as refused until it is published."""
        parts = tuple(Put(Row(table.id, *_place(table, key)), dict(each)) for key, each in rows.items())
        history = self.loaders.rows
        write = Write(history.next_number(), self.client.name, Level.ALL, "dc1", parts, self.world.now)
        write.stamp_us, write.outcome, write.why = record.stamp_us, Outcome.REFUSED, "never published"
        write.returned_s, write.through = self.world.now, f"load {record.id}"
        history.writes.append(write)
        return write

    async def _stage(self, run: _Run, places: TabletMap) -> dict[int, list[StagedFile]]:
        """Bring files to everybody who holds replicas; what each should have."""
        wanted: dict[int, list[StagedFile]] = {}
        for tablet, replicas in places:
            for raft_id in replicas:
                wanted.setdefault(raft_id, [])
                for of_tablet, name, pairs in run.files:
                    machine = self.cluster.of_raft_id(raft_id)
                    if of_tablet != tablet or machine is None:
                        continue
                    wanted[raft_id].append(told_of(machine, tablet, name, pairs))
                    if (raft_id, tablet, name) in run.staged:
                        continue
                    await self._step(run, "stage a file")
                    try:
                        spoil = self.clumsy and self.rng.random() < self.loaders.plan.mishap / 4
                        session = run.load.id
                        await self.loaders.bulk.stage(machine, session, tablet, name, pairs, self.rng, spoil=spoil)
                        run.staged.add((raft_id, tablet, name))
                    except NotStaged:
                        pass  # sealing finds out
        return wanted

    async def _seal(self, run: _Run, raft_id: int, files: list[StagedFile], nonce: str) -> bool:
        machine = self.cluster.of_raft_id(raft_id)
        if machine is None:
            return False
        try:
            request = SealRequest(run.load.id, run.record.table, files, nonce=nonce)
            reply = protocol.decode_seal_reply(
                await self.client.ask(machine, protocol.SEAL, protocol.encode(request), _ASK_S)
            )
        except RpcError as error:
            if error.code in ("session_closed", "committed"):
                raise
            return False
        except NetError:
            return False
        for tablet, name in reply.missing:
            run.staged.discard((raft_id, tablet, name))
        return not reply.missing

    async def _commit(self, run: _Run, table: Table) -> None:
        """Stage, seal and commit until it is done."""
        sealed: set[int] = set()
        listed: tuple[bytes, dict[int, list[StagedFile]]] | None = None
        nonce = ""
        for attempt in range(_COMMIT_TRIES):
            try:
                places = await self.places(table)
            except NotStaged:
                await asyncio.sleep(_PAUSE_S)
                continue
            wanted = await self._stage(run, places)
            if (places.digest(), wanted) != listed:
                # Another list has another name, and everybody seals it anew.
                listed, nonce, sealed = (places.digest(), wanted), f"n{self.loaders.next_number()}", set()
            for raft_id, files in wanted.items():
                if raft_id in sealed:
                    continue
                await self._step(run, "seal")
                if await self._seal(run, raft_id, files, nonce):
                    sealed.add(raft_id)
            await self._step(run, "commit")
            if attempt == 0 and self.clumsy and self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.6)  # much may change between sealing and committing
            try:
                rows = sum(len(pairs) for pairs in run.load.tablets.values())
                request = CommitRequest(
                    run.record.table, run.load.id, tuple(sorted(sealed)), rows, places=places.digest(), nonce=nonce
                )
                self._hear(run, await self.ask(protocol.COMMIT, request, tries=2))
                self.loaders.committed += 1
                return
            except RpcError as error:
                if error.code != "moved":
                    raise
                self.loaders.moved += 1
            except Gone:
                pass  # whether it was committed is not known; asking again is no mistake
            await asyncio.sleep(_PAUSE_S * (1 + self.rng.random()))
        raise Gone("it can't be committed")

    async def _published(self, run: _Run) -> LoadRecord:
        """As it is when it can be seen, or has ended otherwise. Gone: it takes too long."""
        for _ in range(_COMMIT_TRIES):
            await self._step(run, "wait")
            request = ShowRequest(run.record.table, run.load.id, wait_ms=1_500)
            reply = protocol.decode_loads_reply(await self.ask(protocol.SHOW, request))
            if reply.loads and reply.loads[0].state.final:
                run.load.told.append(reply.loads[0].state)
                record: LoadRecord = reply.loads[0]
                return record
        raise Gone("it does not become visible")

    async def direct(self, table: Table, id: str, rows: Mapping[Key, Mapping[int, bytes]]) -> LoadRecord:
        """A load without files: ordinary writes with its stamp, as often as it takes. Gone, RpcError."""
        writes: dict[Key, Write] = {}
        for _ in range(3):
            request = BeginRequest(id, table.id, table.version, lease_ms=self.loaders.plan.load_lease_ms, direct=True)
            record: LoadRecord = protocol.decode_load_reply(await self.ask(protocol.BEGIN, request)).load
            load = self.loaders.history.loads.setdefault(id, Load(id, table.id, record.kind, True, record.stamp_us))
            load.told.append(record.state)
            if record.state is not LoadState.STAGING:
                return record
            run = _Run(load, record, [], self.world.now)
            for key, cells in rows.items():
                await self._step(run, "put a row")
                if not await self._put(table, record, key, cells, writes):
                    raise Gone("a row can't be put")
            await self._step(run, "commit")
            try:
                answer = await self.ask(protocol.COMMIT, CommitRequest(table.id, id, rows=len(rows)))
                return self._hear(run, answer)
            except RpcError as error:
                if error.code not in ("ended", "swapped"):
                    raise
        raise Gone("it was ended again and again")

    async def _put(
        self, table: Table, record: LoadRecord, key: Key, cells: Mapping[int, bytes], writes: dict[Key, Write]
    ) -> bool:
        history = self.loaders.rows
        place = _place(table, key)
        write = writes.get(key)
        if write is None:
            put = Put(Row(table.id, *place), dict(cells))
            write = writes[key] = Write(
                history.next_number(), self.client.name, Level.QUORUM, "dc1", (put,), self.world.now, record.stamp_us
            )
            write.through = f"direct load {record.id}"
            history.writes.append(write)
        columns, rows = _cells(table, {key: cells})
        request = PutRequest(
            table.id, table.version, list(columns), [list(rows[0])], Level.QUORUM, timestamp_us=record.stamp_us
        )
        for _ in range(_TRIES):
            machine = self.rng.choice(list(self.cluster.machines.values()))
            try:
                await self.client.ask(machine, rows_protocol.PUT, rows_protocol.encode(request), _ASK_S)
            except NetError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if write.outcome is not Outcome.ACKED:
                write.outcome, write.returned_s = Outcome.ACKED, self.world.now
                # What it says of data centres has to be right where levels are judged.
                write.dc = machine.settings.failure_domain.get("dc", "dc1")
            return True
        return False

    async def rollback(self, table: Table) -> None:
        """Undo the newest overwrite there is, if there is one."""
        reply = protocol.decode_loads_reply(await self.ask(protocol.SHOW, ShowRequest(table.id)))
        overwrites = [
            load for load in reply.loads if load.kind is LoadKind.OVERWRITE and load.state is LoadState.PUBLISHED
        ]
        if overwrites:
            newest = max(overwrites, key=lambda load: load.epoch)
            self.world.tell(self.client.name, f"rolls back {newest.id}")
            await self.ask(protocol.ROLLBACK, RollbackRequest(table.id, newest.id, apply=True), tries=3)


class LoadDriver(LoadWorker):
    """Loads one table after another, of all kinds, until it is told to stop."""

    def __init__(self, loaders: Loaders, number: int) -> None:
        client = TablesClient(loaders.cluster, loaders.plan.tables, 100 + number, TablesHistory({}), Shared())
        client.name = f"d{number}"
        super().__init__(loaders, number, client)
        self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.client.process.start()
        self.task = self.client.process.launch(self._work(), name=self.client.name)

    async def _work(self) -> None:
        self.client.connect()
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1.0 / 0.15))
            try:
                await self._one()
            except Gone as gone:
                self.world.tell(self.client.name, f"its load comes to nothing: {gone}")
            except RpcError as error:
                self.world.tell(self.client.name, f"its load is refused: {error.code}: {error.text}")

    async def _one(self) -> None:
        tables = self.loaders.plan.tables
        number = self.loaders.next_number()
        if self.rng.random() < _BRIEF:
            await self._brief(number)
            return
        name = self.rng.choice((FLAT, ROWS, GEN, GEN, GEN, MOVED, MOVED))
        table = await self.table(name)
        if name in (GEN, MOVED):
            what = self.rng.random()
            if name == GEN and what < 0.15:
                await self.rollback(table)
                return
            kind = LoadKind.OVERWRITE if name == GEN and what < 0.45 else LoadKind.APPEND
            await self.load(table, f"l{number}", kind, epoch_rows(table, number))
            return
        rows = shared_rows(table, f"l{number}", tables.partitions, tables.rows)
        if not tables.forgetful and self.rng.random() < 0.3:
            await self.direct(table, f"l{number}", rows)
        else:
            await self.load(table, f"l{number}", LoadKind.APPEND, rows)

    async def _brief(self, number: int) -> None:
        """A table of its own, that is dropped while a load of it may be taken over."""
        columns = [ColumnSpec("p", "bigint"), ColumnSpec("c", "bigint"), ColumnSpec("a", "text")]
        name = f"brief{number}"
        await self._change(CreateTable("sim", name, columns, ["p"], [("c", False)], tablets=4), f"make {name}")
        try:
            table = await self.table(f"sim.{name}")
            await self.load(table, f"l{number}", LoadKind.APPEND, epoch_rows(table, number), patient=False)
            await asyncio.sleep(self.rng.random() * _BRIEF_S)
        finally:
            await self._change(DropTable("sim", name), f"drop {name}")

    async def _change(self, command: Command, id: str) -> None:
        await self.ask(rows_protocol.CHANGE, ChangeRequest(commands.encode(command), id))


def epoch_rows(table: Table, number: int) -> dict[Key, dict[int, bytes]]:
    """Rows of a table that is read by epochs: some of this load alone, some that every load writes."""
    (column,) = (column.id for column in table.of_kind(ColumnKind.REGULAR))
    value = f"l{number}".encode()
    return {(partition, row): {column: value} for partition in range(PARTITIONS) for row in (0, number)}


def shared_rows(table: Table, id: str, partitions: int, rows: int) -> dict[Key, dict[int, bytes]]:
    """All rows that ordinary clients write too; every value is another one, the same whenever it is asked for."""
    rng = random.Random(id)
    if table.of_kind(ColumnKind.CLUSTERING):
        keys = [(partition, row) for partition in range(partitions) for row in range(rows)]
    else:
        keys = [(number, 0) for number in range(partitions * rows)]
    columns = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
    return {
        key: {column: f"{rng.randrange(100):02d}.{id}.{place}.{column}".encode() for column in columns}
        for place, key in enumerate(keys)
    }


def _place(table: Table, key: Key) -> tuple[int, ...]:
    return key if table.of_kind(ColumnKind.CLUSTERING) else key[:1]


def _cells(table: Table, rows: Mapping[Key, Mapping[int, bytes]]) -> tuple[list[int], list[list[bytes | None]]]:
    keys = [column.id for column in (*table.of_kind(ColumnKind.PARTITION), *table.of_kind(ColumnKind.CLUSTERING))]
    regular = [column.id for column in table.of_kind(ColumnKind.REGULAR)]
    cells: list[list[bytes | None]] = [
        [*(cell(number) for number in _place(table, key)), *(each.get(column) for column in regular)]
        for key, each in rows.items()
    ]
    return [*keys, *regular], cells
