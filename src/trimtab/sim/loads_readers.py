"""Readers of whole tables while these are loaded, and writers of single rows into one that is overwritten.

A reader goes through a table page by page, asks another member for each page, and takes its time in between: whatever
is loaded meanwhile, it has to see one epoch.
"""

from __future__ import annotations

import asyncio

from trimtab.catalog.schema import ColumnKind, Table
from trimtab.net.errors import FrameTooLarge, NetError, NotConnected, Overloaded, RpcError
from trimtab.rows import protocol
from trimtab.rows.protocol import PutRequest, RowsReply, ScanRequest
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_drivers import GEN, MOVED
from trimtab.sim.loads_history import EpochRead, Key, LoadedPut, LoadsHistory
from trimtab.sim.loads_judge import FIRST_PUT
from trimtab.sim.loads_plan import LoadsPlan
from trimtab.sim.machines import Machine
from trimtab.sim.tables_history import TablesHistory
from trimtab.sim.tables_workload import NOTHING_HAPPENED, Shared, TablesClient, cell, known_epoch
from trimtab.tablets.consistency import Level

_PATIENCE_S = 1.5
_MAX_PAGES = 200
_PUTS = 0.4  # of what a reader does
_BEFORE_SENDING = (NotConnected, Overloaded, FrameTooLarge)


class EpochReader:
    """One reader, who sometimes writes."""

    def __init__(self, cluster: GovernedCluster, plan: LoadsPlan, number: int, history: LoadsHistory) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.history = history
        self.client = TablesClient(cluster, plan.tables, 150 + number, TablesHistory({}), Shared())
        self.client.name = f"r{number}"
        self.rng = self.world.rng(f"reader/{number}")
        self.stopped = False
        self.other_level = Level.ONE  # of some puts
        self.task: asyncio.Task[None] | None = None
        self._number = number
        self._puts = 0

    def start(self) -> None:
        self.client.process.start()
        self.task = self.client.process.launch(self._work(), name=self.client.name)

    async def _work(self) -> None:
        self.client.connect()
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1.0 / 0.08))
            table = self.client.catalog.find(self.rng.choice((GEN, GEN, MOVED)))
            if table is None:
                await self.client.refresh(self._any())
            elif table.full_name == GEN and self.rng.random() < _PUTS:
                await self._put(table)
            else:
                level = Level.QUORUM if self.rng.random() < 0.6 else self.rng.choice((Level.ONE, Level.ALL))
                await self.scan(table, level)

    def _any(self) -> Machine:
        return self.rng.choice(list(self.cluster.machines.values()))

    async def scan(self, table: Table, level: Level, through: Machine | None = None) -> str:
        """Read all of a table; why that was not possible, or nothing."""
        columns = [
            column.id for column in (*table.of_kind(ColumnKind.PARTITION), *table.of_kind(ColumnKind.CLUSTERING))
        ]
        columns += [column.id for column in table.of_kind(ColumnKind.REGULAR)]
        machine, page, asked = through or self._any(), b"", []
        limit = self.rng.choice((3, 5, 200)) if through is None else 200
        rows: dict[Key, bytes] = {}
        invoked_s, first, last = self.world.now, known_epoch(machine, table.id), 0
        for _ in range(_MAX_PAGES):
            request = ScanRequest(table.id, table.version, columns, limit=limit, page=page, level=level)
            asked.append(machine.name)
            try:
                body = await self.client.ask(machine, protocol.SCAN, protocol.encode(request), _PATIENCE_S)
            except NetError as error:
                return str(error) or type(error).__name__
            reply: RowsReply = protocol.decode_rows(body)
            last = last or self.history.newest(table.id) + 1
            for each in reply.rows:
                assert each is not None and each[0] is not None and each[1] is not None and each[2] is not None
                key = (int.from_bytes(each[0], signed=True), int.from_bytes(each[1], signed=True))
                if key in rows:
                    self.world.fail(f"a scan of {table.full_name} by {self.client.name} gives {key} twice")
                rows[key] = bytes(each[2])
            page = reply.page
            if not page:
                self._saw(table, level, invoked_s, (first, last - 1), rows, asked)
                return ""
            if through is None:
                machine = self._any()
                await asyncio.sleep(self.rng.random() * self.rng.choice((0.0, 0.05, 0.4)))
        return "it did not end"

    def _saw(
        self,
        table: Table,
        level: Level,
        invoked_s: float,
        epochs: tuple[int, int],
        rows: dict[Key, bytes],
        asked: list[str],
    ) -> None:
        number = len(self.history.reads) + 1
        self.history.reads.append(
            EpochRead(number, self.client.name, table.id, level, invoked_s, self.world.now, *epochs, rows, asked)
        )

    async def _put(self, table: Table) -> None:
        self._puts += 1
        key = (self.rng.randrange(8), FIRST_PUT * self._number + self._puts)
        value = f"{self.client.name}.{self._puts}".encode()
        machine = self._any()
        level = Level.QUORUM if self.rng.random() < 0.8 else self.other_level
        put = LoadedPut(key, value, table.id, level, self.world.now, through=machine.name)
        put.first_epoch = known_epoch(machine, table.id)
        self.history.puts.append(put)
        columns = [column.id for column in table.columns]
        request = PutRequest(table.id, table.version, columns, [[cell(key[0]), cell(key[1]), value]], level)
        try:
            await self.client.ask(machine, protocol.PUT, protocol.encode(request), _PATIENCE_S)
            put.acked = True
        except _BEFORE_SENDING:
            put.refused = True
        except RpcError as error:
            put.refused = error.code in NOTHING_HAPPENED
        except NetError:
            pass
        put.returned_s = self.world.now
        put.last_epoch = self.history.newest(table.id)
