"""Clients that change the schema while others use it; and the rule that there is one history of it, for everybody.

Every catalog that any instance ever has is the one of its version, versions become active in their order, and what was
acknowledged has its place in that history: a version of its own, after all that was acknowledged before it was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab.catalog import commands
from trimtab.catalog.commands import AlterTable, ColumnSpec, Command, CreateTable, DropTable
from trimtab.catalog.schema import ColumnKind
from trimtab.net.errors import NetError, RpcError
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeReply, ChangeRequest
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.tables_history import Row, TablesHistory
from trimtab.sim.tables_judge import Judge
from trimtab.sim.tables_plan import TablesPlan
from trimtab.sim.tables_workload import ROWS, Shared, TablesClient
from trimtab.tablets.consistency import Level

_LOOK_EVERY_S = 0.1
_ATTEMPTS = 4
_ASK_S = 2.0
_DEFINITE = frozenset(("schema", "invalid", "not_found"))


@dataclass
class Change:
    """One change that was asked for. `version` 0: its outcome is not known. `refused`: it did not happen."""

    command: Command
    invoked_s: float
    returned_s: float = 0.0
    version: int = 0
    refused: str = ""


class SchemaWatch:
    """What all instances have as their schema, looked at all the time."""

    def __init__(self, cluster: GovernedCluster) -> None:
        self._cluster = cluster
        self._seen: dict[int, tuple[str, int, bytes]] = {}  # version -> who had it first, since when it is active, all
        self._last: dict[str, object] = {}
        self.version = 0

    def start(self) -> None:
        self._cluster.world.control.launch(self._watch(), name="schema watch")

    async def _watch(self) -> None:
        while True:
            try:
                self.look()
            except Violation as violation:
                self._cluster.world.fail(violation.why, violation.evidence)
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        for machine in self._cluster.machines.values():
            # An instance that is starting has none yet.
            watching = getattr(machine.instance, "watching", None)
            if watching is None:
                continue
            catalog = watching.tables.catalog
            if self._last.get(machine.name) is catalog or not catalog.version:
                continue
            self._last[machine.name] = catalog
            snapshot = catalog.snapshot()
            who, _, known = self._seen.setdefault(catalog.version, (machine.name, catalog.activation_ms, snapshot))
            if known != snapshot:
                raise Violation(
                    f"the schema has forked: {who} and {machine.name} have another version {catalog.version}"
                )
            self.version = max(self.version, catalog.version)
        versions = sorted(self._seen)
        for before, after in pairwise(versions):
            if self._seen[before][1] >= self._seen[after][1]:
                raise Violation(f"version {after} of the schema is active no later than version {before}")

    def judge(self, changers: Sequence[SchemaChanger]) -> None:
        """Violation: what was acknowledged is not in the history, or not all agree on it in the end."""
        self.look()
        for machine in self._cluster.machines.values():
            assert machine.instance is not None
            tables = machine.instance.watching.tables
            if tables.catalog.version != self.version or tables.waits_for:
                raise Violation(
                    f"{machine.name} is at version {tables.catalog.version} of the schema, not {self.version}"
                )
        changes = [change for changer in changers for change in changer.changes if change.version]
        if len({change.version for change in changes}) != len(changes):
            raise Violation(
                f"two changes were acknowledged with one version: {sorted(each.version for each in changes)}"
            )
        for one in changes:
            if one.version > self.version:
                raise Violation(
                    f"a change was acknowledged with version {one.version}, but there are {self.version}: {one}"
                )
            for other in changes:
                if one.returned_s < other.invoked_s and one.version > other.version:
                    raise Violation(f"changes of the schema were turned around: {one}, {other}")
        for changer in changers:
            changer.judge()


class SchemaChanger:
    """Adds and drops columns that others use, and makes and drops a table of its own, again and again."""

    def __init__(self, cluster: GovernedCluster, plan: TablesPlan, number: int, watch: SchemaWatch) -> None:
        self.cluster = cluster
        self.plan = plan
        self.watch = watch
        self.table = f"own{number}"
        self.history = TablesHistory(plan.replication)
        self.client = TablesClient(cluster, plan, 100 + number, self.history, Shared())
        self.rng = cluster.world.rng(f"schema/{number}")
        self.changes: list[Change] = []
        self.stopped = False
        self.task: asyncio.Task[None] | None = None
        self._exists: bool | None = False

    def start(self) -> None:
        self.client.process.start()
        self.task = self.client.process.launch(self._work(), name=self.table)

    async def _work(self) -> None:
        self.client.connect()
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1.0 / 0.6))
            machine = self._any()
            if self.rng.random() < 0.5:
                await self._change(self._of_columns())
            else:
                await self._own_table(machine)

    def _any(self) -> Machine:
        return self.rng.choice(list(self.cluster.machines.values()))

    def _of_columns(self) -> Command:
        name = self.rng.choice(("x", "y"))
        table = self.client.catalog.find(ROWS)
        there = table is not None and any(column.name == name for column in table.columns)
        if there != (self.rng.random() < 0.1):
            return AlterTable("sim", "rows", drop=[name])
        return AlterTable("sim", "rows", add=[ColumnSpec(name, "text")])

    async def _own_table(self, machine: Machine) -> None:
        if not self._exists:
            columns = [ColumnSpec("p", "bigint"), ColumnSpec("a", "text")]
            change = await self._change(CreateTable("sim", self.table, columns, ["p"], tablets=2))
            if change.version:
                self._exists = True
            elif not change.refused:
                self._exists = None
            return
        await self.client.refresh(machine)
        table = self.client.catalog.find(f"sim.{self.table}")
        if table is not None and self.rng.random() < 0.5:
            column = table.of_kind(ColumnKind.REGULAR)[0].id
            rows = [Row(table.id, number) for number in range(4)]
            await self.client.put_row(machine, table, self.rng.choice(rows), [column])
            await self.client.get(machine, table, rows, Level.QUORUM)
            return
        change = await self._change(DropTable("sim", self.table))
        if change.version:
            self._exists = False
        elif not change.refused:
            self._exists = None

    async def _change(self, command: Command) -> Change:
        world = self.cluster.world
        change = Change(command, world.now)
        self.changes.append(change)
        body = protocol.encode(ChangeRequest(commands.encode(command), f"{self.table} {len(self.changes)}"))
        for _ in range(_ATTEMPTS):
            machine = self._any()
            try:
                answer = await self.client.ask(machine, protocol.CHANGE, body, _ASK_S)
            except RpcError as error:
                if error.code in _DEFINITE:
                    change.refused = f"{error.code}: {error.text}"
                    break
            except NetError:
                pass
            else:
                reply: ChangeReply = protocol.decode_change_reply(answer)
                change.version = reply.catalog_version
                break
            await asyncio.sleep(self.rng.random() * 0.5)
        change.returned_s = world.now
        if change.version:
            self.world_tell(command, change.version)
        await self.client.refresh(self._any())
        return change

    def world_tell(self, command: Command, version: int) -> None:
        self.cluster.world.tell(self.client.name, f"{type(command).__name__} is version {version} of the schema")

    def judge(self) -> None:
        """What it saw of its own table, and whether that is there in the end."""
        Judge(self.history).judge()
        machine = next(iter(self.cluster.machines.values()))
        assert machine.instance is not None
        there = machine.instance.watching.tables.catalog.find(f"sim.{self.table}") is not None
        if self._exists is not None and there != self._exists:
            raise Violation(f"sim.{self.table} is {'' if there else 'not '}there, but its owner was told otherwise")
