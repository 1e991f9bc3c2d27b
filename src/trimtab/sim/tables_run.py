"""One seed of the tables scenario from its plan to its verdict: formation, chaos, healing, agreement, judgement."""

from __future__ import annotations

import asyncio
from typing import Any

from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, Command, CreateKeyspace, CreateTable
from trimtab.net.errors import NetError, RpcError
from trimtab.node import failpoints
from trimtab.node.instance import Instance
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeRequest
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.tables_faults import TablesNemesis
from trimtab.sim.tables_history import Outcome, Row, TablesHistory
from trimtab.sim.tables_judge import Judge, judge_batches
from trimtab.sim.tables_plan import WILD_CLOCKS, TablesPlan
from trimtab.sim.tables_replicas import differing, owed
from trimtab.sim.tables_schema import SchemaChanger, SchemaWatch
from trimtab.sim.tables_workload import FLAT, LEDGER, ROWS, Shared, TablesClient
from trimtab.sim.world import SimulationFailure, World
from trimtab.tablets import move_protocol
from trimtab.tablets.consistency import Level
from trimtab.tablets.move_protocol import SettingsRequest
from trimtab.tablets.rebalance_settings import RebalanceSettings

CHECK_EVERY_S = 0.25
MAX_EVENTS = 3_000_000
LAST_S = 30.0
READ_S = 20.0
_ATTEMPTS = 8


def run(world: World, plan: TablesPlan) -> str:
    """A sentence about the run. SimulationFailure: an invariant does not hold, or the cluster did not converge."""
    try:
        return _run(world, plan)
    except Violation as violation:
        raise SimulationFailure(violation.why, violation.evidence) from violation
    finally:
        failpoints.disarm()


def _run(world: World, plan: TablesPlan) -> str:
    cluster = GovernedCluster(world, plan.topology.timing, plan.topology.limits)

    def began(_machine: Machine, instance: Instance) -> None:
        instance.holdings.folding.pace = plan.pace
        instance.holdings.shelf.flushing.bounds = plan.flush

    cluster.on_began = began
    for number, peers in enumerate(plan.topology.peers):
        cluster.add(list(peers), failure_domain=plan.topology.domains[number]).start()
    cluster.settle()
    _balance_nothing(cluster)
    make_tables(cluster, plan)
    history = TablesHistory(plan.replication, skew_s=plan.topology.timing.max_skew_ms / 1000)
    shared = Shared()
    clients = [TablesClient(cluster, plan, number, history, shared) for number in range(1, plan.clients + 1)]
    watch = SchemaWatch(cluster)
    changers = [SchemaChanger(cluster, plan, number, watch) for number in range(1, plan.schema_clients + 1)]
    nemesis = TablesNemesis(cluster, plan, [client.process for client in clients])
    nemesis.begin()
    busy: list[TablesClient | SchemaChanger] = [*clients, *changers]
    for each in busy:
        each.start()
    watch.start()
    world.run(world.now + plan.chaos_s)
    world.tell("nemesis", "everything heals")
    nemesis.heal()
    for each in busy:
        each.stopped = True
    healed_s = world.now
    for each in busy:
        assert each.task is not None
        world.run_until_done(each.task, world.now + LAST_S)
    until(cluster, cluster.trouble, healed_s + plan.converge_s, "the healed cluster did not converge")
    until(cluster, lambda: owed(cluster), healed_s + plan.converge_s, "what replicas missed is still owed")
    until(cluster, lambda: differing(cluster), world.now + plan.converge_s, "replicas do not converge")
    agreed_s = world.now - healed_s
    read_all(cluster, plan, clients[0], shared)
    if (why := differing(cluster)) is not None:
        raise SimulationFailure(f"replicas differ again: {why}")
    watch.judge(changers)
    Judge(history).judge()
    ledger = clients[0].catalog.table(LEDGER)
    last = [read for read in history.reads if read.final]
    found = {row: cells for read in last for row, cells in read.rows.items() if row.table == ledger.id}
    judge_batches(shared.batches, found, whole=not plan.forgetful and WILD_CLOCKS not in plan.rates)
    return (
        f"agreed {agreed_s:.2f} s after healing; {history.count(Outcome.ACKED)} writes acknowledged, "
        f"{history.count(Outcome.REFUSED)} refused, {history.count(Outcome.UNKNOWN)} unknown, "
        f"{len(history.reads)} reads, {len(shared.batches)} batches; schema at version {watch.version}; "
        f"{len(cluster.checks.leaders)} leaders"
    )


def _balance_nothing(cluster: GovernedCluster) -> None:
    """Nobody copies replicas in this scenario: a tablet that began to move would never arrive."""
    machine = next(iter(cluster.machines.values()))
    body = move_protocol.encode(SettingsRequest(RebalanceSettings(enabled=False)))
    try:
        cluster.do(cluster.ask(machine, move_protocol.SETTINGS, body, cluster.world.rng("balance nothing"), 10.0))
    except (NetError, TimeoutError) as error:
        raise SimulationFailure(f"in a healthy cluster balancing could not be switched off: {error}") from error


def make_tables(cluster: GovernedCluster, plan: TablesPlan) -> None:
    replication: dict[str, int] | int = plan.replication if len(plan.replication) > 1 else plan.replication["dc1"]
    options: dict[str, Any] = {"gc_grace_s": plan.gc_grace_s, "history_s": plan.history_s}
    key = [ColumnSpec("p", "bigint"), ColumnSpec("c", "bigint")]
    cells = [ColumnSpec("a", "text"), ColumnSpec("b", "text")]
    wanted: list[Command] = [
        CreateKeyspace("sim", replication),
        CreateTable("sim", "flat", [key[0], *cells], ["p"], options=options, tablets=plan.tablets),
        CreateTable("sim", "rows", [*key, *cells], ["p"], [("c", False)], options=options, tablets=plan.tablets),
        CreateTable("sim", "ledger", [*key, cells[0]], ["p"], [("c", True)], options=options, tablets=plan.tablets),
    ]
    for number, command in enumerate(wanted):
        body = protocol.encode(ChangeRequest(commands.encode(command), f"first {number}"))
        machine = list(cluster.machines.values())[number % plan.machines]
        rng = cluster.world.rng(f"first/{number}")
        try:
            cluster.do(cluster.ask(machine, protocol.CHANGE, body, rng, 10.0))
        except (NetError, TimeoutError) as error:
            raise SimulationFailure(f"in a healthy cluster the schema could not be changed: {error}") from error


def until(cluster: GovernedCluster, trouble: Any, until_s: float, what: str) -> None:
    world = cluster.world
    while (why := trouble()) is not None:
        if world.now >= until_s:
            raise SimulationFailure(f"{what}: {why}", cluster.checks.describe())
        if world.events > MAX_EVENTS:
            raise SimulationFailure(f"more than {MAX_EVENTS} events: something is busy without end")
        world.run(world.now + CHECK_EVERY_S)


def read_all(cluster: GovernedCluster, plan: TablesPlan, client: TablesClient, shared: Shared) -> None:
    """Every row through every member, at QUORUM and at ALL, and what each holds by itself."""

    async def read() -> str:
        client.connect()
        for machine in cluster.taking_part():
            for _ in range(_ATTEMPTS):
                if await client.refresh(machine):
                    break
                await asyncio.sleep(CHECK_EVERY_S)
            for table in (FLAT, ROWS, LEDGER):
                for level in (Level.QUORUM, Level.ALL, Level.ONE):
                    rows = _rows_of(plan, client.catalog.table(table).id, table, shared)
                    for _ in range(_ATTEMPTS):
                        why = await client.scan(machine, client.catalog.table(table), rows, level, final=True)
                        if not why:
                            break
                        await asyncio.sleep(CHECK_EVERY_S)
                    else:
                        return f"{table} can't be read through {machine.name} at {level.name}: {why}"
        return ""

    try:
        why = cluster.world.run_until_done(client.process.spawn(read()), cluster.world.now + READ_S)
    except (TimeoutError, RpcError) as error:
        raise SimulationFailure(f"after all had healed, tables could not be read: {error}") from error
    if why:
        raise SimulationFailure(f"after all had healed, {why}")


def _rows_of(plan: TablesPlan, table: int, name: str, shared: Shared) -> list[Row]:
    if name == FLAT:
        return [Row(table, id) for id in range(plan.partitions * plan.rows)]
    if name == LEDGER:
        return [part.row for batch in shared.batches for part in batch.parts if hasattr(part, "row")]
    return [Row(table, p, c) for p in range(plan.partitions) for c in range(plan.rows)]
